"""
Frames in bulk, over plain sockets: a sender that costs next to nothing, and a receiver that counts and throws away.

Both speak just enough of the protocol: HELLO out, HELLO in. The frames are made once and sent over and over, so the hop
between them is what is measured.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from uuid import uuid4

from broker.wire.frame import Header, Hello, encode_dialog, encode_link
from broker.wire.layout import Flag, Kind

FRAMES = 50_000  # different frames made for a measurement; enough that none is still held when its copy comes
WRITE_BYTES = 256 * 1024


def frames(services: Sequence[str], payload: int, *, count: int = FRAMES) -> bytes:
    """Frames to these services in turn, in an order that a hash decides."""
    body = os.urandom(payload)
    conversations = [(service, uuid4().bytes, uuid4().bytes) for service in services]
    made = []
    for number in range(count):
        service, conversation, instance = conversations[hash((number, 7)) % len(conversations)]
        header = Header(
            kind=Kind.MESSAGE,
            flags=Flag.LAST_FRAGMENT,
            message_id=number.to_bytes(16, "big"),
            conversation_id=conversation,
            to_service=service,
            from_service="//bench/initiator",
            from_broker_instance=uuid4().bytes,
            to_broker_instance=instance,
            sequence_number=number,
        )
        made.append(encode_dialog(header, body))
    return b"".join(made)


def hello() -> bytes:
    """A HELLO of a stranger without addresses."""
    return encode_link(Hello(instance=uuid4().bytes, arbitration=uuid4().bytes, name="bench"))


class Receiver:
    """
    Listens on `ports`, says HELLO where `speaks`, and reads until told to stop.

    Shape: `received` bytes, HELLO frames included; with `reads` False it never reads.
    """

    def __init__(self, ports: Sequence[int], *, speaks: bool = True, reads: bool = True) -> None:
        self.received = 0
        self._speaks = speaks
        self._reads = reads
        self._selector = selectors.DefaultSelector()
        self._is_stopping = False
        for port in ports:
            listener = socket.create_server(("127.0.0.1", port))
            self._selector.register(listener, selectors.EVENT_READ, "listener")
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close everything."""
        self._is_stopping = True
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        for sock in self._open:
            sock.close()

    def _run(self) -> None:
        buffer = bytearray(1 << 20)
        while not self._is_stopping:
            for key, _ in self._selector.select(0.05):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if key.data == "listener":
                    opened, _ = sock.accept()
                    if self._speaks:
                        opened.sendall(hello())
                    self._open.append(opened)
                    if self._reads:
                        self._selector.register(opened, selectors.EVENT_READ, "link")
                    continue
                size = sock.recv_into(buffer)
                if not size:
                    self._selector.unregister(sock)
                self.received += size


class Sender:
    """One connection that writes the same bytes over and over."""

    def __init__(self, port: int, *, speaks: bool = True) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        if speaks:
            self._sock.sendall(hello())

    def send(self, data: bytes, *, rounds: int) -> None:
        """Write all of it so many times."""
        view = memoryview(data)
        for _ in range(rounds):
            self._sock.sendall(view)

    def flood(self, data: bytes, *, seconds: float) -> int:
        """Write while the other side takes it, for so long; bytes written."""
        view = memoryview(data)
        deadline = time.monotonic() + seconds
        self._sock.settimeout(0.2)
        sent = at = 0
        while time.monotonic() < deadline:
            try:
                size = self._sock.send(view[at : at + WRITE_BYTES])
            except TimeoutError:
                continue
            sent += size
            at = (at + size) % len(view)
        return sent

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

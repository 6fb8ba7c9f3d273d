"""
Two ends that the load generator does not have: one that never reads, and one that writes for a time.

Both speak just enough of the protocol to be let in: HELLO out.
"""

import socket
import threading
import time
from contextlib import suppress

from bench.generator import frames, hello

__all__ = ["Sender", "SilentReceiver", "frames"]

WRITE_BYTES = 256 * 1024
STALLED_SECONDS = 0.2  # a socket that takes nothing for so long is asked again


class SilentReceiver:
    """Listens on `port`, says HELLO to whoever connects, and reads nothing."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Close everything."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for sock in (*self._open, self._listener):
            sock.close()

    def _run(self) -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                opened, _ = self._listener.accept()
                opened.sendall(hello())
                self._open.append(opened)


class Sender:
    """One connection that writes the same bytes over and over."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port))
        self._sock.sendall(hello())

    def flood(self, data: bytes, *, seconds: float) -> None:
        """Write while the other side takes it, for so long."""
        view = memoryview(data)
        deadline = time.monotonic() + seconds
        self._sock.settimeout(STALLED_SECONDS)
        at = 0
        while time.monotonic() < deadline:
            with suppress(TimeoutError):
                at = (at + self._sock.send(view[at : at + WRITE_BYTES])) % len(view)

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

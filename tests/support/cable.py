"""
A cable between two daemons on loopback that can be cut, and that writes down what passes.

It is a port: whoever connects to it is joined to another port. What is remembered of a frame is when it passed, which
way, its kind, and what a PROBE_REPLY said; all of it in the order in which it passed.
"""

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass
from enum import Enum
from itertools import count
from types import TracebackType
from typing import Self

from broker.protocol.decoder import FrameDecoder
from broker.protocol.frame import ProbeReply, decode_link
from broker.protocol.layout import FIRST_DIALOG_KIND, FrameKind
from examples.demo.topology import free_port

MAX_FRAME = 1 << 20
RESET = struct.pack("ii", 1, 0)
WANTED = frozenset({FrameKind.PROBE, FrameKind.PROBE_REPLY, FrameKind.REJECTED})


class Cut(Enum):
    """How a cable is cut. BROKEN: every connection is reset, and so is each new one. SILENT: nothing moves."""

    BROKEN = "broken"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Passage:
    """
    One frame. Shape: `at` monotonic seconds; `link` a number for each connection; `is_onward` from whoever connected;
    `role` and `epoch` of a PROBE_REPLY.
    """

    at: float
    link: int
    is_onward: bool
    kind: int
    role: str = ""
    epoch: int = 0

    @property
    def is_dialog(self) -> bool:
        return self.kind >= FIRST_DIALOG_KIND


class Cable:
    """
    Shape: `to` the port that it leads to, of `to_host`, to be set before it is used; `port` where it begins; `passed`
    every frame of interest so far: dialog frames, PROBE, PROBE_REPLY, REJECTED.
    """

    def __init__(self) -> None:
        self.to = 0
        self.to_host = "127.0.0.1"
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.passed: list[Passage] = []
        self._broken = False
        self._whole = threading.Event()
        self._whole.set()
        self._lock = threading.Lock()
        self._ends: set[socket.socket] = set()
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)
        self._links = count(1)
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, how: Cut) -> None:
        """Nothing gets through from now on."""
        if how is Cut.SILENT:
            with self._lock:  # nobody is about to pass
                self._whole.clear()
            return
        self._broken = True
        with self._lock:
            for end in self._ends:
                _reset(end)

    def mend(self) -> None:
        """Everything gets through again."""
        self._broken = False
        self._whole.set()

    def close(self) -> None:
        """The end of it all."""
        self._is_closed = True
        self.cut(Cut.BROKEN)
        self._whole.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                came, _ = self._listener.accept()
            except OSError:
                return
            if self._broken:
                _reset(came)
                continue
            try:
                onward = socket.create_connection((self.to_host, self.to))
            except OSError:
                _reset(came)
                continue
            with self._lock:
                self._ends |= {came, onward}
            link = next(self._links)
            for ends in ((came, onward, True), (onward, came, False)):
                thread = threading.Thread(target=self._move, args=(*ends, link), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _move(self, near: socket.socket, far: socket.socket, is_onward: bool, link: int) -> None:  # noqa: FBT001 - as Cable calls it
        decoder = FrameDecoder(MAX_FRAME)
        with contextlib.suppress(OSError):
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := near.recv(1 << 16):
                self._pass(decoder.feed(data), link, is_onward=is_onward)
                if self._broken:
                    break
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)
        with self._lock:
            self._ends -= {near, far}
        if self._broken:
            _reset(near)
            _reset(far)
        near.close()

    def _pass(self, frames: list[bytes], link: int, *, is_onward: bool) -> None:
        """Wait until the cable is whole, and note what passes; behind a silent cut nothing is noted any more."""
        while True:
            self._whole.wait()
            with self._lock:
                if self._whole.is_set():
                    if not self._broken:
                        self._note(frames, link, is_onward=is_onward)
                    return

    def _note(self, frames: list[bytes], link: int, *, is_onward: bool) -> None:
        now = time.monotonic()
        for frame in frames:
            kind = frame[4]
            if kind == FrameKind.PROBE_REPLY:
                reply = decode_link(frame)
                assert isinstance(reply, ProbeReply)
                self.passed.append(Passage(now, link, is_onward, kind, reply.role, reply.epoch))
            elif kind in WANTED or kind >= FIRST_DIALOG_KIND:
                self.passed.append(Passage(now, link, is_onward, kind))


def _reset(sock: socket.socket) -> None:
    """Break a connection off; whoever waits for it in another thread hears of it."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()

"""
Sockets that are played, on a loop whose time is virtual: what a link does, without a network and without waiting.

The loop knows a played socket's callbacks instead of its descriptor. A test says what the peer does (`feed`, `end`,
`fail`), how much the socket takes (`room`), and reads what was written.
"""

import errno
import os
from collections.abc import Callable
from typing import Any

from tests.support.virtual_time import VirtualLoop


class PlayedLoop(VirtualLoop):
    """Virtual time, and readiness as the test says. Shape: `readers` and `writers` by played socket."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[PlayedSocket, Callable[[], None]] = {}
        self.writers: dict[PlayedSocket, Callable[[], None]] = {}

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        assert not fd.is_closed
        self.readers[fd] = callback

    def add_writer(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        assert not fd.is_closed
        self.writers[fd] = callback

    def remove_reader(self, fd: Any) -> bool:
        assert not fd.is_closed
        return self.readers.pop(fd, None) is not None

    def remove_writer(self, fd: Any) -> bool:
        assert not fd.is_closed
        return self.writers.pop(fd, None) is not None


class PlayedSocket:
    """
    A connected socket whose other end is the test.

    Shape: `written` what was sent so far; `room` bytes that it still takes; `shut` whether our direction was closed;
    `problem` an errno that the next call fails with.
    """

    def __init__(self, loop: PlayedLoop) -> None:
        self.room = 1 << 30
        self.written = b""
        self.shut = False
        self.is_closed = False
        self.problem = 0
        self._loop = loop
        self._inbound = b""
        self._has_ended = False

    # --- what the test does ---

    def feed(self, data: bytes, *, piece: int = 1 << 30) -> None:
        """The peer has sent this; it can be read in pieces of so many bytes, as long as somebody reads."""
        for start in range(0, len(data), piece):
            self._inbound += data[start : start + piece]
            self.read()

    def end(self) -> None:
        """The peer has closed its direction."""
        self._has_ended = True
        self.read()

    def fail(self, problem: int = errno.ECONNRESET) -> None:
        """The peer has reset the connection."""
        self.problem = problem
        self.read()

    def read(self) -> None:
        """It is readable, and whoever wants to read may do so."""
        if self in self._loop.readers:
            self._loop.readers[self]()

    def breathe(self, room: int = 1 << 30) -> None:
        """It takes more."""
        self.room = room
        if self in self._loop.writers:
            self._loop.writers[self]()

    # --- what a link calls ---

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - as the standard library has it
        assert not flag

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._maybe_fail()

    def recv_into(self, buffer: memoryview) -> int:
        self._maybe_fail()
        if not self._inbound and not self._has_ended:
            raise BlockingIOError
        size = min(len(buffer), len(self._inbound))
        buffer[:size] = self._inbound[:size]
        self._inbound = self._inbound[size:]
        return size

    def send(self, data: bytes | bytearray | memoryview) -> int:
        self._maybe_fail()
        assert not self.shut
        if not self.room:
            raise BlockingIOError
        sent = min(len(data), self.room)
        self.room -= sent
        self.written += bytes(data[:sent])
        return sent

    def shutdown(self, how: int) -> None:
        self._maybe_fail()
        assert not self.shut
        self.shut = True

    def close(self) -> None:
        assert self not in self._loop.readers
        assert self not in self._loop.writers
        self.is_closed = True

    def _maybe_fail(self) -> None:
        assert not self.is_closed
        if self.problem:
            problem, self.problem = self.problem, 0
            raise OSError(problem, os.strerror(problem))

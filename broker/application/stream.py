"""
The body of a large received message as a binary file, read a fragment at a time.

Its fragments are rows that RECEIVE marked as received; the daemon removes them by and by after the commit. So a body is
read before the transaction ends. Where each call is a transaction of its own, it is copied to a file without a name.
"""

from __future__ import annotations

import io
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from broker.application.transaction import look
from broker.errors import StoreUnavailableError
from broker.store.rows import ask

BUFFER_BYTES = 64 * 1024  # of a reader beside the fragment that it has
_FRAGMENT = (
    "SELECT body FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number = ? AND fragment_number = ?"
)
_LENGTH = (
    "SELECT sum(length(body)) FROM broker_fragment"
    " WHERE endpoint_id = ? AND message_sequence_number = ? AND fragment_number < ?"
)


class Copy:
    """A file without a name, closed with the last message that has it."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True, slots=True)
class LargeBody:
    """
    The fragments of one message.

    Shape: `count` of its fragments, numbered from 0; the first one begins with the envelope. `copy` has the body when
    the fragments are gone.
    """

    db: sqlite3.Connection
    endpoint_id: int
    sequence: int
    count: int
    copy: Copy | None = None

    def open(self) -> io.BufferedReader:
        """The body from its beginning. Raises, also while it is read: ValueError, the transaction is over."""
        raw = _Fragments(self) if self.copy is None else _CopyReader(self.copy)
        return io.BufferedReader(raw, BUFFER_BYTES)

    def length(self) -> int:
        """Bytes of the body; no fragment but the first is read. Raises: ValueError, the transaction is over."""
        if self.copy is not None:
            return os.fstat(self.copy.descriptor).st_size
        from broker.protocol.frame import decode_envelope  # noqa: PLC0415 - slow to import: see broker.cli.group

        first = self.fragment(0)
        total = ask(self.db, _LENGTH, (self.endpoint_id, self.sequence, self.count)).fetchone()[0]
        return int(total) - len(first) + len(decode_envelope(first)[1])

    def fragment(self, number: int) -> bytes:
        """One fragment as it came."""
        key = (self.endpoint_id, self.sequence, number)
        row = look(self.db, lambda: ask(self.db, _FRAGMENT, key).fetchone())
        if row is None:
            raise ValueError("the body of a large message is read before the transaction that received it ends")
        body: bytes = row[0]
        return body

    def copied(self) -> LargeBody:
        """
        The same body in a file without a name, which lasts as long as somebody has it.

        Raises:
            StoreUnavailableError: there is no room for it where temporary files are.
        """
        try:
            with tempfile.TemporaryFile() as file:
                for piece in self.pieces():
                    file.write(piece)
                file.flush()
                copy = Copy(os.dup(file.fileno()))
        except OSError as error:
            problem = f"a body cannot be kept in a temporary file: {error.strerror or error}"
            raise StoreUnavailableError(tempfile.gettempdir(), problem) from error
        return LargeBody(self.db, self.endpoint_id, self.sequence, self.count, copy)

    def pieces(self) -> Iterator[bytes]:
        """The body by its fragments."""
        from broker.protocol.frame import decode_envelope  # noqa: PLC0415 - slow to import: see broker.cli.group

        yield decode_envelope(self.fragment(0))[1]
        for number in range(1, self.count):
            yield self.fragment(number)


class _Fragments(io.RawIOBase):
    """Reads the rows; has one fragment at a time."""

    def __init__(self, body: LargeBody) -> None:
        self._pieces = body.pieces()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class _CopyReader(io.RawIOBase):
    """Reads a file that others read too, each at a place of its own."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = os.pread(self._copy.descriptor, len(buffer), self._at)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

"""
Bodies that an application makes while they are read, all of them read before the database is touched.

A generator or a file-like object is the application's code: it may use the same connection, commit, or even send on the
same dialog. So nothing of it runs inside a call of several writes. Up to BATCH_BYTES stay in memory, the rest waits in
a file without a name.
"""

from __future__ import annotations

import io
import marshal
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import IO, Self, TypeAlias

from broker.errors import StoreUnavailableError

BATCH_BYTES = 1024 * 1024  # held in memory at once
_RECORD_BYTES = 100  # of a record beside its body, about
_SIZE_BYTES = 8  # before each batch of the file

_Record: TypeAlias = tuple[str, bytes, bool]  # type, body or part of one, whether the message is complete with it


class Spool:
    """Messages in order. Used as a context, at whose end the file is gone."""

    def __init__(self) -> None:
        self._batch: list[_Record] = []
        self._batch_bytes = 0
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def put(self, type_name: str, data: bytes | Iterator[bytes]) -> None:
        """
        One more message: its body, or the parts of a large one, which are read now.

        Raises:
            StoreUnavailableError: there is no room for it where temporary files are.
        """
        if isinstance(data, bytes):
            self._add(type_name, data, is_last=True)
            return
        for part in data:
            self._add(type_name, part, is_last=False)
        self._add(type_name, b"", is_last=True)

    def messages(self) -> Iterator[tuple[str, bytes | Iterator[bytes]]]:
        """Type and body of each, as they were put. The parts of a large one are read before the next is asked for."""
        records = self._records()
        for type_name, data, is_last in records:
            yield type_name, data if is_last else _parts(data, records)

    def _add(self, type_name: str, data: bytes, *, is_last: bool) -> None:
        self._batch.append((type_name, data, is_last))
        self._batch_bytes += len(data) + _RECORD_BYTES
        if self._batch_bytes >= BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        written = marshal.dumps(self._batch)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed at the end of the context
            self._file.write(len(written).to_bytes(_SIZE_BYTES))
            self._file.write(written)
            self._file.flush()
        except OSError as error:
            problem = f"a body cannot be kept in a temporary file: {error.strerror or error}"
            raise StoreUnavailableError(tempfile.gettempdir(), problem) from error
        self._batch, self._batch_bytes = [], 0

    def _records(self) -> Iterator[_Record]:
        if self._file is not None:
            self._file.seek(0)
            while size := self._file.read(_SIZE_BYTES):
                yield from marshal.loads(self._file.read(int.from_bytes(size)))  # noqa: S302 - written above
        yield from self._batch


@contextmanager
def settled(body: object, parts: Iterator[bytes]) -> Iterator[Iterator[bytes]]:
    """
    The parts of a large body so that reading them runs none of the application's code.

    Bytes, text and files on a disk are read as they are, all else is read before.
    """
    if isinstance(body, bytes | bytearray | memoryview | str) or _is_real_file(body):
        yield parts
        return
    with Spool() as spool:
        spool.put("", parts)
        _, read = next(spool.messages())
        assert not isinstance(read, bytes)
        yield read


def _is_real_file(body: object) -> bool:
    """Whether its bytes are there already: of a file on a disk or in memory, not of a pipe."""
    raw = body.raw if type(body) in {io.BufferedReader, io.BufferedRandom} else body  # type: ignore[attr-defined]
    if isinstance(raw, io.FileIO) and type(raw) is io.FileIO:
        return stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
    return type(raw) is io.BytesIO


def _parts(first: bytes, records: Iterator[_Record]) -> Iterator[bytes]:
    yield first
    for _, data, is_last in records:
        if is_last:
            return
        yield data

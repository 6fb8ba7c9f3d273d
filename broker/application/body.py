"""
What applications give as a body: bytes, text, a binary file, or pieces of bytes; read in bounded memory.

Up to LARGE_BYTES a body is one value; above, parts of PART_BYTES that are read one by one, so that nobody ever holds
it whole. Only as much as tells the two apart is read before the caller goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Protocol, TypeAlias, runtime_checkable

from broker.application.name import check_text
from broker.errors import ConversationError
from broker.store.large import LARGE_BYTES, PART_BYTES

_EXPECTED = "a message body is bytes, str, a binary file or an iterable of bytes"

Bytes: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class BinaryFile(Protocol):
    """Whatever `open(path, "rb")`, a socket's file or a pipe gives."""

    def read(self, size: int, /) -> bytes | None:
        """At most so many bytes; none at the end."""


Body: TypeAlias = Bytes | str | BinaryFile | Iterable[Bytes]


def read_body(body: Body) -> bytes | Iterator[bytes]:
    """
    A body as one value, or the parts of a large one.

    Returns:
        Bytes, at most LARGE_BYTES; or an iterator over parts of PART_BYTES, the last one shorter, which reads on.

    Raises:
        ConversationError: 8433, no body at all, or text that cannot be written as UTF-8.
        TypeError: this is no body; for a file or an iterable perhaps only while it is read.
    """
    if isinstance(body, str):
        check_text(body, "the message body", 8433)
        body = body.encode()
    if isinstance(body, bytes) and len(body) <= LARGE_BYTES:
        return body
    parts = _parts(_pieces(body))
    head = list(islice(parts, LARGE_BYTES // PART_BYTES + 1))
    if sum(map(len, head)) <= LARGE_BYTES:
        return b"".join(head)
    return chain(head, parts)


def _pieces(body: Body | None) -> Iterator[memoryview]:
    """A body in pieces of any length."""
    if body is None:
        raise ConversationError(8433, 'the message body may not be None; an empty one is b""')
    if isinstance(body, bytes | bytearray | memoryview):
        return iter((_view(body),))
    if isinstance(body, Mapping | set | frozenset):  # iterables too, but not of the pieces of a body
        raise TypeError(f"{_EXPECTED}, not {type(body).__name__}; a structure is sent as text, as of json.dumps")
    if isinstance(body, BinaryFile):
        read: Callable[[], bytes | None] = partial(body.read, PART_BYTES)
        return map(_view, iter(read, b""))
    if isinstance(body, Iterable):
        return map(_view, body)
    raise TypeError(f"{_EXPECTED}, not {type(body).__name__}")


def _view(piece: object) -> memoryview:
    if isinstance(piece, bytes | bytearray | memoryview):
        return memoryview(piece).cast("B") if memoryview(piece).contiguous else memoryview(bytes(piece))
    hint = "; open the file in binary mode" if isinstance(piece, str) else ""
    raise TypeError(f"the pieces of a message body are bytes, not {type(piece).__name__}{hint}")


def _parts(pieces: Iterator[memoryview]) -> Iterator[bytes]:
    """The same bytes in parts of PART_BYTES, the last one shorter."""
    gathered = bytearray()
    for piece in pieces:
        at = 0
        while at < len(piece):
            taken = piece[at : at + PART_BYTES - len(gathered)]
            gathered += taken
            at += len(taken)
            if len(gathered) == PART_BYTES:
                yield bytes(gathered)
                gathered.clear()
    if gathered:
        yield bytes(gathered)

"""
The bodies and headers of messages, as applications give and get them, in bounded memory.

A body is bytes, text, a binary file, or an iterable of bytes. Up to LARGE_BYTES it is one value; above, parts of
PART_BYTES that are read one by one, so that it is never in memory as a whole. A large body that was received is a
binary file, which reads the rows of its fragments: RECEIVE marks them as received, and the daemon removes them after
the commit. So a body is read before the transaction ends. Where each call is a transaction by itself, it is copied to a
file without a name.

Headers are text by name that travels along with the body, for trace context and the like. They are kept as a JSON
object in the row of the message and travel in its envelope, so where a dialog is sealed they are sealed as well. The
context of a span of OpenTelemetry at work is added. With a `traceparent` that is sampled every frame of the message is
followed on its path (the TRACE flag).

Sources: docs/protocol.md, section 4, "MESSAGE"; W3C Trace Context.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias, runtime_checkable

from broker.client.arguments import check_text
from broker.client.transaction import look
from broker.errors import ConversationError, StoreUnavailableError
from broker.protocol.envelope import (
    TRACE_PARENT,
    TRACE_STATE,
    are_bounded,
    header_bytes,
    maybe_trace_parent,
    split_envelope,
)
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, Flag
from broker.store.sqlite.schema import LARGE_BYTES, PART_BYTES
from broker.store.sqlite.transaction import ask

BUFFER_BYTES = 64 * 1024  # of a reader, besides the fragment that it has
OPENTELEMETRY = "opentelemetry.trace"  # an application that has a span has imported it

_EXPECTED = "a message body is bytes, str, a binary file or an iterable of bytes"
_FRAGMENT = (
    "SELECT body FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number = ? AND fragment_number = ?"
)
_LENGTH = (
    "SELECT sum(length(body)) FROM broker_fragment"
    " WHERE endpoint_id = ? AND message_sequence_number = ? AND fragment_number < ?"
)
_TRACE = int(Flag.TRACE)
_WITHOUT_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR}  # of a file system that makes no nameless files

Bytes: TypeAlias = bytes | bytearray | memoryview
Headers: TypeAlias = Mapping[str, str]
"""Text by name."""


@runtime_checkable
class BinaryFile(Protocol):
    """What `open(path, "rb")`, a socket's file or a pipe is."""

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
        TypeError: this is not a body; for a file or an iterable perhaps only while it is read.
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


# --- headers ---


class Carried(NamedTuple):
    """Headers as a row of the transmission queue has them."""

    text: str | None  # JSON
    flags: int  # of frames


NOTHING = Carried(None, 0)


def carried(headers: Headers | None) -> Carried:
    """
    The headers that a message carries: these, and the context of the span at work where they have no `traceparent`.

    Raises:
        ConversationError: 8412, these are not headers, or too many, or too long together.
    """
    every = joined(headers)
    if not every:
        return NOTHING
    parent = maybe_trace_parent(every.get(TRACE_PARENT))
    flags = _TRACE if parent is not None and parent.is_sampled else 0
    return Carried(json.dumps(dict(every), ensure_ascii=False), flags)


def joined(headers: Headers | None) -> Headers | None:
    """
    These headers, and, where they have no `traceparent` and it fits, the context of the span at work.

    Raises:
        ConversationError: as `carried`.
    """
    checked = None if headers is None else _checked(headers)
    if OPENTELEMETRY not in sys.modules or (checked is not None and TRACE_PARENT in checked):
        return checked
    more = (checked or {}) | current()
    return more if are_bounded(more) else checked


def current() -> dict[str, str]:
    """The context of the span at work, as headers; none without the API of OpenTelemetry, or without a span."""
    if OPENTELEMETRY not in sys.modules:
        return {}
    from opentelemetry.trace import get_current_span  # noqa: PLC0415 - imported by the application, or not at all

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    headers = {TRACE_PARENT: f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"}
    if context.trace_state:
        headers[TRACE_STATE] = context.trace_state.to_header()
    return headers


def context_of(headers: Headers) -> Any:
    """
    The context that a message carries, for `context=` of a span.

    Returns:
        An `opentelemetry.context.Context`; None when the message carries none, or the API is not installed.
    """
    if maybe_trace_parent(headers.get(TRACE_PARENT)) is None:
        return None
    try:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return TraceContextTextMapPropagator().extract(dict(headers))


def headers_of(text: str | None) -> dict[str, str]:
    """The headers in a row of a message."""
    headers: dict[str, str] = {} if text is None else json.loads(text)
    return headers


def _checked(headers: Headers) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise ConversationError(8412, f"headers have to be a mapping of text to text, not {type(headers).__name__}")
    for name, value in headers.items():
        if not check_text(name, "a header's name"):
            raise ConversationError(8412, "a header's name is empty")
        check_text(value, f"the header {name!r:.80}")
    if not are_bounded(headers):
        problem = f"a message has at most {HEADERS_MAX} headers, of {HEADERS_MAX_BYTES} bytes together"
        raise ConversationError(8412, f"{problem}; these are {len(headers)}, of {header_bytes(headers)} bytes")
    return dict(headers)


# --- large bodies that were received ---


class Copy:
    """A file without a name, closed with the last message that has it."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


class LargeBody:
    """
    The fragments of one message, numbered from 0; the first one begins with the envelope.

    `copy` has the body when the fragments are gone.
    """

    __slots__ = ("copy", "count", "db", "endpoint_id", "sequence")

    def __init__(
        self, db: sqlite3.Connection, endpoint_id: int, sequence: int, count: int, copy: Copy | None = None
    ) -> None:
        self.db = db
        self.endpoint_id = endpoint_id
        self.sequence = sequence
        self.count = count
        self.copy = copy

    def open(self) -> io.BufferedReader:
        """The body from its beginning. Raises, also while it is read: ValueError, the transaction is over."""
        return io.BufferedReader(_Pieces(self.pieces()), BUFFER_BYTES)

    def length(self) -> int:
        """Bytes of the body; no fragment but the first is read. Raises: ValueError, the transaction is over."""
        if self.copy is not None:
            return os.fstat(self.copy.descriptor).st_size
        first = self.fragment(0)
        total = ask(self.db, _LENGTH, (self.endpoint_id, self.sequence, self.count)).fetchone()[0]
        return int(total) - len(first) + len(split_envelope(first)[1])

    def fragment(self, number: int) -> bytes:
        """One fragment as it arrived."""
        key = (self.endpoint_id, self.sequence, number)
        row = look(self.db, lambda: ask(self.db, _FRAGMENT, key).fetchone())
        if row is None:
            raise ValueError("the body of a large message is read before the transaction that received it ends")
        body: bytes = row[0]
        return body

    def copied(self) -> LargeBody:
        """
        The same body in a file without a name, which lasts as long as this object.

        Raises:
            StoreUnavailableError: the disk of temporary files is full.
        """
        try:
            with temporary_file() as file:
                for piece in self.pieces():
                    file.write(piece)
                file.flush()
                copy = Copy(os.dup(file.fileno()))
        except OSError as error:
            raise not_kept(error) from error
        return LargeBody(self.db, self.endpoint_id, self.sequence, self.count, copy)

    def pieces(self) -> Iterator[bytes]:
        """The body by its fragments; a copy, which others read too, each at its own position, by its bytes."""
        if self.copy is None:
            yield split_envelope(self.fragment(0))[1]
            yield from map(self.fragment, range(1, self.count))
            return
        at = 0
        while piece := os.pread(self.copy.descriptor, BUFFER_BYTES, at):
            yield piece
            at += len(piece)


class _Pieces(io.RawIOBase):
    """Has one piece of a body at a time."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
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


# --- files without a name: `tempfile` takes longer to import than all of sending and receiving ---


def temporary_file() -> BinaryIO:
    """
    A file without a name in the directory that TMPDIR names, or /tmp; for its owner alone, to write and to read.

    Raises:
        OSError: it cannot be made.
    """
    directory, flags = _temporary_directory(), os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(directory, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _WITHOUT_NAMELESS:
            raise
        name = f"{directory}/broker-{os.urandom(16).hex()}"
        descriptor = os.open(name, flags | os.O_CREAT, 0o600)
        os.unlink(name)  # noqa: PTH108 - pathlib takes longer to import than this module
    return os.fdopen(descriptor, "w+b")


def not_kept(error: OSError) -> StoreUnavailableError:
    """The error of a body for which there is no temporary file, or none large enough."""
    return StoreUnavailableError(
        _temporary_directory(), f"a body cannot be kept in a temporary file: {error.strerror or error}"
    )


def _temporary_directory() -> str:
    return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - nothing in it is opened by a name that can be guessed

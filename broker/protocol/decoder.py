"""
Splitter of received bytes into whole frames, wherever the reads cut them.

This module has the structure checks of protocol version 1 and the splitter built on them; bodies are decoded in
`broker.protocol.frame`. No I/O, no state beyond the one frame that has begun.

Every check runs on the fewest bytes that allow it: a length is checked on its four bytes alone, a kind on the fifth.
So an unknown peer cannot make us wait, or keep memory, for a frame that will be refused. The kept bytes of an
unfinished frame never exceed `max_frame`. Each byte is read a bounded number of times: feeding byte by byte costs no
more than in proportion to the bytes.

Source: docs/protocol.md, "Prelude" and "What is malformed".
"""

from __future__ import annotations

from struct import Struct

from broker.errors import FrameMalformedError, FrameTooLargeError, PeerError
from broker.protocol.layout import (
    FIRST_DIALOG_KIND,
    HEADER_BYTES,
    LINK_BODY_MAX_BYTES,
    MIN_DIALOG_FRAME,
    NAME_MAX_BYTES,
    PASS,
    PING_BYTES,
    PRELUDE_BYTES,
    FrameKind,
)

Buffer = bytes | bytearray | memoryview

_LENGTH = Struct(">I")
_LENGTH_AND_KIND = Struct(">IB")
_PING_LENGTH = PRELUDE_BYTES + PING_BYTES
_LINK_LENGTHS: dict[int, tuple[int, int]] = {
    **{kind: (PRELUDE_BYTES, PRELUDE_BYTES + LINK_BODY_MAX_BYTES) for kind in FrameKind if kind < FIRST_DIALOG_KIND},
    **dict.fromkeys((FrameKind.PING, FrameKind.PONG), (_PING_LENGTH, _PING_LENGTH)),
}
# Read as a length, each of these is above the largest max_frame there is, so no frame can begin with one.
_STRANGERS: tuple[tuple[tuple[bytes, ...], str], ...] = (
    ((b"\x16\x03", b"\x15\x03"), "looks like TLS, and encryption is disabled here: set endpoint.encryption"),
    ((b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "), "looks like HTTP"),
    ((b"HTTP", b"<!DO", b"<htm"), "looks like the answer of an HTTP server"),
    ((b"SSH-",), "looks like SSH"),
    ((b"PROX", b"\r\n\r\n"), "looks like a PROXY protocol header: switch it off at the load balancer"),
)


def recognise(first_bytes: bytes) -> str:
    """Return the protocol that an unknown peer seems to speak, by its first four bytes; empty when it is unknown."""
    for beginnings, hint in _STRANGERS:
        if first_bytes.startswith(beginnings):
            return hint
    return ""


def maybe_length(buffer: Buffer, start: int, stop: int, max_frame: int) -> int | None:
    """
    Length of the frame that begins at `start`, judged by as much of it as has arrived.

    Args:
        buffer: Bytes received; not changed.
        start: Where the frame begins.
        stop: Where the received bytes end.
        max_frame: Largest frame in bytes, as announced by this side in its HELLO.

    Returns:
        Bytes of the whole frame, received or still to arrive; None while its kind, the fifth byte, is missing.

    Raises:
        FrameTooLargeError: a length above `max_frame`; its hint says what the bytes look like.
        FrameMalformedError: a length that is too short, or out of range for the kind, or an unknown link kind.

    Cost: one unpack and one dictionary lookup.
    """
    if stop - start < _LENGTH_AND_KIND.size:
        if stop - start >= _LENGTH.size:
            _check_length(buffer, start, max_frame)
        return None
    length = _check_length(buffer, start, max_frame)
    _check_kind(length, buffer[start + _LENGTH.size])
    return length


def check_frame(buffer: Buffer, start: int, stop: int) -> None:
    """
    Check the structure of the one whole frame in `buffer[start:stop]`; its size against `max_frame` is not asked.

    Raises:
        FrameMalformedError: a length field that is not `stop - start`, a length out of range for the kind, an unknown
            link kind, or names of a dialog frame that are not 1 .. 512 bytes each or do not fit.

    Cost: two unpacks, no allocation.
    """
    size = stop - start
    if size < PRELUDE_BYTES:
        raise FrameMalformedError(f"frame of {size} bytes, below the {PRELUDE_BYTES} of its prelude")
    length, kind = _LENGTH_AND_KIND.unpack_from(buffer, start)
    if length != size:
        raise FrameMalformedError(f"length field says {length}, the frame has {size} bytes")
    _check_kind(length, kind)
    if kind < FIRST_DIALOG_KIND:
        return
    *_, from_length, to_length = PASS.unpack_from(buffer, start)
    if not (1 <= to_length <= NAME_MAX_BYTES and 1 <= from_length <= NAME_MAX_BYTES):
        raise FrameMalformedError(f"names of {to_length} and {from_length} bytes, not 1 .. {NAME_MAX_BYTES}")
    if HEADER_BYTES + to_length + from_length > length:
        raise FrameMalformedError(f"names of {to_length} and {from_length} bytes in a frame of {length}")


def _check_length(buffer: Buffer, start: int, max_frame: int) -> int:
    (length,) = _LENGTH.unpack_from(buffer, start)
    assert isinstance(length, int)
    if length > max_frame:
        raise FrameTooLargeError(length, max_frame, recognise(_LENGTH.pack(length)))
    if length < PRELUDE_BYTES:
        raise FrameMalformedError(f"length field says {length}, below the {PRELUDE_BYTES} of the prelude")
    return length


def _check_kind(length: int, kind: int) -> None:
    if kind >= FIRST_DIALOG_KIND:
        if length < MIN_DIALOG_FRAME:
            raise FrameMalformedError(f"dialog frame of {length} bytes, below {MIN_DIALOG_FRAME}")
        return
    lengths = _LINK_LENGTHS.get(kind)
    if lengths is None:
        raise FrameMalformedError(f"unknown link kind 0x{kind:02x}")
    shortest, longest = lengths
    if not shortest <= length <= longest:
        raise FrameMalformedError(f"{FrameKind(kind).name} of {length} bytes, not {shortest} .. {longest}")


class FrameDecoder:
    """
    Splits the bytes of one connection into whole frames, both link and dialog, and keeps the frame that has begun.

    `error` is None until bytes arrive that are not a frame. From then on it keeps that error.
    """

    __slots__ = ("_max_frame", "_pending", "error")

    def __init__(self, max_frame: int) -> None:
        self.error: PeerError | None = None
        self._max_frame = max_frame
        self._pending = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes kept of a frame that is not whole."""
        return len(self._pending)

    def feed(self, data: Buffer) -> list[bytes]:
        """
        Accept the bytes of one read.

        Returns:
            The frames that are whole now, in order. Frames that were whole before bytes that are not a frame are not
            lost: they are returned, `error` is set at once, and the next call raises it.

        Raises:
            FrameMalformedError: bytes that are not a frame, in this call or, the same error again, in an earlier one.
            FrameTooLargeError: likewise, a length above `max_frame`.
        """
        frames: list[bytes] = []
        if self.error is None:
            self._pending += data
            try:
                del self._pending[: self._split(frames)]
            except PeerError as error:
                # Without its traceback, which would keep `data` alive as long as this connection.
                self.error = error.with_traceback(None)
                self._pending.clear()
        if self.error is not None and not frames:
            raise self.error.with_traceback(None)
        return frames

    def _split(self, frames: list[bytes]) -> int:
        """Add the whole frames among the kept bytes; how many bytes those are."""
        start, stop = 0, len(self._pending)
        with memoryview(self._pending) as pending:
            while (length := maybe_length(pending, start, stop, self._max_frame)) and length <= stop - start:
                check_frame(pending, start, start + length)
                frames.append(bytes(pending[start : start + length]))
                start += length
        return start

"""
What comes in through a link: read, kept until it is whole, and passed on, so much in one turn of the loop.

A read lands in the forwarder's slab and the whole pass runs in that callback. What is left behind is kept until the
next one: the beginning of a frame (at most `max_frame`), which has to be complete in time, or whole frames that were
more work than one turn has for one link. Those are for the next turns, in their order, and nothing is read meanwhile;
what the link brings next is read in smaller pieces.

Used by `broker.net.link` only, and of one idea with it. Loop-only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.errors import FrameMalformedError, PeerError
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.limits import READ_BYTES
from broker.net.link_state import LinkState
from broker.protocol.decoder import check_frame, maybe_length
from broker.protocol.layout import FRAME_BYTES_PER_SECOND, FRAME_SECONDS

if TYPE_CHECKING:
    from broker.net.link import Link

LENGTH_BYTES = 4  # of a frame's own length, which is judged as soon as it is there
SMALL_READ_BYTES = 32 * 1024  # one read after a link has brought more work than a turn has; above what TLS needs
# By name here: Python takes 0.15 microseconds to find the member of an enum, and that is for every read.
_LINGERING = LinkState.LINGERING
_TAKING = (LinkState.LOGGED_IN, LinkState.DRAINING)
_OVER = (_LINGERING, LinkState.CLOSED)


class Intake:
    """
    The receiving half of a link.

    Shape: `kept_bytes` of what has not been passed on yet.
    """

    __slots__ = (
        "_again",
        "_begun_at",
        "_carry",
        "_forwarder",
        "_is_cut",
        "_is_noted",
        "_is_over",
        "_link",
        "_loop",
        "_missing",
        "_pauses",
        "_read_bytes",
    )

    def __init__(self, link: Link, forwarder: Forwarder) -> None:
        self._link = link
        self._forwarder = forwarder
        self._loop = asyncio.get_running_loop()
        self._carry = bytearray()
        self._missing = LENGTH_BYTES  # bytes until there is more to do than to keep them
        self._begun_at = 0.0  # when the first byte of what is kept came
        self._read_bytes = READ_BYTES
        self._pauses = 0  # how many ask that nothing be read now
        self._is_cut = False  # whether whole frames are kept
        self._again: asyncio.Handle | None = None  # their turn
        self._is_noted = False  # whether the owner knows that something was read
        self._is_over = False  # whether nothing is to be read any more

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept."""
        return len(self._carry)

    @property
    def is_paused(self) -> bool:
        """Whether somebody asks that nothing be read now."""
        return self._pauses > 0

    def start(self) -> None:
        """Begin to read."""
        self._link.transport.add_reader(self.on_readable)

    def pause(self) -> None:
        """Read nothing until `resume`. Each call has its own `resume`."""
        self._pauses += 1
        if self._pauses == 1 and not self._is_over:
            self._rest()

    def resume(self) -> None:
        """Whoever asked for a pause needs it no more; the last one lets reading go on."""
        self._pauses -= 1
        self._read_bytes = SMALL_READ_BYTES  # what it brings next may find little room, and others wait for theirs
        self._listen()

    def renew(self) -> None:
        """See that the loop still tells of this socket; `Owner.on_heard` is called again from now on."""
        self._is_noted = False
        if not (self._is_over or self._is_cut or self._pauses):
            self._link.transport.renew_reader(self.on_readable)

    def stop(self) -> None:
        """Read nothing any more."""
        if not self._is_over:
            self._is_over = True
            self._rest()

    def close(self) -> None:
        """Keep nothing any more."""
        self.stop()
        self._carry.clear()
        self._forwarder.unfinished.keep(self._link, 0)

    def tick(self, now: float) -> None:
        """
        What is not listened to is neither silent nor late.

        Raises:
            FrameMalformedError: the frame that has begun should be complete by now.
        """
        link = self._link
        if self._pauses or self._is_cut:
            link.connection.last_heard = self._begun_at = now
        elif self._carry and link.agreement is not None:
            length = len(self._carry) + self._missing
            seconds = FRAME_SECONDS + length / FRAME_BYTES_PER_SECOND
            if now - self._begun_at >= seconds:
                raise FrameMalformedError(f"frame of {length} bytes, not complete within {seconds:.0f} s")

    # --- the inside -----------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Read once, and pass on what has become whole."""
        link = self._link
        if not self._is_noted:
            self._is_noted = True
            link.owner.on_heard(link)
        start = len(self._carry)
        try:
            size = link.transport.recv_into(self._forwarder.view[start : start + self._read_bytes])
        except BlockingIOError:
            return
        except OSError as error:
            link.on_stream_end(error.strerror or str(error))
            return
        if size == 0:
            link.on_stream_end("")
            return
        try:
            self._take(start, size)
            if link.meter is not None:
                link.meter.spend(link)
        except Exception as error:  # noqa: BLE001 - the bug of one link is not to be that of all
            link.owner.on_failed(link, error)

    def _take(self, start: int, size: int) -> None:
        link = self._link
        link.receives += 1
        link.bytes_received += size
        if link.state is _LINGERING:
            link.on_unheard(size)
            return
        now = link.connection.last_heard = self._loop.time()
        if size < self._missing:
            # The rest of a large frame comes in pieces: keep them as they come, walk when it is whole.
            if not start:
                self._begun_at = now
            self._carry += self._forwarder.view[start : start + size]
            self._missing -= size
            self._forwarder.unfinished.keep(link, start + size)
            return
        if start:
            self._forwarder.view[:start] = self._carry
            self._carry.clear()
        self._walk(start + size, now, kept=start)

    def _go_on(self) -> None:
        """The next turn of what was kept whole."""
        self._again = None
        self._is_cut = False
        start = len(self._carry)
        self._forwarder.view[:start] = self._carry
        self._carry.clear()
        try:
            self._walk(start, self._loop.time(), kept=start)
        except Exception as error:  # noqa: BLE001 - as above
            self._link.owner.on_failed(self._link, error)
        if not self._is_cut:
            self._listen()

    def _walk(self, end: int, now: float, *, kept: int) -> None:
        """Pass on what is whole in the slab; `kept` of these bytes were kept until now."""
        link, slab = self._link, self._forwarder.slab
        used = consumed = 0
        length = None
        try:
            if link.agreement is None and (used := self._greet(slab, end, now)):
                slab[: end - used] = slab[used:end]
                end -= used
            if link.state in _TAKING:
                consumed = link.take(slab, end, now)
            if consumed < end and link.state not in _OVER:
                length = maybe_length(slab, consumed, end, link.connection.max_frame)
        except PeerError as error:
            link.fail(error)
        if kept and (used or consumed or link.state in _OVER):
            self._forwarder.unfinished.keep(link, 0)  # that frame is complete, or of no use any more
        if link.state in _OVER:
            return
        if consumed < end or self._read_bytes < READ_BYTES:
            self._leave_behind(consumed, end, length, now, is_new=used + consumed > 0 or not kept)
        else:
            self._missing = LENGTH_BYTES

    def _leave_behind(self, consumed: int, end: int, length: int | None, now: float, *, is_new: bool) -> None:
        """Keep what was not passed on, which `is_new` or was already kept."""
        left = end - consumed
        if is_new:
            self._begun_at = now
        self._carry += self._forwarder.view[consumed:end]
        if left:
            self._forwarder.unfinished.keep(self._link, left)
        if length is None or length > left:
            self._missing = max(1, (length or LENGTH_BYTES) - left)
            if self._read_bytes < READ_BYTES:
                self._read_bytes *= 2
            return
        self._is_cut = True
        self._read_bytes = SMALL_READ_BYTES
        self._missing = 1
        if not self._pauses:
            self._link.transport.remove_reader()
            self._again = self._loop.call_soon(self._go_on)

    def _greet(self, slab: bytearray, end: int, now: float) -> int:
        """Take the first frame, which must be HELLO; bytes used, 0 when it is not whole."""
        connection = self._link.connection
        length = maybe_length(slab, 0, end, connection.max_frame)
        if length is None:
            return 0
        connection.expect_link_frame(slab[4])
        if length > end:
            return 0
        check_frame(slab, 0, length)
        self._link.hear([bytes(slab[:length])], now)
        return length

    def _rest(self) -> None:
        """Read nothing more, and leave what was read and not passed on where it is, until `_listen`."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        elif not self._is_cut:
            self._link.transport.remove_reader()

    def _listen(self) -> None:
        """Go on, or read, unless somebody has something against it."""
        if self._pauses or self._is_over:
            return
        if self._is_cut:
            self._again = self._loop.call_soon(self._go_on)
        else:
            self._link.transport.add_reader(self.on_readable)

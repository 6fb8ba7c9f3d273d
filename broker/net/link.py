"""
One connection to an adjacent instance, from its socket to its end.

A link works on its transport, with the loop's readiness callbacks: a read lands in the forwarder's slab and the whole
pass runs in that callback (`broker.net.link`), so a lone frame leaves in the loop turn in which it came; what a
`send` took is known at once, so nothing waits in a buffer that the pool does not know. A link keeps at most three
things: the beginning of a frame that has not wholly arrived (at most `max_frame`), the end of one that was cut
(likewise), and a few link frames (`CONTROL_MAX_BYTES`); its transport may keep a little more. Works alike on uvloop and
on plain asyncio.

Protocol states live in `broker.protocol.link_state`; who uses a link for what is decided by `broker.net.peers`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from broker.errors import FrameMalformedError, PeerError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, rejected
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.latency import SHARED_FRAMES
from broker.forwarding.pool import READ_BYTES
from broker.net.quotas import EVERYTHING, Permit
from broker.net.transport import Transport
from broker.protocol.decoder import check_frame, maybe_length
from broker.protocol.frame import decode_link, encode_link
from broker.protocol.layout import FRAME_BYTES_PER_SECOND, FRAME_SECONDS, TO_SERVICE_AT
from broker.protocol.link_state import PEER_NAME_MAX, Agreement, Event, LinkStateMachine, Online, Reply

if TYPE_CHECKING:
    from broker.net.quotas import Meter


# --- advice ---
# Advice to a peer about frames of its that were not taken: REJECTED, so many a second.
#
# Advice is never relied on, so a flood of drops must not become a flood of answers: what is above the rate is not
# said.


REJECTS_PER_SECOND = 100  # enough to tell an operator and a retrying sender, too few to matter on any network


class Advice:
    """The rate of one link. Loop-only; changed by `allow` and `refill`."""

    __slots__ = ("_left", "_since")

    def __init__(self, now: float) -> None:
        self._left = REJECTS_PER_SECOND
        self._since = now

    def allow(self) -> bool:
        """Whether one more may be said now; if so, it counts as said."""
        self._left -= 1
        return self._left >= 0

    def refill(self, now: float) -> None:
        """A second has passed, or not yet."""
        if now - self._since >= 1.0:
            self._since = now
            self._left = REJECTS_PER_SECOND


def render_rejected(frame: Buffer, disposition: Disposition, permit: Permit = EVERYTHING) -> bytes:
    """The REJECTED that tells what became of this dialog frame, and which permission its sender lacks."""
    told = rejected(frame, disposition)
    if disposition is Disposition.NOT_PERMITTED:
        name_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
        why = permit.why_not(bytes(frame[TO_SERVICE_AT:name_end]).decode(errors="replace"))
        told = structs.replace(told, reason=f"{told.reason}: {why}")
    return encode_link(told)


# --- link_state ---
# How far a link is.


class LinkState(StrEnum):
    """CONNECTED until HELLO is complete; DRAINING sends nothing new; LINGERING only waits for its last words to go."""

    CONNECTED = "CONNECTED"
    LOGGED_IN = "LOGGED_IN"
    DRAINING = "DRAINING"
    LINGERING = "LINGERING"
    CLOSED = "CLOSED"


# --- flow ---
# What a link does, by what has really moved: not by what it was told to do, nor by the state its protocol is in.
#
# A peer that is stopped, or behind a cable that was pulled, keeps its connection: the system takes what is written
# until
# its buffers are full, and says nothing. So only what was heard from the peer proves anything. A side that sends asks
# with PING now and then (`broker.protocol.link_state`), and what it asked has to be answered in time. Looked at once
# a
# second or more often, and whenever somebody wants to know. Loop-only.


FLOW_SECONDS = 2.0  # within which a dialog frame has to have moved for a link to be flowing: two looks
BLOCKED_SECONDS = 1.0  # in which the socket takes nothing: for less, that is how a full one works
ANSWER_SHARE = 0.5  # of our heartbeat: how long a PING may be under way


class FlowState(StrEnum):
    """What a link does; the value is the word in views, status and metrics."""

    OPENING = "opening"
    FLOWING = "flowing"
    IDLE = "idle"
    BLOCKED = "blocked"
    STALLED = "stalled"
    LEAVING = "leaving"
    DOWN = "down"


_OF_LINK = {
    LinkState.CONNECTED: (FlowState.OPENING, "HELLO of the peer has not come"),
    LinkState.DRAINING: (FlowState.LEAVING, "nothing new is sent: one side drains"),
    LinkState.LINGERING: (FlowState.DOWN, ""),
    LinkState.CLOSED: (FlowState.DOWN, ""),
}


class LinkActivity:
    """
    What one link does.

    Shape: `state` and `why` as of the last look, `since` the loop time at which the state began; `progress_at` loop
    time at which something was heard from the peer for the last time, so that all it had been sent before the question
    is known to have arrived.
    """

    __slots__ = ("_frames", "_moved_at", "_sent", "_took_at", "progress_at", "since", "state", "why")

    def __init__(self, now: float) -> None:
        self.state = FlowState.OPENING
        self.why = ""
        self.since = self.progress_at = now
        self._moved_at = float("-inf")  # a dialog frame, in either direction
        self._took_at = now  # the socket, anything at all
        self._sent = self._frames = 0  # bytes; dialog frames and bytes of them

    def look(self, link: Link, now: float) -> LinkActivity:
        """See what has moved since the last look."""
        moved = link.received.total() + link.bytes_sent - link.control_sent
        if moved != self._frames:
            self._frames, self._moved_at = moved, now
        if link.bytes_sent != self._sent or not link.is_blocked:
            self._sent, self._took_at = link.bytes_sent, now
        self.progress_at = link.connection.last_heard
        state, self.why = self._judge(link, now)
        if state is not self.state:
            self.state, self.since = state, now
        return self

    def _judge(self, link: Link, now: float) -> tuple[FlowState, str]:
        if link.state is not LinkState.LOGGED_IN:
            state, why = _OF_LINK[link.state]
            return state, why or link.reason
        if link.is_paused:  # before what was not heard: it was not listened to
            return FlowState.BLOCKED, "it is not read: " + (
                ", ".join(sorted(link.slowed_by)) or "endpoint.backpressure"
            )
        connection = link.connection
        if connection.unanswered_since is not None:
            waited = now - max(connection.unanswered_since, connection.last_heard)
            if waited >= ANSWER_SHARE * connection.heartbeat:
                return FlowState.STALLED, "the peer does not answer"
        if now - self._took_at >= BLOCKED_SECONDS:
            return FlowState.BLOCKED, "the peer takes nothing more"
        return (FlowState.FLOWING if now - self._moved_at < FLOW_SECONDS else FlowState.IDLE), ""


# --- intake ---
# What comes in through a link: read, kept until it is whole, and passed on, so much in one turn of the loop.
#
# A read lands in the forwarder's slab and the whole pass runs in that callback. What is left behind is kept until the
# next one: the beginning of a frame (at most `max_frame`), which has to be complete in time, or whole frames that
# were
# more work than one turn has for one link. Those are for the next turns, in their order, and nothing is read
# meanwhile;
# what the link brings next is read in smaller pieces.
#
# Used by `broker.net.link` only, and of one idea with it. Loop-only.


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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
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


# --- owner ---
# What a link asks of whoever keeps it; `broker.net.peers.Peers` is the one there is.


class Owner(Protocol):
    """Who is told what happens on a link."""

    def on_online(self, link: Link) -> None:
        """HELLO is complete; the link can send."""

    def on_writable(self, link: Link) -> None:
        """The link can send again."""

    def on_heard(self, link: Link) -> None:
        """Something was read, for the first time since the link was made or `renew` called; see to that it is."""

    def on_event(self, link: Link, event: Event) -> None:
        """The peer said something that is not for the link itself."""

    def on_ended(self, link: Link) -> None:
        """Nothing more comes: `link.wind_up` is due, now or soon."""

    def on_failed(self, link: Link, error: Exception) -> None:
        """A bug: the link is to be closed, though not in this call."""

    def on_lost(self, link: Link) -> None:
        """Nothing new leaves through the link any more; `link.reason` says why. Once, before `on_closed`."""

    def on_closed(self, link: Link) -> None:
        """The socket is closed."""


CONTROL_MAX_BYTES = 64 * 1024  # link frames waiting for a stalled peer; past it whatever else is said is shed
LINGER_SECONDS = 1.0  # how long the last words to a peer may take to be read before the socket is closed
LINGER_BYTES = 1024 * 1024  # what is read and thrown away meanwhile

_numbers = count(1)
_LOGGED_IN = LinkState.LOGGED_IN  # by name here: asked for every write, and Python is slow to find members of enums


class Link:
    """
    A connection that speaks the protocol. Loop-only.

    Shape: `number` unique in this process; `address` text of the remote end; `is_accept` when the peer opened it;
    `opened_at` loop time; `connection` its protocol state; `error` the rule that the peer broke; the counters count
    bytes, frames and system calls since it was opened, `control_sent` bytes that are no dialog frames, `received`
    dialog frames by kind; `label` the name of the peer in metrics, empty until HELLO is complete; `flow` what it
    really does; `meter` what its peer brings, where that is limited; `permit` what its peer may do; `slowed_by` the
    settings for which it is not read now;
    `is_leaving` when the peer has said GOAWAY: frames leave by it only where no other link leads on.
    """

    def __init__(
        self, transport: Transport, address: str, *, is_accept: bool, connection: LinkStateMachine, forwarder: Forwarder
    ) -> None:
        self.number = next(_numbers)
        self.address = address
        self.is_accept = is_accept
        self.state = LinkState.CONNECTED
        self.reason = ""
        self.error: PeerError | None = None
        self.agreement: Agreement | None = None
        self.max_frame = 0
        self.is_narrow = False
        self.bytes_received = self.bytes_sent = self.control_sent = 0
        self.receives = self.sends = self.frames_rejected = 0
        self.received: Counter[int] = Counter()
        self.label = ""
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()
        self.online_at: float | None = None
        self.flow = LinkActivity(self.opened_at)
        self.meter: Meter | None = None
        self.permit = EVERYTHING
        self.slowed_by: set[str] = set()
        self.is_leaving = False
        self.transport = transport
        self.connection = connection
        self.owner: Owner  # from `start` on
        self._forwarder = forwarder
        self._intake = Intake(self, forwarder)
        self._rest = memoryview(b"")
        self._control = bytearray()
        self._is_hearing = False  # whether what is said may wait for the end of what is heard
        self._is_blocked = False  # whether `_rest` and `_control` must go first
        self._is_broken = False  # whether the transport takes nothing any more; the link is about to be closed
        self._is_ending = self._is_shut = False  # our direction is to be shut once they are out; and is shut
        self._has_ended = False  # whether nothing more comes
        self._problem = ""  # why; empty when the peer has said so
        self._timer: asyncio.TimerHandle | None = None  # of the end
        self._advice = Advice(self.opened_at)
        self._lingered = 0

    def start(self, owner: Owner, refused: PeerError | None = None) -> None:
        """Say HELLO and begin to read; to a peer that may not connect, only say so."""
        self.owner = owner
        self.transport.set_nodelay()
        self._intake.start()
        if refused is None:
            self.say(self.connection.hello())
        else:
            self.fail(refused)

    @property
    def peer_name(self) -> str:
        """What the peer calls itself, cut to a sensible length; empty until HELLO is complete."""
        return "" if self.agreement is None else self.agreement.peer.name[:PEER_NAME_MAX]

    @property
    def is_blocked(self) -> bool:
        """Whether the socket takes nothing now."""
        return self._is_blocked

    @property
    def is_paused(self) -> bool:
        """Whether somebody asks that nothing be read from it now."""
        return self._intake.is_paused

    @property
    def kept_bytes(self) -> int:
        """What has come and was not passed on yet."""
        return self._intake.kept_bytes

    @property
    def has_moved(self) -> bool:
        """Whether the peer has ended its direction, and reads on."""
        return self._has_ended and not self._problem

    @property
    def is_in_order(self) -> bool:
        """Whether all that was sent arrives although the link ends: both sides close it in their own time."""
        return self.is_leaving and not self._is_broken and not self._problem

    # --- Outlet: frames leave -------------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        """Whether `send` may be called now."""
        return self.state is _LOGGED_IN and not self._is_blocked

    def send(self, data: Buffer) -> int:
        """Hand whole frames to the socket; how many bytes it took at once."""
        sent = self._write(data)
        if sent < len(data) or self.transport.holds:
            self._block()
        return sent

    def finish(self, rest: Buffer) -> None:
        """Keep the end of the frame that `send` cut; it leaves before anything else."""
        self._rest = memoryview(bytes(rest))

    def say(self, frame: bytes, *, is_last: bool = False) -> None:
        """Send a link frame, behind a cut frame and earlier link frames; shed while too many wait, but for the last."""
        if self._is_shut or self.state in (LinkState.LINGERING, LinkState.CLOSED):
            return
        if len(self._control) > CONTROL_MAX_BYTES and not is_last:
            return
        self._control += frame
        if not self._is_hearing:
            self._speak()

    # --- Origin: advice goes back, reading pauses -----------------------------------------------------------

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Advise the peer that a frame was not taken, within a rate and a bound."""
        self.frames_rejected += 1
        if self._advice.allow():
            self.say(render_rejected(frame, disposition, self.permit))

    def pause(self) -> None:
        """Read nothing until `resume`: what this link brings finds no room. Each call has its own `resume`."""
        self._intake.pause()

    def resume(self) -> None:
        """Whoever asked for a pause needs it no more; the last one lets reading go on."""
        self._intake.resume()

    def renew(self) -> None:
        """See that the loop still tells of the socket: see `Transport.renew_reader`."""
        self._intake.renew()

    # --- time -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Now and then, once a second or more often: heartbeat, silence, HELLO and every other frame in time."""
        self._advice.refill(now)
        self.flow.look(self, now)
        try:
            self._intake.tick(now)
            if self._is_ending or self._has_ended or self.state in (LinkState.LINGERING, LinkState.CLOSED):
                return
            for frame in self.connection.tick(now):
                self.say(frame)
        except PeerError as error:
            self.fail(error)

    # --- the end --------------------------------------------------------------------------------------------

    def drain(self, seconds: float | None = None) -> None:
        """Send nothing new; when all is out, close our direction, and read on for so many seconds at most."""
        if self.state in (LinkState.LOGGED_IN, LinkState.DRAINING) and not self._is_ending:
            self._end(LinkState.DRAINING, seconds or self.connection.handshake_timeout, "drained")

    def fail(self, error: PeerError) -> None:
        """The peer broke the rules: FATAL, then close."""
        if self.state in (LinkState.LINGERING, LinkState.CLOSED):
            return
        self.say(self.connection.fatal(error), is_last=True)
        self.error = error
        self._linger(str(error))

    def close(self, reason: str) -> None:
        """Close now, whatever is unsent."""
        if self.state is LinkState.CLOSED:
            return
        is_lost_already = self.state is LinkState.LINGERING
        self.state = LinkState.CLOSED
        self.reason = self.reason or reason
        if self._timer is not None:
            self._timer.cancel()
        self._intake.close()
        self.transport.remove_writer()
        self.transport.close()
        if not is_lost_already:
            self.owner.on_lost(self)
        self.owner.on_closed(self)

    def _linger(self, reason: str) -> None:
        """Of no use any more; only what was already said may still leave."""
        self.reason = reason
        self._end(LinkState.LINGERING, LINGER_SECONDS, reason)
        self.owner.on_lost(self)

    def _end(self, state: LinkState, seconds: float, reason: str) -> None:
        """Shut our direction once all is out; close when the peer has done so too, or after so many seconds."""
        self.state = state
        self._is_ending = True
        self._close_later(seconds, reason)
        self._maybe_shut()

    def _close_later(self, seconds: float, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.close, reason)

    def _maybe_shut(self) -> None:
        """Close our direction once everything is out, so that the peer reads all of it before it sees the end."""
        if self._is_blocked or self._is_hearing or not self._is_ending:
            return
        if self._has_ended:
            self._loop.call_soon(self.close, self.reason or "drained")
        elif not self._is_shut:
            self._is_shut = True
            try:
                self.transport.shut()
            except OSError as error:
                self._loop.call_soon(self.close, error.strerror or str(error))
            if self.transport.holds:
                self._block()

    # --- reading: what the intake brings ----------------------------------------------------------------------

    def take(self, slab: bytearray, end: int, now: float) -> int:
        """The pass over dialog frames, then the link's own frames; bytes consumed. Raises PeerError."""
        batch = self._forwarder.take(slab, end, now, self, self.permit.profile)
        hop = self._forwarder.hop
        if hop.pending >= SHARED_FRAMES or now >= hop.due:
            hop.handed_over(now, self._loop.time())
        if batch.link_frames:
            self.hear(batch.link_frames, now)
        if batch.error is not None:
            raise batch.error
        return batch.consumed

    def hear(self, frames: list[bytes], now: float) -> None:
        """Follow the link's own frames; whatever many of them are answered with, in one write. Raises PeerError."""
        self._is_hearing = True
        try:
            for frame in frames:
                pong = self.connection.maybe_pong(frame)
                if pong is not None:
                    self.say(pong)
                    continue
                for event in self.connection.receive(decode_link(frame), now):
                    if isinstance(event, Reply):
                        self.say(event)
                    elif isinstance(event, Online):
                        self._go_online(event.agreement, now)
                    else:
                        self.owner.on_event(self, event)
        finally:
            self._is_hearing = False
            if self.state is not LinkState.CLOSED:
                self._speak()
                self._maybe_shut()

    def on_unheard(self, size: int) -> None:
        """Bytes came that count for nothing; so much of them is read that the peer may hear the last words."""
        self._lingered += size
        if self._lingered > LINGER_BYTES:
            self.close(self.reason)

    def on_stream_end(self, problem: str) -> None:
        """Nothing more comes, for this reason; empty when the peer has said so. `wind_up` follows, now or soon."""
        self._intake.stop()
        self._has_ended = True
        self._problem = problem
        if problem and self.state is LinkState.LOGGED_IN:
            self.state = LinkState.DRAINING  # nothing new leaves
        self.owner.on_ended(self)

    def wind_up(self) -> None:
        """Nothing more comes. A peer that has said so may still read, as one that drains does: it gets the rest."""
        if not self._problem and self._is_blocked and self.state in (LinkState.LOGGED_IN, LinkState.DRAINING):
            self._linger("closed by the peer")
        else:
            self.close(self._problem or "closed by the peer")

    def _go_online(self, agreement: Agreement, now: float) -> None:
        self.agreement = agreement
        self.max_frame = agreement.send_max_frame
        self.is_narrow = self.max_frame < self._forwarder.limits.max_frame
        self.state = LinkState.LOGGED_IN
        self.online_at = now
        self.owner.on_online(self)
        # What was announced has been heard by those who can use it.
        self.agreement = self.connection.agreement = agreement.abridged()

    # --- writing --------------------------------------------------------------------------------------------

    def _speak(self) -> None:
        """Send what was said, as far as the socket takes it now."""
        if not self._is_blocked:
            self._write_control()
            if self._control or self.transport.holds:
                self._block()

    def _write_control(self) -> None:
        if self._control:
            sent = self._write(self._control)
            self.control_sent += sent
            del self._control[:sent]

    def _write(self, data: Buffer) -> int:
        try:
            sent = self.transport.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # Not here: the caller is in the middle of a pass.
            if not self._is_broken:
                self._is_broken = True
                self._loop.call_soon(self.close, error.strerror or str(error))
            return 0
        self.sends += 1
        self.bytes_sent += sent
        self.connection.last_sent = self._loop.time()
        return sent

    def _block(self) -> None:
        self._is_blocked = True
        if not self._is_broken:
            self.transport.add_writer(self._on_writable)

    def _on_writable(self) -> None:
        if self._rest or self.transport.holds:
            self._rest = self._rest[self._write(self._rest) :]
        if not self._rest:
            self._write_control()
        if self._is_broken or self._rest or self._control or self.transport.holds:
            return
        self.transport.remove_writer()
        self._is_blocked = False
        if self.state is LinkState.LOGGED_IN:
            self.owner.on_writable(self)
        else:
            self._maybe_shut()

"""
One connection to an adjacent instance, from its socket to its end.

A link reads into the forwarder's buffer, has the forwarder pass on the whole frames in the same callback, and answers
the peer's control frames itself. So a lone frame is sent in the loop iteration in which it arrived, and the bytes that
a `send` accepted are known at once. A link holds at most three things: a partial frame, or whole frames deferred to the
next iteration; the rest of one frame that a full socket cut; and `CONTROL_MAX_BYTES` of control frames. All other bytes
are in the forwarding pool, so memory stays bounded.

Input and output have separate states, because TCP closes each direction separately. The protocol (which control frame
is legal when) is `broker.protocol.link_state`; what a link is used for is `broker.net.peers`. No method awaits; the
class works the same on uvloop and on plain asyncio. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from enum import Enum, StrEnum, auto
from itertools import count
from typing import Protocol

from msgspec import structs

from broker.errors import FrameMalformedError, PeerError
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, conversation_of, rejected
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.latency import SHARED_FRAMES
from broker.forwarding.pool import READ_BYTES
from broker.net.quotas import EVERYTHING, Meter, Permit, host_of, keep_latest
from broker.net.transport import Transport
from broker.protocol.decoder import check_frame, maybe_length
from broker.protocol.frame import Hello, Ping, Pong, decode_link, encode_link
from broker.protocol.layout import FRAME_BYTES_PER_SECOND, FRAME_SECONDS, HEAD_MAX_BYTES, TO_SERVICE_AT
from broker.protocol.link_state import PEER_NAME_MAX, Agreement, Event, LinkStateMachine
from broker.ratelimit import TokenBucket
from broker.supervision import Timer

LENGTH_BYTES = 4  # of a frame's own length, which is judged as soon as it is there
SMALL_READ_BYTES = 32 * 1024  # one read after a link brought more work than one iteration has; above what TLS needs
CONTROL_MAX_BYTES = 64 * 1024  # control frames waiting for a stalled peer; above it all but the last one are shed
LINGER_SECONDS = 1.0  # for the peer to read our last frame before the socket is closed
LINGER_BYTES = 1024 * 1024  # that are read and discarded in that time
CURABLE = frozenset(  # refusals that end when routes, permissions, links or roles change here
    {Disposition.NOT_PERMITTED, Disposition.NO_ROUTE, Disposition.FORWARDING_DISABLED, Disposition.ROUTE_INVALID}
    | {Disposition.SERVICE_NOT_HERE, Disposition.INSTANCE_NOT_HERE, Disposition.PRINCIPAL_UNKNOWN}
    | {Disposition.DATABASE_IS_MIRROR}
)
REFUSED_MAX = 128  # conversations of a link whose refusals are remembered, some 50 KiB
RETRY_MS = 100  # after which the peer may send again what would be accepted now
ACCEPTED_NOW = "accepted now"
REJECTS_PER_SECOND = 100  # advice is optional: enough for an operator and a retrying sender, too few to be a flood
ACTIVE_SECONDS = 2.0  # within which a dialog frame has to have moved for a link to be flowing: two ticks
BLOCKED_SECONDS = 1.0  # in which the socket accepts nothing: for less, that is how a full one works
ANSWER_SHARE = 0.5  # of our heartbeat: how long a PING may stay unanswered

# --- states ---


class LinkState(StrEnum):
    """
    CONNECTED until HELLO is complete; DRAINING sends nothing new; LINGERING only lets the last frame leave.

    Only LOGGED_IN becomes DRAINING: at shutdown, as a duplicate that lost, after the peer's GOAWAY, or when reading
    fails. A peer that breaks a rule, or ends its direction while output waits, leads to LINGERING.
    """

    CONNECTED = "CONNECTED"
    LOGGED_IN = "LOGGED_IN"
    DRAINING = "DRAINING"
    LINGERING = "LINGERING"
    CLOSED = "CLOSED"


class InputState(Enum):
    """What happens with bytes that arrive, unless reading is paused."""

    READING = auto()
    DEFERRED = auto()  # whole frames are kept for the next iteration, and nothing is read until then
    ENDED = auto()  # the peer has closed its direction
    FAILED = auto()  # the connection broke
    CLOSED = auto()


class OutputState(Enum):
    """What happens with our direction of the connection."""

    OPEN = auto()
    CLOSING = auto()  # shut once everything is out
    SHUT = auto()
    BROKEN = auto()  # the socket no longer accepts bytes; `close` is scheduled


_INPUT_OVER = frozenset({InputState.ENDED, InputState.FAILED, InputState.CLOSED})

# Names for what is compared at every read or write: Python takes 0.15 us to find the member of an enum.
_LOGGED_IN, _LINGERING = LinkState.LOGGED_IN, LinkState.LINGERING
_CAN_FORWARD = (LinkState.LOGGED_IN, LinkState.DRAINING)
_IS_LOST = (LinkState.LINGERING, LinkState.CLOSED)


class ActivityState(StrEnum):
    """The activity of a link; the value is the word in views, status and metrics."""

    OPENING = "opening"
    FLOWING = "flowing"
    IDLE = "idle"
    BLOCKED = "blocked"
    STALLED = "stalled"
    LEAVING = "leaving"
    DOWN = "down"


_ACTIVITIES = {
    LinkState.CONNECTED: (ActivityState.OPENING, "HELLO of the peer has not come"),
    LinkState.DRAINING: (ActivityState.LEAVING, "nothing new is sent: one side drains"),
    LinkState.LINGERING: (ActivityState.DOWN, ""),
    LinkState.CLOSED: (ActivityState.DOWN, ""),
}


class LinkActivity:
    """
    The real activity of a link, judged by the frames and bytes that have moved.

    A peer that is stopped, or whose cable was pulled, keeps its connection: the system accepts bytes until its buffers
    are full, and reports nothing. Only bytes received from the peer prove anything. So a side that sends also sends
    PING, which has to be answered in time.

    Attributes:
        state: The state as of the last update.
        reason: The reason for the state; empty where it needs none.
        since: Loop time at which the state began.
        progress_at: Loop time at which bytes were last received: all that was sent before the PING has arrived.
    """

    __slots__ = ("_accepted_at", "_moved", "_moved_at", "_sent", "progress_at", "reason", "since", "state")

    def __init__(self, now: float) -> None:
        self.state = ActivityState.OPENING
        self.reason = ""
        self.since = self.progress_at = now
        self._moved = 0  # dialog frames received, and bytes of those that were sent
        self._moved_at = float("-inf")  # when a dialog frame last moved in either direction
        self._sent = 0  # bytes
        self._accepted_at = now  # when the socket last accepted anything

    def update(self, link: Link, now: float) -> LinkActivity:
        """Judge by what has moved since the last update: once a second, and whenever it is asked for."""
        moved = link.received.total() + link.bytes_sent - link.control_sent
        if moved != self._moved:
            self._moved, self._moved_at = moved, now
        if link.bytes_sent != self._sent or not link.is_blocked:
            self._sent, self._accepted_at = link.bytes_sent, now
        self.progress_at = link.connection.last_heard
        state, self.reason = self._judge(link, now)
        if state is not self.state:
            self.state, self.since = state, now
        return self

    def _judge(self, link: Link, now: float) -> tuple[ActivityState, str]:
        if link.state is not LinkState.LOGGED_IN:
            state, reason = _ACTIVITIES[link.state]
            return state, reason or link.reason
        if link.is_paused:  # before silence: a link that is not read receives nothing
            return ActivityState.BLOCKED, f"it is not read: {', '.join(sorted(link.slowed_by))}"
        connection = link.connection
        if connection.unanswered_since is not None:
            waited = now - max(connection.unanswered_since, connection.last_heard)
            if waited >= ANSWER_SHARE * connection.heartbeat:
                return ActivityState.STALLED, "the peer does not answer"
        if now - self._accepted_at >= BLOCKED_SECONDS:
            return ActivityState.BLOCKED, "the peer takes nothing more"
        return (ActivityState.FLOWING if now - self._moved_at < ACTIVE_SECONDS else ActivityState.IDLE), ""


class LinkHandler(Protocol):
    """The owner of a link, which receives its reports, never in the middle of a forwarder pass."""

    def on_online(self, link: Link) -> None:
        """HELLO is complete, the link can carry dialog frames."""

    def on_writable(self, link: Link) -> None:
        """The socket accepts data again."""

    def on_first_read(self, link: Link) -> None:
        """The link was read for the first time since it was made or since `rearm_reader`, which should follow soon."""

    def on_event(self, link: Link, event: Event) -> None:
        """A control frame that is not the link's own business: PROBE, REJECTED, GOAWAY, FATAL."""

    def on_eof(self, link: Link) -> None:
        """The input is over; `close_after_eof` must follow, now or in a later iteration."""

    def on_bug(self, link: Link, error: Exception) -> None:
        """An exception of this program: close this link, not in this call; keep the others."""

    def on_lost(self, link: Link) -> None:
        """Nothing new is sent by the link, `link.reason` says why. Once, before `on_closed`."""

    def on_closed(self, link: Link) -> None:
        """The socket is closed. Once."""


# --- the link ---

_numbers = count(1)


class Link:
    """
    A connection that speaks the protocol; implements the forwarder's Outlet and Origin.

    Attributes:
        number: Unique in this process.
        address: Text of the remote end.
        error: The rule that the peer broke.
        label: The name of the peer in metrics, empty until HELLO is complete.
        received: Dialog frames by kind.
        control_sent: Bytes of `bytes_sent` that are not dialog frames.
        slowed_by: The settings for which the link is not read now, with the number of pauses for each.
        is_peer_draining: A GOAWAY came while logged in: frames leave by this link only where no other leads on. Not
            the protocol's DRAINING, as a GOAWAY that comes while this side drains does not set it.
        is_narrow: `max_frame` is below what this instance accepts; kept because it is compared at every send.
    """

    def __init__(
        self,
        transport: Transport,
        address: str,
        *,
        is_accept: bool,
        connection: LinkStateMachine,
        forwarder: Forwarder,
        handler: LinkHandler,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._forwarder = forwarder
        self._handler = handler
        self.number = next(_numbers)
        self.address = address
        self.is_accept = is_accept
        self.transport = transport
        self.connection = connection
        self.opened_at = self._loop.time()
        self.online_at: float | None = None
        self.agreement: Agreement | None = None
        self.permit = EVERYTHING
        self.meter: Meter | None = None  # where what the peer brings is limited
        self.label = ""

        self.state = LinkState.CONNECTED
        self.reason = ""
        self.error: PeerError | None = None
        self.activity = LinkActivity(self.opened_at)
        self.is_blocked = False  # the socket accepts nothing; also after SHUT, as TLS may hold bytes
        self.is_peer_draining = False
        self.max_frame = 0
        self.is_narrow = False
        self.slowed_by: Counter[str] = Counter()

        self.bytes_received = self.bytes_sent = self.control_sent = 0
        self.receives = self.sends = self.frames_rejected = 0
        self.received: Counter[int] = Counter()

        self._input = InputState.READING
        self._input_error = ""
        self._carry = bytearray()  # a partial frame, or whole frames that are deferred
        self._missing = LENGTH_BYTES  # bytes until there is more to do than to keep them
        self._begun_at = 0.0  # when the first byte of `_carry` arrived
        self._read_bytes = READ_BYTES  # of the next read
        self._deferred: asyncio.Handle | None = None
        self._is_rearm_requested = False  # `on_first_read` was reported

        self._output = OutputState.OPEN
        self._unsent = memoryview(b"")  # the rest of a cut frame
        self._control = bytearray()  # control frames that wait
        self._is_corked = False  # replies to one read leave in one write
        self._refused: dict[bytes, bytes] = {}  # head of the last frame of a conversation that was refused
        self._refused_by: tuple[object, ...] = ()  # what the refusals were decided by
        self._rejects = TokenBucket(REJECTS_PER_SECOND, REJECTS_PER_SECOND, self.opened_at)
        self._end_timer = Timer()
        self._lingered = 0  # bytes discarded

    def start(self, refused: PeerError | None = None) -> None:
        """Send HELLO and read; a refused peer only gets FATAL. Raises OSError."""
        self.transport.set_nodelay()
        self.transport.add_reader(self._on_readable)
        if refused is None:
            self.send_control(encode_link(self.connection.own))
        else:
            self.fail(refused)

    @property
    def peer_name(self) -> str:
        """The name that the peer gives itself, cut to a sensible length; empty until HELLO is complete."""
        return "" if self.agreement is None else self.agreement.peer.name[:PEER_NAME_MAX]

    @property
    def principal(self) -> str:
        """The principal that the peer has proved; empty if it has proved none."""
        identity = self.transport.identity
        return "" if identity is None else identity.principal_name

    @property
    def peer_id(self) -> str:
        """The peer of the connection: the principal that it has proved, or its host if it has proved none."""
        return self.principal or host_of(self.address)

    @property
    def peer_shown(self) -> str:
        """The peer for people: its name and the principal that it has proved, as far as they are known."""
        if self.peer_name and self.principal:
            return f"{self.peer_name} ({self.principal})"
        return self.peer_name or self.principal or "the peer"

    @property
    def is_paused(self) -> bool:
        """Whether reading is paused."""
        return bool(self.slowed_by)

    @property
    def kept_bytes(self) -> int:
        """Bytes that were received and not passed on yet."""
        return len(self._carry)

    @property
    def has_peer_finished(self) -> bool:
        """Whether the peer has closed its direction, and reads on."""
        return self._input is InputState.ENDED

    @property
    def left_cleanly(self) -> bool:
        """Whether all that was sent arrives although the link ends: its peer said GOAWAY and nothing broke."""
        return self.is_peer_draining and self._input is not InputState.FAILED and self._output is not OutputState.BROKEN

    # --- sending ---

    @property
    def can_send(self) -> bool:
        """Whether `send` may be called now."""
        return self.state is _LOGGED_IN and not self.is_blocked

    def send(self, data: Buffer) -> int:
        """Hand whole frames to the socket; returns the bytes accepted."""
        sent = self._write(data)
        if sent < len(data) or self.transport.holds:
            self._block()
        return sent

    def keep_rest(self, rest: Buffer) -> None:
        """Keep the end of the frame that `send` cut; it leaves before anything else."""
        self._unsent = memoryview(bytes(rest))

    def send_control(self, frame: bytes, *, is_last: bool = False) -> None:
        """Queue a control frame; shed above `CONTROL_MAX_BYTES` unless `is_last`."""
        if self._output is OutputState.SHUT or self.state in _IS_LOST:
            return
        if len(self._control) > CONTROL_MAX_BYTES and not is_last:
            return
        self._control += frame
        if not self._is_corked:
            self._flush_control()

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Advise the peer with REJECTED, within a rate; a frame that may be accepted later is remembered."""
        self.frames_rejected += 1
        if disposition in CURABLE:
            keep_latest(self._refused, conversation_of(frame), bytes(frame[:HEAD_MAX_BYTES]), REFUSED_MAX)
            self._refused_by = self._decided_by()
        if self._rejects.allow(self._loop.time()):
            self.send_control(render_rejected(frame, disposition, self.permit))

    def _decided_by(self) -> tuple[object, ...]:
        """Equal only while what was refused would be refused again."""
        return self._forwarder.generation, self._forwarder.routing_context.table.now, self.permit

    def _invite_refused(self) -> None:
        """When decisions may have changed, ask the peer to send again now what would be accepted."""
        decided_by = self._decided_by()
        if not self._refused or decided_by == self._refused_by:
            return
        self._refused_by = decided_by
        for conversation, frame in list(self._refused.items()):
            if self._forwarder.would_accept(frame, self.permit.profile):
                del self._refused[conversation]
                invitation = structs.replace(rejected(frame, Disposition.NOT_PERMITTED), code=0, reason=ACCEPTED_NOW)
                self.send_control(encode_link(structs.replace(invitation, retry_after_ms=RETRY_MS)))

    # --- reading pauses, time passes ---

    def pause(self, setting: str) -> None:
        """Read nothing until `resume`, for this setting; each call needs its own. May come in the middle of a pass."""
        self.slowed_by[setting] += 1
        self._stop_reading()

    def resume(self, setting: str) -> None:
        """End one pause; reading goes on with the end of the last."""
        self.slowed_by -= Counter((setting,))
        self._read_bytes = SMALL_READ_BYTES  # the next read may find little space, and others wait for theirs
        if self._input not in _INPUT_OVER:
            self._go_on_reading()

    def rearm_reader(self) -> None:
        """Make sure that the loop still watches this socket: see `Transport.renew_reader`."""
        self._is_rearm_requested = False
        if self._input is InputState.READING and not self.slowed_by:
            self.transport.renew_reader(self._on_readable)

    def tick(self, now: float) -> None:
        """Once a second or more often: heartbeat, silence, and the deadlines of HELLO and of partial frames."""
        self.activity.update(self, now)
        try:
            is_unread = self.is_paused or self._input is InputState.DEFERRED
            if is_unread and self._input not in _INPUT_OVER:  # then the peer is neither silent nor late
                self.connection.last_heard = self._begun_at = now
            elif self._carry and self.agreement is not None:
                length = len(self._carry) + self._missing
                seconds = FRAME_SECONDS + length / FRAME_BYTES_PER_SECOND
                if now - self._begun_at >= seconds:
                    raise FrameMalformedError(f"frame of {length} bytes, not complete within {seconds:.0f} s")
            if self._output is OutputState.OPEN and self._input not in _INPUT_OVER and self.state not in _IS_LOST:
                for frame in self.connection.tick(now):
                    self.send_control(frame)
                self._invite_refused()
        except PeerError as error:
            self.fail(error)

    # --- the end ---

    def drain(self, seconds: float | None = None) -> None:
        """Send nothing new; when all is out, close our direction, and read on for so many seconds at most."""
        if self._output is OutputState.OPEN and self.state in _CAN_FORWARD:
            self.state = LinkState.DRAINING
            self._close_output(seconds or self.connection.handshake_timeout, "drained")

    def fail(self, error: PeerError) -> None:
        """The peer broke a rule, or is refused: send FATAL, then close."""
        if self.state in _IS_LOST:
            return
        self.send_control(self.connection.fatal(error), is_last=True)
        self.error = error
        self._linger(str(error))

    def close_after_eof(self) -> None:
        """The input is over. A peer that only closed its direction may still read, so it is sent the waiting frames."""
        if self._input is InputState.ENDED and self.is_blocked and self.state in _CAN_FORWARD:
            self._linger("closed by the peer")
        else:
            self.close(self._input_error or "closed by the peer")

    def close(self, reason: str) -> None:
        """Close now, whatever is unsent."""
        if self.state is LinkState.CLOSED:
            return
        is_lost_already, self.state = self.state is LinkState.LINGERING, LinkState.CLOSED
        self.reason = self.reason or reason
        self._end_timer.cancel()
        self._stop_reading()
        if self._input not in _INPUT_OVER:
            self._input = InputState.CLOSED
        self._carry.clear()
        self._forwarder.unfinished.keep(self, 0)
        self.transport.remove_writer()
        self.transport.close()
        if not is_lost_already:
            self._handler.on_lost(self)
        self._handler.on_closed(self)

    def _linger(self, reason: str) -> None:
        """Only what was queued before may still leave."""
        self.state = LinkState.LINGERING
        self.reason = reason
        self._close_output(LINGER_SECONDS, reason)
        self._handler.on_lost(self)

    def _close_output(self, seconds: float, reason: str) -> None:
        """Shut our direction once all is out; close when the peer has done so too, or after so many seconds."""
        if self._output is OutputState.OPEN:
            self._output = OutputState.CLOSING
        self._end_timer.after(seconds, self.close, reason)
        self._shut_when_flushed()

    def _shut_when_flushed(self) -> None:
        """Not before, so that the peer reads everything before it sees the end."""
        if self.is_blocked or self._is_corked or self._output not in (OutputState.CLOSING, OutputState.SHUT):
            return
        if self._input in _INPUT_OVER:
            self._loop.call_soon(self.close, self.reason or "drained")
        elif self._output is OutputState.CLOSING:
            self._output = OutputState.SHUT
            try:
                self.transport.shut()
            except OSError as error:
                self._loop.call_soon(self.close, error.strerror or str(error))
            if self.transport.holds:
                self._block()

    # --- input ---

    def _on_readable(self) -> None:
        """Read once, and pass on what has become whole."""
        if not self._is_rearm_requested:
            self._is_rearm_requested = True
            self._handler.on_first_read(self)
        start = len(self._carry)
        try:
            size = self.transport.recv_into(self._forwarder.view[start : start + self._read_bytes])
        except BlockingIOError:
            return
        except OSError as error:
            self._end_input(error.strerror or str(error))
            return
        if size == 0:
            self._end_input("")
            return
        try:
            self._receive(start, size)
            if self.meter is not None:
                self.meter.on_read(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this link only
            self._handler.on_bug(self, error)

    def _receive(self, start: int, size: int) -> None:
        self.receives += 1
        self.bytes_received += size
        if self.state is _LINGERING:
            self._lingered += size
            if self._lingered > LINGER_BYTES:
                self.close(self.reason)
            return
        now = self.connection.last_heard = self._loop.time()
        if size < self._missing:
            # The rest of a large frame arrives in pieces: keep them, and walk the frames when it is whole.
            if not start:
                self._begun_at = now
            self._carry += self._forwarder.view[start : start + size]
            self._missing -= size
            self._forwarder.unfinished.keep(self, start + size)
            return
        if start:
            self._forwarder.view[:start] = self._carry
            self._carry.clear()
        self._walk(start + size, now, kept=start)

    def _resume_deferred(self) -> None:
        """The next iteration of what was kept whole."""
        self._deferred = None
        self._input = InputState.READING
        start = len(self._carry)
        self._forwarder.view[:start] = self._carry
        self._carry.clear()
        try:
            self._walk(start, self._loop.time(), kept=start)
        except Exception as error:  # noqa: BLE001 - whatever it is, it concerns this link only
            self._handler.on_bug(self, error)
        if self._input is InputState.READING:
            self._go_on_reading()

    def _walk(self, end: int, now: float, *, kept: int) -> None:
        """Pass on what is whole in the forwarder's buffer; `kept` of these bytes were in `_carry` until now."""
        slab = self._forwarder.slab
        used = consumed = 0
        length = None
        try:
            if self.agreement is None and (used := self._take_hello(slab, end, now)):
                slab[: end - used] = slab[used:end]
                end -= used
            if self.state in _CAN_FORWARD:
                consumed = self._pass_on(slab, end, now)
            if consumed < end and self.state not in _IS_LOST:
                length = maybe_length(slab, consumed, end, self.connection.own.max_frame)
        except PeerError as error:
            self.fail(error)
        is_lost = self.state in _IS_LOST
        if kept and (used or consumed or is_lost):
            self._forwarder.unfinished.keep(self, 0)  # that frame is complete, or of no further use
        if is_lost:
            return
        if consumed < end or self._read_bytes < READ_BYTES:
            self._keep_unconsumed(consumed, end, length, now, is_new=used + consumed > 0 or not kept)
        else:
            self._missing = LENGTH_BYTES

    def _take_hello(self, slab: bytearray, end: int, now: float) -> int:
        """Follow the first frame, which must be HELLO; returns the bytes used, 0 when it is not whole."""
        length = maybe_length(slab, 0, end, self.connection.own.max_frame)
        if length is None:
            return 0
        self.connection.expect_link_frame(slab[4])
        if length > end:
            return 0
        check_frame(slab, 0, length)
        self._on_control_frames([bytes(slab[:length])], now)
        return length

    def _pass_on(self, slab: bytearray, end: int, now: float) -> int:
        """The forwarder's pass over dialog frames, then the link's own frames; returns the bytes consumed."""
        batch = self._forwarder.forward(slab, end, now, self, self.permit.profile)
        hop = self._forwarder.hop
        if hop.pending >= SHARED_FRAMES or now >= hop.due:
            hop.handed_over(now, self._loop.time())
        if batch.link_frames:
            self._on_control_frames(batch.link_frames, now)
        if batch.error is not None:
            raise batch.error
        return batch.consumed

    def _keep_unconsumed(self, consumed: int, end: int, length: int | None, now: float, *, is_new: bool) -> None:
        """Keep what was not passed on, which `is_new` or was kept before."""
        left = end - consumed
        if is_new:
            self._begun_at = now
        self._carry += self._forwarder.view[consumed:end]
        if left:
            self._forwarder.unfinished.keep(self, left)
        if length is None or length > left:
            self._missing = max(1, (length or LENGTH_BYTES) - left)
            if self._read_bytes < READ_BYTES:
                self._read_bytes *= 2
            return
        # Whole frames: more work than one iteration has for one link.
        self._read_bytes = SMALL_READ_BYTES
        self._missing = 1
        if self._input is InputState.READING:
            self._stop_reading()
            self._input = InputState.DEFERRED
            self._go_on_reading()

    def _go_on_reading(self) -> None:
        """Unless reading is paused."""
        if self.slowed_by:
            return
        if self._input is InputState.DEFERRED:
            self._deferred = self._loop.call_soon(self._resume_deferred)
        else:
            self.transport.add_reader(self._on_readable)

    def _stop_reading(self) -> None:
        if self._deferred is not None:
            self._deferred.cancel()
            self._deferred = None
        elif self._input is InputState.READING:
            self.transport.remove_reader()

    def _end_input(self, error: str) -> None:
        """Nothing more arrives; `error` is empty when the peer has closed its direction."""
        self._stop_reading()
        self._input = InputState.FAILED if error else InputState.ENDED
        self._input_error = error
        if error and self.state is _LOGGED_IN:
            self.state = LinkState.DRAINING
        self._handler.on_eof(self)

    # --- control frames ---

    def _on_control_frames(self, frames: list[bytes], now: float) -> None:
        """Follow the link's own frames, and answer all of them in one write. Raises PeerError."""
        self._is_corked = True
        try:
            for frame in frames:
                pong = self.connection.maybe_pong(frame)
                if pong is not None:
                    self.send_control(pong)
                    continue
                message = decode_link(frame)
                self.connection.receive(message, now)
                if isinstance(message, Hello):
                    self._go_online(now)
                elif not isinstance(message, Ping | Pong):
                    self._handler.on_event(self, message)
        finally:
            self._is_corked = False
            if self.state is not LinkState.CLOSED:
                self._flush_control()
                self._shut_when_flushed()

    def _go_online(self, now: float) -> None:
        agreement = self.agreement = self.connection.agreement
        assert agreement is not None
        self.max_frame = agreement.peer.max_frame
        self.is_narrow = self.max_frame < self._forwarder.limits.max_frame
        self.state = LinkState.LOGGED_IN
        self.online_at = now
        self._handler.on_online(self)
        # The announced addresses have been used by now.
        self.agreement = self.connection.agreement = agreement.abridged()

    # --- output: a cut frame leaves first, then ciphertext that is held, control frames, new frames ---

    def _write(self, data: Buffer) -> int:
        try:
            sent = self.transport.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # Do not close here: the caller may be in the middle of a pass.
            if self._output is not OutputState.BROKEN:
                self._output = OutputState.BROKEN
                self._loop.call_soon(self.close, error.strerror or str(error))
            return 0
        self.sends += 1
        self.bytes_sent += sent
        self.connection.last_sent = self._loop.time()
        return sent

    def _flush_control(self) -> None:
        if not self.is_blocked:
            self._write_control()
            if self._control or self.transport.holds:
                self._block()

    def _write_control(self) -> None:
        if self._control:
            sent = self._write(self._control)
            self.control_sent += sent
            del self._control[:sent]

    def _block(self) -> None:
        self.is_blocked = True
        if self._output is not OutputState.BROKEN:
            self.transport.add_writer(self._on_writable)

    def _on_writable(self) -> None:
        if self._unsent or self.transport.holds:
            self._unsent = self._unsent[self._write(self._unsent) :]
        if not self._unsent:
            self._write_control()
        if self._output is OutputState.BROKEN or self._unsent or self._control or self.transport.holds:
            return
        self.transport.remove_writer()
        self.is_blocked = False
        if self.state is LinkState.LOGGED_IN:
            self._handler.on_writable(self)
        else:
            self._shut_when_flushed()


def render_rejected(frame: Buffer, disposition: Disposition, permit: Permit) -> bytes:
    """The REJECTED frame for a dropped frame, with the permission that its sender lacks."""
    message = rejected(frame, disposition)
    if disposition is Disposition.NOT_PERMITTED:
        name_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
        why = permit.why_refused(bytes(frame[TO_SERVICE_AT:name_end]).decode(errors="replace"))
        message = structs.replace(message, reason=f"{message.reason}: {why}")
    return encode_link(message)

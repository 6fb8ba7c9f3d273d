"""
One connection to an adjacent instance, from its socket to its end.

A link works on its transport, with the loop's readiness callbacks: a read lands in the forwarder's slab and the whole
pass runs in that callback (`broker.net.intake`), so a lone frame leaves in the loop turn in which it came; what a
`send` took is known at once, so nothing waits in a buffer that the pool does not know. A link keeps at most three
things: the beginning of a frame that has not wholly arrived (at most `max_frame`), the end of one that was cut
(likewise), and a few link frames (`CONTROL_MAX_BYTES`); its transport may keep a little more. Works alike on uvloop and
on plain asyncio.

Protocol states live in `broker.protocol.link_state`; who uses a link for what is decided by `broker.net.peers`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

from broker.errors import PeerError
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.hop import SHARED_FRAMES
from broker.forwarding.way import Buffer
from broker.net.advice import Advice, render_rejected
from broker.net.flow import LinkActivity
from broker.net.intake import Intake
from broker.net.link_state import LinkState
from broker.net.owner import Owner
from broker.net.permissions import EVERYTHING
from broker.net.transport import Transport
from broker.protocol.frame import decode_link
from broker.protocol.link_state import PEER_NAME_MAX, Agreement, LinkStateMachine, Online, Reply

if TYPE_CHECKING:
    from broker.net.meter import Meter

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

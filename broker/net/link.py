"""
One connection to an adjacent instance, from its socket to its end.

A link works on the socket itself, with the loop's readiness callbacks: a read lands in the forwarder's slab and the
whole pass runs in that callback, so a lone frame leaves in the loop turn in which it came; a write is one `send`
whose result is known at once, so nothing waits in a buffer that the pool does not know. A link keeps at most three
things: the beginning of a frame that has not wholly arrived (at most `max_frame`), the end of one that the socket cut
(likewise), and a few link frames (`CONTROL_MAX_BYTES`). Works alike on uvloop and on plain asyncio.

Protocol states live in `broker.wire.connection`; who uses a link for what is decided by `broker.net.peers`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from enum import StrEnum
from itertools import count
from typing import Protocol

from broker.errors import PeerError
from broker.flow import Disposition
from broker.forwarding.forwarder import READ_BYTES, Forwarder
from broker.forwarding.way import Buffer
from broker.net.advice import Advice, render_rejected
from broker.wire.connection import Connection, Event, Online, Reply
from broker.wire.decoder import check_frame, maybe_length
from broker.wire.frame import decode_link
from broker.wire.handshake import Agreement

CONTROL_MAX_BYTES = 64 * 1024  # link frames waiting for a stalled peer; past it advice is shed
LINGER_SECONDS = 1.0  # how long the last words to a peer may take to be read before the socket is closed
LINGER_BYTES = 1024 * 1024  # what is read and thrown away meanwhile
LENGTH_BYTES = 4  # of a frame's own length, which is judged as soon as it is there
PEER_NAME_MAX = 128  # characters of a name that are shown; what a configuration may say

_numbers = count(1)


class LinkState(StrEnum):
    """CONNECTED until HELLO is complete; DRAINING sends nothing new; LINGERING only waits for its last words to go."""

    CONNECTED = "CONNECTED"
    LOGGED_IN = "LOGGED_IN"
    DRAINING = "DRAINING"
    LINGERING = "LINGERING"
    CLOSED = "CLOSED"


class Owner(Protocol):
    """Who is told what happens on a link."""

    def on_online(self, link: Link) -> None:
        """HELLO is complete; the link can send."""

    def on_writable(self, link: Link) -> None:
        """The link can send again."""

    def on_event(self, link: Link, event: Event) -> None:
        """The peer said something that is not for the link itself."""

    def on_lost(self, link: Link) -> None:
        """Nothing new leaves through the link any more; `link.reason` says why. Once, before `on_closed`."""

    def on_closed(self, link: Link) -> None:
        """The socket is closed."""


class Link:
    """
    A connected socket that speaks the protocol. Loop-only.

    Shape: `number` unique in this process; `address` text of the remote end; `is_accept` when the peer opened it;
    `opened_at` loop time; `connection` its protocol state; `error` the rule that the peer broke; the counters count
    bytes, frames and system calls since it was opened, `received` dialog frames by kind.
    """

    def __init__(
        self, sock: socket.socket, address: str, *, is_accept: bool, connection: Connection, forwarder: Forwarder
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
        self.bytes_received = self.bytes_sent = self.receives = self.sends = self.frames_rejected = 0
        self.received: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self.opened_at = self._loop.time()
        self.online_at: float | None = None
        self._sock = sock
        self.connection = connection
        self._forwarder = forwarder
        self._owner: Owner  # from `start` on
        self._view = memoryview(forwarder.slab)
        self._carry = bytearray()
        self._missing = LENGTH_BYTES
        self._rest = memoryview(b"")
        self._control = bytearray()
        self._pauses = 0  # how many ask that nothing be read now
        self._is_blocked = False  # whether `_rest` and `_control` must go first
        self._is_ending = self._is_shut = False  # our direction is to be shut once they are out; and is shut
        self._has_ended = False  # whether the peer has shut its direction
        self._advice = Advice(self.opened_at)
        self._lingered = 0

    def start(self, owner: Owner) -> None:
        """Say HELLO and begin to read."""
        self._owner = owner
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(self._sock, self._on_readable)
        self.say(self.connection.hello())

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
        """Whether nothing is read from it now."""
        return self._pauses > 0

    # --- Outlet: frames leave -------------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        """Whether `send` may be called now."""
        return self.state is LinkState.LOGGED_IN and not self._is_blocked

    def send(self, data: Buffer) -> int:
        """Hand whole frames to the socket; how many bytes it took at once."""
        sent = self._write(data)
        if sent < len(data):
            self._block()
        return sent

    def finish(self, rest: Buffer) -> None:
        """Keep the end of the frame that `send` cut; it leaves before anything else."""
        self._rest = memoryview(bytes(rest))

    def say(self, frame: bytes) -> None:
        """Send whole link frames, behind a cut frame and earlier link frames."""
        if self._is_shut or self.state in (LinkState.LINGERING, LinkState.CLOSED):
            return
        if not self._is_blocked:
            sent = self._write(frame)
            if sent == len(frame):
                return
            frame = frame[sent:]
            self._block()
        self._control += frame

    # --- Origin: advice goes back, reading pauses -----------------------------------------------------------

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Advise the peer that a frame was not taken, within a rate and a bound."""
        self.frames_rejected += 1
        if len(self._control) <= CONTROL_MAX_BYTES and self._advice.allow():
            self.say(render_rejected(frame, disposition))

    def pause(self) -> None:
        """Read nothing until `resume`: what this link brings finds no room. Each call has its own `resume`."""
        self._pauses += 1
        if self._pauses == 1 and self.state is not LinkState.CLOSED:
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        """Whoever asked for a pause needs it no more; the last one lets reading go on."""
        self._pauses -= 1
        if not self._pauses and self.state is not LinkState.CLOSED and not self._has_ended:
            self._loop.add_reader(self._sock, self._on_readable)

    # --- time -----------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Now and then, once a second or more often: heartbeat, silence, HELLO in time."""
        self._advice.refill(now)
        if self._pauses:  # what is not listened to is not silence
            self.connection.last_heard = now
        if self._is_ending or self.state in (LinkState.LINGERING, LinkState.CLOSED):
            return
        try:
            for frame in self.connection.tick(now):
                if len(self._control) <= CONTROL_MAX_BYTES:
                    self.say(frame)
        except PeerError as error:
            self.fail(error)

    # --- the end --------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Send nothing new; when all is out, close our direction and read on until the peer closes its own."""
        if self.state in (LinkState.LOGGED_IN, LinkState.DRAINING) and not self._is_ending:
            self._end(LinkState.DRAINING, self.connection.handshake_timeout, "drained")

    def hear_out(self, seconds: float) -> None:
        """The peer is leaving: send nothing new and read on until it closes, for so many seconds at most."""
        if self.state is LinkState.LOGGED_IN:
            self.state = LinkState.DRAINING
            self._loop.call_later(seconds, self.close, "the peer has left")

    def fail(self, error: PeerError) -> None:
        """The peer broke the rules: FATAL, then close."""
        if self.state in (LinkState.LINGERING, LinkState.CLOSED):
            return
        self.say(self.connection.fatal(error))
        self.error = error
        self._linger(str(error))

    def close(self, reason: str) -> None:
        """Close now, whatever is unsent."""
        if self.state is LinkState.CLOSED:
            return
        is_lost_already = self.state is LinkState.LINGERING
        self.state = LinkState.CLOSED
        self.reason = self.reason or reason
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self._carry.clear()
        self._forwarder.unfinished.keep(self, 0)
        if not is_lost_already:
            self._owner.on_lost(self)
        self._owner.on_closed(self)

    def _linger(self, reason: str) -> None:
        """Of no use any more; only what was already said may still leave."""
        self.reason = reason
        self._end(LinkState.LINGERING, LINGER_SECONDS, reason)
        self._owner.on_lost(self)

    def _end(self, state: LinkState, seconds: float, reason: str) -> None:
        """Shut our direction once all is out; close when the peer has done so too, or after so many seconds."""
        self.state = state
        self._is_ending = True
        self._loop.call_later(seconds, self.close, reason)
        self._maybe_shut()

    def _maybe_shut(self) -> None:
        """Close our direction once everything is out, so that the peer reads all of it before it sees the end."""
        if self._is_blocked or not self._is_ending:
            return
        if self._has_ended:
            self._loop.call_soon(self.close, self.reason)
        elif not self._is_shut:
            self._is_shut = True
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                self._loop.call_soon(self.close, error.strerror or str(error))

    # --- reading --------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        start = len(self._carry)
        try:
            size = self._sock.recv_into(self._view[start : start + READ_BYTES])
        except BlockingIOError:
            return
        except OSError as error:
            self.close(error.strerror or str(error))
            return
        if size == 0:
            self._on_end()
            return
        self.receives += 1
        self.bytes_received += size
        if self.state is LinkState.LINGERING:
            self._lingered += size
            if self._lingered > LINGER_BYTES:
                self.close(self.reason)
            return
        now = self.connection.last_heard = self._loop.time()
        if size < self._missing:
            # The rest of a large frame comes in pieces: keep them as they come, walk when it is whole.
            self._carry += self._view[start : start + size]
            self._missing -= size
            self._forwarder.unfinished.keep(self, start + size)
            return
        if start:
            self._view[:start] = self._carry
            self._carry.clear()
        self._walk(start + size, now)

    def _on_end(self) -> None:
        """The peer sends nothing more. It may still read, as one that drains does: it gets what has begun to leave."""
        if self._is_blocked and self.state in (LinkState.LOGGED_IN, LinkState.DRAINING):
            self._loop.remove_reader(self._sock)
            self._has_ended = True
            self._linger("closed by the peer")
        else:
            self.close("closed by the peer")

    def _walk(self, end: int, now: float) -> None:
        slab = self._forwarder.slab
        try:
            used = self._greet(slab, end, now) if self.agreement is None else 0
            if used:
                slab[: end - used] = slab[used:end]
                end -= used
            consumed = self._pass(slab, end, now) if self.state in (LinkState.LOGGED_IN, LinkState.DRAINING) else 0
            if self.state in (LinkState.LINGERING, LinkState.CLOSED):
                return
            length = maybe_length(slab, consumed, end, self.connection.max_frame) if consumed < end else None
        except PeerError as error:
            self.fail(error)
            return
        self._carry += self._view[consumed:end]
        self._missing = max(1, (length or LENGTH_BYTES) - (end - consumed))
        self._forwarder.unfinished.keep(self, end - consumed)

    def _greet(self, slab: bytearray, end: int, now: float) -> int:
        """Take the first frame, which must be HELLO; bytes used, 0 when it is not whole."""
        length = maybe_length(slab, 0, end, self.connection.max_frame)
        if length is None:
            return 0
        self.connection.expect_link_frame(slab[4])
        if length > end:
            return 0
        check_frame(slab, 0, length)
        self._hear([bytes(slab[:length])], now)
        return length

    def _pass(self, slab: bytearray, end: int, now: float) -> int:
        """The pass over dialog frames, then the link's own frames; bytes consumed."""
        batch = self._forwarder.take(slab, end, now, self)
        if batch.link_frames:
            self._hear(batch.link_frames, now)
        if batch.error is not None:
            raise batch.error
        return batch.consumed

    def _hear(self, frames: list[bytes], now: float) -> None:
        """Follow the link's own frames; a flood of PINGs is answered with one write."""
        replies = bytearray()
        for frame in frames:
            for event in self.connection.receive(decode_link(frame), now):
                if isinstance(event, Reply):
                    if len(self._control) + len(replies) <= CONTROL_MAX_BYTES:
                        replies += event
                elif isinstance(event, Online):
                    self._go_online(event.agreement, now)
                else:
                    self._owner.on_event(self, event)
        if replies:
            self.say(bytes(replies))

    def _go_online(self, agreement: Agreement, now: float) -> None:
        self.agreement = agreement
        self.max_frame = agreement.send_max_frame
        self.is_narrow = self.max_frame < self.connection.max_frame
        self.state = LinkState.LOGGED_IN
        self.online_at = now
        self._owner.on_online(self)

    # --- writing --------------------------------------------------------------------------------------------

    def _write(self, data: Buffer) -> int:
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            # Not here: the caller is in the middle of a pass.
            self._loop.call_soon(self.close, error.strerror or str(error))
            return 0
        self.sends += 1
        self.bytes_sent += sent
        self.connection.last_sent = self._loop.time()
        return sent

    def _block(self) -> None:
        self._is_blocked = True
        self._loop.add_writer(self._sock, self._on_writable)

    def _on_writable(self) -> None:
        if self._rest:
            self._rest = self._rest[self._write(self._rest) :]
        if self._control and not self._rest:
            del self._control[: self._write(self._control)]
        if self._rest or self._control:
            return
        self._loop.remove_writer(self._sock)
        self._is_blocked = False
        if self.state is LinkState.LOGGED_IN:
            self._owner.on_writable(self)
        else:
            self._maybe_shut()

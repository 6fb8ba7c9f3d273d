"""
The link protocol as a state machine: what two instances agree on, which frame is legal when, and what time alone does.

```
              HELLO              GOAWAY
AWAIT_HELLO ----------> ONLINE ----------> DRAINING
     | FATAL              | FATAL             | FATAL      (and FATAL sent, from every state)
     +--------------------+-------------------+----------> CLOSED
```

Each side sends HELLO at once and may receive nothing but HELLO, or FATAL, before it is ONLINE. DRAINING means that the
peer has sent GOAWAY: link frames go on as before, dialog frames to it end at its deadline.

No I/O and no clock: `now` is monotonic seconds. Dialog frames do not pass through here. The shell reports traffic by
setting `last_heard` and `last_sent`, one attribute a batch; it calls `tick` now and then, and reads what has arrived
before that, so that its own delay is not taken for the peer's silence. An error raised here ends the connection: the
shell sends `fatal(error)` and closes.

Nothing is negotiated back and forth: each side computes the agreement from the same two HELLOs, so both reach the same
version, and each learns the other's limits. A number that only affects comfort (heartbeat) is clamped; one that decides
whether frames arrive at all (`max_frame`) is refused outside its range, because a clamped one would break silently.

Source: docs/protocol.md, "Connection"; arbitration after the original's ARBITRATION login state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from zlib import crc32

from msgspec import structs

from broker.errors import NO_HELLO, HandshakeRefusedError, OutOfSequenceError, PeerError, PeerSilentError
from broker.protocol.frame import (
    KIND_OF,
    Fatal,
    GoAway,
    Hello,
    LinkMessage,
    Ping,
    Pong,
    Probe,
    ProbeReply,
    Rejected,
    encode_link,
)
from broker.protocol.layout import (
    HANDSHAKE_TIMEOUT,
    HEARTBEAT_MS_RANGE,
    MAX_FRAME_RANGE,
    NO_GUID,
    PING_BYTES,
    PRELUDE,
    PRELUDE_BYTES,
    PROTOCOL,
    SILENCE_FACTOR,
    FrameKind,
)

PEER_NAME_MAX = 128  # characters of a peer's names that are kept; what a configuration may say
_QUOTED = 8  # characters or items of an unknown peer's HELLO that are repeated in an error, so that it stays one line


class LinkPhase(StrEnum):
    """How far a connection is; the value is the word used in errors and views."""

    AWAIT_HELLO = "waiting for HELLO"
    ONLINE = "online"
    DRAINING = "draining"
    CLOSED = "closed"


_ANSWERING = (LinkPhase.ONLINE, LinkPhase.DRAINING)
_STAYING = (FrameKind.PING, FrameKind.PONG, FrameKind.PROBE, FrameKind.PROBE_REPLY, FrameKind.REJECTED)
# (state, kind received) -> next state; a missing key is out of sequence.
TRANSITIONS: dict[tuple[LinkPhase, int], LinkPhase] = {
    (LinkPhase.AWAIT_HELLO, FrameKind.HELLO): LinkPhase.ONLINE,
    (LinkPhase.AWAIT_HELLO, FrameKind.FATAL): LinkPhase.CLOSED,
    **{(state, kind): state for state in _ANSWERING for kind in _STAYING},
    **{(state, FrameKind.GOAWAY): LinkPhase.DRAINING for state in _ANSWERING},
    **{(state, FrameKind.FATAL): LinkPhase.CLOSED for state in _ANSWERING},
}
_PONG = PRELUDE.pack(PRELUDE_BYTES + PING_BYTES, FrameKind.PONG, 0, 0, 0)


Event = Probe | ProbeReply | Rejected | GoAway | Fatal
"""A frame on which the shell has to act, once the connection is online."""


# --- the machine ---


class LinkStateMachine:
    """
    The protocol state of one connection.

    Changed by its methods only, except `last_heard` and `last_sent`, which the shell sets to `now` when anything was
    received or sent.

    Attributes:
        own: The HELLO of this side, the first frame to send.
        agreement: The agreement with the peer; None until ONLINE.
        last_heard, last_sent: Monotonic seconds at which anything was last received, or sent.
        unanswered_since: Monotonic seconds of the first PING that is not answered; None if all are answered.
        round_trip: Seconds from the last PING that was answered to its PONG; None before the first answer.
    """

    __slots__ = (
        "_answered_at",
        "_hello_due",
        "_pinged_at",
        "_pings",
        "agreement",
        "handshake_timeout",
        "last_heard",
        "last_sent",
        "own",
        "round_trip",
        "state",
        "unanswered_since",
    )

    def __init__(self, own: Hello, *, now: float, handshake_timeout: float = HANDSHAKE_TIMEOUT) -> None:
        self.state = LinkPhase.AWAIT_HELLO
        self.agreement: Agreement | None = None
        self.handshake_timeout = handshake_timeout
        self.last_heard = now
        self.last_sent = now
        self.own = own
        self._hello_due = now + handshake_timeout
        self._pings = 0
        self._pinged_at = self._answered_at = now
        self.unanswered_since: float | None = None
        self.round_trip: float | None = None

    @property
    def heartbeat(self) -> float:
        """Seconds; as this side's HELLO says."""
        return self.own.heartbeat_ms / 1000

    def expect_link_frame(self, kind: int) -> None:
        """
        Refuse by its kind alone, before the rest of it has arrived, a frame that may not come now.

        Only link frames are ever expected here, so ask about dialog kinds only while HELLO is awaited.

        Raises:
            OutOfSequenceError: `TRANSITIONS` has no step for this kind in this state.
        """
        if (self.state, kind) not in TRANSITIONS:
            raise OutOfSequenceError(_name(kind), self.state.value)

    def receive(self, message: LinkMessage, now: float) -> None:
        """
        Take one link frame; after a HELLO there is an `agreement`, and `maybe_pong` has the answer to a PING.

        Args:
            message: The frame, decoded.
            now: Monotonic seconds at which it was read.

        Raises:
            OutOfSequenceError: a frame that this state does not allow: a second HELLO, anything but HELLO or FATAL
                before HELLO, anything after FATAL. State and times are as before.
            HandshakeRefusedError: a HELLO that cannot be agreed with; state and times are as before.
        """
        kind = KIND_OF[type(message)]
        self.expect_link_frame(kind)
        if isinstance(message, Hello):
            self.agreement = agree(self.own, message)
            self._pinged_at = self._answered_at = now - self.heartbeat * _share(self.own, message)
        elif isinstance(message, Pong) and message.payload == self._pings.to_bytes(PING_BYTES, "big"):
            self._hear_answer(now)
        self.state = TRANSITIONS[self.state, kind]
        self.last_heard = now

    def maybe_pong(self, frame: bytes) -> bytes | None:
        """The answer to a whole PING; None for another frame, or one too early."""
        if frame[4] == FrameKind.PING and self.state in _ANSWERING and len(frame) == PRELUDE_BYTES + PING_BYTES:
            return _PONG + frame[PRELUDE_BYTES:]
        return None

    def tick(self, now: float) -> list[bytes]:
        """
        Do what is due by time alone.

        Returns:
            The link frames to send now: one PING or none. A PING is due when nothing was sent for this side's
            heartbeat. It is also due when something was sent since the last PONG and the last PING is a heartbeat ago.
            The first PING is due sooner by `_share`.

        Raises:
            HandshakeRefusedError: no HELLO within `handshake_timeout`.
            PeerSilentError: nothing received for three of the heartbeats that the peer announced.
        """
        if self.state is LinkPhase.CLOSED:
            return []
        if self.agreement is None:
            if now >= self._hello_due:
                raise HandshakeRefusedError(f"{NO_HELLO} {self.handshake_timeout:g} s")
            return []
        if now >= self.last_heard + SILENCE_FACTOR * self.agreement.peer_heartbeat:
            raise PeerSilentError(now - self.last_heard)
        if now < self._ping_at():
            return []
        self._pings += 1
        self.last_sent = self._pinged_at = now
        if self.unanswered_since is None:
            self.unanswered_since = now
        return [encode_link(Ping(self._pings.to_bytes(PING_BYTES, "big")))]

    def fatal(self, error: PeerError) -> bytes:
        """The last words to a peer that broke the rules: FATAL with the error's code and sentence. Closes."""
        self.state = LinkPhase.CLOSED
        return encode_link(Fatal(code=error.code, text=str(error)))

    def _ping_at(self) -> float:
        """A side that sends goes on sending PING: that bytes were written does not say that they have arrived."""
        asked_at = self._pinged_at if self.last_sent > self._answered_at else self.last_sent
        return min(self.last_sent, asked_at) + self.heartbeat

    def _hear_answer(self, now: float) -> None:
        """Accept the answer to the last PING; an answer to an older one proves nothing of what was sent after that."""
        if self.unanswered_since is not None:
            self.unanswered_since, self._answered_at, self.round_trip = None, now, now - self._pinged_at


def _share(own: Hello, peer: Hello) -> float:
    """
    How far the first PING is brought forward, in heartbeats.

    Connections that come about at one instant would ask in step for as long as they last. Both ids decide, so each
    side of each connection has its own share, always the same one, in [0, 1).
    """
    return crc32(own.arbitration + peer.arbitration) / 2**32


def _name(kind: int) -> str:
    return next((known.name for known in FrameKind if known == kind), f"a frame of kind 0x{kind:02x}")


# --- what both HELLOs agree on ---


@dataclass(frozen=True, slots=True)
class Agreement:
    """
    The parameters of a connection once both HELLOs are known.

    Attributes:
        version: The highest version that both sides speak.
        peer_heartbeat: Seconds of silence after which the peer sends PING.
        peer: Its HELLO as received.
        is_self: The peer claims to be this process, or another one of the same instance; any peer that has seen our
            HELLO can claim it.
    """

    version: int
    peer_heartbeat: float
    peer: Hello
    is_self: bool

    def abridged(self) -> Agreement:
        """The same with what stays of interest once the peer's addresses are known: no lists, and short names."""
        name, software = self.peer.name[:PEER_NAME_MAX], self.peer.software[:PEER_NAME_MAX]
        short: dict[str, Any] = {"name": name, "software": software, "addresses": (), "features": ()}
        return replace(self, peer=structs.replace(self.peer, versions=(self.version,), **short))


def agree(own: Hello, peer: Hello) -> Agreement:
    """
    Agree on what both HELLOs allow.

    Raises:
        HandshakeRefusedError: another protocol, no version in common, or a `max_frame` outside 4 KiB .. 16 MiB.
    """
    if peer.protocol != PROTOCOL:
        raise HandshakeRefusedError(f"the peer speaks {peer.protocol[:_QUOTED]!r}, not {PROTOCOL!r}")
    common = set(own.versions) & set(peer.versions)
    if not common:
        raise HandshakeRefusedError(
            f"no version in common: the peer speaks {_render(peer.versions)}, this instance {_render(own.versions)}"
        )
    smallest, largest = MAX_FRAME_RANGE
    if not smallest <= peer.max_frame <= largest:
        raise HandshakeRefusedError(f"max_frame of {peer.max_frame} bytes, not {smallest} .. {largest}")
    shortest, longest = HEARTBEAT_MS_RANGE
    return Agreement(
        version=max(common),
        peer_heartbeat=min(max(peer.heartbeat_ms, shortest), longest) / 1000,
        peer=peer,
        # Another process of this instance decides by the same routes: frames sent there would circle.
        is_self=peer.arbitration == own.arbitration != NO_GUID or peer.instance == own.instance != NO_GUID,
    )


def stays(own_arbitration: bytes, peer_arbitration: bytes, *, opened_here: bool) -> bool:
    """
    Whether a connection stays when the same pair has another one that the other side opened.

    The one opened by the side with the lower arbitration id stays, so both sides keep the same one. Two equal ids
    are one process connected to itself (`Agreement.is_self`): there is nothing to arbitrate.

    Arbitration ids have 16 bytes and are compared as unsigned big-endian numbers.
    """
    return opened_here == (own_arbitration < peer_arbitration)


def _render(versions: tuple[int, ...]) -> str:
    listed = ", ".join(str(version) for version in versions[:_QUOTED]) or "none"
    return f"{listed}, ..." if len(versions) > _QUOTED else listed

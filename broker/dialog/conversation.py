"""
One side of a conversation as rules: states, what an arrival is, what may be sent, when to send again. Pure.

A dialog has two sides, and each side two directions. Outbound: messages get sequence numbers in the application's own
transaction, travel as fragments inside a window, and are kept until the far side acknowledges that it stored them.
Inbound: a fragment is expected, early, or a duplicate, by its place `(sequence, fragment)` alone.

Time is an argument (monotonic seconds). Nothing here stores or sends; the shell is `broker.dialog.endpoint`.

Source: Service Broker documentation, "Service Broker Communication Protocols", "Dialog Conversations".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from broker.wire.layout import Flag

NEVER = float("inf")
FIRST_WINDOW = 64  # frames in flight before the far side has acknowledged anything
EARLY_WINDOW = 4096  # how many messages ahead of the expected one are kept, sender's windows and then some


class State(StrEnum):
    """The documented states of a conversation endpoint."""

    STARTED_OUTBOUND = "SO"
    STARTED_INBOUND = "SI"
    CONVERSING = "CO"
    DISCONNECTED_INBOUND = "DI"
    DISCONNECTED_OUTBOUND = "DO"
    ERROR = "ER"
    CLOSED = "CD"


class Happening(StrEnum):
    """What changes the state of an endpoint."""

    FIRST_SENT = "first message sent"
    FIRST_RECEIVED = "first message received whole"
    END_RECEIVED = "END DIALOG received"
    ERROR_RECEIVED = "error received"
    ENDED_HERE = "END CONVERSATION here"
    END_ACKNOWLEDGED = "END DIALOG acknowledged"


S, H = State, Happening
# A missing key is a step that changes nothing: the arrival is acknowledged and discarded, the call refused.
TRANSITIONS: dict[tuple[State, Happening], State] = {
    (S.STARTED_OUTBOUND, H.FIRST_SENT): S.CONVERSING,
    (S.STARTED_OUTBOUND, H.ENDED_HERE): S.CLOSED,  # nobody heard of it
    (S.STARTED_OUTBOUND, H.ERROR_RECEIVED): S.ERROR,
    (S.STARTED_INBOUND, H.FIRST_RECEIVED): S.CONVERSING,
    (S.STARTED_INBOUND, H.ERROR_RECEIVED): S.ERROR,
    (S.STARTED_INBOUND, H.ENDED_HERE): S.DISCONNECTED_OUTBOUND,
    (S.CONVERSING, H.END_RECEIVED): S.DISCONNECTED_INBOUND,
    (S.CONVERSING, H.ERROR_RECEIVED): S.ERROR,
    (S.CONVERSING, H.ENDED_HERE): S.DISCONNECTED_OUTBOUND,
    (S.DISCONNECTED_INBOUND, H.ENDED_HERE): S.CLOSED,
    (S.DISCONNECTED_INBOUND, H.ERROR_RECEIVED): S.ERROR,
    (S.DISCONNECTED_OUTBOUND, H.END_ACKNOWLEDGED): S.CLOSED,
    (S.DISCONNECTED_OUTBOUND, H.END_RECEIVED): S.CLOSED,
    (S.DISCONNECTED_OUTBOUND, H.ERROR_RECEIVED): S.CLOSED,
    (S.ERROR, H.ENDED_HERE): S.CLOSED,
}
CAN_SEND = frozenset({S.STARTED_OUTBOUND, S.CONVERSING})
TAKES_MESSAGES = frozenset({S.STARTED_OUTBOUND, S.STARTED_INBOUND, S.CONVERSING})


# --- inbound ------------------------------------------------------------------------------------------------


class Arrival(IntEnum):
    """What a fragment is to the receiver."""

    EXPECTED = 0
    EARLY = 1
    DUPLICATE = 2
    TOO_EARLY = 3


def place(expected: tuple[int, int], sequence: int, fragment: int) -> Arrival:
    """What a fragment is, given the next expected (sequence, fragment)."""
    if (sequence, fragment) == expected:
        return Arrival.EXPECTED
    if (sequence, fragment) < expected:
        return Arrival.DUPLICATE
    return Arrival.EARLY if sequence < expected[0] + EARLY_WINDOW else Arrival.TOO_EARLY


def after(place: tuple[int, int], flags: int) -> tuple[int, int]:
    """The place that is expected after a fragment with these flags."""
    sequence, fragment = place
    return (sequence + 1, 0) if flags & Flag.LAST_FRAGMENT else (sequence, fragment + 1)


# --- outbound -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outgoing:
    """
    One message to send.

    Shape: `transmission_id` its row; `flags` END_DIALOG or ERROR or 0; `body` the payload, cut into `fragments` pieces
    of `fragment_size` bytes; `envelope` goes before the first of them. Its length may differ from one sending to the
    next, and the cuts must not: the far side may have some fragments of an earlier sending.
    """

    transmission_id: int
    sequence: int
    flags: int
    body: bytes
    fragment_size: int
    envelope: bytes = b""

    @property
    def fragments(self) -> int:
        """How many fragments it takes; an empty message takes one."""
        return max(1, -(-len(self.body) // self.fragment_size))

    def fragment(self, number: int) -> tuple[bytes, int]:
        """Body and flags of one fragment."""
        start = number * self.fragment_size
        piece = self.body[start : start + self.fragment_size]
        is_last = number + 1 == self.fragments
        return piece if number else self.envelope + piece, self.flags | (Flag.LAST_FRAGMENT if is_last else 0)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Shape: seconds until the first resend, and the most that doubling leads to."""

    first: float
    cap: float

    def wait(self, attempts: int) -> float:
        """Seconds to wait for an acknowledgement after so many resends in a row."""
        return min(self.cap, self.first * 2.0 ** min(attempts, 32))


@dataclass(slots=True)
class Outbound:
    """
    What one side still has to get acknowledged. Changed by its methods only.

    Shape: `messages` loaded and unacknowledged, in order; `window` frames allowed in flight, from FIRST_WINDOW up to
    `window_max`, which may be the smaller; `in_flight` frames sent since the last rewind and not acknowledged;
    `loaded_bytes` of `messages`; `attempts` resends in a row without progress; `resend_at`, `sent_at` monotonic
    seconds.
    """

    backoff: Backoff
    window_max: int
    messages: deque[Outgoing] = field(default_factory=deque)
    window: int = field(init=False)
    in_flight: int = 0
    attempts: int = 0
    resend_at: float = NEVER
    sent_at: float | None = None
    loaded_bytes: int = 0
    _next: tuple[int, int] = (0, 0)  # index in `messages`, fragment
    _acknowledged: tuple[int, int] = (0, 0)  # sequence, fragment
    _sent_to: tuple[int, int] = (-1, 0)  # highest (sequence, fragment) ever sent

    def __post_init__(self) -> None:
        """Begin with a small window."""
        self.window = min(FIRST_WINDOW, self.window_max)

    @property
    def acknowledged_sequence(self) -> int:
        """Every message before this one is done with."""
        return self._acknowledged[0]

    @property
    def has_unsent(self) -> bool:
        """Whether a frame may be sent now."""
        return self._next[0] < len(self.messages) and self.in_flight < self.window

    def offer(self, message: Outgoing) -> None:
        """Add the message that follows the last one."""
        if not self.messages:
            self._next = (0, self._acknowledged_of(message))
        self.messages.append(message)
        self.loaded_bytes += len(message.body)

    def take(self, now: float) -> tuple[Outgoing, int, bool]:
        """The next fragment to send, and whether it was sent before; it counts as sent. Only when `has_unsent`."""
        index, fragment = self._next
        message = self.messages[index]
        is_resend = (message.sequence, fragment) <= self._sent_to
        if not is_resend:
            self._sent_to = (message.sequence, fragment)
        self._next = (index, fragment + 1) if fragment + 1 < message.fragments else (index + 1, 0)
        self.in_flight += 1
        self.sent_at = now
        if self.resend_at == NEVER:
            self.resend_at = now + self.backoff.wait(self.attempts)
        return message, fragment, is_resend

    def acknowledge(self, sequence: int, fragment: int, now: float) -> int:
        """Everything before (sequence, fragment) is stored at the far side; how many messages are done with."""
        if (sequence, fragment) <= self._acknowledged:
            return 0
        done = frames = 0
        while self.messages and self.messages[0].sequence < sequence:
            frames += self._sent_of_first() - self._acknowledged_of(self.messages[0])
            self.loaded_bytes -= len(self.messages.popleft().body)
            index, next_fragment = self._next
            self._next = (index - 1, next_fragment) if index > 0 else (0, 0)
            done += 1
        if self.messages and self.messages[0].sequence == sequence:
            first = self.messages[0]
            fragment = min(fragment, first.fragments - 1)
            frames += max(0, min(fragment, self._sent_of_first()) - self._acknowledged_of(first))
            self._next = max(self._next, (0, fragment))
        self._acknowledged = (sequence, fragment)
        self.in_flight -= frames
        self.window = min(self.window_max, self.window + max(1, frames))
        self.attempts = 0
        self.resend_at = now + self.backoff.wait(0) if self.in_flight else NEVER
        return done

    def rewind(self) -> None:
        """The path broke: what is in flight is lost, so send again from the first unacknowledged fragment."""
        self._next = (0, self._acknowledged_of(self.messages[0]) if self.messages else 0)
        self.in_flight = 0
        self.resend_at = NEVER

    def unload(self) -> None:
        """Keep no message here; those that are still to be sent will be offered again."""
        self.messages.clear()
        self.loaded_bytes = 0
        self.rewind()

    def time_out(self) -> None:
        """No acknowledgement came in time: unload, wait longer next time, and begin with a small window."""
        self.unload()
        self.attempts += 1
        self.window = min(FIRST_WINDOW, self.window_max)

    def _sent_of_first(self) -> int:
        """Fragments of the first message sent since the last rewind, those acknowledged before it included."""
        index, next_fragment = self._next
        return self.messages[0].fragments if index > 0 else next_fragment

    def _acknowledged_of(self, message: Outgoing) -> int:
        """Fragments of a message that are known to be stored; never all of them, as that would be the next place."""
        sequence, fragment = self._acknowledged
        return min(fragment, message.fragments - 1) if message.sequence == sequence else 0

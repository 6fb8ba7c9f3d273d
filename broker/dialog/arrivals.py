"""
Frames on their way into the store of a database, and what their senders are sent back: acknowledgements and refusals.

An acknowledgement leaves at once when the far side waits for it or has to send something again: after a duplicate, a
gap or an end, and after ENOUGH frames. Otherwise it waits for the next message of this side, which carries it. One that
is lost needs no care: it is repeated when the far side sends again. Everything that peers can fill is bounded.
Loop-only.

Sources: Service Broker documentation, "Service Broker Communication Protocols", "END CONVERSATION", message 8462;
RFC 5681, section 4.2.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from broker.conversation.frames import AckNote, Contact, Place
from broker.flow import Disposition
from broker.protocol.frame import Fault
from broker.ratelimit import TokenBucket
from broker.security.secured import Secured
from broker.store.port import AckState
from broker.supervision import Timer

BATCH_FRAMES = 1000  # of each kind in one batch: more would hold the database for long, and delay the next batch
INBOX_MAX_BYTES = 16 * 1024 * 1024  # arrivals that wait for the writer; above it they are dropped and sent again
ACK_DELAY = 0.05  # seconds: most answers are sent by then; a far side resends after 200 ms at the earliest
ENOUGH = 4  # frames not acknowledged yet; a window that is small stays open
GRACE = 10.0  # seconds by which the beginning of a dialog may be late: several resends of it
REPEAT_SECONDS = 60.0  # between two faults for one dialog, which may get lost
UNKNOWN_MAX = 4096  # unknown dialogs remembered
CONFIRM_SECONDS = (1.0, 60.0)  # between two requests to confirm a dialog: at first, and at most; doubled each time
REFUSED_MAX = 4096  # dialogs remembered because a queue was off
FAULTS_PER_SECOND = 100  # of a database, so that a flood of old frames is not answered with another
GONE = Fault(-8462, "the remote conversation endpoint is not known here; it has ended, or its database was replaced")

QUEUE_OFF = AckNote(Disposition.QUEUE_DISABLED.number, "the queue of the far service is off")

_Entry: TypeAlias = tuple[bytes, object, Secured | None]


class BatchFrames(NamedTuple):
    """The frames of one batch, acknowledgements last."""

    frames: list[bytes]
    inside: dict[int, Secured]  # by index, those a database of this instance sent: how they may be sealed later
    acks: int
    origins: list[object]


class Inbox:
    """
    Frames that wait for the writer thread, in the order of arrival.

    Acknowledgements have a separate queue, and a batch stores frames of both queues. So many acknowledgements, as many
    as there are dialogs, do not delay messages. Many messages do not delay acknowledgements, which free capacity for
    more.
    """

    def __init__(self) -> None:
        self._messages: deque[_Entry] = deque()
        self._acks: deque[_Entry] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages or self._acks)

    def put(self, frame: bytes, origin: object, inside: Secured | None, *, is_ack: bool) -> bool:
        """Add a frame, from another instance where `inside` is None; False when the inbox is full."""
        if self._bytes >= INBOX_MAX_BYTES:
            return False
        (self._acks if is_ack else self._messages).append((frame, origin, inside))
        self._bytes += len(frame)
        return True

    def pop_batch(self) -> BatchFrames:
        """Remove the oldest frames, as many as one batch stores."""
        messages, acks = (
            [queue.popleft() for _ in range(min(BATCH_FRAMES, len(queue)))] for queue in (self._messages, self._acks)
        )
        entries = messages + acks
        frames = [frame for frame, _, _ in entries]
        self._bytes -= sum(map(len, frames))
        inside = {index: secured for index, (_, _, secured) in enumerate(entries) if secured is not None}
        return BatchFrames(frames, inside, len(acks), [origin for _, origin, _ in entries])


class DelayedAcks:
    """What is stored and not acknowledged yet; `send` sends acknowledgements by themselves."""

    def __init__(self, send: Callable[[Mapping[int, AckState]], None]) -> None:
        self.pending: dict[int, AckState] = {}  # by endpoint_id; ACK_DELAY seconds at most
        self._send = send
        self._timer = Timer()

    def on_stored(self, stored: Mapping[int, AckState]) -> None:
        """After a commit: what is stored now."""
        due: dict[int, AckState] = {}
        for endpoint_id, state in stored.items():
            before = self.pending.pop(endpoint_id, None)
            frames = state.frames + (before.frames if before is not None else 0)
            if state.is_urgent or frames >= ENOUGH:
                due[endpoint_id] = state
            else:
                self.pending[endpoint_id] = replace(state, frames=frames)
        if due:
            self._send(due)
        if self.pending and self._timer.due is None:
            self._timer.after(ACK_DELAY, self._on_timer)

    def on_carried(self, endpoint_id: int, place: Place) -> None:
        """A message that left acknowledges everything before this place."""
        state = self.pending.get(endpoint_id)
        if state is not None and state.place <= place:
            del self.pending[endpoint_id]

    def close(self) -> None:
        """Send the rest."""
        self._timer.cancel()
        self._on_timer()

    def _on_timer(self) -> None:
        due, self.pending = self.pending, {}
        if due:
            self._send(due)


class UnknownDialogs:
    """
    Which senders to unknown dialogs are sent a fault, and how often.

    A far side that sends to a dialog of which not even a tombstone is left would go on until its lifetime is over. It
    is sent the fault at once when it was acknowledged something before. Otherwise the beginning of the dialog may have
    been overtaken, so the fault is sent only when frames still arrive GRACE seconds later.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[tuple[bytes, bool], float] = OrderedDict()
        self._faults = TokenBucket(FAULTS_PER_SECOND, FAULTS_PER_SECOND, 0.0)

    def may_answer(self, contact: Contact, now: float, *, is_certain: bool) -> bool:
        """Whether to send the fault now (monotonic seconds)."""
        key = (contact.conversation_id, contact.is_initiator)
        due = self._due.setdefault(key, now if is_certain else now + GRACE)
        if len(self._due) > UNKNOWN_MAX:
            self._due.popitem(last=False)
        if now < due or not self._faults.allow(now):
            return False
        self._due[key] = now + REPEAT_SECONDS
        self._due.move_to_end(key)
        return True


class RefusedDialogs:
    """
    Dialogs of which something was not stored because a queue was off: their far sides learn when it is on again.

    One that is forgotten, above REFUSED_MAX or by a restart, is sent again when its sender's wait is over.
    """

    def __init__(self) -> None:
        self._places: dict[str, dict[Contact, Place]] = {}  # by service
        self._count = 0

    @property
    def services(self) -> tuple[str, ...]:
        """The services whose queue was off."""
        return tuple(self._places)

    def add(self, contact: Contact, place: Place) -> None:
        """What this side expects next was not stored."""
        places = self._places.setdefault(contact.service_name, {})
        if contact in places or self._count < REFUSED_MAX:
            self._count += contact not in places
            places[contact] = place

    def pop(self, service: str) -> list[tuple[Contact, Place]]:
        """Forget the dialogs of a service whose queue is on, and return them."""
        places = self._places.pop(service, {})
        self._count -= len(places)
        return list(places.items())


class Confirmations:
    """When the initiator of a dialog is asked again to name its target, whose application does not see it before."""

    def __init__(self) -> None:
        self._waits: dict[int, tuple[float, float]] = {}  # by endpoint_id: when the next is due, and the wait after it

    def due(self, unconfirmed: Mapping[int, AckState], now: float) -> dict[int, AckState]:
        """Return those of the sides that are due (monotonic seconds); all others are forgotten."""
        first, most = CONFIRM_SECONDS
        self._waits = {one: self._waits.get(one, (now + first, 2 * first)) for one in unconfirmed}
        due = {one: state for one, state in unconfirmed.items() if self._waits[one][0] <= now}
        for one in due:
            wait = self._waits[one][1]
            self._waits[one] = now + wait, min(most, 2 * wait)
        return due

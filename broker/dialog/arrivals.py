"""
When a side tells its far side what it has stored.

At once when the far side waits for it or has to send something again: after a duplicate, a gap or an end, and when
enough has come. Else a little later, for the next message of this side may carry it. Acknowledgements need no care: one
that is lost is told again when the far side sends again.

Source: Service Broker documentation, "Service Broker Communication Protocols"; RFC 5681, section 4.2.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, TypeAlias

import structlog

from broker.conversation.frames import Contact, Place
from broker.flow import Disposition
from broker.protocol.frame import Fault
from broker.security.session import Secured
from broker.store.port import AckState

DELAY = 0.05  # seconds: whoever answers has most often done so by then; a far side resends after 200 ms at the earliest
ENOUGH = 4  # frames not told of yet; a window that is small stays open

Tell = Callable[[Mapping[int, AckState]], None]


class Acknowledging:
    """
    What is stored and not told yet, by endpoint. Loop-only.

    Shape: `pending` waits for a message that carries it, DELAY seconds at most.
    """

    def __init__(self, tell: Tell) -> None:
        self.pending: dict[int, AckState] = {}
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, stored: Mapping[int, AckState]) -> None:
        """After a commit: what is stored now."""
        due: dict[int, AckState] = {}
        for endpoint_id, standing in stored.items():
            before = self.pending.pop(endpoint_id, None)
            frames = standing.frames + (before.frames if before is not None else 0)
            if standing.is_urgent or frames >= ENOUGH:
                due[endpoint_id] = standing
            else:
                self.pending[endpoint_id] = replace(standing, frames=frames)
        if due:
            self._tell(due)
        if self.pending and self._timer is None:
            self._timer = self._loop.call_later(DELAY, self._on_time)

    def on_told(self, endpoint_id: int, place: Place) -> None:
        """A message that left carries this place."""
        standing = self.pending.get(endpoint_id)
        if standing is not None and standing.place <= place:
            del self.pending[endpoint_id]

    def close(self) -> None:
        """Tell the rest, and nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._on_time()

    def _on_time(self) -> None:
        self._timer = None
        due, self.pending = self.pending, {}
        if due:
            self._tell(due)


# --- inbox ---
# Frames that wait for the writer thread: bounded, and which of them came from inside.
#
# Acknowledgements wait by themselves, and a turn stores some of both: a crowd of them, as many as there are dialogs,
# holds up no message, and no crowd of messages holds up what makes room for more. Each kind stays in its order.


TURN_FRAMES = 1000  # of each kind in one turn: more would hold the database, and what else waits for a turn, for long
INBOX_MAX_BYTES = 16 * 1024 * 1024  # arrivals that wait for the writer; past it they are dropped and come again

_Entry: TypeAlias = tuple[bytes, object, Secured | None]


class Waiting(NamedTuple):
    """
    What has waited.

    Shape: `frames` with the acknowledgements last, so many as `acks`; `origins` who brought each of them; `inside` the
    frames, counted from 0, that a database of this instance has sent, each with what it may be sealed with later.
    """

    frames: list[bytes]
    inside: dict[int, Secured]
    acks: int
    origins: list[object]


class Inbox:
    """Loop-only."""

    def __init__(self) -> None:
        self._messages: deque[_Entry] = deque()
        self._acks: deque[_Entry] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._messages or self._acks)

    def put(self, frame: bytes, origin: object, inside: Secured | None, *, is_ack: bool) -> bool:
        """Let a frame wait, from outside where `inside` is None; False when there is no room for it."""
        if self._bytes >= INBOX_MAX_BYTES:
            return False
        (self._acks if is_ack else self._messages).append((frame, origin, inside))
        self._bytes += len(frame)
        return True

    def take(self) -> Waiting:
        """What has waited longest: as much as one turn stores."""
        taken = _first(self._messages)
        acks = _first(self._acks)
        taken += acks
        frames = [frame for frame, _, _ in taken]
        self._bytes -= sum(map(len, frames))
        inside = {number: secured for number, (_, _, secured) in enumerate(taken) if secured is not None}
        return Waiting(frames, inside, len(acks), [origin for _, origin, _ in taken])


def _first(line: deque[_Entry]) -> list[_Entry]:
    taken = list(islice(line, TURN_FRAMES))
    for _ in taken:
        line.popleft()
    return taken


# --- refusal ---
# What the log is told of frames that were not believed: one of each kind now and then, for anybody may send many.


TELL_SECONDS = 60.0  # between two lines about one kind

log = structlog.get_logger(__name__)


class Refusals:
    """The refusals of one database. Loop-only."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._told_at: dict[Disposition, float] = {}

    def tell(self, refusals: Mapping[Disposition, str], now: float) -> None:
        """Tell why frames of a turn were refused, by disposition; monotonic seconds."""
        for disposition, why in refusals.items():
            told_at = self._told_at.get(disposition)
            if told_at is None or now - told_at >= TELL_SECONDS:
                self._told_at[disposition] = now
                log.warning(
                    "frame refused",
                    database=self._database,
                    number=disposition.number,
                    kind=str(disposition),
                    reason=why,
                )


# --- stranger ---
# Who is told that a dialog is not known here (any more), and how often.
#
# A far side that sends to a dialog of which not even a tombstone is left would go on until its lifetime is over. It
# is
# told at once when it has heard from here before. Else what begins the dialog may just have been overtaken, so it is
# told
# only when it still comes a while later. What is remembered is bounded, and so is what is sent.
#
# Source: Service Broker documentation, "END CONVERSATION"; message 8462.


GRACE = 10.0  # seconds for which the beginning of a dialog may be behind: several resends of it
AGAIN = 60.0  # seconds between two faults for one dialog, which may get lost
KNOWN_MAX = 4096  # dialogs remembered
FAULTS_PER_SECOND = 100  # of a database, so that a flood of old frames is not answered with another
GONE = Fault(-8462, "the remote conversation endpoint is not known here; it has ended, or its database was replaced")


class Strangers:
    """The dialogs of strangers, each with the instant from which it is told. Changed by `may_tell` only."""

    def __init__(self) -> None:
        self._from: OrderedDict[tuple[bytes, bool], float] = OrderedDict()
        self._second = 0
        self._told = 0

    def may_tell(self, contact: Contact, now: float, *, is_certain: bool) -> bool:
        """Whether to tell the far side now (monotonic seconds)."""
        key = (contact.conversation_id, contact.is_initiator)
        at = self._from.get(key)
        if at is None:
            at = self._from[key] = now if is_certain else now + GRACE
            if len(self._from) > KNOWN_MAX:
                self._from.popitem(last=False)
        if now < at or not self._has_room(int(now)):
            return False
        self._from[key] = now + AGAIN
        self._from.move_to_end(key)
        return True

    def _has_room(self, second: int) -> bool:
        if second != self._second:
            self._second, self._told = second, 0
        self._told += 1
        return self._told <= FAULTS_PER_SECOND

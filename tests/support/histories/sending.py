"""
Sending in a synthetic history: messages in fragments, acknowledgements, resends until one arrives, faults.

A *place* is one fragment of one message of one flow. A sender sends it, and again with growing pauses, until an
acknowledgement has come or the history ends. The transmission of a place that is taken first is the one delivered, all
later ones are duplicates, and each of those is acknowledged at once by a frame of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from broker.flow import VisitOutcome
from tests.support.histories.dialogs import Dialogs, messages_between
from tests.support.histories.transit import (
    NOWHERE,
    Kind,
    Transmissions,
    Travelled,
    Visits,
    chosen_of,
    code_of,
    joined,
    travel,
)
from tests.support.histories.world import NEVER, SECOND, Flags, Longs, Scenario, World

FIRST_PAUSE, LONGEST_PAUSE = 2 * SECOND, 64 * SECOND  # between transmissions of a place
OWN_ACK_SHARE = 0.3  # of what arrives; the rest is acknowledged by messages of the other direction
FRAGMENT_BYTES = 64 * 1024
HEAD_BYTES = 170  # of a frame, before the payload
_DELIVERED, _DUPLICATE, _ACKNOWLEDGED = (
    code_of(word) for word in (VisitOutcome.DELIVERED, VisitOutcome.DUPLICATE, VisitOutcome.ACKNOWLEDGED)
)


@dataclass(frozen=True, slots=True)
class Frames:
    """
    Transmissions of all kinds.

    Shape: `ids` [transmission, 2]; `flow` its own, so that an acknowledgement has the other one's; `place` its number,
    NOWHERE for other kinds; `is_open` while the sender does not know which database it is for.
    """

    ids: Longs
    flow: Longs
    place: Longs
    kind: Longs
    sequence: Longs
    fragment: Longs
    size: Longs
    is_resend: Longs
    is_open: Longs


@dataclass(slots=True)
class Places:
    """
    What became of fragments of messages.

    Shape: by place; `first_left` and `last_left` when the first and the newest transmission left the sender, NEVER if
    none did; `arrived` when it was delivered, `acked` when the sender knew, NEVER if not; `newest` its transmission
    that had left last when it was acknowledged, NOWHERE before.
    """

    flow: Longs
    sequence: Longs
    fragment: Longs
    size: Longs
    queued: Longs
    is_abandoned: Flags
    first_left: Longs
    last_left: Longs
    arrived: Longs
    acked: Longs
    newest: Longs


@dataclass(frozen=True, slots=True)
class Sent:
    """What was begun in a stretch of the history, whenever it ended. Shape: `visits` refer to `frames` by number."""

    frames: Frames
    visits: Visits
    places: Places


class Sending:
    """One stretch of a history. Shape: `frames` and `travelled` grow together, a part for each batch of frames."""

    def __init__(self, dialogs: Dialogs, world: World, scenario: Scenario, rng: np.random.Generator) -> None:
        self._dialogs, self._world, self._scenario, self._rng = dialogs, world, scenario, rng
        self._frames: list[Frames] = []
        self._visits: list[Visits] = []
        self._left: list[Longs] = []
        self._count = 0

    def between(self, begin: int, end: int) -> Sent:
        """Everything that belongs to the messages that are put in a queue in this stretch."""
        places = self._places(begin, end)
        transmissions, arrived = self._until_acknowledged(places)
        self._send_faults(begin, end)
        frames = _all_of(self._frames)
        visits = joined(self._visits)
        left = np.concatenate(self._left)
        self._settle(places, frames, left)
        is_late = places.arrived[frames.place[transmissions]] != arrived
        duplicates = transmissions[is_late]
        once_more = self._rng.random(duplicates.size) < self._scenario.doubled
        is_duplicate = np.zeros(self._count, np.bool_)
        is_duplicate[duplicates[~once_more]] = True
        visits.outcome[(visits.outcome == _DELIVERED) & is_duplicate[visits.transmission]] = _DUPLICATE
        return Sent(frames, joined([visits, self._acknowledged(places)]), places)

    def _places(self, begin: int, end: int) -> Places:
        messages, rng = messages_between(self._dialogs, begin, end, self._rng), self._rng
        of_message = np.repeat(np.arange(messages.flow.size), messages.fragments)
        count = of_message.size
        first_of = np.cumsum(messages.fragments) - messages.fragments
        fragment = np.arange(count) - first_of[of_message]
        is_last = fragment == messages.fragments[of_message] - 1
        size = np.minimum(np.exp(rng.normal(6.5, 1.1, count)).astype(np.int64) + 1, FRAGMENT_BYTES)
        return Places(
            flow=messages.flow[of_message],
            sequence=messages.sequence[of_message],
            fragment=fragment,
            size=HEAD_BYTES + np.where(is_last, size, FRAGMENT_BYTES),
            queued=messages.queued[of_message],
            is_abandoned=rng.random(count) < self._scenario.abandoned,
            first_left=np.full(count, NEVER, np.int64),
            last_left=np.full(count, NEVER, np.int64),
            arrived=np.full(count, NEVER, np.int64),
            acked=np.full(count, NEVER, np.int64),
            newest=np.full(count, NOWHERE),
        )

    def _until_acknowledged(self, places: Places) -> tuple[Longs, Longs]:
        """Send places again and again. Returns the transmissions that were taken at their targets, and when."""
        rng, every = self._rng, np.arange(places.flow.size)
        active, leaves = every, places.queued + rng.integers(200, 8_000, every.size)
        pause = FIRST_PAUSE
        taken, arrivals = [every[:0]], [every[:0]]
        attempt = 0
        while active.size:
            frames = self._frames_of(places, active, is_resend=attempt > 0)
            doomed = places.is_abandoned[active].astype(np.int64)
            base = self._count
            gone = self._travel(frames, places.queued[active], leaves, doomed)
            places.arrived[active] = np.minimum(places.arrived[active], gone.arrived)
            here = np.flatnonzero(gone.arrived < NEVER)
            taken.append(base + here)
            arrivals.append(gone.arrived[here])
            acked = self._acknowledge(active[here], places, gone.arrived[here], is_first=attempt == 0)
            places.acked[active[here]] = np.minimum(places.acked[active[here]], acked)
            leaves = gone.left_sender + pause + rng.integers(0, SECOND // 2, active.size)
            goes_on = (places.acked[active] > leaves) & (leaves < self._scenario.duration)
            goes_on &= ~places.is_abandoned[active]
            active, leaves = active[goes_on], leaves[goes_on]
            pause = min(2 * pause, LONGEST_PAUSE)
            attempt += 1
        return np.concatenate(taken), np.concatenate(arrivals)

    def _acknowledge(self, place: Longs, places: Places, arrived: Longs, *, is_first: bool) -> Longs:
        """When the senders of these places know that they arrived; NEVER when the acknowledgement is lost."""
        rng = self._rng
        with_message = arrived + 50_000 + rng.integers(2_000, 30_000, place.size)
        own = np.flatnonzero((rng.random(place.size) < OWN_ACK_SHARE) | (not is_first))
        flow = places.flow[place[own]] ^ 1
        nothing = np.zeros(own.size, np.int64)
        frames = Frames(
            self._new_ids(own.size),
            flow,
            np.full(own.size, NOWHERE),
            np.full(own.size, int(Kind.ACK)),
            nothing,
            nothing,
            np.full(own.size, HEAD_BYTES),
            nothing,
            nothing,
        )
        queued = arrived[own] + rng.integers(0, 50_000, own.size)
        gone = self._travel(frames, queued, queued + rng.integers(20, 400, own.size), nothing)
        with_message[own] = gone.arrived
        return with_message

    def _send_faults(self, begin: int, end: int) -> None:
        """A fault from the target of each dialog that fails, behind its last message."""
        dialogs, rng = self._dialogs, self._rng
        at = (dialogs.begin + dialogs.length)[::2] + SECOND
        dialog = np.flatnonzero(dialogs.fails & (at >= begin) & (at < end))
        flow, nothing = 2 * dialog + 1, np.zeros(dialog.size, np.int64)
        frames = Frames(
            self._new_ids(dialog.size),
            flow,
            np.full(dialog.size, NOWHERE),
            np.full(dialog.size, int(Kind.FAULT)),
            nothing,
            nothing,
            np.full(dialog.size, HEAD_BYTES + 80),
            nothing,
            nothing,
        )
        self._travel(frames, at[dialog], at[dialog] + rng.integers(200, 8_000, dialog.size), nothing)

    def _frames_of(self, places: Places, active: Longs, *, is_resend: bool) -> Frames:
        flow = places.flow[active]
        return Frames(
            self._new_ids(active.size),
            flow,
            active,
            np.full(active.size, int(Kind.MESSAGE)),
            places.sequence[active],
            places.fragment[active],
            places.size[active],
            np.full(active.size, int(is_resend)),
            ((places.sequence[active] == 0) & (flow % 2 == 0)).astype(np.int64),
        )

    def _travel(self, frames: Frames, queued: Longs, leaves: Longs, doomed: Longs) -> Travelled:
        sender, receiver = self._dialogs.sender(frames.flow), self._dialogs.receiver(frames.flow)
        sent = Transmissions(sender, receiver, queued, leaves, frames.is_resend, doomed)
        gone = travel(sent, self._world, self._scenario, self._rng)
        np.add(gone.visits.transmission, self._count, out=gone.visits.transmission)  # a fresh array, nobody else's
        self._frames.append(frames)
        self._visits.append(gone.visits)
        self._left.append(gone.left_sender)
        self._count += sent.count
        return gone

    def _settle(self, places: Places, frames: Frames, left: Longs) -> None:
        """What is known of places when all their transmissions are."""
        of_place = np.flatnonzero(frames.place != NOWHERE)
        of_place = of_place[left[of_place] < self._scenario.duration]
        place = frames.place[of_place]
        # In the order of transmissions, so that of each place the last assignment wins, and the first one backwards.
        places.last_left[place] = left[of_place]
        places.first_left[place[::-1]] = left[of_place][::-1]
        in_time = left[of_place] <= places.acked[place]
        places.newest[place[in_time]] = of_place[in_time]

    def _acknowledged(self, places: Places) -> Visits:
        """The visits at senders that tell of acknowledgements."""
        known = np.flatnonzero((places.newest != NOWHERE) & (places.acked < NEVER))
        nothing, nowhere = np.zeros(known.size, np.int64), np.full(known.size, NOWHERE)
        sender = self._dialogs.sender(places.flow[known])
        return Visits(
            places.newest[known],
            nowhere,  # no step of its way
            sender,
            nowhere,
            nowhere,
            places.queued[known],
            places.acked[known],
            np.full(known.size, _ACKNOWLEDGED),
            nowhere,
            nothing,
        )

    def _new_ids(self, count: int) -> Longs:
        return self._rng.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (count, 2))


def known_of(sent: Sent, duration: int, is_sampled: Flags) -> Visits:
    """The visits that are written: over before the history ends, of dialogs that are journalled, or dropped."""
    visits = sent.visits
    is_followed = is_sampled[sent.frames.flow[visits.transmission] // 2] | (visits.reason != NOWHERE)
    return chosen_of(visits, np.flatnonzero((visits.left < duration) & is_followed))


def _all_of(parts: list[Frames]) -> Frames:
    return Frames(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Frames)))

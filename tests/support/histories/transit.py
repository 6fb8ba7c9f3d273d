"""
Frames of a synthetic history on their way: from instance to instance, all of them one step at a time.

Each step is one visit of each frame that is still on its way; what becomes of it there is drawn, or follows from the
world. So the truth is known without looking at what was written: it is what was drawn. Times are those of a right
clock, microseconds; clocks of instances come in when rows are made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from broker.flow import Disposition, VisitOutcome
from tests.support.histories.world import NEVER, SECOND, Longs, Scenario, World

HOP_LIMIT = 16
LIFETIME_MS = 60_000
NOWHERE = -1
OUTCOMES = tuple(VisitOutcome)
REASONS = tuple(Disposition)


class Kind(IntEnum):
    """Of a frame."""

    MESSAGE = 0
    ACK = 1
    FAULT = 2


def code_of(word: VisitOutcome | Disposition) -> int:
    """Its number in OUTCOMES or REASONS."""
    return OUTCOMES.index(word) if isinstance(word, VisitOutcome) else REASONS.index(word)


_SENT, _RESENT, _FORWARDED = (
    code_of(word) for word in (VisitOutcome.SENT, VisitOutcome.RESENT, VisitOutcome.FORWARDED)
)
_DELIVERED, _DROPPED = code_of(VisitOutcome.DELIVERED), code_of(VisitOutcome.DROPPED)
_EXHAUSTED, _EXPIRED, _SHUTDOWN = (
    code_of(word) for word in (Disposition.HOPS_EXHAUSTED, Disposition.EXPIRED_HERE, Disposition.SHUTDOWN)
)
# What a gateway and a target drop for, however the frame came; the first ones before a route was found.
BEFORE_ROUTE = (Disposition.NO_ROUTE, Disposition.LIFETIME_EXCEEDED, Disposition.HOPS_EXHAUSTED)
_AT_GATEWAY = np.array(
    [code_of(word) for word in (Disposition.POOL_LIMIT, Disposition.NO_ROUTE, Disposition.ALREADY_HELD)]
)
_AT_TARGET = np.array(
    [code_of(word) for word in (Disposition.OUT_OF_SEQUENCE, Disposition.STORE_BUSY, Disposition.CORRUPTED)]
)


@dataclass(frozen=True, slots=True)
class Transmissions:
    """Shape: by transmission; nodes `source` and `endpoint`; `queued` and `leaves` instants; `is_doomed` is lost."""

    source: Longs
    endpoint: Longs
    queued: Longs
    leaves: Longs
    is_resend: Longs
    is_doomed: Longs

    @property
    def count(self) -> int:
        """Of transmissions."""
        return self.source.size


@dataclass(frozen=True, slots=True)
class Visits:
    """
    Shape: by visit, in order of `step` and then of transmission.

    `transmission` its number; `node`; `before` and `after` the nodes it came from and was given to, NOWHERE at the
    ends; `outcome` and `reason` numbers in OUTCOMES and REASONS, `reason` NOWHERE unless dropped; `consumed_ms` of its
    lifetime as it left.
    """

    transmission: Longs
    step: Longs
    node: Longs
    before: Longs
    after: Longs
    entered: Longs
    left: Longs
    outcome: Longs
    reason: Longs
    consumed_ms: Longs


@dataclass(frozen=True, slots=True)
class Travelled:
    """
    What became of transmissions.

    Shape: `visits`; by transmission `left_sender`, and `arrived` when its target had taken it, NEVER if it never did.
    """

    visits: Visits
    left_sender: Longs
    arrived: Longs


@dataclass(slots=True)
class _Moving:
    """Transmissions that are on their way to `node`. Shape: all of one size."""

    transmission: Longs
    endpoint: Longs
    node: Longs
    before: Longs
    entered: Longs
    consumed_ms: Longs

    def only(self, chosen: Longs) -> _Moving:
        return _Moving(*(getattr(self, one.name)[chosen] for one in fields(self)))

    def visits(self, step: int, after: Longs, left: Longs, how: tuple[Longs, Longs], consumed_ms: Longs) -> Visits:
        """Those at `node`. Shape: `how` outcome and reason."""
        steps = np.full(left.size, step)
        return Visits(self.transmission, steps, self.node, self.before, after, self.entered, left, *how, consumed_ms)


def travel(sent: Transmissions, world: World, scenario: Scenario, rng: np.random.Generator) -> Travelled:
    """Take transmissions from their senders to wherever they come."""
    towards = world.following(sent.source, sent.endpoint, sent.leaves, rng)
    left = world.when_taken(towards, sent.leaves, rng)
    every = np.arange(sent.count)
    nowhere, nothing = np.full(sent.count, NOWHERE), np.zeros(sent.count, np.int64)
    outcome = np.where(sent.is_resend != 0, _RESENT, _SENT)
    visits = [Visits(every, nothing, sent.source, nowhere, towards, sent.queued, left, outcome, nowhere, nothing)]
    moving = _onto_links(_Moving(every, sent.endpoint, sent.source, nowhere, left, nothing), towards, left, world, rng)
    moving = moving.only(np.flatnonzero((sent.is_doomed == 0) & (rng.random(sent.count) >= scenario.lost)))
    arrived = np.full(sent.count, NEVER, np.int64)
    step = 1
    while moving.transmission.size:
        is_there = moving.node == moving.endpoint
        taken, delivered = _at_target(moving.only(np.flatnonzero(is_there)), step, scenario, rng)
        arrived[delivered.transmission] = delivered.left
        passed, moving = _at_gateway(moving.only(np.flatnonzero(~is_there)), step, world, scenario, rng)
        visits += [taken, passed]
        moving = moving.only(np.flatnonzero(rng.random(moving.transmission.size) >= scenario.lost))
        step += 1
    return Travelled(joined(visits), left, arrived)


def joined(parts: list[Visits]) -> Visits:
    """One after the other."""
    return Visits(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Visits)))


def chosen_of(visits: Visits, chosen: Longs) -> Visits:
    """Some of them, by their places."""
    return Visits(*(getattr(visits, one.name)[chosen] for one in fields(Visits)))


def _onto_links(moving: _Moving, towards: Longs, left: Longs, world: World, rng: np.random.Generator) -> _Moving:
    """On their way to the next node."""
    on_link = world.link_us[moving.node, towards] * np.exp(rng.normal(0, 0.25, towards.size))
    return _Moving(
        moving.transmission, moving.endpoint, towards, moving.node, left + on_link.astype(np.int64), moving.consumed_ms
    )


def _at_target(moving: _Moving, step: int, scenario: Scenario, rng: np.random.Generator) -> tuple[Visits, Visits]:
    """All visits at targets, and those of them that were taken."""
    count = moving.transmission.size
    left = moving.entered + rng.integers(300, 4_000, count)
    reason = np.full(count, NOWHERE)
    is_dropped = rng.random(count) < scenario.dropped / 2
    reason[is_dropped] = rng.choice(_AT_TARGET, int(is_dropped.sum()))
    if step - 1 >= HOP_LIMIT:
        reason[:] = _EXHAUSTED
    outcome = np.where(reason == NOWHERE, _DELIVERED, _DROPPED)
    visits = moving.visits(step, np.full(count, NOWHERE), left, (outcome, reason), moving.consumed_ms)
    return visits, chosen_of(visits, np.flatnonzero(reason == NOWHERE))


def _at_gateway(
    moving: _Moving, step: int, world: World, scenario: Scenario, rng: np.random.Generator
) -> tuple[Visits, _Moving]:
    """All visits at gateways, and what goes on from there."""
    count = moving.transmission.size
    residence = np.exp(rng.normal(np.log(180), 0.7, count)) + 20
    is_held = rng.random(count) < scenario.held
    residence[is_held] = np.exp(rng.normal(np.log(4 * SECOND), 1.2, int(is_held.sum())))
    left = moving.entered + residence.astype(np.int64)
    reason = np.full(count, NOWHERE)
    is_dropped = rng.random(count) < scenario.dropped
    reason[is_dropped] = rng.choice(_AT_GATEWAY, int(is_dropped.sum()), p=(0.5, 0.3, 0.2))
    if step - 1 >= HOP_LIMIT:
        reason[:] = _EXHAUSTED
    left[reason != NOWHERE] = moving.entered[reason != NOWHERE]
    goes_on = reason == NOWHERE
    towards = world.following(moving.node, moving.endpoint, left, rng)
    left = np.where(goes_on, world.when_taken(towards, left, rng), left)
    expires = moving.entered + (LIFETIME_MS - moving.consumed_ms) * 1_000
    for reason_code, at in ((_EXPIRED, expires), (_SHUTDOWN, world.stopped_while(moving.node, moving.entered, left))):
        is_over = goes_on & (at < left)
        reason[is_over], left[is_over] = reason_code, at[is_over]
        goes_on &= ~is_over
    consumed_ms = moving.consumed_ms + (left - moving.entered) // 1_000
    outcome = np.where(goes_on, _FORWARDED, _DROPPED)
    visits = moving.visits(step, np.where(goes_on, towards, NOWHERE), left, (outcome, reason), consumed_ms)
    on = np.flatnonzero(goes_on)
    going = moving.only(on)
    going.consumed_ms = consumed_ms[on]
    return visits, _onto_links(going, towards[on], left[on], world, rng)

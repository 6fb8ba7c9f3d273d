"""
The dialogs of a synthetic history: who talks to whom, how much, and which messages are due when.

A *flow* is one direction of a dialog, number `2 * dialog + from_target`. Its messages are spread evenly over its time
with some chance within each one's own stretch, so the messages due in a stretch of the history are found by
arithmetic, whatever the size of the history, and come in the order of their sequence numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.support.histories.world import SECOND, SERVICES_EACH, Flags, Longs, Scenario, World

MEAN_MESSAGES = 24  # of a dialog
SHORTEST = SECOND  # that a dialog takes
LARGE_SHARE = 0.02  # of messages, that are sent in fragments
FRAGMENTS_MAX = 4
_GAMMA, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class Dialogs:
    """
    All dialogs of a history.

    Shape: by dialog `initiator` and `target` (nodes), `target_service` (number in `World.services`), `ids` [dialog, 2]
    of the conversation as two big-endian words, `is_sampled`, `fails` whether it ends with a fault; by flow `messages`,
    `begin` and `length` in microseconds.
    """

    initiator: Longs
    target: Longs
    target_service: Longs
    ids: Longs
    is_sampled: Flags
    fails: Flags
    messages: Longs
    begin: Longs
    length: Longs

    @property
    def count(self) -> int:
        """Of dialogs."""
        return self.initiator.size

    def sender(self, flow: Longs) -> Longs:
        """The endpoint that sends."""
        return np.where(flow % 2 == 1, self.target[flow // 2], self.initiator[flow // 2])

    def receiver(self, flow: Longs) -> Longs:
        """The endpoint it is for."""
        return np.where(flow % 2 == 1, self.initiator[flow // 2], self.target[flow // 2])

    def to_service(self, flow: Longs) -> Longs:
        """Number of the service it is for; an initiator's service has the number of the initiator."""
        return np.where(flow % 2 == 1, self.initiator[flow // 2], self.target_service[flow // 2])

    def from_service(self, flow: Longs) -> Longs:
        """Number of the service that sends."""
        return self.to_service(flow ^ 1)

    def due_before(self, at: int) -> Longs:
        """By flow, how many messages were due before an instant."""
        elapsed = np.clip(at - self.begin, 0, self.length)
        # The message j is due from begin + length * j // messages on; both products stay below 2^63 for 10^7 messages.
        due: Longs = -((-elapsed * self.messages) // self.length)
        return np.minimum(due, self.messages)


@dataclass(frozen=True, slots=True)
class Messages:
    """Shape: by message, in order of flow and sequence number; `queued` when it was put in the queue."""

    flow: Longs
    sequence: Longs
    queued: Longs
    fragments: Longs


def make_dialogs(scenario: Scenario, world: World) -> Dialogs:
    """The dialogs of a scenario, the same for the same seed."""
    rng = np.random.default_rng([scenario.seed, 2])
    count = max(1, scenario.messages // MEAN_MESSAGES)
    target = rng.choice(world.targets, count, p=_zipf(world.targets.size))
    begin = rng.integers(0, max(1, scenario.duration - SHORTEST), count)
    length = (rng.exponential(scenario.duration / 20, count) + SHORTEST).astype(np.int64)
    if scenario.hot_share > 0:
        begin[0], length[0] = 0, scenario.duration
    begin = np.repeat(begin, 2)
    begin[1::2] += SECOND // 10
    ids = rng.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (count, 2))
    return Dialogs(
        initiator=rng.choice(world.initiators, count),
        target=target,
        target_service=(
            world.initiators.size
            + (target - world.targets[0]) * SERVICES_EACH
            + rng.choice(SERVICES_EACH, count, p=(0.8, 0.2))
        ),
        ids=ids,
        is_sampled=is_sampled(ids, scenario.sample),
        fails=rng.random(count) < 0.02,
        messages=_shares(scenario, count, rng),
        begin=begin,
        length=np.maximum(1, np.minimum(np.repeat(length, 2), scenario.duration - begin)),
    )


def messages_between(dialogs: Dialogs, begin: int, end: int, rng: np.random.Generator) -> Messages:
    """The messages that are put in a queue in a stretch of the history."""
    first, last = dialogs.due_before(begin), dialogs.due_before(end)
    due = last - first
    flow = np.repeat(np.arange(due.size), due)
    sequence = np.arange(flow.size) - np.repeat(np.cumsum(due) - due, due) + np.repeat(first, due)
    length, messages = dialogs.length[flow], dialogs.messages[flow]
    nominal = dialogs.begin[flow] + length * sequence // messages
    chance = (rng.random(flow.size) * (length // messages)).astype(np.int64)
    fragments = np.ones(flow.size, np.int64)
    large = rng.random(flow.size) < LARGE_SHARE
    fragments[large] = rng.integers(2, FRAGMENTS_MAX + 1, int(large.sum()))
    return Messages(flow, sequence, nominal + chance, fragments)


def is_sampled(ids: Longs, fraction: float) -> Flags:
    """Which dialogs are journalled: the formula of `broker.forwarding.ring`, of many at once."""
    words = ids.view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = _finish(_finish(words[:, 0] + _GAMMA) ^ words[:, 1])
    limit = int(np.ceil(np.ldexp(fraction, 53)))
    sampled: Flags = (mixed >> np.uint64(11)) < np.uint64(limit)
    return sampled


def _finish(word: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    word = (word ^ (word >> np.uint64(30))) * _FIRST
    word = (word ^ (word >> np.uint64(27))) * _SECOND
    return word ^ (word >> np.uint64(31))


def _zipf(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Some targets are asked more than others."""
    weights = 1 / np.arange(1, count + 1) ** 0.7
    return np.asarray(weights / weights.sum())


def _shares(scenario: Scenario, count: int, rng: np.random.Generator) -> Longs:
    """How many messages each flow has: few most often, many now and then, all together what was asked for."""
    weights = rng.pareto(1.5, count) + 0.2
    replies = rng.choice((0.0, 0.3, 0.5), count, p=(0.3, 0.3, 0.4))
    by_flow = np.stack((weights * (1 - replies), weights * replies), axis=1).ravel()
    hot = int(scenario.messages * scenario.hot_share)
    if hot:
        by_flow[:2] = 0
    rest = scenario.messages - hot
    # Rounding the running total keeps the sum exact.
    ends = np.round(np.cumsum(by_flow) / max(by_flow.sum(), 1e-9) * rest).astype(np.int64)
    shares: Longs = np.diff(ends, prepend=0)
    if hot:
        shares[0], shares[1] = hot - hot // 3, hot // 3
        shares[-2] += rest - int(shares[2:].sum())
    return shares

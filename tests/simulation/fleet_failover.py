"""
Who learns of a failover when: all gateways of a fleet use one mirrored pair, whose principal is gone.

What each gateway knows is the product's `MirroredRoute`; when a silent peer is found out, its `Connection`.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from functools import partial
from typing import Any

from broker.errors import PeerSilentError
from broker.protocol.frame import Hello
from broker.protocol.link_state import LinkStateMachine
from broker.routing.mirrored import MirroredRoute
from tests.simulation.mirror_world import Clock

TICK_SECONDS = 1.0  # between two looks of an instance at its links
ROUND_TRIP = 0.02  # seconds at most, to any gateway
TAKE_OVER_SECONDS = 0.1  # until the partner has the lock of a principal that is gone
GONE_AT = 100.0
TAKEN_AT = GONE_AT + TAKE_OVER_SECONDS
AFTER_SECONDS = 120.0
HEARTBEAT_MS = 15_000  # as configured where nobody says otherwise


class Prober:
    """One gateway. Shape: `known_at` when it knew that the partner is the principal; `asked_at` when it asked."""

    def __init__(self, clock: Clock, chance: random.Random, *, is_silent: bool) -> None:
        self.clock = clock
        self.known_at: float | None = None
        self.asked_at: list[float] = []
        self._trip = chance.uniform(0.001, ROUND_TRIP)
        self._has_asked = False
        self._route = MirroredRoute("first", "second", chance.random)
        self._route.use(clock.now)
        self._route.on_reply("second", "mirror", 1, clock.now)
        self._route.on_reply("first", "principal", 1, clock.now)
        lost_at = GONE_AT + self._trip / 2
        if is_silent:
            lost_at = silent_at(chance.uniform(0.0, HEARTBEAT_MS / 1000))
        clock.later(lost_at, self._lose)

    def tell(self) -> None:
        """The partner says what it is to a prober that has asked it."""
        if self._has_asked:
            role, epoch = ("principal", 2) if self.clock.now >= TAKEN_AT else ("mirror", 1)
            self.clock.later(self._trip / 2, partial(self._hear, role, epoch))

    def _lose(self) -> None:
        self._follow(self._route.on_unreachable("first", "connection reset", self.clock.now))

    def _hear(self, role: str, epoch: int) -> None:
        if self._route.principal is None:
            self._follow(self._route.on_reply("second", role, epoch, self.clock.now))

    def _follow(self, addresses: tuple[str, ...]) -> None:
        route, now = self._route, self.clock.now
        if "second" in addresses:
            self.asked_at.append(now)
            self._has_asked = True
            self.clock.later(self._trip / 2, self.tell)
        if route.principal == "second":
            self.known_at = now
        elif route.due is not None:
            self.clock.later(max(0.0, route.due - now), partial(self._on_time, route.due))

    def _on_time(self, due: float) -> None:
        if self._route.due == due:
            self._follow(self._route.on_time(self.clock.now))


def failover(gateways: int, seed: int = 1, *, is_silent: bool) -> dict[str, Any]:
    """
    The principal of a pair that all gateways use is gone: with a reset of its connections, or silent.

    A silent one is found out by the heartbeat, for whose silence each link waits. The partner takes over, and tells at
    once whoever has asked it.
    """
    chance, clock = random.Random(seed), Clock()
    probers = [Prober(clock, chance, is_silent=is_silent) for _ in range(gateways)]

    def announce() -> None:
        for prober in probers:
            prober.tell()

    clock.later(TAKEN_AT, announce)
    clock.run(GONE_AT + AFTER_SECONDS)
    delays = sorted(prober.known_at - GONE_AT for prober in probers if prober.known_at is not None)
    asked = [at for prober in probers for at in prober.asked_at]
    return {
        "know the partner": len(delays),
        "seconds until half know": round(statistics.median(delays), 2),
        "seconds until all know": round(delays[-1], 2),
        "questions to the partner": len(asked),
        "questions in the fullest second": max(Counter(int(one) for one in asked).values()),
    }


def silent_at(phase: float) -> float:
    """When a link with nothing but heartbeats finds its peer silent, which it last heard `phase` seconds before."""
    connection = LinkStateMachine(Hello(heartbeat_ms=HEARTBEAT_MS), now=GONE_AT - phase)
    connection.receive(Hello(heartbeat_ms=HEARTBEAT_MS, instance=b"p" * 16), GONE_AT - phase)
    now = GONE_AT
    while True:
        try:
            connection.tick(now)
        except PeerSilentError:
            return now
        now += TICK_SECONDS

"""What happens to the instances of a joined story, and what has to be true while it lasts (`joined_watch`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from broker.errors import StatementError
from tests.simulation.instance import Instance
from tests.simulation.joined_watch import LONG_SECONDS, TOLD_SECONDS, TRIPS, Belief, Watch
from tests.simulation.machine import MachineLoop, Net
from tests.simulation.story import Blow

LEASE_SECONDS = 0.5  # after which a process that stands still has lost its lock
STOP_SECONDS = 15.0  # for an orderly end, at most
SETTLED_SECONDS = 3.0  # until who was started again is connected and stands by
TO_ONE = frozenset({"kill", "power", "restart", "freeze"})  # of which an instance bears one at a time
ON_PAIR = frozenset({"failover", "heir", "stale"})  # which find their victims when it is time


class Bank(Protocol):
    """Whom failovers are about. Shape: `banks` the names of its instances; `store_failure` chance that a turn fails."""

    @property
    def banks(self) -> tuple[str, ...]:
        """One, or the two partners of a mirrored pair."""

    @property
    def store_failure(self) -> float:
        """Of a database of the story."""


class Blows:
    """
    Args:
        story: Whose they are.
        instances: All of them, by name.
        note: Told of each.
    """

    def __init__(self, story: Bank, net: Net, instances: dict[str, Instance], note: Callable[[str], None]) -> None:
        self._story = story
        self._net = net
        self._loop: MachineLoop = net.loop
        self._instances = instances
        self._note = note
        self._busy: Counter[str] = Counter()  # how many blows last, by whom they hit
        self.watch = Watch(instances, net.loop.time)

    async def strike(self, blow: Blow) -> None:
        """One of them, when it is time."""
        await asyncio.sleep(blow.at)
        if self._busy[blow.name] and blow.what in TO_ONE:
            return
        self._note(f"{blow.what} {blow.name} {blow.other} for {blow.seconds} s")
        self._busy[blow.name] += 1
        if blow.what in ON_PAIR:
            await getattr(self, f"_{blow.what}")(blow)
        else:
            with self.watch.befall({blow.name, blow.other} & set(self._instances)) as since:
                await getattr(self, f"_{blow.what}")(blow, since)
        self._busy[blow.name] -= 1

    def maybe_principal(self) -> Instance | None:
        """The partner that serves the database, when exactly one does."""
        banks = [self._instances[name] for name in self._story.banks]
        there = [one for one in banks if one.part.is_mirrored and one.endpoint is not None]
        return there[0] if len(there) == 1 else None

    # --- somebody is gone ---

    async def _kill(self, blow: Blow, since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        self.watch.check_rules(instance)
        instance.kill()
        await asyncio.sleep(blow.seconds)
        self._check_gone(blow.name, beliefs, since)
        instance.start()

    async def _power(self, blow: Blow, since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        self.watch.check_rules(instance)
        self._net.dark.add(blow.name)
        instance.kill(is_dark=True)
        await asyncio.sleep(blow.seconds)
        self._check_gone(blow.name, beliefs, since)
        self._net.dark.discard(blow.name)
        instance.start()

    async def _restart(self, blow: Blow, _since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        self.watch.check_rules(instance)
        await asyncio.wait([instance.do(instance.stop())], timeout=STOP_SECONDS)
        instance.kill()
        since = self._loop.time()
        await asyncio.sleep(blow.seconds)
        self._check_gone(blow.name, beliefs, since)
        instance.start()

    async def _freeze(self, blow: Blow, since: float) -> None:
        instance, beliefs = self._instances[blow.name], self._beliefs(blow.name)
        process = instance.process
        process.is_frozen = True
        await asyncio.sleep(min(LEASE_SECONDS, blow.seconds))
        if blow.seconds > LEASE_SECONDS:
            if instance.part.is_mirrored:
                instance.lose_lock()
            await asyncio.sleep(blow.seconds - LEASE_SECONDS)
            self._check_gone(blow.name, beliefs, since)
        self._loop.thaw(process)

    def _beliefs(self, name: str) -> list[Belief] | None:
        """Who believes that this is the principal; None when it is none."""
        principal = self.maybe_principal()
        return self.watch.beliefs(name) if principal is self._instances[name] and principal.part.is_mirrored else None

    def _check_gone(self, name: str, beliefs: list[Belief] | None, since: float) -> None:
        if self._loop.time() - since < LONG_SECONDS:
            return
        self.watch.silent(name, since)
        if beliefs is not None and not self._story.store_failure:
            self.watch.check_followed(beliefs, self._partner(name), since)

    def _partner(self, name: str) -> str:
        return next(one for one in self._story.banks if one != name)

    # --- the network ---

    async def _cut(self, blow: Blow, since: float) -> None:
        await self._cut_ways(blow, [(blow.name, blow.other), (blow.other, blow.name)], since)

    async def _deafen(self, blow: Blow, since: float) -> None:
        await self._cut_ways(blow, [(blow.other, blow.name)], since)

    async def _cut_ways(self, blow: Blow, ways: list[tuple[str, str]], since: float) -> None:
        mend = self._net.cut(ways)
        await asyncio.sleep(blow.seconds)
        for far, near in ways:
            self.watch.check_silence(near, far, since, own=1)
        mend()

    async def _reset(self, blow: Blow, _since: float) -> None:
        self._net.reset(blow.name, blow.other)

    # --- what people do ---

    async def _failover(self, _: Blow) -> None:
        principal = self.maybe_principal()
        if principal is None or principal.process.is_frozen:
            return
        name = principal.part.name
        partner, beliefs = self._partner(name), self.watch.beliefs(name)
        with self.watch.befall(self._story.banks) as since:
            await asyncio.wait([principal.do(_fail_over(principal))], timeout=STOP_SECONDS)
            await asyncio.sleep(TOLD_SECONDS + TRIPS * self._net.road.delay)
            is_over = self.maybe_principal() is self._instances[partner]
            if is_over and self.watch.is_calm(name, since, own=1):
                self.watch.check_followed(beliefs, partner, since, own=1)

    async def _heir(self, blow: Blow) -> None:
        """The mirror forgets who asked, and is the principal soon after; nobody but those who asked can know."""
        principal = self.maybe_principal()
        if principal is None or any(self._busy[one] for one in self._story.banks):
            return
        name = principal.part.name
        partner = self._partner(name)
        self._busy.update((name, partner))
        with self.watch.befall([partner]) as since:
            await self._kill(replace(blow, name=partner, seconds=0.1), since)
        await asyncio.sleep(SETTLED_SECONDS)
        if self.maybe_principal() is principal and blow.seconds < LONG_SECONDS:
            await self._failover(blow)
        elif self.maybe_principal() is principal:
            with self.watch.befall([name]) as since:
                await self._kill(replace(blow, name=name), since)
        self._busy.subtract((name, partner))

    async def _stale(self, blow: Blow) -> None:
        """Whoever knows the principal of today goes on believing in it."""
        principal = self.maybe_principal()
        if principal is None or principal.keeper is None:
            return
        name, since = principal.part.name, self._loop.time()
        copy, beliefs = self._instances[self._partner(name)], self.watch.beliefs(name)
        copy.claim(principal.keeper.standing.epoch - 1)
        await asyncio.sleep(blow.seconds)
        if self.maybe_principal() is principal:
            self.watch.check_followed(beliefs, name, since)
        copy.claim(None)

    async def _reroute(self, blow: Blow, _since: float) -> None:
        instance = self._instances[blow.name]
        part = instance.part
        routes, own = (
            tuple(one for one in table if not (one.service_name or "").startswith("Billing"))
            for table in (part.routes, part.own_routes)
        )
        life = instance.life
        if not instance.is_up or instance.process.is_frozen:
            return
        instance.reroute(routes, own)
        await asyncio.sleep(blow.seconds)
        while instance.life == life and instance.process.is_frozen:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        if instance.life == life and not instance.process.is_gone:
            instance.reroute(part.routes, part.own_routes)

    async def _jump(self, blow: Blow, _since: float) -> None:
        process = self._instances[blow.name].process
        process.off = float(blow.other)
        await asyncio.sleep(blow.seconds)
        process.off = 0.0


async def _fail_over(principal: Instance) -> None:
    """SET PARTNER FAILOVER, where it may be said."""
    assert principal.keeper is not None
    with contextlib.suppress(StatementError):
        await principal.keeper.fail_over()

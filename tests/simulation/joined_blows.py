"""
What happens to the instances of a joined story, and what has to be true while it lasts.

At its end the network is whole and everything is made up for. What is promised sooner is checked sooner: after
LONG_SECONDS of one trouble, at those whom nothing else has befallen meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from broker.errors import HandshakeRefusedError, PeerSilentError, StatementError
from broker.forwarding.outbox import Outbox
from broker.net.link import LinkState
from broker.net.mirrors import PairInUse
from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from tests.simulation.instance import Instance
from tests.simulation.machine import MachineLoop, Net
from tests.simulation.story import Blow

LONG_SECONDS = 6.0  # three heartbeats of a second, two looks, an attempt to connect that is given up, and a question
TOLD_SECONDS = 1.0  # until everybody has been told who is the principal, and has heard the next one; trips come on top
TRIPS = 8  # ... so many
LOOK_SECONDS = 0.1  # between two looks at what is held
STRANDED_SECONDS = 0.5  # a move takes turns of the loop; an attempt to connect, which tells as well, up to two seconds
NOT_BY_RULES = frozenset({PeerSilentError.__name__, HandshakeRefusedError.__name__})  # may be the network's fault

Belief = tuple[str, PairInUse]
"""Who believes it, and of which pair."""


class Watch:
    """
    Args:
        instances: All of them, by name.
        clock: Virtual seconds.
    """

    def __init__(self, instances: Mapping[str, Instance], clock: Callable[[], float]) -> None:
        self._instances = instances
        self._clock = clock
        self._under: Counter[str] = Counter()  # how much befalls an instance now
        self._touched_at: dict[str, float] = {}  # when something last began or ended

    @contextmanager
    def befall(self, names: Iterable[str]) -> Iterator[float]:
        """Something befalls these while this lasts; the instant at which it began."""
        names = list(names)
        for name in names:
            self._under[name] += 1
            self._touched_at[name] = self._clock()
        try:
            yield self._clock()
        finally:
            for name in names:
                self._under[name] -= 1
                self._touched_at[name] = self._clock()

    def is_calm(self, name: str, since: float, *, own: int = 0) -> bool:
        """Whether an instance is at work and nothing has befallen it since, but for `own` troubles that last."""
        instance = self._instances[name]
        is_at_work = instance.is_up and not instance.process.is_frozen
        return is_at_work and self._under[name] <= own and self._touched_at.get(name, -1.0) <= since

    def check_silence(self, near: str, far: str, since: float, *, own: int) -> None:
        """`near` has heard nothing of `far` since then, which is longer than three heartbeats."""
        if self._clock() - since < LONG_SECONDS or not self.is_calm(near, since, own=own):
            return
        links = [
            link.address
            for link in self._instances[near].peers.links.values()
            if link.peer_name == far and link.state is LinkState.LOGGED_IN and not link.is_paused
        ]
        assert not links, (
            f"{near} has heard nothing of {far} for {self._clock() - since:.1f} s and keeps its connection"
        )

    def silent(self, far: str, since: float) -> None:
        for near in self._instances:
            if near != far:
                self.check_silence(near, far, since, own=0)

    def beliefs(self, principal: str) -> list[Belief]:
        """Who is connected to a principal and believes that it is that."""
        instance = self._instances[principal]
        found = []
        for name, other in self._instances.items():
            links = other.peers.links.values()
            if other.is_up and any(link.peer_name == principal and link.state is LinkState.LOGGED_IN for link in links):
                uses = [one for one in other.mirrors.in_use.values() if one.route.principal == instance.address]
                found += [(name, one) for one in uses]
        return found

    def check_followed(self, beliefs: Iterable[Belief], heir: str, since: float, *, own: int = 0) -> None:
        """The principal of then is none any more: its heir is, and all who believed in the former believe in it."""
        if not self.is_calm(heir, since, own=own):
            return
        instance = self._instances[heir]
        assert instance.endpoint is not None, f"{heir} has not taken over in {self._clock() - since:.1f} s"
        for name, one in beliefs:
            if self.is_calm(name, since):
                there = one.route.principal
                assert there == instance.address, f"{name} believes in {there} and not in {heir} after a failover"

    async def hold_to_ways(self) -> None:
        """
        Look for ever whether frames are left behind: held for a next hop that has no connection while another one has.

        Raises:
            AssertionError: some were, for longer than it takes to give them to the other one.
        """
        since: dict[tuple[str, int, str, str], float] = {}  # by who holds, in which life, for whom, and who leads on
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = self._clock()
            found = {one for instance in self._instances.values() for one in _stranded(instance)}
            since = {one: since.get(one, now) for one in found}
            for (name, _, far, other), begun in since.items():
                assert now - begun < STRANDED_SECONDS, (
                    f"{name} has held frames for {far}, with which it has no connection, for {now - begun:.1f} s,"
                    f" and {other} leads on"
                )

    def check_rules(self, instance: Instance) -> None:
        """In its life of now it has found no peer that broke the rules: all peers are instances like itself."""
        broken = {kind: count for kind, count in instance.peers.protocol_errors.items() if kind not in NOT_BY_RULES}
        assert broken == {}, f"{instance.part.name} has met peers that broke the rules: {broken}"

    def check_rest(self, name: str, instance: Instance) -> None:
        """At the end of everything: nothing is held or unaccounted for, and no link or store stands still."""
        self.check_rules(instance)
        forwarder = instance.forwarder
        assert forwarder.unaccounted == 0, f"{name}: frames unaccounted for"
        assert (forwarder.pool.used_bytes, forwarder.pool.frames) == (0, 0), f"{name}: frames are held"
        links = [link for link in instance.peers.links.values() if link.state is LinkState.LOGGED_IN]
        peers = [link.peer_name for link in links]
        assert len(peers) == len(set(peers)), f"{name}: two connections to one peer: {peers}"
        assert all(not link.kept_bytes and not link.is_paused for link in links), f"{name}: a link stands still"
        assert instance.endpoint is None or instance.endpoint.problem == ""


def _stranded(instance: Instance) -> Iterator[tuple[str, int, str, str]]:
    """Who holds frames from outside, in which life, for whom, and who leads on instead and takes them at once."""
    outboxes = instance.forwarder.table.outboxes
    if not instance.is_up or instance.process.is_frozen or not any(one.held for one in outboxes.values()):
        return
    links = [link for link in instance.peers.links.values() if link.state is LinkState.LOGGED_IN]
    connected = {link.peer_name for link in links}
    ready = {link.peer_name for link in links if link.can_send and not link.is_peer_draining}
    for address, outbox in outboxes.items():
        if address.host in connected:
            continue
        for service in _held_for(outbox):
            routes = instance.routes.routes(service)
            hops = {route.address for route in routes if isinstance(route.address, NetworkAddress)}
            for hop in hops - {address} if address in hops else ():
                if hop.host in ready and not (hop in outboxes and outboxes[hop].held):
                    yield instance.part.name, instance.life, address.host, hop.host


def _held_for(outbox: Outbox) -> set[str]:
    """The services that frames are held for which came from outside; a database here sends its own again."""
    headers = [decode_dialog(held.frame)[0] for held in outbox.held]
    return {header.to_service for header in headers if header.hop_count}


LEASE_SECONDS = 0.5  # after which a process that stands still has lost its lock
STOP_SECONDS = 15.0  # for an orderly end, at most
SETTLED_SECONDS = 3.0  # until who was started again is connected and stands by
TO_ONE = frozenset({"kill", "power", "restart", "freeze"})  # of which an instance bears one at a time
ON_PAIR = frozenset({"failover", "heir", "stale"})  # which find their victims when it is time


class Blows:
    """
    Args:
        story: Whose they are: `banks` the names of the instances of the bank, `store_failure`.
        instances: All of them, by name.
        note: Told of each.
    """

    def __init__(self, story: Any, net: Net, instances: dict[str, Instance], note: Callable[[str], None]) -> None:
        self._story = story
        self._net = net
        self._loop: MachineLoop = net.loop
        self._instances = instances
        self._note = note
        self._busy: Counter[str] = Counter()  # how many blows last, by whom they hit
        self.watch = Watch(instances, net.loop.time)

    async def strike(self, blow: Blow) -> None:
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
        return next(str(one) for one in self._story.banks if one != name)

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
    assert principal.keeper is not None
    with contextlib.suppress(StatementError):
        await principal.keeper.fail_over()

"""
What has to be true while something still lasts: the part of the judge that does not wait for the end of a story.

At its end the network is whole and everything is made up for, by a resend or by the next question. What is promised
sooner is looked at sooner: behind LONG_SECONDS of one trouble, at those whom nothing else has befallen meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from broker.errors import HandshakeRefusedError, PeerSilentError
from broker.forwarding.outbox import Outbox
from broker.net.link import LinkState
from broker.net.mirrors import PairInUse
from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from tests.simulation.instance import Instance

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
        """Nobody has heard anything of `far` since then."""
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

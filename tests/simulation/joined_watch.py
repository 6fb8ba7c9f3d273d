"""
What has to be true while something still lasts: the part of the judge that does not wait for the end of a story.

At its end the network is whole and everything is made up for, by a resend or by the next question. What is promised
sooner is looked at sooner: behind LONG_SECONDS of one trouble, at those whom nothing else has befallen meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from broker.errors import HandshakeRefusedError, PeerSilentError
from broker.net.link_state import LinkState
from broker.net.mirrors import InUse
from tests.simulation.instance import Instance

LONG_SECONDS = 6.0  # three heartbeats of a second, two looks, an attempt to connect that is given up, and a question
TOLD_SECONDS = 1.0  # until everybody has been told who is the principal, and has heard the next one; trips come on top
TRIPS = 8  # ... so many
NOT_BY_RULES = frozenset({PeerSilentError.__name__, HandshakeRefusedError.__name__})  # may be the network's fault

Belief = tuple[str, InUse]
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

    def check_rules(self, instance: Instance) -> None:
        """In its life of now it has found no peer that broke the rules: all peers are instances like itself."""
        broken = {kind: count for kind, count in instance.peers.faults.items() if kind not in NOT_BY_RULES}
        assert broken == {}, f"{instance.part.name} has met peers that broke the rules: {broken}"

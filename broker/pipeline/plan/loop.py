"""
Messages that would go round: the way behind a changed decision, over the instances that are known.

The way is followed by `broker.routing.journey`, for every address that a hop may use. What leads beyond the known
instances is not followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from msgspec.structs import replace

from broker.pipeline.plan.site import Change
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision
from broker.routing.facts import Facts
from broker.routing.journey import Network, Outcome, conversations
from broker.routing.table import RouteTable

_Question = tuple[str, bytes | None, str, bytes, bool]


class Loops:
    """Which messages would go round after a change and do not before it. Remembers what it found."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._before, self._after = Network(change.before.values()), Network(change.after.values())
        self._ids: dict[str, list[bytes]] = {}
        self._found: dict[_Question, bool] = {}

    def appears(self, instance: str, facts: Facts, will: Decision) -> bool:
        """
        Whether messages with these facts would go round, and do not now.

        Where the conversation has no say in this decision but has one behind it, ids stand for all of them of which
        each broker instance that is known wins one; then it is true when one of them would go round.

        Args:
            instance: Where they begin or arrive.
            facts: Of one conversation.
            will: What would be decided there.
        """
        if not any(self._after.knows(address) for address in _addresses(will)):
            return False
        has_choice = facts.is_open and len(self._ids_of(facts.to_service)) > 1
        if has_choice and will.is_by_conversation:
            return self._goes_round(instance, facts)
        question = instance, facts.database, facts.to_service, facts.to_broker_instance, facts.is_from_target
        known = self._found.get(question)
        if known is None:
            ids = self._ids_of(facts.to_service) if has_choice else [facts.conversation_id]
            known = any(self._goes_round(instance, replace(facts, conversation_id=one)) for one in ids)
            self._found[question] = known
        return known

    def _goes_round(self, instance: str, facts: Facts) -> bool:
        return _circles(self._after, instance, facts) and not _circles(self._before, instance, facts)

    def _ids_of(self, service: str) -> list[bytes]:
        known = self._ids.get(service)
        if known is None:
            known = self._ids[service] = conversations(service, self._tables())
        return known

    def _tables(self) -> Iterator[RouteTable]:
        for site in chain(self._change.before.values(), self._change.after.values()):
            yield site.msdb
            yield from site.databases.values()


def _circles(network: Network, instance: str, facts: Facts) -> bool:
    start = next(site for site in network.sites if site.name == instance)
    return any(end.outcome is Outcome.CIRCLE for end in network.follow(facts, start))


def _addresses(decision: Decision) -> Iterator[NetworkAddress]:
    yield from (candidate.address for candidate in decision.candidates)
    pair = None if decision.route is None else decision.route.pair
    if pair is not None and not decision.candidates:
        yield from (pair.address, pair.mirror_address)

"""
What a change of routes would do to conversations that are under way.

Every conversation is decided twice, by what holds now and by what would hold, and the two decisions are compared: does
it keep its next hops, get others, or lose its route. A conversation that has sent something may have a target endpoint
already, so one that moves is *harm*: the messages would reach somebody who does not know the dialog, or a second
target would answer (-8495). So is the loss of a service, at either end: the dialog fails (-8470, -8490).

Source: rules R1.6, R2.3, R4.1 and R5.1 of docs/conformance.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from broker.flow import Disposition
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision, RoutingContext, decide
from broker.routing.facts import Hosted, RoutingFacts
from broker.routing.fate import HARMFUL, UNCHANGED, Fate
from broker.routing.route import Route
from broker.routing.table import RouteChange

Place: TypeAlias = NetworkAddress | bytes
"""Where a decision leads: a next hop, or a database here."""

ALIKE_MAX = 10_000  # consequences remembered for conversations that are alike; some 10 MB

_TO_PRINCIPAL = frozenset({Disposition.FORWARDED, Disposition.PRINCIPAL_UNKNOWN})


@dataclass(frozen=True, slots=True)
class PlannedFlow:
    """
    A conversation, or all that share a route key, as a plan looks at it.

    Shape: `name` what people find it by; `has_sent` whether a target may know it already; `from_service` the service at
    this end, None when that is not here.
    """

    name: str
    facts: RoutingFacts
    has_sent: bool
    from_service: str | None = None


@dataclass(frozen=True, slots=True)
class FlowConsequence:
    """What becomes of one flow."""

    flow: PlannedFlow
    fate: Fate
    before: Decision
    after: Decision

    @property
    def is_harm(self) -> bool:
        """Whether messages would go to somebody else than before, or nowhere."""
        return self.flow.has_sent and self.fate in HARMFUL

    @property
    def is_by_conversation(self) -> bool:
        """Whether another flow with the same route key may fare differently."""
        return self.before.is_by_conversation or self.after.is_by_conversation


@dataclass(slots=True)
class RoutePlan:
    """Shape: `fates` how many flows have each; `consequences` those that change, harm first, `kept` of them at most."""

    fates: Counter[Fate] = field(default_factory=Counter)
    harmed: int = 0
    consequences: list[FlowConsequence] = field(default_factory=list)


def plan(flows: Iterable[tuple[PlannedFlow, RoutingContext, RoutingContext]], *, kept: int) -> RoutePlan:
    """
    Compare what holds for each flow now with what would hold.

    Args:
        flows: Each with the surroundings before and after; flows of one database share them.
        kept: How many harmed ones are kept at most, and as many that change without harm.

    Cost: two decisions for each route key, or for each flow where the conversation has a say.
    """
    made = RoutePlan()
    harmless: list[FlowConsequence] = []
    for one in _consequences(flows):
        made.fates[one.fate] += 1
        if one.is_harm:
            made.harmed += 1
            if len(made.consequences) < kept:
                made.consequences.append(one)
        elif one.fate not in UNCHANGED and len(harmless) < kept:
            harmless.append(one)
    made.consequences += harmless
    return made


def _consequences(flows: Iterable[tuple[PlannedFlow, RoutingContext, RoutingContext]]) -> Iterator[FlowConsequence]:
    """One for each flow; those that are alike are decided once."""
    alike: dict[tuple[object, ...], FlowConsequence] = {}
    for flow, before, after in flows:
        facts = flow.facts
        key = facts.database, facts.to_service, facts.to_broker_instance, facts.is_from_target, flow.from_service
        known = alike.get(key)
        if known is not None:
            yield replace(known, flow=flow)
            continue
        one = consequence(flow, before, after)
        if not one.is_by_conversation and len(alike) < ALIKE_MAX:
            alike[key] = one
        yield one


def consequence(flow: PlannedFlow, before: RoutingContext, after: RoutingContext) -> FlowConsequence:
    """What becomes of one flow."""
    was, will = decide(flow.facts, before), decide(flow.facts, after)
    if _is_served(flow, before.hosted) and not _is_served(flow, after.hosted):
        return FlowConsequence(flow, Fate.FAILS, was, will)
    had, has = _places(was, flow.facts, before.hosted), _places(will, flow.facts, after.hosted)
    return FlowConsequence(flow, _fate(flow.facts, (was, had), (will, has)), was, will)


def _is_served(flow: PlannedFlow, hosted: Hosted) -> bool:
    """Whether the service at this end is there to take what the far side says."""
    database = flow.facts.database
    return flow.from_service is None or (
        database is not None and flow.from_service in hosted.services_of.get(database, ())
    )


def _fate(
    facts: RoutingFacts, before: tuple[Decision, frozenset[Place]], after: tuple[Decision, frozenset[Place]]
) -> Fate:
    (was, had), (will, has) = before, after
    if not had:
        return Fate.FINDS if has else Fate.STAYS_LOST
    if not has:
        return Fate.LOSES
    if _instance(facts, was) != _instance(facts, will) or (had.isdisjoint(has) and not _is_declared(facts, will)):
        return Fate.MOVES
    return Fate.KEEPS if had == has else Fate.OTHER_PATHS


def _places(decision: Decision, facts: RoutingFacts, hosted: Hosted) -> frozenset[Place]:
    """
    Where a decision may lead; empty when nowhere, or to a database without the service.

    Either partner of a mirrored pair may be the principal, so a failover moves nothing.
    """
    if decision.database is not None:
        is_there = facts.to_service in hosted.services_of.get(decision.database, ())
        return frozenset({decision.database} if is_there else ())
    pair = None if decision.route is None else decision.route.pair
    if pair is not None and decision.disposition in _TO_PRINCIPAL:
        return frozenset({pair.address, pair.mirror_address})
    return frozenset(candidate.address for candidate in decision.candidates)


def _is_declared(facts: RoutingFacts, decision: Decision) -> bool:
    """Whether the route itself says that the broker instance which a conversation names is there."""
    route = decision.route
    return not facts.is_open and route is not None and route.broker_instance is not None


def _instance(facts: RoutingFacts, decision: Decision) -> bytes | None:
    """The broker instance that a decision leads to; None when the way does not tell."""
    if not facts.is_open:
        return facts.to_broker_instance
    if decision.database is not None:
        return decision.database
    route = decision.route
    return route.broker_instance.bytes if route is not None and route.broker_instance is not None else None


# --- the routes themselves ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    """One route before and after a whole script. Shape: one of the two may be None, and they differ."""

    name: str
    before: Route | None
    after: Route | None


def edits(changes: Iterable[RouteChange]) -> list[PlannedEdit]:
    """What a script does to routes in the end, by name; steps on the way are folded."""
    first: dict[str, Route | None] = {}
    last: dict[str, Route | None] = {}
    for old, new in changes:
        for route in (old, new):
            if route is not None:
                first.setdefault(route.name, old)
        if old is not None:
            last[old.name] = None
        if new is not None:
            last[new.name] = new
    return [PlannedEdit(name, first[name], last[name]) for name in sorted(first) if first[name] != last[name]]

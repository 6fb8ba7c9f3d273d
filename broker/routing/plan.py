"""
What a change of routes would do to conversations that are under way.

Every conversation is decided twice, by what holds now and by what would hold, and the two decisions are compared: does
it keep its next hops, get others, or lose its route. A conversation that has sent something may have a target endpoint
already, so one that moves is *harm*: the messages would reach somebody who does not know the dialog, or a second
target would answer (-8495).

Source: rules R1.6, R2.3 and R5.1 of docs/conformance.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from broker.flow import Disposition
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision, Surroundings, decide
from broker.routing.facts import Facts
from broker.routing.route import Route
from broker.routing.table import RouteChange

Place: TypeAlias = NetworkAddress | bytes
"""Where a decision leads: a next hop, or a database here."""


class Fate(StrEnum):
    """What becomes of a conversation, the harmless first."""

    KEEPS = "keeps its target"
    FINDS = "finds a route"
    STAYS_LOST = "stays without a route"
    OTHER_PATHS = "keeps its target, over other paths"
    MOVES = "moves"
    LOSES = "loses its route"


@dataclass(frozen=True, slots=True)
class Flow:
    """
    A conversation, or all that share a route key, as a plan looks at it.

    Shape: `name` what people find it by; `has_sent` whether a target may know it already.
    """

    name: str
    facts: Facts
    has_sent: bool


@dataclass(frozen=True, slots=True)
class Consequence:
    """What becomes of one flow."""

    flow: Flow
    fate: Fate
    before: Decision
    after: Decision

    @property
    def is_harm(self) -> bool:
        """Whether messages would go to somebody else than before, or nowhere."""
        return self.flow.has_sent and self.fate in {Fate.MOVES, Fate.LOSES}


@dataclass(slots=True)
class Plan:
    """Shape: `fates` how many flows have each; `consequences` those that change, harm first, `kept` of them at most."""

    fates: Counter[Fate] = field(default_factory=Counter)
    harmed: int = 0
    consequences: list[Consequence] = field(default_factory=list)


def plan(flows: Iterable[tuple[Flow, Surroundings, Surroundings]], *, kept: int) -> Plan:
    """Compare what holds for each flow now with what would hold; keep the first `kept` harmed and as many others."""
    made = Plan()
    harmless: list[Consequence] = []
    for flow, before, after in flows:
        one = consequence(flow, before, after)
        made.fates[one.fate] += 1
        if one.is_harm:
            made.harmed += 1
            if len(made.consequences) < kept:
                made.consequences.append(one)
        elif one.fate not in {Fate.KEEPS, Fate.STAYS_LOST} and len(harmless) < kept:
            harmless.append(one)
    made.consequences += harmless
    return made


def consequence(flow: Flow, before: Surroundings, after: Surroundings) -> Consequence:
    """What becomes of one flow."""
    was, will = decide(flow.facts, before), decide(flow.facts, after)
    return Consequence(flow, _fate(flow.facts, was, will), was, will)


def _fate(facts: Facts, was: Decision, will: Decision) -> Fate:
    had, has = places(was), places(will)
    if not had:
        return Fate.FINDS if has else Fate.STAYS_LOST
    if not has:
        return Fate.LOSES
    if _instance(facts, was) != _instance(facts, will) or had.isdisjoint(has):
        return Fate.MOVES
    return Fate.KEEPS if had == has else Fate.OTHER_PATHS


def places(decision: Decision) -> frozenset[Place]:
    """Where a decision may lead; empty when nowhere."""
    if decision.disposition is Disposition.PRINCIPAL_UNKNOWN and decision.route and decision.route.pair:
        return frozenset({decision.route.pair.address, decision.route.pair.mirror_address})
    if decision.database is not None:
        return frozenset({decision.database})
    return frozenset(candidate.address for candidate in decision.candidates)


def _instance(facts: Facts, decision: Decision) -> bytes | None:
    """The broker instance that a decision leads to; None when the way does not tell."""
    if not facts.is_open:
        return facts.to_broker_instance
    if decision.database is not None:
        return decision.database
    route = decision.route
    return route.broker_instance.bytes if route is not None and route.broker_instance is not None else None


# --- the routes themselves ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RouteEdit:
    """One route before and after a whole script. Shape: one of the two may be None, and they differ."""

    name: str
    before: Route | None
    after: Route | None


def edits(changes: Iterable[RouteChange]) -> list[RouteEdit]:
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
    return [RouteEdit(name, first[name], last[name]) for name in sorted(first) if first[name] != last[name]]

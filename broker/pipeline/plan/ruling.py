"""
What a change of routes does to the questions of a history: each decided twice, by the daemon's own functions.

A key of a route is decided once; where the conversation has a say, each conversation is. Nothing is known of links and
mirrors, so every next hop counts as healthy and untried, as in `broker explain` of a configuration: of several
addresses a conversation takes the one that it takes while all work. Routes of mirrored pairs lead to the pair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.pipeline.plan.key import Origin
from broker.pipeline.plan.loop import Loops
from broker.pipeline.plan.script import MSDB
from broker.pipeline.plan.site import Change
from broker.routing.choose import Health
from broker.routing.decide import Decision, Pass, Surroundings, decide
from broker.routing.explain import outcome_of
from broker.routing.facts import Facts
from broker.routing.fate import HARMFUL, UNCHANGED, Fate
from broker.routing.journey import Site
from broker.routing.plan import ALIKE_MAX, Flow, compare, places
from broker.wire.layout import NO_GUID

NO_FACTS = "columns are missing"
NO_INSTANCE = "no routes of the instance are known"
NO_DATABASE = "no routes of the database are known"


class Key(NamedTuple):
    """What a decision depends on but for the conversation: the columns `plan_key.KEY`."""

    instance: str | None
    origin: int
    database: bytes | None
    from_service: str | None
    to_service: str | None
    to_broker_instance: bytes | None
    from_target: bool | None


class Way(NamedTuple):
    """
    What one decision comes to.

    Shape: `outcome` a word of `broker explain`; `route` the one taken; `places` where it may lead, sorted, empty when
    nowhere; `next_hop` that of them which is used while all work; `used` routes that were taken, `standby` those to
    further addresses, each a table and a name.
    """

    outcome: str
    route: str | None
    places: tuple[str, ...]
    next_hop: str | None
    is_here: bool
    used: tuple[tuple[str, str], ...]
    standby: tuple[tuple[str, str], ...]


class Ruling(NamedTuple):
    """
    What becomes of a key or conversation.

    Shape: `unplanned` why it cannot be told, then there is nothing else; `is_by_conversation` when another conversation
    with the same key may fare differently; `is_loop` when its messages would go round, and do not now.
    """

    unplanned: str | None
    fate: Fate | None = None
    is_by_conversation: bool = False
    before: Way | None = None
    after: Way | None = None
    is_loop: bool = False

    @property
    def is_changed(self) -> bool:
        """Whether the way changes."""
        return self.fate is not None and self.fate not in UNCHANGED

    @property
    def is_harm(self) -> bool:
        """Whether messages would go to somebody else than before, or nowhere. Whoever is in a history has sent."""
        return self.fate in HARMFUL


@dataclass(frozen=True, slots=True)
class _Side:
    """One instance, before or after. Shape: `tables` whose they are, by their identity in memory."""

    site: Site
    tables: Mapping[int, str]

    def surroundings(self, database: bytes | None) -> Surroundings:
        site = self.site
        table = site.msdb if database is None else site.databases[database]
        return Surroundings(
            table, site.hosted, lambda _: Health.UNTRIED, site.is_forwarding, msdb=site.msdb, own=site.addresses
        )


class Judge:
    """Decides by what held before and by what would hold. Made once for each task; remembers what is alike."""

    def __init__(self, change: Change) -> None:
        self._change = change
        self._sides = {
            instance: (_side(site, change), _side(change.after[instance], change))
            for instance, site in change.before.items()
        }
        self._here: dict[tuple[str, bytes | None], tuple[Surroundings, Surroundings]] = {}
        self._ways: dict[tuple[object, ...], Way] = {}
        self._loops = Loops(change)

    def is_told(self, key: Key) -> bool:
        """Whether the visit of the sender, on the same instance, has told of these frames already."""
        return key.origin == Origin.MAYBE_TOLD and self._lives_here(key)

    def sender(self, key: Key) -> bytes | None:
        """The database that begins the way; None when the frames arrived."""
        begins_here = key.origin == Origin.HERE or (key.origin == Origin.MAYBE_HERE and self._lives_here(key))
        return key.database if begins_here else None

    def rule(self, key: Key, conversation_id: bytes) -> Ruling:
        """
        What becomes of a conversation with this key, and of all of them if it has no say.

        Cost: two decisions, and two ways through the network where it changes and leads to an instance that is known.
        """
        if key.origin == Origin.UNKNOWN or key.to_service is None or key.from_target is None:
            return Ruling(NO_FACTS)
        if key.instance not in self._sides:
            return Ruling(NO_INSTANCE)
        database = self.sender(key)
        before, after = self._sides[key.instance]
        if database is not None and not (database in before.site.databases and database in after.site.databases):
            return Ruling(NO_DATABASE)
        facts = Facts(
            key.to_service, key.to_broker_instance or NO_GUID, conversation_id, key.from_target, database=database
        )
        return self._rule(key.instance, facts, key.from_service)

    def _rule(self, instance: str, facts: Facts, from_service: str | None) -> Ruling:
        before, after = self._sides[instance]
        here = self._here.get((instance, facts.database))
        if here is None:
            here = before.surroundings(facts.database), after.surroundings(facts.database)
            self._here[instance, facts.database] = here
        passes: tuple[list[Pass], list[Pass]] = [], []
        was, will = decide(facts, here[0], passes[0]), decide(facts, here[1], passes[1])
        flow = Flow("", facts, has_sent=True, from_service=from_service)
        one = compare(flow, was, will, here[0].hosted, here[1].hosted)
        is_changed = one.fate not in UNCHANGED
        return Ruling(
            None,
            one.fate,
            one.is_by_conversation,
            self._way(facts, was, passes[0], before),
            self._way(facts, will, passes[1], after),
            is_loop=is_changed and self._loops.appears(instance, facts, will),
        )

    def _way(self, facts: Facts, decision: Decision, passes: list[Pass], side: _Side) -> Way:
        """What a decision comes to; those of many conversations are alike."""
        what = tuple((one.decision.route, one.decision.candidates, one.decision.database) for one in passes)
        alike = id(side), facts.database, facts.to_service, decision.disposition, what
        known = self._ways.get(alike)
        if known is None:
            known = self._new_way(facts, decision, passes, side)
            if len(self._ways) < ALIKE_MAX:
                self._ways[alike] = known
        return known

    def _new_way(self, facts: Facts, decision: Decision, passes: list[Pass], side: _Side) -> Way:
        leads_to = places(decision, facts, side.site.hosted)
        pair = None if decision.route is None else decision.route.pair
        if decision.database is not None:
            next_hop = self._told(decision.database) if leads_to else None
        elif decision.candidates:
            next_hop = str(decision.candidates[0].address)
        else:
            next_hop = str(pair) if leads_to else None
        taken = [(side.tables[id(one.table)], one.decision.route) for one in passes]
        routes = [(table, route.name) for table, route in taken if route is not None and route.name]
        others = [(side.tables[id(one.table)], far.route.name) for one in passes for far in one.decision.candidates[1:]]
        return Way(
            str(outcome_of(decision, facts)),
            None if decision.route is None else decision.route.name,
            tuple(sorted(map(self._told, leads_to))),
            next_hop,
            decision.database is not None and bool(leads_to),
            tuple(dict.fromkeys(routes)),
            tuple(sorted(set(others) - set(routes))),
        )

    def _told(self, place: object) -> str:
        """An address, or a database by its name."""
        return self._change.named(place) if isinstance(place, bytes) else str(place)

    def _lives_here(self, key: Key) -> bool:
        sides = self._sides.get(key.instance or "")
        return sides is not None and key.database in sides[0].site.hosted.services_of


def _side(site: Site, change: Change) -> _Side:
    tables = {id(site.msdb): MSDB} | {id(table): change.named(guid) for guid, table in site.databases.items()}
    return _Side(site, tables)

"""
What a script would do to a running instance, before anybody carries it out.

The script is carried out and rolled back; what it would leave behind becomes a second set of surroundings, and every
conversation under way is decided in both. Nothing is changed, and while this is worked out nothing stands still but
the writers of the databases that the script names.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from uuid import UUID

from broker.admin.explaining import Home, Place, answer, running_place
from broker.admin.message import Consequence, ExplainAnswer, ExplainRequest, PlanAnswer, PlannedRoute, RouteEdit
from broker.control.catalog import MSDB, Catalog
from broker.control.execute import Outcome, preview
from broker.control.flows import flows_of_database, flows_of_passage
from broker.ddl.parser import read_script
from broker.errors import StoreUnavailableError
from broker.observe.instance import Running
from broker.routing.choose import Health
from broker.routing.decide import Surroundings
from broker.routing.explain import Names, outcome_of, sentence
from broker.routing.facts import Hosted, hosted
from broker.routing.plan import Flow, Plan, edits, plan
from broker.routing.route import SERVICE_BROKER, Route

EDITS_MAX = 1000
CONSEQUENCES_MAX = 1000
ARRIVALS_MAX = 100  # services whose way is told for the case that somebody follows it


async def plan_script(instance: Running, script: str, *, source: str, database: str, executor: Executor) -> PlanAnswer:
    """
    What a script would do.

    Raises:
        StatementError: the script would be refused.
        StoreUnavailableError: a file that cannot be read.
    """
    outcomes = await preview(instance.catalog, read_script(script, source=source), database=database)
    before = _frozen(running_place(instance), instance)
    after = _changed(before, outcomes, instance.catalog)
    passing = list(flows_of_passage(instance.forwarder))
    work = _Work(before, after, passing, outcomes)
    return await asyncio.get_running_loop().run_in_executor(executor, work.answer)


def _frozen(place: Place, instance: Running) -> Place:
    """The place as another thread may ask about it: health as it is now."""
    peers = instance.peers
    health = {address: peers.health_of(address) for address in peers.known_addresses}
    problems = {address: peers.problem_of(address) for address in peers.known_addresses}
    here = replace(place.surroundings, health_of=lambda address: health.get(address, Health.UNTRIED))
    return replace(place, surroundings=here, problem_of=lambda address: problems.get(address, ""))


def _changed(place: Place, outcomes: Mapping[str, Outcome], catalog: Catalog) -> Place:
    """The place as the script would leave it."""
    here, homes = place.surroundings, dict(place.homes)
    now = here.table.now
    services = dict(here.hosted.services_of)
    for name, outcome in outcomes.items():
        if name == MSDB:
            here = replace(here, table=outcome.table.at(now), msdb=outcome.table.at(now))
        else:
            homes[name] = replace(homes[name], table=outcome.table.at(now))
            instance = catalog.databases[name].broker_instance
            kept = services.get(instance, frozenset()) & {SERVICE_BROKER}
            services[instance] = kept | outcome.rows.services.keys()
    return replace(place, surroundings=replace(here, hosted=_hosted(here.hosted, services)), homes=homes)


def _hosted(was: Hosted, services: Mapping[bytes, frozenset[str]]) -> Hosted:
    return was if services == was.services_of else hosted(services)


@dataclass(frozen=True, slots=True)
class _Work:
    """Comparing the two, in a thread of its own."""

    before: Place
    after: Place
    passing: list[Flow]
    outcomes: Mapping[str, Outcome]

    def answer(self) -> PlanAnswer:
        made = plan(self._flows(), kept=CONSEQUENCES_MAX)
        changed = list(islice(self._edits(), EDITS_MAX + 1))
        return PlanAnswer(
            edits=[RouteEdit(where, name, _planned(was), _planned(will)) for where, name, was, will in changed][
                :EDITS_MAX
            ],
            more_edits=len(changed) > EDITS_MAX or any(one.changes.are_many for one in self.outcomes.values()),
            fates={fate.value: count for fate, count in sorted(made.fates.items(), key=lambda one: -one[1])},
            harmed=made.harmed,
            consequences=list(self._consequences(made)),
            arrivals=list(islice(self._arrivals(changed), ARRIVALS_MAX)),
        )

    def _edits(self) -> Iterator[tuple[str, str, Route | None, Route | None]]:
        for database, outcome in self.outcomes.items():
            for edit in edits(outcome.changes.kept):
                yield database, edit.name, edit.before, edit.after

    def _flows(self) -> Iterator[tuple[Flow, Surroundings, Surroundings]]:
        for flow in self.passing:
            yield flow, self.before.surroundings, self.after.surroundings
        for name, home in self.before.homes.items():
            was = replace(self.before.surroundings, table=home.table.at(self.before.surroundings.table.now))
            will = replace(self.after.surroundings, table=self.after.homes[name].table)
            for flow in _read(home.path, home):
                yield flow, was, will

    def _consequences(self, made: Plan) -> Iterator[Consequence]:
        databases = {home.broker_instance: name for name, home in self.before.homes.items()}
        names = Names(databases)
        for one in made.consequences:
            facts = one.flow.facts
            yield Consequence(
                database=MSDB if facts.database is None else names.database(facts.database),
                flow=one.flow.name,
                to_service=facts.to_service,
                fate=one.fate.value,
                is_harm=one.is_harm,
                before=sentence(one.before, outcome_of(one.before, facts), names),
                after=sentence(one.after, outcome_of(one.after, facts), names),
            )

    def _arrivals(self, changed: Iterable[tuple[str, str, Route | None, Route | None]]) -> Iterator[ExplainAnswer]:
        """Where messages for the services of the changed routes would go, each service once."""
        asked = dict.fromkeys(
            (database, route.remote_service_name, route.broker_instance)
            for database, _, was, will in changed
            for route in chain([was] if was else [], [will] if will else [])
            if route.remote_service_name is not None
        )
        for database, service, instance in asked:
            request = ExplainRequest(service, instance, database=database, incoming=database == MSDB)
            yield answer(self.after, request)


def _read(path: Path, home: Home) -> list[Flow]:
    """The conversations under way in a database file."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return list(flows_of_database(db, home.broker_instance))
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), str(error)) from error


def _planned(route: Route | None) -> PlannedRoute | None:
    if route is None:
        return None
    instance: UUID | None = route.broker_instance
    return PlannedRoute(
        route.remote_service_name,
        None if instance is None else str(instance),
        route.address_text,
        route.mirror_address_text,
        route.weight,
        route.lifetime,
    )

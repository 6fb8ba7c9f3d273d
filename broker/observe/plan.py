"""
Dry run of a script against a running instance: `broker routes plan` and `POST /v1/plan`.

The script is executed on copies, and the result becomes a second `InstanceView`. Every conversation under way is then
routed in both views, and again in both as they will be when the LIFETIMEs that the script sets have ended. An endpoint
has its conversations in its databases; a gateway keeps none, but remembers the frames that passed through it lately.
Permissions in msdb are judged for the peers that are connected, and for public where peers prove nothing. Nothing is
changed, and traffic does not wait.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from broker.catalog.catalog import MSDB, ScriptProgress
from broker.catalog.execute import ScriptPreview, ScriptStoppedError, preview
from broker.catalog.handlers import grants_of
from broker.ddl.parser import read_script
from broker.observe.database_stats import DatabaseName
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, SendingDatabase, answer, frozen_place
from broker.observe.instance import Running
from broker.observe.status import struct_from
from broker.protocol.layout import NO_GUID, show_guid
from broker.routing.decide import Decision, Hosted, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.explain import DisplayNames, outcome_of, sentence
from broker.routing.plan import Fate, PlannedFlow, RoutePlan, edits, plan
from broker.routing.route import BROKER_CONFIGURATION, SERVICE_BROKER, Route
from broker.security.grants import Permission, PermissionRule, PermissionState, Profile
from broker.security.principal import NOBODY, Who
from broker.store.sqlite.lookup import conversations_under_way
from broker.store.sqlite.transaction import open_watch, translated

EDITS_MAX = 1000
CONSEQUENCES_MAX = 1000  # harmed, and as many that change without harm
ARRIVALS_MAX = 1000  # some 3 kB each
ANY_OTHER = "any service that no route names"  # listed instead of all of them where a route of last resort changes
OTHERS_MAX = 3  # further addresses of one decision, and services or peers of one sentence

Edit = tuple[str, str, Route | None, Route | None]
"""Database, name of the route, what it is and what it would be."""


class PlanRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A script to be evaluated; nothing is changed."""

    script: Annotated[str, Meta(description="T-SQL, as for /v1/sql.")]
    database: DatabaseName = None
    source: Annotated[str, Meta(description="The name of the script in the places of errors.")] = "-"
    arrivals: Annotated[bool, Meta(description="Whether to list where messages would go, service by service.")] = False


class PlannedRoute(msgspec.Struct, frozen=True):
    """A route as it is or would be."""

    remote_service_name: str | None
    broker_instance: str | None
    address: str
    mirror_address: str | None
    weight: int
    lifetime: Annotated[datetime | None, Meta(description="UTC instant of expiry; null is never.")]


class RouteEdit(msgspec.Struct, frozen=True):
    """A route that the script makes (no `before`), drops (no `after`) or alters."""

    database: str
    name: str
    before: PlannedRoute | None
    after: PlannedRoute | None


class Consequence(msgspec.Struct, frozen=True):
    """The effect on one conversation under way, or on all with the same routing facts that pass through."""

    database: Annotated[str | None, Meta(description="Where it lives; null when it passes through or arrives.")]
    conversation: Annotated[
        str | None,
        Meta(description="Its handle; of one that passes through, its id; null for all that go the same way."),
    ]
    to_service: str
    fate: Annotated[str, Meta(description="As in `fates`.")]
    is_harm: Annotated[bool, Meta(description="It has sent, and would move, or lose its route or its service here.")]
    before: str
    after: str


class WhenExpired(msgspec.Struct, frozen=True):
    """The effect on conversations when the last LIFETIME that the script sets has ended."""

    at: datetime
    fates: Annotated[dict[str, int], Meta(description="Compared with the routes of now at that instant.")]
    harmed: int


class PlanAnswer(msgspec.Struct, frozen=True):
    """The effect of a script on routes and on conversations under way."""

    edits: list[RouteEdit]
    more_edits: Annotated[
        int | None, Meta(description="Routes that change and are not listed; null when they are too many to count.")
    ]
    fates: Annotated[dict[str, int], Meta(description="Conversations by what becomes of them.")]
    passing: Annotated[
        int, Meta(description="How many of them pass through or arrive; those that go the same way count as one.")
    ]
    harmed: Annotated[
        int, Meta(description="How many of them have sent, and would move, or lose their route or their service here.")
    ]
    consequences: Annotated[list[Consequence], Meta(description="Those that change, harm first; not all of many.")]
    expired: Annotated[WhenExpired | None, Meta(description="Null when the script sets no LIFETIME.")] = None
    arrivals: Annotated[
        list[ExplainAnswer],
        Meta(description="Where messages would go, for each service of a changed route and of a conversation listed."),
    ] = []
    more_arrivals: Annotated[bool, Meta(description="There are more services than are listed.")] = False
    refused: Annotated[
        list[str] | None,
        Meta(
            description="Sentences about peers that lose a permission: to connect, what a GRANT gave, or to send to"
            " services of conversations under way. Connected peers are judged, and without certificates public."
            " Null when no permission changes. Those of user databases are not judged."
        ),
    ] = None


# --- the conversations under way ---


def flows_of_database(db: sqlite3.Connection, instance: bytes) -> Iterator[PlannedFlow]:
    """
    Yield the dialogs of a database that may still send, by conversation handle; read as they are asked for.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    for handle, conversation, is_initiator, service, far_service, far, sequence in conversations_under_way(db):
        facts = RoutingFacts(
            far_service, far or NO_GUID, conversation, is_from_target=not is_initiator, database=instance
        )
        # A target's acknowledgements are on their way as soon as it exists.
        has_sent = bool(sequence) or not is_initiator
        yield PlannedFlow(show_guid(handle), facts, has_sent, service)


def flows_of_passage(passed: Iterable[RoutingFacts], hosted: Hosted) -> Iterator[PlannedFlow]:
    """
    Yield the flows that pass through or arrive.

    Conversations that routing depends on have one each; the others are grouped by routing facts. Replies need no route.
    """
    for facts in passed:
        if facts.is_from_target and facts.to_broker_instance in hosted.services_of:
            continue
        is_one = facts.conversation_id != NO_GUID
        yield PlannedFlow(show_guid(facts.conversation_id) if is_one else "", facts, has_sent=True)


# --- planning ---


async def plan_script(instance: Running, request: PlanRequest, *, database: str, executor: Executor) -> PlanAnswer:
    """
    Return the changes that a script would make.

    Args:
        instance: The instance.
        request: The script, and what the answer shall hold.
        database: Where the script begins.
        executor: Has a thread for the work.

    Raises:
        StatementError: the script would be refused.
        StoreUnavailableError: a file that cannot be read.
        ScriptStoppedError: the instance stops.
    """
    progress = ScriptProgress(source=request.source, size=len(request.script))
    statements = read_script(request.script, source=request.source)
    outcomes = await preview(instance.catalog, statements, database=database, progress=progress)
    before, passed = frozen_place(instance), list(instance.forwarder.passed)
    after = _changed(before, outcomes, instance)
    peers = {link.permit.who for link in instance.peers.links.values() if link.agreement is not None}
    if not before.grants.is_default_deny:
        peers.add(NOBODY)
    work = _PlanRun(before, after, passed, outcomes, request, peers)
    try:
        return await asyncio.get_running_loop().run_in_executor(executor, work.answer)
    finally:
        work.is_stopped = True  # if it still runs, its answer is not needed


def _changed(place: InstanceView, outcomes: Mapping[str, ScriptPreview], instance: Running) -> InstanceView:
    """Return the instance as the script would leave it."""
    here, homes, msdb = place.surroundings, dict(place.homes), place.grants
    services = dict(here.hosted.services_of)
    for name, outcome in outcomes.items():
        table = outcome.table.at(here.table.now)
        grants = grants_of(instance.settings, outcome.rows.permissions, name)
        if name in homes:
            homes[name] = replace(homes[name], table=table, grants=grants)
        if name == MSDB:
            here, msdb = replace(here, table=table, msdb=table), grants
        # Dynamic routes are asked for in the name of a service of the broker.
        asking = {SERVICE_BROKER} if table.routes(BROKER_CONFIGURATION) else set()
        services[instance.catalog.databases[name].broker_instance] = frozenset(outcome.rows.services) | asking
    here = replace(here, hosted=hosted(services, mirrors=here.hosted.mirrors))
    return replace(place, surroundings=here, homes=homes, grants=msdb)


@dataclass(slots=True)
class _PlanRun:
    """The comparison of both, in a thread; it ends soon once `is_stopped` is set."""

    before: InstanceView
    after: InstanceView
    passed: list[RoutingFacts]
    outcomes: Mapping[str, ScriptPreview]
    request: PlanRequest
    peers: Iterable[Who]
    services: set[str] = field(default_factory=set)  # for which peers bring messages
    passing: int = 0
    is_stopped: bool = False

    def answer(self) -> PlanAnswer:
        """Return the whole answer; raises StoreUnavailableError and ScriptStoppedError."""
        made = plan(self._flows(), kept=CONSEQUENCES_MAX)
        changed = list(self._edits())
        are_many = any(outcome.changes.are_many for outcome in self.outcomes.values())
        ends = max((will.lifetime for *_, will in changed if will is not None and will.lifetime), default=None)
        arrivals = list(islice(self._arrivals(changed, made), ARRIVALS_MAX + 1)) if self.request.arrivals else []
        return PlanAnswer(
            edits=[_route_edit(edit) for edit in changed[:EDITS_MAX]],
            more_edits=None if are_many else len(changed[EDITS_MAX:]),
            fates={fate.value: count for fate, count in made.fates.items()},
            passing=self.passing,
            harmed=made.harmed,
            consequences=list(self._consequences(made)),
            expired=None if ends is None else self._expired(ends),
            arrivals=arrivals[:ARRIVALS_MAX],
            more_arrivals=len(arrivals) > ARRIVALS_MAX or are_many,
            refused=list(self._refused()) if self._is_permitting() else None,
        )

    def _edits(self) -> Iterator[Edit]:
        for database, outcome in self.outcomes.items():
            for name, (before, after) in edits(outcome.changes.kept).items():
                yield database, name, before, after

    # --- conversations ---

    def _expired(self, at: datetime) -> WhenExpired:
        """
        Return the effect on conversations when the last LIFETIME has ended.

        A route that expires even without the script is not counted as a change.
        """
        made = plan(self._flows(at=at), kept=0)
        return WhenExpired(at, {fate.value: count for fate, count in made.fates.items()}, made.harmed)

    def _flows(self, at: datetime | None = None) -> Iterator[tuple[PlannedFlow, RoutingContext, RoutingContext]]:
        """Yield each conversation with its routing contexts before and after; both as of now, or of another instant."""
        was, will = (_at(place.surroundings, at) for place in (self.before, self.after))
        passing = list(flows_of_passage(self.passed, was.hosted))
        self.passing = len(passing)
        self.services.update(facts.to_service for facts in self.passed)
        for flow in passing:
            yield flow, was, will
        for name, home in self.before.homes.items():
            own_was = _at(replace(was, table=home.table), at)
            own_will = _at(replace(will, table=self.after.homes[name].table), at)
            for flow in _read(home):
                if self.is_stopped:
                    raise ScriptStoppedError
                facts = flow.facts
                far = (decide(facts, own_was).database if facts.is_open else None) or facts.to_broker_instance
                if flow.from_service is not None and far not in was.hosted.services_of:
                    self.services.add(flow.from_service)
                yield flow, own_was, own_will

    def _consequences(self, made: RoutePlan) -> Iterator[Consequence]:
        place = self.before
        databases = {home.broker_instance: name for name, home in place.homes.items()}
        names = DisplayNames(databases, place.problem_of, place.pair_told)
        for one in made.consequences:
            facts = one.flow.facts
            yield Consequence(
                database=None if facts.database is None else names.database(facts.database),
                conversation=one.flow.name or None,
                to_service=facts.to_service,
                fate=one.fate.value,
                is_harm=one.is_harm,
                before=_decision_text(one.before, facts, names),
                after=_decision_text(one.after, facts, names) if one.fate is not Fate.FAILS else _loss_text(one.flow),
            )

    def _is_permitting(self) -> bool:
        was, will = ([one.grants, *(home.grants for home in one.homes.values())] for one in (self.before, self.after))
        return was != will

    def _refused(self) -> Iterator[str]:
        """Yield what peers lose in msdb, a sentence for each reason; those with the same rules share it."""
        was, will = self.before.grants, self.after.grants
        gone = (one for one in set(was.rules).difference(will.rules) if one.state is PermissionState.GRANT)
        services = self.services.union(one.securable for one in gone if one.permission is Permission.SEND)
        alike: dict[tuple[bool, Profile, Profile], list[Who]] = {}
        for who in sorted(self.peers):
            is_cut_off = was.connect(who).is_permitted and not will.connect(who).is_permitted
            alike.setdefault((is_cut_off, was.profile(who), will.profile(who)), []).append(who)
        for (is_cut_off, had, has), some in alike.items():
            who, names = some[0], _few([one.name for one in some])
            if is_cut_off:
                yield f"{names} could no longer connect: {will.connect(who).why}"
                continue
            lost: dict[PermissionRule | None, list[str]] = {}  # by the DENY; None where a GRANT is missing
            for service in sorted(services):
                if had.permits(service) and not has.permits(service):
                    lost.setdefault(has.rule_for(service), []).append(service)
            for refused in lost.values():
                whys = dict.fromkeys(will.send(who, one).why for one in refused[:OTHERS_MAX])
                yield f"{names} could no longer send to {_few(refused)}: {', '.join(whys)}"

    # --- where messages would go ---

    def _arrivals(self, changed: Iterable[Edit], made: RoutePlan) -> Iterator[ExplainAnswer]:
        """Yield one message for each service that a changed route names, or whose conversations change."""
        requests: dict[tuple[object, ...], ExplainRequest] = {}
        for request in chain(self._requests_of_edits(changed), self._requests_of_flows(made)):
            key = request.database, request.to, request.broker_instance, request.from_target
            requests.setdefault(key, request)
        return (answer(self.after, request) for request in requests.values())

    def _requests_of_edits(self, changed: Iterable[Edit]) -> Iterator[ExplainRequest]:
        for database, _, was, will in changed:
            for route in (was, will):
                if route is not None:
                    service = route.remote_service_name or ANY_OTHER
                    yield ExplainRequest(service, route.broker_instance, database=database)

    def _requests_of_flows(self, made: RoutePlan) -> Iterator[ExplainRequest]:
        names = {home.broker_instance: name for name, home in self.before.homes.items()}
        for facts in (one.flow.facts for one in made.consequences):
            yield ExplainRequest(
                facts.to_service,
                None if facts.is_open else UUID(bytes=facts.to_broker_instance),
                None if facts.conversation_id == NO_GUID else UUID(bytes=facts.conversation_id),
                database=MSDB if facts.database is None else names[facts.database],
                from_target=facts.is_from_target,
            )


def _at(here: RoutingContext, instant: datetime | None) -> RoutingContext:
    return here if instant is None else replace(here, table=here.table.at(instant), msdb=here.msdb.at(instant))


def _read(home: SendingDatabase) -> Iterator[PlannedFlow]:
    """The conversations under way in the file of a database."""
    with translated(home.path), closing(open_watch(home.path)) as db:
        yield from flows_of_database(db, home.broker_instance)


def _decision_text(decision: Decision, facts: RoutingFacts, names: DisplayNames) -> str:
    """A decision in one sentence, with all the addresses that it may use."""
    text = sentence(decision, outcome_of(decision, facts), names)
    others = [str(one.address) for one in decision.candidates[1:]]
    return text + (f"; otherwise to {_few(others)}" if others else "")


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - OTHERS_MAX:,} more" if len(names) > OTHERS_MAX else ""
    return f"{', '.join(names[:OTHERS_MAX])}{more}"


def _loss_text(flow: PlannedFlow) -> str:
    return (
        f"the service {flow.from_service!r} is gone from here: a message that arrives for it ends the dialog with -8470"
    )


def _route_edit(edit: Edit) -> RouteEdit:
    database, name, was, will = edit
    return RouteEdit(database, name, *(None if one is None else _planned_route(one) for one in (was, will)))


def _planned_route(route: Route) -> PlannedRoute:
    return struct_from(
        PlannedRoute,
        route,
        broker_instance=None if route.broker_instance is None else show_guid(route.broker_instance),
        address=route.address_text,
        mirror_address=route.mirror_address_text,
    )

"""
Explanation of a routing decision: its values, and how they are made of a decision.

`decide` records its passes; here they are described, with the routes that each step considered and why each was not
taken. No rule is written twice: a step that matched is the one `decide` took, and the words about a route call the
predicates that the decision calls. Nothing is sent. What is listed is bounded, so a table of a million routes is
explained as fast as one of ten. GUIDs and addresses are text here, and a database has its name; JSON and the terminal
show the same values.

Hints name something that exists and almost fits, or the one thing that is missing. Permissions are checked before
routes, so an explanation of a message that is not permitted shows what the routes would do with it.

Source: docs/routing.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, structs

from broker.advice import create_route, near_name, render_name, to_run
from broker.flow import Disposition
from broker.protocol.layout import show_guid
from broker.routing.address import NetworkAddress
from broker.routing.decide import (
    NEVER_ASKED_ABOUT,
    Decision,
    Hosted,
    Pass,
    RouteClass,
    RoutingContext,
    RoutingFacts,
    class_of,
    decide,
    distinct_routes,
    is_here,
    next_hop,
    pick_instance,
    preference,
    score,
    wanted_instance,
)
from broker.routing.route import BROKER_CONFIGURATION, MirroredPair, Route, is_live
from broker.security.grants import Grants, Permission, PermissionRuling
from broker.security.principal import NOBODY, Who

MSDB = "msdb"  # whose routes are searched for incoming messages
ROUTES_SHOWN = 50  # of one step
ROUTES_CONSIDERED = 1000  # of one service, for steps and for hints; what matched is listed in any case
DATABASES_SHOWN = 10
EXPIRED_SHOWN = 3
_FAILS = "; a dialog that begins there ends in an Error: "
TITLES = (
    "reply to a database here",
    "service and broker instance",
    "service alone",
    "service, one of several broker instances",
    "ask the dynamic routing service",
    "route without service name",
    "service in a database here",
    "nothing matched",
)


# --- values ---


class Outcome(StrEnum):
    """Fate of the message, in one word."""

    FORWARDED = "forwarded"
    DELIVERED = "delivered"
    HELD = "held"
    DELAYED = "delayed"
    DROPPED = "dropped"


class Progress(StrEnum):
    """The result of a step."""

    SKIPPED = "skipped"
    NOTHING = "nothing"
    MATCHED = "matched"
    NOT_REACHED = "not reached"


class RouteFate(msgspec.Struct, frozen=True):
    """One route, and whether a step or class took it."""

    name: str
    remote_service_name: str | None
    broker_instance: str | None
    address: str
    mirror_address: str | None
    weight: int
    lifetime: Annotated[datetime | None, Meta(description="UTC instant of expiry; null is never.")]
    is_taken: Annotated[bool, Meta(description="Whether it goes on from here.")]
    why: str


class Score(msgspec.Struct, frozen=True):
    """One broker instance in the draw of step 3; the highest score wins."""

    broker_instance: str
    weight: int
    score: float
    is_picked: bool


class Step(msgspec.Struct, frozen=True):
    """One step of matching."""

    step: Annotated[int, Meta(description="0 for a reply, 1 to 7 as documented.")]
    title: str
    progress: Progress
    why: str
    routes: tuple[RouteFate, ...] = ()
    scores: tuple[Score, ...] = ()
    more_routes: Annotated[int, Meta(description="Routes that were considered and are not listed.")] = 0


class ClassTried(msgspec.Struct, frozen=True):
    """One class of choosing, and its members."""

    route_class: str
    progress: Progress
    why: str
    routes: tuple[RouteFate, ...] = ()
    more_routes: Annotated[int, Meta(description="Members that are not listed.")] = 0


class CandidateShown(msgspec.Struct, frozen=True):
    """One next hop; they are listed best first."""

    address: str
    route: str
    health: str
    problem: Annotated[str, Meta(description="What is known against it; empty when nothing is.")]
    score: Annotated[float, Meta(description="Among equally healthy ones the highest wins.")]


class PassShown(msgspec.Struct, frozen=True):
    """One pass of `decide`; a route that leads back to this instance causes a second pass."""

    table: Annotated[str, Meta(description="The database whose routes were searched.")]
    is_incoming: bool
    steps: tuple[Step, ...]
    classes: tuple[ClassTried, ...]
    candidates: tuple[CandidateShown, ...]
    more_candidates: Annotated[int, Meta(description="Candidates that are not listed.")] = 0


class PermissionShown(msgspec.Struct, frozen=True):
    """Whether the peer has a permission, and by which statement, or which one is missing."""

    permission: str
    is_permitted: bool
    why: str


class Explanation(msgspec.Struct, frozen=True):
    """The decision and every reason for it."""

    to_service: str
    to_broker_instance: Annotated[str | None, Meta(description="Null when any instance of the service will do.")]
    conversation_id: str
    is_from_target: bool
    outcome: Outcome
    disposition: str
    number: Annotated[int, Meta(description="The original's message number; 0 where it has none.")]
    step: int
    route: Annotated[str | None, Meta(description="The route taken; null when none was, empty when none is stored.")]
    next_hop: str | None
    database: str | None
    is_service_there: Annotated[bool, Meta(description="False when that database does not have the service.")]
    sentence: str
    is_by_conversation: Annotated[bool, Meta(description="Whether another conversation may go elsewhere.")]
    passes: tuple[PassShown, ...]
    hints: tuple[str, ...] = ()
    near_names: Annotated[
        tuple[str, ...], Meta(description="Services known here with a similar name, if it leads nowhere.")
    ] = ()
    other_instances: Annotated[
        tuple[str, ...], Meta(description="Broker instances here that have the service, if the named one is not here.")
    ] = ()
    peer: Annotated[str | None, Meta(description="The peer that brings the message; null when that was not asked.")] = (
        None
    )
    permissions: Annotated[
        tuple[PermissionShown, ...], Meta(description="The permissions that the peer needs; checked before any route.")
    ] = ()
    target_refusal: Annotated[
        str, Meta(description="The statement that the target's database lacks for dialogs that begin; empty otherwise.")
    ] = ""

    @property
    def has_way(self) -> bool:
        """Whether a message leaves, waits for a principal, or is delivered to a service that exists."""
        return self.outcome not in {Outcome.DROPPED, Outcome.DELAYED} and self.is_service_there


class DisplayNames(Struct, frozen=True):
    """
    The names that people use for databases and addresses of this instance.

    Attributes:
        databases: Broker instance -> name.
        problem_of: Returns the known problem of an address, empty when there is none.
        pair_state: Returns the answers of the addresses of a mirrored pair, empty when they were not asked.
    """

    databases: Mapping[bytes, str]
    problem_of: Callable[[NetworkAddress], str]
    pair_state: Callable[[MirroredPair], str]

    def database(self, instance: bytes) -> str:
        """The name of a database, or its GUID when it is not of this instance."""
        return self.databases.get(instance) or show_guid(instance)

    def table(self, one: Pass) -> str:
        """Return the name of the database whose routes were searched."""
        return MSDB if one.facts.database is None else self.database(one.facts.database)


# --- the explanation of a decision ---


def explain(facts: RoutingFacts, context: RoutingContext, names: DisplayNames) -> Explanation:
    """The decision that `decide` takes, with every reason."""
    passes: list[Pass] = []
    decision = decide(facts, context, passes)
    outcome = outcome_of(decision, facts)
    is_service_there = decision.database is None or facts.to_service in context.hosted.services_of[decision.database]
    table = names.table(passes[-1])
    near = near_names(passes[-1], context.hosted, table)
    return Explanation(
        to_service=facts.to_service,
        to_broker_instance=None if facts.is_open else show_guid(facts.to_broker_instance),
        conversation_id=show_guid(facts.conversation_id),
        is_from_target=facts.is_from_target,
        outcome=outcome,
        disposition=decision.disposition.value,
        number=decision.disposition.number,
        step=decision.step,
        route=None if decision.route is None else decision.route.name,
        next_hop=str(decision.candidates[0].address) if decision.candidates else None,
        database=None if decision.database is None else names.database(decision.database),
        is_service_there=is_service_there,
        sentence=sentence(decision, outcome, names) + ("" if is_service_there else _absent(facts)),
        is_by_conversation=decision.is_by_conversation,
        passes=tuple(_PassDescriber(one, context, names, is_first=one is passes[0]).describe() for one in passes),
        hints=tuple(hints_for(passes[-1], near, table)),
        near_names=tuple(near),
        other_instances=tuple(_other_instances(decision, facts, context.hosted)),
    )


def outcome_of(decision: Decision, facts: RoutingFacts) -> Outcome:
    """Return the outcome that a decision means for a message with these facts (R2.7, R3.1)."""
    if decision.disposition is Disposition.FORWARDED:
        return Outcome.FORWARDED
    if decision.disposition is Disposition.DELIVERED:
        return Outcome.DELIVERED
    if decision.disposition is Disposition.PRINCIPAL_UNKNOWN:
        return Outcome.HELD
    return Outcome.DROPPED if facts.is_incoming else Outcome.DELAYED


def sentence(decision: Decision, outcome: Outcome, names: DisplayNames) -> str:
    """A decision in one sentence."""
    by = "" if decision.route is None or not decision.route.name else f" by route {decision.route.name}"
    reason = f"{decision.disposition} ({decision.disposition.number})"
    if outcome is Outcome.FORWARDED:
        return f"forwarded to {decision.candidates[0].address}{by}"
    if outcome is Outcome.DELIVERED:
        assert decision.database is not None
        return f"delivered here, to the database {names.database(decision.database)}{by}"
    if outcome is Outcome.HELD:
        return f"held{by}: {reason}"
    if outcome is Outcome.DELAYED:
        return f"delayed{by}: {reason}; matched again after 10 s and whenever routes or services change"
    return f"dropped{by}: {reason}; the sender keeps the message and sends it again"


def _absent(facts: RoutingFacts) -> str:
    """Say how a database treats a message for a service that it does not have (R4.1)."""
    answer = "drops it" if facts.is_from_target else "answers with an error (-8490, or -8470 where it knows the dialog)"
    return f"; it has no service {facts.to_service!r} and {answer}"


def _other_instances(decision: Decision, facts: RoutingFacts, hosted: Hosted) -> Iterator[str]:
    """Yield the broker instances here that have the service of a message for one that is not here."""
    if decision.disposition is Disposition.INSTANCE_NOT_HERE:
        yield from map(show_guid, hosted.databases_with.get(facts.to_service, ())[:DATABASES_SHOWN])


class _PassDescriber:
    """Describes one pass."""

    def __init__(self, one: Pass, context: RoutingContext, names: DisplayNames, *, is_first: bool) -> None:
        self._facts, self._table, self._matched, self._choice = one.facts, one.table, one.matched, one.choice
        self._context, self._names, self._is_first = context, names, is_first
        self._table_name = names.table(one)
        self._to_service = self._routes(one.facts.to_service)
        self._last = 0 if one.matched is None else one.matched.step
        self._all_candidates = () if one.choice is None else one.choice.candidates

    def describe(self) -> PassShown:
        return PassShown(
            table=self._table_name,
            is_incoming=self._facts.is_incoming,
            steps=tuple(self._steps()),
            classes=tuple(self._classes()),
            candidates=tuple(self._candidates()),
            more_candidates=len(self._all_candidates[ROUTES_SHOWN:]),
        )

    # --- matching ---

    def _steps(self) -> Iterator[Step]:
        yield Step(0, TITLES[0], *self._reply())
        steps = (self._exact, self._any_instance, self._balanced, self._ask, self._last_resort, self._implicit_local)
        for number, describe in enumerate(steps, 1):
            yield describe() if number <= self._last else self._not_reached(number)
        yield Step(7, TITLES[7], Progress.MATCHED, "no step found a route") if self._last == 7 else self._not_reached(7)

    def _reply(self) -> tuple[Progress, str]:
        facts = self._facts
        if self._matched is None and facts.to_broker_instance in self._context.hosted.mirrors:
            return Progress.MATCHED, "from a target, to a database that is a mirror here"
        if self._matched is None:
            return Progress.MATCHED, f"from a target, to the database {self._names.database(facts.to_broker_instance)}"
        if not facts.is_incoming:
            return Progress.SKIPPED, "the message begins its way here"
        if not facts.is_from_target:
            return Progress.SKIPPED, "the message is not from a target"
        if facts.is_open:
            return Progress.SKIPPED, "the message names no broker instance"
        return Progress.NOTHING, f"the broker instance {show_guid(facts.to_broker_instance)} is not hosted here"

    def _exact(self) -> Step:
        if self._facts.is_open:
            return Step(1, TITLES[1], Progress.SKIPPED, "the conversation names no broker instance")
        return self._step(1, "names another broker instance")

    def _any_instance(self) -> Step:
        return self._step(2)

    def _balanced(self) -> Step:
        if not self._facts.is_open:
            return Step(3, TITLES[3], Progress.SKIPPED, "the conversation names a broker instance")
        conversation = self._facts.conversation_id
        weights = self._table.instances(self._facts.to_service)
        if not weights:
            return self._step(3)
        picked = pick_instance(conversation, weights)
        scores = {one: _finite(score(conversation, one, weight=weight)) for one, weight in weights.items()}
        shown = sorted(weights, key=lambda one: (one != picked, -scores[one]))[:ROUTES_SHOWN]
        step = self._step(3, f"the conversation picked broker instance {show_guid(picked)}")
        why = f"the conversation picks one of {len(weights):,}" if len(weights) > 1 else step.why
        return structs.replace(
            step,
            why=why,
            scores=tuple(Score(show_guid(one), weights[one], scores[one], one == picked) for one in shown),
        )

    def _ask(self) -> Step:
        if self._facts.to_service in NEVER_ASKED_ABOUT:
            return Step(4, TITLES[4], Progress.SKIPPED, f"no instance is asked about {self._facts.to_service}")
        return self._step(4, "names a broker instance, and the question is open to any")

    def _last_resort(self) -> Step:
        return self._step(5, "names a broker instance without a service")

    def _implicit_local(self) -> Step:
        service = self._facts.to_service
        if self._facts.is_open:
            return Step(6, TITLES[6], Progress.SKIPPED, "the conversation names no broker instance")
        if self._facts.to_broker_instance in self._context.hosted.mirrors:
            return Step(6, TITLES[6], Progress.MATCHED, "the broker instance is a mirror here")
        databases = self._context.hosted.databases_with.get(service, ())
        if not databases:
            return Step(6, TITLES[6], Progress.NOTHING, f"no database here has a service {service!r}")
        having = ", ".join(self._names.database(one) for one in databases[:DATABASES_SHOWN])
        more = f" and {len(databases) - DATABASES_SHOWN} more" if len(databases) > DATABASES_SHOWN else ""
        return Step(6, TITLES[6], Progress.MATCHED, f"as if a route to LOCAL were there: {having}{more}")

    def _step(self, number: int, reason: str = "") -> Step:
        """A step that considers routes: those that `decide` took there, and why the others were not."""
        assert self._matched is not None
        taken = self._matched.routes if self._matched.step == number else ()
        known = frozenset(taken)
        others = [route for route in self._considered(number) if route not in known]
        fates = [_fate(route, "matches", is_taken=True) for route in taken[:ROUTES_SHOWN]]
        fates += [_fate(route, self._expired(route) or reason) for route in others[: ROUTES_SHOWN - len(fates)]]
        progress = Progress.MATCHED if taken else Progress.NOTHING
        why = _count(len(taken), "route matches", "routes match") if taken else self._nothing(others)
        return Step(number, TITLES[number], progress, why, tuple(fates), (), len(taken) + len(others) - len(fates))

    def _not_reached(self, number: int) -> Step:
        """A step after the one that ended the search."""
        why = f"step {self._last} ended the search" if self._last else "a reply needs no route"
        routes = self._considered(number)
        fates = tuple(_fate(route, self._expired(route) or why) for route in routes[:ROUTES_SHOWN])
        return Step(number, TITLES[number], Progress.NOT_REACHED, why, fates, (), len(routes[ROUTES_SHOWN:]))

    def _considered(self, number: int) -> list[Route]:
        """The routes that a step considers, expired ones included; each route to the service belongs to one step."""
        if number == (3 if self._facts.is_open else 1):
            return [route for route in self._to_service if route.broker_instance is not None]
        if number == 2:
            return [route for route in self._to_service if route.broker_instance is None]
        if number in {4, 5}:
            return self._routes(BROKER_CONFIGURATION if number == 4 else None)
        return []

    def _routes(self, service: str | None) -> list[Route]:
        return list(islice(self._table.all_routes(service), ROUTES_CONSIDERED))

    def _expired(self, route: Route) -> str:
        """Instant at which a route expired; empty while it is live."""
        if route.lifetime is None or is_live(route.lifetime, self._table.now):
            return ""
        return f"expired at {route.lifetime:%Y-%m-%d %H:%M:%S} UTC"

    def _nothing(self, routes: list[Route]) -> str:
        if not routes:
            return "no such route"
        expired = sum(1 for route in routes if self._expired(route))
        those = f", {expired:,} of them expired" if 0 < expired < len(routes) else ", expired" if expired else ""
        return _count(len(routes), "such route falls", "such routes fall") + f" out{those}"

    # --- choosing ---

    def _classes(self) -> Iterator[ClassTried]:
        if self._matched is None or not self._matched.routes or self._matched.step == 4:
            return
        distinct = dict.fromkeys(distinct_routes(self._matched.routes))
        first = {route.identity: route.name for route in distinct}
        taken = None if self._choice is None else self._choice.route_class
        is_over = False
        for route_class in RouteClass:
            members = [route for route in self._matched.routes if class_of(route) is route_class]
            shown, more = members[:ROUTES_SHOWN], len(members[ROUTES_SHOWN:])
            if is_over:
                why = f"{taken} comes first"
                fates = tuple(_fate(route, why) for route in shown)
                yield ClassTried(route_class, Progress.NOT_REACHED, why, fates, more)
                continue
            is_over = route_class is taken
            fates = tuple(
                self._chosen(route, route_class)
                if route in distinct
                else _fate(route, f"identical to {first[route.identity]}, counts once")
                for route in shown
            )
            progress = Progress.MATCHED if is_over else Progress.NOTHING if members else Progress.SKIPPED
            why = "taken" if is_over else "no member works" if members else "no member"
            yield ClassTried(route_class, progress, why, fates, more)

    def _chosen(self, route: Route, route_class: RouteClass) -> RouteFate:
        """Return the fate of a route when its class is tried."""
        if route_class is RouteClass.MIRRORED:
            return self._mirrored(route)
        if route_class is RouteClass.LOCAL:
            return self._located(route)
        hop = next_hop(route, self._facts)
        if hop is None:
            return _fate(route, f"the service name {self._facts.to_service!r} does not begin with an address")
        if hop not in self._context.own:
            return _fate(route, f"leads to {hop}", is_taken=True)
        if not self._is_first:
            return _fate(route, "leads to this instance, for the second time")
        return _fate(route, f"leads to this instance, {hop}", is_taken=True)

    def _mirrored(self, route: Route) -> RouteFate:
        """The principal of a pair, and how it is known (R6.1 to R6.4)."""
        state = "" if route.pair is None else self._names.pair_state(route.pair)
        why = f": {state}" if state else ""
        if not self._all_candidates:
            return _fate(route, f"its principal is not known; nothing leaves before one claims it{why}", is_taken=True)
        principal = self._all_candidates[0]
        if principal.route is not route:
            return _fate(route, f"the principal of {principal.route.name} is known{why}")
        which = "this instance, " if principal.address in self._context.own else ""
        return _fate(route, f"its principal is {which}{principal.address}{why}", is_taken=True)

    def _located(self, route: Route) -> RouteFate:
        facts, hosted = self._facts, self._context.hosted
        if is_here(route, hosted, facts):
            return _fate(route, "the service is here", is_taken=True)
        instance = wanted_instance(route, facts)
        if instance is not None and instance not in hosted.services_of:
            return _fate(route, f"the broker instance {show_guid(instance)} is not hosted here")
        return _fate(route, f"no database here has a service {facts.to_service!r}")

    def _candidates(self) -> Iterator[CandidateShown]:
        refusals = self._context.refused(self._facts)
        for one in self._all_candidates[:ROUTES_SHOWN]:
            is_own = one.address in self._context.own
            health = one.health.name.lower() + (", without this broker instance" if one.address in refusals else "")
            yield CandidateShown(
                str(one.address),
                one.route.name,
                "this instance" if is_own else health,
                "" if is_own else self._names.problem_of(one.address),
                _finite(preference(one.address, self._facts)),
            )


def _fate(route: Route, why: str, *, is_taken: bool = False) -> RouteFate:
    return RouteFate(
        route.name,
        route.remote_service_name,
        None if route.broker_instance is None else show_guid(route.broker_instance),
        route.address_text,
        route.mirror_address_text,
        route.weight,
        route.lifetime,
        is_taken,
        why,
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _finite(score_of_one: float) -> float:
    """JSON has no infinity; the largest hashes reach it."""
    return min(score_of_one, sys.float_info.max)


# --- hints ---


def hints_for(last: Pass, near: Mapping[str, str], table: str) -> Iterator[str]:
    """
    Hints about the pass that decided; none when the message is delivered or leaves.

    Args:
        last: Of the decision.
        near: As `near_names` returns them.
        table: The name of the table that was searched.
    """
    service, decision = last.facts.to_service, last.decision
    for name, where in near.items():
        yield f"is the name right? {where} {name!r}, and names compare byte for byte"
    if decision.disposition is Disposition.FORWARDED or decision.database is not None:
        return
    considered = islice(last.table.all_routes(service), ROUTES_CONSIDERED)
    expired = (route for route in considered if not is_live(route.lifetime, last.table.now))
    for route in islice(expired, EXPIRED_SHOWN):
        statement = f"ALTER ROUTE {render_name(route.name)} WITH LIFETIME = SECONDS;"
        yield f"route {route.name} has expired; to bring it back, {to_run(statement, database=table)}"
    if decision.disposition is Disposition.NO_ROUTE:
        statement = to_run(create_route(service), database=table)
        yield f"{statement} Leave out SERVICE_NAME for a route to all services that no other route names"
    if decision.disposition is Disposition.FORWARDING_DISABLED:
        yield "set endpoint.message_forwarding = true to let this instance pass on what is for others"


def near_names(last: Pass, hosted: Hosted, table: str) -> dict[str, str]:
    """
    Return known services with a name like that of the service, and where each is known; none if this one is known.

    Args:
        last: The pass that decided.
        hosted: The services that are here.
        table: The name of the table that was searched.
    """
    service, decision = last.facts.to_service, last.decision
    if decision.disposition is Disposition.FORWARDED:
        return {}
    if decision.database is not None:
        here = hosted.services_of[decision.database]
        found = {} if service in here else {near_name(service, here): "that database has a service"}
    elif service in hosted.databases_with or any(last.table.all_routes(service)):
        found = {}
    else:
        named = (name for name in last.table.services() if name is not None)
        found = {
            near_name(service, named): f"{table} has a route to",
            near_name(service, hosted.databases_with): "there is a service here called",
        }
    return {name: where for name, where in found.items() if name}


# --- permissions ---


def with_permissions(explanation: Explanation, who: Who, grants: Grants) -> Explanation:
    """
    An explanation for a message that a peer brings.

    Args:
        explanation: Of the same message without permissions.
        who: The identity that the peer has proved.
        grants: Of msdb.
    """
    connect, send = grants.connect(who), grants.send(who, explanation.to_service)
    explanation = structs.replace(
        explanation, peer=who.name, permissions=(_shown(Permission.CONNECT, connect), _shown(Permission.SEND, send))
    )
    if connect.is_permitted and send.is_permitted:
        return explanation
    refused = send if connect.is_permitted else connect
    what = "dropped" if connect.is_permitted else "never taken, because the peer may not connect"
    reason = f"{Disposition.NOT_PERMITTED} ({Disposition.NOT_PERMITTED.number})"
    return structs.replace(
        explanation,
        outcome=Outcome.DROPPED,
        disposition=Disposition.NOT_PERMITTED.value,
        number=Disposition.NOT_PERMITTED.number,
        route=None,
        next_hop=None,
        database=None,
        is_service_there=True,
        sentence=f"{what}: {reason}: {refused.why}; the sender keeps the message and sends it again",
        hints=tuple(how_to_permit(ruling) for ruling in (connect, send) if not ruling.is_permitted),
    )


def with_target(explanation: Explanation, grants: Grants) -> Explanation:
    """
    An explanation for a message that comes to a database here, with its `grants`.

    Who the sender is, where it proves that, is not known here: then only a service without any GRANT is reported.
    """
    if grants.is_default_deny and grants.may_be_granted(explanation.to_service):
        return explanation
    ruling = grants.send(NOBODY, explanation.to_service)
    if grants.is_default_deny:
        ruling = structs.replace(ruling, why=ruling.why.replace(" TO [public]", " TO [PRINCIPAL]"))
    if ruling.is_permitted or explanation.outcome is not Outcome.DELIVERED or explanation.database is None:
        return explanation
    sentence = failing(explanation.sentence, ruling)
    hint = how_to_permit(ruling, explanation.database)
    return structs.replace(explanation, sentence=sentence, hints=(*explanation.hints, hint), target_refusal=hint)


def failing(sentence: str, refused: PermissionRuling) -> str:
    """The sentence about a message that arrives, with why its dialog fails there."""
    return f"{sentence.partition(_FAILS)[0]}{_FAILS}{refused.why}"


def _shown(permission: Permission, ruling: PermissionRuling) -> PermissionShown:
    return PermissionShown(permission.value, ruling.is_permitted, ruling.why)


def how_to_permit(refused: PermissionRuling, database: str = MSDB) -> str:
    """How the statement is run that is missing, or that lifts a DENY."""
    doubt = "" if refused.rule is None else f"if {refused.why} is not meant, "
    return doubt + to_run(refused.remedy, database=database)

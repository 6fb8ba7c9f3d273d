"""What is told about each step, each route and each address, case by case; that it is true is a property test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, NetworkAddress, parse_address
from broker.routing.decide import AddressHealth, Hosted, Pass, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.explain import (
    EXPIRED_SHOWN,
    ROUTES_SHOWN,
    CandidateShown,
    ClassTried,
    DisplayNames,
    Explanation,
    Outcome,
    PassShown,
    Progress,
    RouteFate,
    Score,
    Step,
    explain,
    hints_for,
    with_permissions,
)
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, SERVICE_BROKER, Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal, who_is

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ORDERS, BILLING, ELSEWHERE = UUID(int=0x0D), UUID(int=0xB1), UUID(int=0xE1)
CONVERSATION = UUID(int=1)
HEALTH = {NetworkAddress("up"): AddressHealth.CONNECTED, NetworkAddress("down"): AddressHealth.SUPPRESSED}


def to(address: str, service: str | None = None, instance: UUID | None = None, **more: Any) -> Route:
    """A route that is called like its address."""
    mirror = more.pop("mirror", None)
    mirror_address = None if mirror is None else NetworkAddress(mirror)
    name = more.pop("name", address.removeprefix("tcp://"))
    return Route(name, parse_address(address), service, instance, mirror_address=mirror_address, **more)


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and of which instance. Shape: `billing` the services of the other database; `own` hosts."""

    routes: Iterable[Route] = ()
    msdb: Iterable[Route] = ()
    service: str = "S"
    instance: UUID | None = None
    incoming: bool = False
    from_target: bool = False
    billing: Iterable[str] = ()
    forwarding: bool = True
    own: Iterable[str] = ()
    mirrors: Iterable[UUID] = ()
    principal: str | None = None
    told: str = ""


def tell(**question: Any) -> Explanation:
    """Why a message from the database orders, or from outside, goes where it goes."""
    asked = Question(**question)
    msdb = build_table(asked.msdb, now=NOW)
    here = RoutingContext(
        msdb if asked.incoming else build_table(asked.routes, now=NOW),
        hosted({ORDERS.bytes: (), BILLING.bytes: asked.billing}, mirrors=[one.bytes for one in asked.mirrors]),
        lambda address: HEALTH.get(address, AddressHealth.UNTRIED),
        asked.forwarding,
        msdb=msdb,
        own=frozenset(map(NetworkAddress, asked.own)),
        principals={PAIR: NetworkAddress(asked.principal)} if PAIR and asked.principal else {},
    )
    names = DisplayNames(
        {ORDERS.bytes: "orders", BILLING.bytes: "billing"},
        lambda address: "refused" if HEALTH.get(address) is AddressHealth.SUPPRESSED else "",
        lambda _: asked.told,
    )
    instance = NO_GUID if asked.instance is None else asked.instance.bytes
    database = None if asked.incoming else ORDERS.bytes
    return explain(RoutingFacts(asked.service, instance, CONVERSATION.bytes, asked.from_target, database), here, names)


def steps(explanation: Explanation) -> list[Step]:
    """Of the only pass."""
    [one] = explanation.passes
    return list(one.steps)


def fates(step: Step) -> dict[str, str]:
    """Why, by route."""
    return {fate.name: fate.why for fate in step.routes}


def tried(explanation: Explanation) -> dict[str, tuple[Progress, str]]:
    """How far each class came in the last pass, and why."""
    return {one.route_class: (one.progress, one.why) for one in explanation.passes[-1].classes}


def members(explanation: Explanation) -> dict[str, str]:
    """What became of each route when its class was tried, in the last pass."""
    return {fate.name: fate.why for one in explanation.passes[-1].classes for fate in one.routes}


# --- the question and the answer ---


def test_guids_addresses_and_databases_are_told_as_people_read_them() -> None:
    explanation = tell(routes=[to("tcp://far:1", "S", ELSEWHERE)], instance=ELSEWHERE, from_target=True)

    assert ("S", str(ELSEWHERE), str(CONVERSATION)) == (
        explanation.to_service,
        explanation.to_broker_instance,
        explanation.conversation_id,
    )
    assert explanation.is_from_target
    assert (Outcome.FORWARDED, 1, "far:1", "tcp://far:1") == (
        explanation.outcome,
        explanation.step,
        explanation.route,
        explanation.next_hop,
    )


MIRRORED = to("tcp://far", "S", ELSEWHERE, mirror="partner")
PAIR = MIRRORED.pair
assert PAIR is not None
SENTENCES: dict[str, tuple[dict[str, Any], Outcome, str]] = {
    "forwarded": ({"routes": [to("tcp://far", "S")]}, Outcome.FORWARDED, "forwarded to tcp://far:4022 by route far"),
    "delivered": (
        {"routes": [to("LOCAL")], "billing": ["S"]},
        Outcome.DELIVERED,
        "delivered here, to the database billing by route LOCAL",
    ),
    "implicit": (
        {"instance": BILLING, "billing": ["S"]},
        Outcome.DELIVERED,
        "delivered here, to the database billing",
    ),
    "reply": (
        {"instance": BILLING, "incoming": True, "from_target": True, "billing": ["S"]},
        Outcome.DELIVERED,
        "delivered here, to the database billing",
    ),
    "absent in the database that it names": (
        {"routes": [to("LOCAL")], "instance": BILLING},
        Outcome.DELIVERED,
        (
            "delivered here, to the database billing by route LOCAL;"
            " it has no service 'S' and answers with the error -8490"
        ),
    ),
    "absent in the database that the route names": (
        {"routes": [to("LOCAL", "S", BILLING)]},
        Outcome.DELIVERED,
        (
            "delivered here, to the database billing by route LOCAL;"
            " it has no service 'S' and answers with the error -8490"
        ),
    ),
    "absent, reply": (
        {"instance": BILLING, "incoming": True, "from_target": True},
        Outcome.DELIVERED,
        "delivered here, to the database billing; it has no service 'S' and drops it",
    ),
    "held": (
        {"routes": [MIRRORED], "instance": ELSEWHERE},
        Outcome.HELD,
        "held by route far: principal unknown (9794)",
    ),
    "delayed": (
        {},
        Outcome.DELAYED,
        "delayed: no route (9798); matched again after 10 s and whenever routes or services change",
    ),
    "asking": (
        {"routes": [to("tcp://far", BROKER_CONFIGURATION)]},
        Outcome.DELAYED,
        (
            "delayed by route far: asking for route (9770);"
            " matched again after 10 s and whenever routes or services change"
        ),
    ),
    "dropped": (
        {"msdb": [to("tcp://far")], "incoming": True, "forwarding": False},
        Outcome.DROPPED,
        "dropped by route far: forwarding disabled (9792); the sender keeps the message and sends it again",
    ),
}


@pytest.mark.parametrize(("question", "outcome", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_decision_in_one_sentence(question: dict[str, Any], outcome: Outcome, sentence: str) -> None:
    explanation = tell(**question)

    assert (outcome, sentence) == (explanation.outcome, explanation.sentence)
    assert explanation.is_service_there == ("no service" not in sentence)


def test_a_database_that_nobody_named_goes_by_its_guid() -> None:
    assert str(ELSEWHERE) == DisplayNames().database(ELSEWHERE.bytes)


# --- matching ---


def test_each_step_says_how_far_it_came() -> None:
    explanation = tell(routes=[to("tcp://far"), AUTO_CREATED_LOCAL])

    assert [
        (0, Progress.SKIPPED, "the message begins its way here"),
        (1, Progress.SKIPPED, "the conversation names no broker instance"),
        (2, Progress.NOTHING, "no such route"),
        (3, Progress.NOTHING, "no such route"),
        (4, Progress.NOTHING, "no such route"),
        (5, Progress.MATCHED, "2 routes match"),
        (6, Progress.NOT_REACHED, "step 5 ended the search"),
        (7, Progress.NOT_REACHED, "step 5 ended the search"),
    ] == [(step.step, step.progress, step.why) for step in steps(explanation)]


@pytest.mark.parametrize(
    ("question", "progress", "why"),
    [
        ({}, Progress.SKIPPED, "the message begins its way here"),
        ({"incoming": True}, Progress.SKIPPED, "the message is not from a target"),
        ({"incoming": True, "from_target": True}, Progress.SKIPPED, "the message names no broker instance"),
        (
            {"incoming": True, "from_target": True, "instance": ELSEWHERE},
            Progress.NOTHING,
            f"the broker instance {ELSEWHERE} is not hosted here",
        ),
        (
            {"incoming": True, "from_target": True, "instance": BILLING},
            Progress.MATCHED,
            "from a target, to the database billing",
        ),
    ],
)
def test_whether_it_is_a_reply_to_a_database_here(question: dict[str, Any], progress: Progress, why: str) -> None:
    step = steps(tell(**question))[0]

    assert (progress, why) == (step.progress, step.why)


def test_a_route_to_another_broker_instance_falls_out_of_the_first_step() -> None:
    explanation = tell(routes=[to("tcp://far", "S", ELSEWHERE), to("tcp://near", "S", BILLING)], instance=BILLING)

    assert {"near": "matches", "far": "names another broker instance"} == fates(steps(explanation)[1])
    assert [True, False] == [fate.is_taken for fate in steps(explanation)[1].routes]


def test_an_expired_route_says_when_it_expired() -> None:
    routes = [to("tcp://far", "S", lifetime=NOW - timedelta(minutes=1)), to("tcp://near", "S", lifetime=NOW)]

    step = steps(tell(routes=routes))[2]

    assert {"far": "expired at 2025-03-01 11:59:00 UTC", "near": "expired at 2025-03-01 12:00:00 UTC"} == fates(step)
    assert (Progress.NOTHING, "2 such routes fall out, expired") == (step.progress, step.why)


@pytest.mark.parametrize("service", [BROKER_CONFIGURATION, SERVICE_BROKER])
def test_nobody_is_asked_about_the_services_that_ask(service: str) -> None:
    step = steps(tell(routes=[to("tcp://far", BROKER_CONFIGURATION, ELSEWHERE)], service=service, instance=BILLING))[4]

    assert (Progress.SKIPPED, f"no instance is asked about {service}") == (step.progress, step.why)


def test_who_is_asked_is_told_and_nothing_is_chosen() -> None:
    explanation = tell(routes=[to("tcp://far", BROKER_CONFIGURATION)])

    assert {"far": "matches"} == fates(steps(explanation)[4])
    assert () == explanation.passes[0].classes


def test_rows_that_no_statement_could_have_made_have_a_reason_too() -> None:
    strange = [to("tcp://far", BROKER_CONFIGURATION, ELSEWHERE), to("tcp://near", None, ELSEWHERE)]

    explanation = tell(routes=strange)

    assert {"far": "names a broker instance, and the question is open to any"} == fates(steps(explanation)[4])
    assert {"near": "names a broker instance without a service"} == fates(steps(explanation)[5])


def test_a_service_that_is_here_matches_for_who_names_a_broker_instance() -> None:
    databases = tell(instance=ELSEWHERE, billing=["S"])

    assert (Progress.MATCHED, "as if a route to LOCAL were there: billing") == (
        steps(databases)[6].progress,
        steps(databases)[6].why,
    )
    assert "no database here has a service 'S'" == steps(tell(instance=ELSEWHERE))[6].why
    assert "the conversation names no broker instance" == steps(tell(billing=["S"]))[6].why


# --- choosing ---


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"routes": [AUTO_CREATED_LOCAL], "billing": ["S"]}, "the service is here"),
        (
            {"routes": [to("LOCAL", "S", ELSEWHERE)], "billing": ["S"]},
            f"the broker instance {ELSEWHERE} is not hosted here",
        ),
        ({"routes": [to("TRANSPORT")]}, "the service name 'S' does not begin with an address"),
        ({"routes": [to("TRANSPORT")], "service": "tcp://far:1/S"}, "leads to tcp://far:1"),
        ({"routes": [MIRRORED]}, "its principal is not known; nothing leaves before one claims it"),
        (
            {"routes": [MIRRORED], "told": "far says mirror"},
            "its principal is not known; nothing leaves before one claims it: far says mirror",
        ),
        (
            {"routes": [MIRRORED], "principal": "partner", "told": "so they say"},
            "its principal is tcp://partner:4022: so they say",
        ),
        (
            {"msdb": [MIRRORED], "incoming": True, "principal": "partner", "own": ["partner"]},
            "its principal is this instance, tcp://partner:4022",
        ),
    ],
)
def test_a_member_says_why_it_works_or_not(question: dict[str, Any], why: str) -> None:
    assert [why] == list(members(tell(**question)).values())


# --- this instance ---


def test_an_own_address_makes_a_second_pass_by_msdb() -> None:
    explanation = tell(routes=[to("tcp://down", "S")], msdb=[to("tcp://far")], own=["down"])

    first, second = explanation.passes
    assert [("orders", False), ("msdb", True)] == [(one.table, one.is_incoming) for one in (first, second)]
    assert [("this instance", "")] == [(one.health, one.problem) for one in first.candidates]
    assert {"down": "leads to this instance, tcp://down:4022"} == {
        fate.name: fate.why for one in first.classes for fate in one.routes
    }
    assert ("far", 5) == (explanation.route, explanation.step)


def test_it_never_leads_back_here_twice_and_the_conversation_is_delayed() -> None:
    explanation = tell(routes=[to("tcp://me", "S")], msdb=[to("tcp://me")], own=["me"])

    assert {"me": "leads to this instance, for the second time"} == members(explanation)
    assert Outcome.DELAYED is explanation.outcome


# --- bounds ---


def test_of_many_routes_a_bounded_number_is_listed_what_matched_first_and_the_rest_is_counted() -> None:
    number = ROUTES_SHOWN + 30
    routes = [to(f"tcp://h{n:03}", "S", UUID(int=n + 1)) for n in range(number)]

    step = steps(tell(routes=routes))[3]

    assert (ROUTES_SHOWN, 30, ROUTES_SHOWN) == (len(step.routes), step.more_routes, len(step.scores))
    assert [True] + [False] * (ROUTES_SHOWN - 1) == [fate.is_taken for fate in step.routes]


def test_of_many_databases_with_the_service_a_few_are_named() -> None:
    databases = {UUID(int=n + 1).bytes: ["S"] for n in range(12)}
    here = RoutingContext(
        build_table([], now=NOW), hosted(databases), lambda _: AddressHealth.UNTRIED, is_forwarding=True
    )
    names = DisplayNames({instance: f"d{number}" for number, instance in enumerate(databases)})

    explanation = explain(
        RoutingFacts("S", UUID(int=1).bytes, CONVERSATION.bytes, database=UUID(int=1).bytes), here, names
    )

    assert steps(explanation)[6].why.endswith("d8, d9 and 2 more")


MIRROR = UUID(int=77)


@pytest.mark.parametrize(
    ("question", "step", "why"),
    [
        ({"from_target": True}, 0, "from a target, to a database that is a mirror here"),
        ({}, 6, "the broker instance is a mirror here"),
    ],
)
def test_what_is_for_a_mirror_here_says_so(question: dict[str, Any], step: int, why: str) -> None:
    told = tell(incoming=True, instance=MIRROR, mirrors=[MIRROR], **question)

    assert (step, "database is a mirror", 28018, Outcome.DROPPED) == (
        told.step,
        told.disposition,
        told.number,
        told.outcome,
    )
    assert (Progress.MATCHED, why) == (steps(told)[step].progress, steps(told)[step].why)


def test_another_mirrored_route_of_the_same_broker_instance_is_told_from_the_one_taken() -> None:
    other = to("tcp://old", "S", ELSEWHERE, mirror="older", name="a")

    explanation = tell(routes=[MIRRORED, other], principal="far")

    assert members(explanation) == {
        "a": f"the principal of {MIRRORED.name} is known",
        MIRRORED.name: "its principal is tcp://far:4022",
    }
    assert explanation.sentence == f"forwarded to tcp://far:4022 by route {MIRRORED.name}"


# --- explanation ---
# The values of an explanation as JSON: every word a person or a program relies on.


EXPIRY = datetime(2025, 3, 1, 12, tzinfo=UTC)
ROUTE = RouteFate("a", "S", None, "tcp://far:4022", None, 1, EXPIRY, is_taken=True, why="matches")
WHOLE = Explanation(
    to_service="S",
    to_broker_instance=None,
    conversation_id="c",
    is_from_target=False,
    outcome=Outcome.FORWARDED,
    disposition="forwarded",
    number=0,
    step=2,
    route="a",
    next_hop="tcp://far:4022",
    database=None,
    is_service_there=True,
    sentence="forwarded to tcp://far:4022 by route a",
    is_by_conversation=False,
    passes=(
        PassShown(
            "msdb",
            is_incoming=True,
            steps=(Step(2, "title", Progress.MATCHED, "1 route matches", (ROUTE,), (Score("g", 1, 0.5, True),)),),
            classes=(ClassTried("network address", Progress.MATCHED, "taken", (ROUTE,)),),
            candidates=(CandidateShown("tcp://far:4022", "a", "connected", "", 0.5),),
        ),
    ),
    hints=("hint",),
)


def test_enums_are_words_and_instants_are_utc() -> None:
    plain = msgspec.to_builtins(WHOLE)

    [step] = plain["passes"][0]["steps"]
    assert ("forwarded", "matched") == (plain["outcome"], step["progress"])
    assert "2025-03-01T12:00:00Z" == step["routes"][0]["lifetime"]


# --- hint ---
# Hints name what is there and almost fits, or what is missing; who needs none gets none.


HERE = UUID(int=7).bytes
FAR = NetworkAddress("far")
CREATE = "CREATE ROUTE in msdb, with this SERVICE_NAME, or without one for all that no other route names"


def hints(*routes: Route, service: str = "Billing", services: Any = (), instance: bytes = NO_GUID) -> list[str]:
    """For a message from outside, at an instance with one database that does not forward."""
    known = hosted({HERE: services})
    here = RoutingContext(build_table(routes, now=NOW), known, lambda _: AddressHealth.UNTRIED, is_forwarding=False)
    passes: list[Pass] = []
    decide(RoutingFacts(service, instance, bytes(16)), here, passes)
    return list(hints_for(passes[-1], known, "msdb"))


def test_who_matches_nothing_is_told_what_is_missing() -> None:
    assert [CREATE] == hints()


@pytest.mark.parametrize("name", ["billing", "BILLING", " Billing "])
def test_a_route_to_almost_that_name_is_named(name: str) -> None:
    assert [f"msdb has a route to {name!r}: names compare byte for byte", CREATE] == hints(Route("a", FAR, name))


def test_a_service_of_almost_that_name_is_named() -> None:
    told = hints(Route("a", LOCAL), services=["billing", "Other"])

    assert ["there is a service 'billing' here: names compare byte for byte"] == told


def test_a_service_of_almost_that_name_in_the_database_that_gets_it_is_named() -> None:
    told = hints(Route("a", LOCAL), services=["billing"], instance=HERE)

    assert ["there is a service 'billing' in that database: names compare byte for byte"] == told


def test_expired_routes_are_named_and_only_some_of_many() -> None:
    routes = [Route(f"r{n}", FAR, "Billing", lifetime=NOW - timedelta(1)) for n in range(EXPIRED_SHOWN + 2)]

    told = [hint for hint in hints(*routes) if "expired" in hint]

    assert EXPIRED_SHOWN == len(told)
    assert "route r0 has expired: ALTER ROUTE with a new LIFETIME brings it back" == told[0]


def test_a_switch_that_is_off_is_named() -> None:
    told = hints(Route("a", FAR, "Billing"))

    assert ["set endpoint.message_forwarding = true to let this instance pass on what is for others"] == told


def test_who_leaves_needs_no_hint() -> None:
    known = hosted({HERE: ["billing"]})
    table = build_table([Route("a", FAR)], now=NOW)
    here = RoutingContext(table, known, lambda _: AddressHealth.UNTRIED, is_forwarding=True)
    passes: list[Pass] = []
    decide(RoutingFacts("Billing", NO_GUID, bytes(16)), here, passes)

    assert [] == list(hints_for(passes[-1], known, "msdb"))


# --- permitted ---
# What permissions add to an explanation; how it is asked for is tried in tests/unit/observe/test_explain.py.


def told() -> Explanation:
    table = build_table([Route("r", NetworkAddress("far"))], now=datetime(2025, 3, 1, tzinfo=UTC))
    here = RoutingContext(table, Hosted(), lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table)
    return explain(RoutingFacts("S", NO_GUID, b"c" * 16), here, DisplayNames())


def rules(*permissions: Permission) -> list[PermissionRule]:
    return [PermissionRule(permission, "*", parse_principal("a"), PermissionState.GRANT) for permission in permissions]


def test_what_is_permitted_stays_what_it_is_with_its_reasons() -> None:
    shown = with_permissions(told(), who_is("CN=a"), Grants(rules(*Permission), is_default_deny=True))

    assert (told().sentence, Outcome.FORWARDED) == (shown.sentence, shown.outcome)
    assert [True, True] == [one.is_permitted for one in shown.permissions]


def test_who_may_not_connect_sends_nothing() -> None:
    shown = with_permissions(told(), who_is("CN=a"), Grants(rules(Permission.SEND), is_default_deny=True))

    assert (Outcome.DROPPED, None, 11215) == (shown.outcome, shown.next_hop, shown.number)
    assert shown.sentence.startswith("never taken, because the peer may not connect: not permitted (11215): no GRANT")


def test_way_that_it_would_take_is_still_shown() -> None:
    shown = with_permissions(told(), who_is("CN=b"), Grants(rules(*Permission), is_default_deny=True))

    assert ("tcp://far:4022",) == tuple(one.address for one in shown.passes[0].candidates)
    assert [False, False] == [one.is_permitted for one in shown.permissions]
    assert (
        "USE msdb; GRANT CONNECT ON ENDPOINT::[Broker] TO [CN=b];",
        "USE msdb; GRANT SEND ON SERVICE::[S] TO [CN=b];",
    ) == shown.hints

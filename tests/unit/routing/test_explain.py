"""What is told about each step, each route and each address, case by case; that it is true is a property test."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from broker.protocol.layout import NO_GUID, show_guid
from broker.routing.address import LOCAL, NetworkAddress, parse_address
from broker.routing.decide import AddressHealth, Pass, RoutingContext, RoutingFacts, decide, hosted
from broker.routing.explain import (
    EXPIRED_SHOWN,
    ROUTES_SHOWN,
    DisplayNames,
    Explanation,
    Outcome,
    Progress,
    Step,
    explain,
    hints_for,
    near_names,
    with_permissions,
)
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, SERVICE_BROKER, Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal, who_is

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
ORDERS, BILLING, ELSEWHERE = UUID(int=0x0D), UUID(int=0xB1), UUID(int=0xE1)
CONVERSATION = UUID(int=1)
THERE = show_guid(ELSEWHERE)
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


def members(explanation: Explanation) -> dict[str, str]:
    """What became of each route when its class was tried, in the last pass."""
    return {fate.name: fate.why for one in explanation.passes[-1].classes for fate in one.routes}


# --- the question and the answer ---


def test_guids_addresses_and_databases_are_told_as_people_read_them() -> None:
    explanation = tell(routes=[to("tcp://far:1", "S", ELSEWHERE)], instance=ELSEWHERE, from_target=True)

    asked = explanation.to_service, explanation.to_broker_instance, explanation.conversation_id
    assert ("S", THERE, show_guid(CONVERSATION), True) == (*asked, explanation.is_from_target)
    found = explanation.outcome, explanation.step, explanation.route, explanation.next_hop
    assert (Outcome.FORWARDED, 1, "far:1", "tcp://far:1") == found
    assert THERE == DisplayNames({}, str, str).database(ELSEWHERE.bytes)


MIRRORED = to("tcp://far", "S", ELSEWHERE, mirror="partner")
PAIR = MIRRORED.pair
assert PAIR is not None
BILLED = "delivered here, to the database billing"
ABSENT = "; it has no service 'S' and answers with an error (-8490, or -8470 where it knows the dialog)"
AGAIN = "matched again after 10 s and whenever routes or services change"
SENTENCES: dict[str, tuple[dict[str, Any], str]] = {
    "forwarded": ({"routes": [to("tcp://far", "S")]}, "forwarded to tcp://far:4022 by route far"),
    "delivered": ({"routes": [to("LOCAL")], "billing": ["S"]}, f"{BILLED} by route LOCAL"),
    "implicit": ({"instance": BILLING, "billing": ["S"]}, BILLED),
    "reply": ({"instance": BILLING, "incoming": True, "from_target": True, "billing": ["S"]}, BILLED),
    "absent in the database that it names": (
        {"routes": [to("LOCAL")], "instance": BILLING},
        f"{BILLED} by route LOCAL{ABSENT}",
    ),
    "absent in the database that the route names": (
        {"routes": [to("LOCAL", "S", BILLING)]},
        f"{BILLED} by route LOCAL{ABSENT}",
    ),
    "absent, reply": (
        {"instance": BILLING, "incoming": True, "from_target": True},
        f"{BILLED}; it has no service 'S' and drops it",
    ),
    "held": ({"routes": [MIRRORED], "instance": ELSEWHERE}, "held by route far: principal unknown (9794)"),
    "delayed": ({}, f"delayed: no route (9798); {AGAIN}"),
    "asking": (
        {"routes": [to("tcp://far", BROKER_CONFIGURATION)]},
        f"delayed by route far: asking for route (9770); {AGAIN}",
    ),
    "dropped": (
        {"msdb": [to("tcp://far")], "incoming": True, "forwarding": False},
        "dropped by route far: forwarding disabled (9792); the sender keeps the message and sends it again",
    ),
}


@pytest.mark.parametrize(("question", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_the_decision_in_one_sentence(question: dict[str, Any], sentence: str) -> None:
    explanation = tell(**question)

    assert sentence == explanation.sentence
    assert sentence.startswith(explanation.outcome)
    assert explanation.is_service_there == ("no service" not in sentence)


# --- matching ---


ASKED = {"routes": [to("tcp://far", BROKER_CONFIGURATION, ELSEWHERE)], "instance": BILLING}
ARRIVES = {"incoming": True, "from_target": True}
AT_BILLING: dict[str, Any] = {"instance": BILLING}


@pytest.mark.parametrize(
    ("question", "number", "progress", "why"),
    [
        ({"incoming": True}, 0, Progress.SKIPPED, "the message is not from a target"),
        (ARRIVES, 0, Progress.SKIPPED, "the message names no broker instance"),
        (
            ARRIVES | {"instance": ELSEWHERE},
            0,
            Progress.NOTHING,
            f"the broker instance {THERE} is not hosted here",
        ),
        (ARRIVES | {"instance": BILLING}, 0, Progress.MATCHED, "from a target, to the database billing"),
        ({"billing": ["S"]}, 6, Progress.SKIPPED, "the conversation names no broker instance"),
        ({"instance": ELSEWHERE}, 6, Progress.NOTHING, "no database here has a service 'S'"),
        (
            {"instance": ELSEWHERE, "billing": ["S"]},
            6,
            Progress.MATCHED,
            "as if a route to LOCAL were there: billing",
        ),
        *(
            (ASKED | {"service": one}, 4, Progress.SKIPPED, f"no instance is asked about {one}")
            for one in (BROKER_CONFIGURATION, SERVICE_BROKER)
        ),
        (
            {"routes": [to("tcp://far", "S", ELSEWHERE, lifetime=NOW), to("tcp://b", "S", ELSEWHERE)], **AT_BILLING},
            1,
            Progress.NOTHING,
            "2 such routes fall out, 1 of them expired",
        ),
    ],
)
def test_a_step_says_why(question: dict[str, Any], number: int, progress: Progress, why: str) -> None:
    step = steps(tell(**question))[number]

    assert (progress, why) == (step.progress, step.why)


@pytest.mark.parametrize(
    ("routes", "instance", "number", "expected"),
    [
        (
            [to("tcp://far", "S", ELSEWHERE), to("tcp://near", "S", BILLING)],
            BILLING,
            1,
            {"near": "matches", "far": "names another broker instance"},
        ),
        ([to("tcp://far", "S", lifetime=NOW)], None, 2, {"far": "expired at 2025-03-01 12:00:00 UTC"}),
        ([to("tcp://far", BROKER_CONFIGURATION)], None, 4, {"far": "matches"}),
        # rows that no statement could have made
        (
            [to("tcp://far", BROKER_CONFIGURATION, ELSEWHERE)],
            None,
            4,
            {"far": "names a broker instance, and the question is open to any"},
        ),
        ([to("tcp://near", None, ELSEWHERE)], None, 5, {"near": "names a broker instance without a service"}),
    ],
)
def test_a_step_says_why_of_each_route(
    routes: list[Route], instance: UUID | None, number: int, expected: dict[str, str]
) -> None:
    step = steps(tell(routes=routes, instance=instance))[number]

    assert expected == {fate.name: fate.why for fate in step.routes}
    assert [why == "matches" for why in expected.values()] == [fate.is_taken for fate in step.routes]


# --- choosing ---


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"routes": [AUTO_CREATED_LOCAL], "billing": ["S"]}, "the service is here"),
        (
            {"routes": [to("LOCAL", "S", ELSEWHERE)], "billing": ["S"]},
            f"the broker instance {THERE} is not hosted here",
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


def test_an_own_address_makes_a_second_pass_by_msdb() -> None:
    explanation = tell(routes=[to("tcp://down", "S")], msdb=[to("tcp://far")], own=["down"])

    first, second = explanation.passes
    assert [("orders", False), ("msdb", True)] == [(one.table, one.is_incoming) for one in (first, second)]
    assert [("this instance", "")] == [(one.health, one.problem) for one in first.candidates]
    [fate] = [fate for one in first.classes for fate in one.routes]
    assert ("down", "leads to this instance, tcp://down:4022") == (fate.name, fate.why)
    assert ("far", 5) == (explanation.route, explanation.step)
    again = tell(routes=[to("tcp://me", "S")], msdb=[to("tcp://me")], own=["me"])
    assert {"me": "leads to this instance, for the second time"} == members(again)
    assert Outcome.DELAYED is again.outcome


# --- bounds ---


def test_of_many_routes_a_bounded_number_is_listed_what_matched_first_and_the_rest_is_counted() -> None:
    number = ROUTES_SHOWN + 30
    routes = [to(f"tcp://h{n:03}", "S", UUID(int=n + 1)) for n in range(number)]

    step = steps(tell(routes=routes))[3]

    assert (ROUTES_SHOWN, 30, ROUTES_SHOWN) == (len(step.routes), step.more_routes, len(step.scores))
    assert [True] + [False] * (ROUTES_SHOWN - 1) == [fate.is_taken for fate in step.routes]


@pytest.mark.parametrize(
    ("from_target", "step", "why"),
    [
        (True, 0, "from a target, to a database that is a mirror here"),
        (False, 6, "the broker instance is a mirror here"),
    ],
)
def test_what_is_for_a_mirror_here_says_so(from_target: bool, step: int, why: str) -> None:  # noqa: FBT001
    told = tell(incoming=True, instance=ELSEWHERE, mirrors=[ELSEWHERE], from_target=from_target)

    found = told.step, told.disposition, told.number, told.outcome
    assert (step, "database is a mirror", 28018, Outcome.DROPPED) == found
    assert (Progress.MATCHED, why) == (steps(told)[step].progress, steps(told)[step].why)


# --- hints ---
# What is there and almost fits, or what is missing; none where the message leaves.


HERE = UUID(int=7).bytes
FAR = NetworkAddress("far")
RUN = "with broker sql, and in its script if it has one: USE [msdb];"
CREATE = (
    f"{RUN} CREATE ROUTE [Billing] WITH SERVICE_NAME = 'Billing', ADDRESS = 'tcp://HOST:PORT';"
    " Leave out SERVICE_NAME for a route to all services that no other route names"
)
NEAR_HERE = "is the name right? there is a service here called"
NEAR_THERE = "is the name right? that database has a service"
NEAR_ROUTE = "is the name right? msdb has a route to"
BYTES = ", and names compare byte for byte"
FORWARD = "set endpoint.message_forwarding = true to let this instance pass on what is for others"
EXPIRED = [Route(f"r{n}", FAR, "Billing", lifetime=NOW - timedelta(1)) for n in range(EXPIRED_SHOWN + 2)]
REVIVE = f"route r{{n}} has expired; to bring it back, {RUN} ALTER ROUTE [r{{n}}] WITH LIFETIME = SECONDS;"


@pytest.mark.parametrize(
    ("routes", "services", "instance", "is_forwarding", "expected"),
    [
        ([], [], NO_GUID, False, [CREATE]),
        ([Route("a", FAR, "billing")], [], NO_GUID, False, [f"{NEAR_ROUTE} 'billing'{BYTES}", CREATE]),
        ([Route("a", FAR, " Billing ")], [], NO_GUID, False, [f"{NEAR_ROUTE} ' Billing '{BYTES}", CREATE]),
        ([Route("a", LOCAL)], ["Biling", "Other"], NO_GUID, False, [f"{NEAR_HERE} 'Biling'{BYTES}"]),
        ([Route("a", LOCAL)], ["billing"], HERE, False, [f"{NEAR_THERE} 'billing'{BYTES}"]),
        (EXPIRED, [], NO_GUID, False, [*(REVIVE.format(n=n) for n in range(3)), CREATE]),
        ([Route("a", FAR, "Billing")], [], NO_GUID, False, [FORWARD]),
        ([Route("a", FAR)], ["billing"], NO_GUID, True, []),
    ],
)
def test_hints(
    routes: list[Route],
    services: list[str],
    instance: bytes,
    is_forwarding: bool,  # noqa: FBT001
    expected: list[str],
) -> None:
    known = hosted({HERE: services})
    here = RoutingContext(build_table(routes, now=NOW), known, lambda _: AddressHealth.UNTRIED, is_forwarding)
    passes: list[Pass] = []
    decide(RoutingFacts("Billing", instance, bytes(16)), here, passes)

    assert expected == list(hints_for(passes[-1], near_names(passes[-1], known, "msdb"), "msdb"))


# --- permissions ---


NOT_CONNECTED = "never taken, because the peer may not connect: not permitted (11215): no GRANT"
CONNECT = f"{RUN} GRANT CONNECT ON ENDPOINT::[Broker] TO [CN=%s];"
SEND = f"{RUN} GRANT SEND ON SERVICE::[S] TO [CN=%s];"


@pytest.mark.parametrize(
    ("granted", "who", "permitted", "sentence", "hints"),
    [
        ([Permission.CONNECT, Permission.SEND], "a", [True, True], "forwarded to tcp://far:4022 by route far", []),
        ([Permission.SEND], "a", [False, True], NOT_CONNECTED, [CONNECT % "a"]),
        ([Permission.CONNECT], "a", [True, False], "dropped: not permitted (11215): no GRANT", [SEND % "a"]),
        ([Permission.CONNECT, Permission.SEND], "b", [False, False], NOT_CONNECTED, [CONNECT % "b", SEND % "b"]),
    ],
)
def test_permissions_that_are_missing_come_before_any_route(
    granted: list[Permission], who: str, permitted: list[bool], sentence: str, hints: list[str]
) -> None:
    """The way that the message would take is still shown."""
    rules = [PermissionRule(one, "*", parse_principal("a"), PermissionState.GRANT) for one in granted]
    grants = Grants(rules, is_default_deny=True)

    shown = with_permissions(tell(msdb=[to("tcp://far")], incoming=True), who_is(f"CN={who}"), grants)

    assert (permitted, hints) == ([one.is_permitted for one in shown.permissions], list(shown.hints))
    assert shown.sentence.startswith(sentence)
    kept = (Outcome.DROPPED, None, 11215) if hints else (Outcome.FORWARDED, "tcp://far:4022", 0)
    assert (*kept, f"CN={who}") == (shown.outcome, shown.next_hop, shown.number, shown.peer)
    assert ["tcp://far:4022"] == [one.address for one in shown.passes[0].candidates]


@pytest.mark.parametrize(
    ("service", "who", "statement"),
    [
        ("S", "a", "GRANT SEND ON SERVICE::[S] TO [a];"),  # the DENY has taken the place of a GRANT
        ("S", "public", "REVOKE SEND ON SERVICE::[S] FROM [public];"),
        ("*", "a", "REVOKE SEND ON SERVICE::[*] FROM [a];"),
    ],
)
def test_a_deny_is_told_with_the_statement_that_lifts_it_for_its_sender_alone(
    service: str, who: str, statement: str
) -> None:
    deny = PermissionRule(Permission.SEND, service, parse_principal(who), PermissionState.DENY)

    shown = with_permissions(tell(msdb=[to("tcp://far")], incoming=True), who_is("CN=a"), Grants([deny]))

    doubt = f"if DENY SEND ON SERVICE::[{service}] TO [{who}] is not meant, "
    assert (f"{doubt}{RUN} {statement}",) == shown.hints

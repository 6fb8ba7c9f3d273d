"""The command explain: what is asked, of whom, what is shown, and how it ends."""

import json
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from broker.cli.explain import explanation_lines
from broker.observe.explain import ExplainAnswer, ExplainRequest, answer
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, RoutingFacts, hosted
from broker.routing.explain import DisplayNames, Explanation, explain, with_permissions
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal, who_is
from tests.support.command import printed, run
from tests.support.why import place, routed

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
GUID = UUID(int=9)


def plain(*routes: Route) -> dict[str, Any]:
    """The answer of a gateway with these routes, as JSON."""
    here = routed(place("one", 9, ""), *routes)
    told: dict[str, Any] = msgspec.to_builtins(answer(here, ExplainRequest("S", conversation=GUID)))
    return told


FAR = Route("to", NetworkAddress("far"), "S")
LOST = Route("to", LOCAL, "S")


def explain_by(fake_admin: Any, *arguments: object, told: dict[str, Any] | None = None) -> Any:
    fake_admin.answers["/v1/explain"] = (200, plain(FAR) if told is None else told)
    return run("explain", "--socket", fake_admin.path, *arguments)


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        ("--to S --incoming --from-target", {"to": "S", "incoming": True, "from_target": True}),
        ("--to S -d orders", {"to": "S", "database": "orders"}),
        (f"--conversation {GUID}", {"conversation": str(GUID)}),
        (f"--to S --broker-instance {{{GUID}}}", {"to": "S", "broker_instance": str(GUID)}),
        ("--to S --broker-instance 'Current Database'", {"to": "S", "current_database": True}),
    ],
)
@pytest.mark.promise("statements 1")
def test_the_running_instance_is_asked_what_the_options_say(
    fake_admin: Any, arguments: str, question: dict[str, Any]
) -> None:
    result = explain_by(fake_admin, *shlex.split(arguments))

    assert 0 == result.exit_code
    [(method, path, body)] = fake_admin.asked
    assert ("POST", "/v1/explain") == (method, path)
    assert question == {name: value for name, value in body.items() if value}


def test_the_answer_is_a_page_or_the_json_of_the_api(fake_admin: Any) -> None:
    lines = explain_by(fake_admin, "--to", "S").stdout.splitlines()
    answer = json.loads(explain_by(fake_admin, "--to", "S", "-o", "json").stdout)

    assert ("one: to S, from outside", "forwarded to tcp://far:4022 by route to") == (lines[0], lines[-1])
    assert 80 >= max(map(len, lines))
    assert json.loads(json.dumps(plain(FAR))) == answer
    for output in ("table", "json"):
        assert 3 == explain_by(fake_admin, "--to", "S", "-o", output, told=plain(LOST)).exit_code


SCRIPT = """\
CREATE QUEUE Q; CREATE SERVICE [//a] ON QUEUE Q;
CREATE ROUTE far WITH SERVICE_NAME = '//b', ADDRESS = 'tcp://far:4022';
"""


@pytest.fixture
def described(configuration: Path) -> Path:
    """The configuration with a script."""
    (configuration.parent / "orders.sql").write_text(SCRIPT)
    configuration.write_text(configuration.read_text() + 'scripts = ["orders.sql"]\n')
    return configuration


def test_a_running_instance_answers_for_its_configuration_unless_offline(described: Path, fake_admin: Any) -> None:
    """Its routes are those that count: the files may have changed since, or by hand the routes."""
    fake_admin.answers["/v1/explain"] = (200, plain(LOST))

    offline = run("explain", "-c", described, "--to", "//b", "--offline")
    assert (0, []) == (offline.exit_code, fake_admin.asked)
    asked = run("explain", "-c", described, "--to", "//b")

    assert (3, 1, False) == (asked.exit_code, len(fake_admin.asked), "read from" in asked.stdout)
    assert f"read from {described}; no daemon was asked" in " ".join(offline.stdout.split())
    assert "forwarded to tcp://far:4022 by route far" == offline.stdout.splitlines()[-1]


def test_where_no_daemon_answers_the_configuration_is_read_and_that_is_said(described: Path) -> None:
    def explained(*words: object) -> Any:
        return run("explain", "-c", described, *words)

    page, document = explained("--to", "//b"), explained("--to", "//a", "--incoming", "-o", "json")
    unknown, named = explained("--conversation", GUID), explained("--socket", described.with_name("none"), "--to", "b")
    (described.parent / "orders.sql").write_text("CREATE ROUTE r WITH ADDRESS = 'nowhere';")
    mistaken = explained("--to", "//b")

    for told in (page.stdout, document.stderr):
        assert f"no daemon answers, so read from {described}" in " ".join(told.split())
    answered = msgspec.json.decode(document.stdout, type=ExplainAnswer)
    assert ("delivered", "orders") == (answered.explanation.outcome, answered.explanation.database)
    assert [0, 0, 3, 4, 1] == [done.exit_code for done in (page, document, unknown, named, mistaken)]
    assert "no database here has the conversation" in unknown.stderr
    assert "orders.sql:1:" in mistaken.stderr


def test_through_goes_on_where_somebody_said_and_ends_with_the_whole_way(fake_admin: Any, fake_port: Any) -> None:
    fake_port.answers["/v1/explain"] = (200, plain(LOST) | {"instance": "two", "broker_instance": str(UUID(int=2))})

    result = explain_by(fake_admin, "--to", "S", "--through", "--admin", f"tcp://far=http://127.0.0.1:{fake_port.port}")

    assert 3 == result.exit_code
    assert ["one: to S, from outside", "two: to S, from outside"] == [
        line for line in result.stdout.splitlines() if ": to S" in line
    ]
    assert "\none -> two: dropped by route to: service not here (9796);" in result.stdout
    assert [("S", True)] == [(body["to"], body["incoming"]) for _, _, body in fake_port.asked]


def test_through_ends_well_where_knowledge_ends_and_badly_in_a_loop(fake_admin: Any, tmp_path: Path) -> None:
    def through(where: Path) -> Any:
        return explain_by(fake_admin, "--to", "S", "--through", "--admin", f"tcp://far={where}", "-o", "json")

    unknown, loop = through(tmp_path / "none.sock"), through(fake_admin.path)

    way = json.loads(unknown.stdout)
    assert (0, "unknown", ["one"]) == (unknown.exit_code, way["end"], [hop["instance"] for hop in way["hops"]])
    assert way["sentence"].startswith("one -> tcp://far:4022: not known from there on: no daemon answers on")
    assert (3, True) == (loop.exit_code, json.loads(loop.stdout)["sentence"].startswith("one -> one: a loop"))


ORDERS, ONE, TWO = UUID(int=0x0D << 64), UUID(int=1 << 64), UUID(int=2 << 64)
CONVERSATION = UUID(int=0xC << 64)
FAR_HOST, NEAR, ME = NetworkAddress("far.example"), NetworkAddress("near.example"), NetworkAddress("me")


def tell(
    routes: Iterable[Route], *, msdb: Iterable[Route] = (), instance: bytes = NO_GUID, **facts: Any
) -> Explanation:
    """Why a message from the database orders goes where it goes; NEAR has failed, ME is this instance."""
    here = RoutingContext(
        build_table(routes, now=NOW),
        hosted({ORDERS.bytes: ["Orders"]}),
        lambda address: AddressHealth.SUPPRESSED if address == NEAR else AddressHealth.UNTRIED,
        is_forwarding=True,
        msdb=build_table(msdb, now=NOW),
        own=frozenset({ME}),
    )
    problems = {NEAR: "Connection refused"}
    names = DisplayNames({ORDERS.bytes: "orders"}, lambda address: problems.get(address, ""), lambda _: "")
    asked: dict[str, Any] = {"to_service": "Billing", "database": ORDERS.bytes} | facts
    return explain(RoutingFacts(to_broker_instance=instance, conversation_id=CONVERSATION.bytes, **asked), here, names)


def read(explanation: Explanation, *, width: int = 80) -> str:
    """What is on a terminal of that width."""
    told = answer(place("one", 9, ""), ExplainRequest("S", conversation=GUID))
    told = structs.replace(told, instance="shop", explanation=explanation)
    return printed(explanation_lines(told), width=width)


BY_NAME = """\
shop: to Billing, from the database orders
  any broker instance
  conversation 00000000-0000-000C-0000-000000000000

Matching, by the routes of orders
  - 0 reply to a database here: the message begins its way here
  - 1 service and broker instance: the conversation names no broker instance
  ✓ 2 service alone: 1 route matches
      ✓ to (tcp://far.example:4022): matches
  - 3 to 7 not reached: step 2 ended the search, before 1 route of step 3
Choosing
  - mirrored: no member
  - LOCAL: no member
  ✓ network address: taken
      ✓ to: leads to tcp://far.example:4022
Candidates, best first
  1. tcp://far.example:4022, by route to, untried

forwarded to tcp://far.example:4022 by route to
"""


def test_a_route_by_name_is_read_from_the_question_to_the_answer() -> None:
    assert BY_NAME == read(tell([Route("to", FAR_HOST, "Billing"), Route("one", NEAR, "Billing", ONE)]))


def fragments(routes: Iterable[Route], width: int = 100, **facts: Any) -> str:
    return read(tell(routes, **facts), width=width)


def test_the_draw_is_a_table_with_the_winner_first() -> None:
    text = fragments([Route("one", FAR_HOST, "Billing", ONE, weight=3), Route("two", NEAR, "Billing", TWO)], 80)

    head, first, second = text.partition("score  ")[2].splitlines()[:3]
    assert "weight  broker instance" == head
    assert [["✓", True], ["·", False]] == [[row.split()[0], row == first] for row in (first, second)]
    assert {str(ONE), str(TWO)} == {row.split()[-1] for row in (first, second)}
    assert "weight 3" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            fragments([Route("one", NEAR, "Billing"), Route("two", FAR_HOST, "Billing")]),
            [
                "  1. tcp://far.example:4022, by route two, score",
                ", untried\n",
                "  2. tcp://near.example:4022, by route one, score",
                ", suppressed: Connection refused\n",
            ],
        ),
        (
            fragments([Route("me", ME, "Billing")], msdb=[Route("far", FAR_HOST)]),
            ["\nMatching again, as if it had come from outside: msdb\n"],
        ),
        (
            fragments([Route("to", FAR_HOST, "billing")]),
            [
                "  ! 7 nothing matched: no step found a route\n",
                "\nhint: is the name right? orders has a route to 'billing', and names compare byte for byte\n",
                "\nhint: at shop, with broker sql, and in its script if it has one: ",
                "\ndelayed: no route (9798); matched again after 10 s and whenever routes or services change\n",
            ],
        ),
        (
            fragments([Route(f"r{number:03}", NetworkAddress(f"h{number}"), "Billing") for number in range(53)]),
            ["      and 3 more\n", "\n  and 3 more\n"],
        ),
    ],
    ids=["candidates", "second pass", "nothing", "cut"],
)
def test_a_page_shows(text: str, shown: list[str]) -> None:
    assert [] == [fragment for fragment in shown if fragment not in text]


def test_permissions_of_a_peer_stand_before_the_routes_and_the_missing_statement_in_the_answer() -> None:
    told = tell([Route("r", FAR_HOST)], msdb=[Route("r", FAR_HOST)], database=None)
    connect = PermissionRule(Permission.CONNECT, "*", parse_principal("public"), PermissionState.GRANT)

    text = read(with_permissions(told, who_is("CN=a"), Grants([connect], is_default_deny=True)), width=100)

    assert (
        "\nPermissions of CN=a\n"
        "  ✓ CONNECT: GRANT CONNECT ON ENDPOINT::[Broker] TO [public]\n"
        "  · SEND: no GRANT SEND ON SERVICE::[Billing] TO [CN=a] or public\n"
        "  With these permissions, the routes would decide as follows.\n\n"
        "Matching, by the routes of msdb\n"
    ) in text
    assert "dropped: not permitted (11215): no GRANT SEND ON SERVICE::[Billing] TO [CN=a] or public;" in text

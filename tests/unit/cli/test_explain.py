"""The command explain: what is asked, of whom, what is shown, and how it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from broker.cli.explain import explanation_lines
from broker.cli.output import Terminal, print_lines
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, answer
from broker.protocol.layout import NO_GUID
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, RoutingFacts, hosted
from broker.routing.explain import DisplayNames, Explanation, explain, with_permissions
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal, who_is
from tests.support.command import run

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
GUID = UUID(int=9)


def place(*routes: Route) -> InstanceView:
    """A gateway with these routes."""
    table = build_table(routes, now=NOW)
    here = RoutingContext(table, hosted({}), lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table)
    return InstanceView("one", GUID.bytes, here, {})


def plain(*routes: Route) -> dict[str, Any]:
    """Its answer as JSON."""
    told: dict[str, Any] = msgspec.to_builtins(answer(place(*routes), ExplainRequest("S", conversation=GUID)))
    return told


FAR = Route("to", NetworkAddress("far"), "S")
LOST = Route("to", LOCAL, "S")


def explain_by(fake_admin: Any, *arguments: object, told: dict[str, Any] | None = None) -> Any:
    fake_admin.answers["/v1/explain"] = (200, plain(FAR) if told is None else told)
    return run("explain", "--socket", fake_admin.path, *arguments)


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (["--to", "S"], {"to": "S"}),
        (["--to", "S", "--incoming", "--from-target"], {"to": "S", "incoming": True, "from_target": True}),
        (["--to", "S", "-d", "orders"], {"to": "S", "database": "orders"}),
        (["--conversation", str(GUID)], {"conversation": str(GUID)}),
        (
            ["--to", "S", "--broker-instance", "{00000000-0000-0000-0000-00000000000A}"],
            {"to": "S", "broker_instance": str(UUID(int=10))},
        ),
    ],
)
def test_the_running_instance_is_asked_what_the_options_say(
    fake_admin: Any, arguments: list[str], question: dict[str, Any]
) -> None:
    result = explain_by(fake_admin, *arguments)

    assert 0 == result.exit_code
    [(method, path, body)] = fake_admin.asked
    assert ("POST", "/v1/explain") == (method, path)
    assert question == {name: value for name, value in body.items() if value}


def test_the_answer_is_read_from_the_question_to_the_last_line(fake_admin: Any) -> None:
    lines = explain_by(fake_admin, "--to", "S").stdout.splitlines()

    assert "one: to S, from outside" == lines[0]
    assert "forwarded to tcp://far:4022 by route to" == lines[-1]
    assert 80 >= max(map(len, lines))


def test_json_is_the_answer_of_the_api(fake_admin: Any) -> None:
    result = explain_by(fake_admin, "--to", "S", "-o", "json")

    assert json.loads(json.dumps(plain(FAR))) == json.loads(result.stdout)
    assert result.stdout.startswith('{\n  "instance": "one",')


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_way_is_3(fake_admin: Any, output: str) -> None:
    assert 3 == explain_by(fake_admin, "--to", "S", "-o", output, told=plain(LOST)).exit_code


# --- offline ---


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


def test_a_running_instance_answers_for_its_configuration(described: Path, fake_admin: Any) -> None:
    """Its routes are those that count: the files may have changed since, or by hand the routes."""
    fake_admin.answers["/v1/explain"] = (200, plain(LOST))

    result = run("explain", "-c", described, "--to", "//b")

    assert (3, 1) == (result.exit_code, len(fake_admin.asked))
    assert "read from" not in result.stdout


@pytest.mark.parametrize("output", ["table", "json"])
def test_where_no_daemon_answers_the_configuration_is_read_and_that_is_said(described: Path, output: str) -> None:
    result = run("explain", "-c", described, "--to", "//b", "-o", output)

    told = result.stdout if output == "table" else result.stderr
    assert 0 == result.exit_code
    assert f"no daemon answers, so read from {described}" in " ".join(told.split())


def test_a_socket_that_is_named_is_asked_and_no_configuration(described: Path, tmp_path: Path) -> None:
    result = run("explain", "-c", described, "--socket", tmp_path / "none.sock", "--to", "//b")

    assert (4, "") == (result.exit_code, result.stdout)


def test_offline_a_configuration_is_read_and_nobody_asked(described: Path, fake_admin: Any) -> None:
    result = run("explain", "-c", described, "--to", "//b", "--offline")

    assert 0 == result.exit_code
    assert f"read from {described}; no daemon was asked" in " ".join(result.stdout.split())
    assert "forwarded to tcp://far:4022 by route far" == result.stdout.splitlines()[-1]
    assert [] == fake_admin.asked


def test_a_configuration_answers_in_json_as_the_instance_would(described: Path) -> None:
    result = run("explain", "-c", described, "--to", "//a", "--incoming", "-o", "json")

    told = msgspec.json.decode(result.stdout, type=ExplainAnswer)
    assert ("delivered", "orders") == (told.explanation.outcome, told.explanation.database)


def test_a_conversation_that_a_configurations_databases_do_not_have_is_3(described: Path) -> None:
    result = run("explain", "-c", described, "--conversation", GUID)

    assert (3, True) == (result.exit_code, "no database here has the conversation" in result.stderr)


def test_mistakes_in_its_scripts_are_told_and_1(described: Path) -> None:
    (described.parent / "orders.sql").write_text("CREATE ROUTE r WITH ADDRESS = 'nowhere';")

    result = run("explain", "-c", described, "--to", "//b")

    assert (1, True) == (result.exit_code, "orders.sql:1:" in result.stderr)


# --- from instance to instance ---


def test_through_goes_on_where_somebody_said_and_ends_with_the_whole_way(fake_admin: Any, fake_port: Any) -> None:
    fake_port.answers["/v1/explain"] = (200, plain(LOST) | {"instance": "two", "broker_instance": str(UUID(int=2))})

    result = explain_by(fake_admin, "--to", "S", "--through", "--admin", f"tcp://far=http://127.0.0.1:{fake_port.port}")

    assert 3 == result.exit_code
    assert ["one: to S, from outside", "two: to S, from outside"] == [
        line for line in result.stdout.splitlines() if ": to S" in line
    ]
    assert "\none -> two: dropped by route to: service not here (9796);" in result.stdout
    assert [("S", True)] == [(body["to"], body["incoming"]) for _, _, body in fake_port.asked]


def test_through_tells_a_loop(fake_admin: Any) -> None:
    result = explain_by(fake_admin, "--to", "S", "--through", "--admin", f"tcp://far:4022={fake_admin.path}")

    assert 3 == result.exit_code
    assert "one -> one: a loop" in result.stdout.splitlines()[-2] + result.stdout.splitlines()[-1]


def test_through_ends_well_where_knowledge_ends(fake_admin: Any, tmp_path: Path) -> None:
    result = explain_by(
        fake_admin, "--to", "S", "--through", "--admin", f"tcp://far={tmp_path / 'none.sock'}", "-o", "json"
    )

    way = json.loads(result.stdout)
    assert (0, "unknown", ["one"]) == (result.exit_code, way["end"], [hop["instance"] for hop in way["hops"]])
    assert way["sentence"].startswith("one -> tcp://far:4022: not known from there on: no daemon answers on")


# --- usage ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--to", "S", "-d", "orders", "--incoming"],
        ["--to", "S", "-c", "broker.toml", "--offline", "--socket", "admin.sock"],
        ["--to", "S", "-c", "broker.toml", "--offline", "--through"],
        ["--to", "S", "--admin", "tcp://far=admin.sock"],
        ["--to", "S", "--conversation", "x"],
        ["--to", "S", "--broker-instance", "x"],
    ],
    ids=" ".join,
)
def test_a_question_that_makes_no_sense_is_wrong_usage(arguments: list[str]) -> None:
    result = run("explain", *arguments)

    assert (2, "") == (result.exit_code, result.stdout)


# --- in a terminal ---


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
    names = DisplayNames({ORDERS.bytes: "orders"}, lambda address: "Connection refused" if address == NEAR else "")
    asked: dict[str, Any] = {"to_service": "Billing", "database": ORDERS.bytes} | facts
    return explain(RoutingFacts(to_broker_instance=instance, conversation_id=CONVERSATION.bytes, **asked), here, names)


def read(explanation: Explanation, *, width: int = 80, drawn: bool = False, note: str = "") -> str:
    """What is on a terminal of that width."""
    file = io.StringIO()
    told = structs.replace(
        answer(place(), ExplainRequest("S", conversation=GUID)),
        instance="shop",
        explanation=explanation,
        is_conversation_drawn=drawn,
    )
    print_lines(explanation_lines(told, note), Terminal(file, width=width))
    return file.getvalue()


BY_NAME = """\
shop: to Billing, from the database orders
  any broker instance
  conversation 00000000-0000-000c-0000-000000000000

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


def test_the_draw_is_a_table_with_the_winner_first() -> None:
    routes = [Route("one", FAR_HOST, "Billing", ONE, weight=3), Route("two", NEAR, "Billing", TWO)]

    text = read(tell(routes))

    head, first, second = text.partition("score  ")[2].splitlines()[:3]
    assert "weight  broker instance" == head
    assert [["✓", True], ["·", False]] == [[row.split()[0], row == first] for row in (first, second)]
    assert {str(ONE), str(TWO)} == {row.split()[-1] for row in (first, second)}
    assert "weight 3" in text


def test_candidates_have_a_number_their_health_and_what_is_known_against_them() -> None:
    text = read(tell([Route("one", NEAR, "Billing"), Route("two", FAR_HOST, "Billing")]), width=100)

    assert "  1. tcp://far.example:4022, by route two, score" in text
    assert ", untried\n" in text
    assert "  2. tcp://near.example:4022, by route one, score" in text
    assert ", suppressed: Connection refused\n" in text


def test_the_second_pass_has_a_heading_of_its_own() -> None:
    text = read(tell([Route("me", ME, "Billing")], msdb=[Route("far", FAR_HOST)]))

    assert "\nMatching again, as if it had come from outside: msdb\n" in text
    assert "this instance" in text


def test_nothing_matched_is_no_success_and_hints_come_before_the_answer() -> None:
    text = read(tell([Route("to", FAR_HOST, "billing")]))

    assert "  ! 7 nothing matched: no step found a route\n" in text
    hint, create, *_ = text.partition("hint: ")[2].split("hint: ")
    assert "orders has a route to 'billing': names compare byte for byte\n" == hint
    assert "\ndelayed: no route (9798); matched again after 10 s and whenever routes or\n  services change\n" in create


@pytest.mark.parametrize(
    ("routes", "drawn", "remark"),
    [
        ([Route("a", FAR_HOST, "Billing")], True, " (drawn; same for others)"),
        ([Route("a", FAR_HOST, "Billing")], False, ""),
        ([Route("a", FAR_HOST, "Billing"), Route("b", NEAR, "Billing")], True, " (drawn; others may differ)"),
        ([Route("a", FAR_HOST, "Billing"), Route("b", NEAR, "Billing")], False, " (others may differ)"),
    ],
)
def test_whether_the_conversation_counts_is_told(routes: list[Route], drawn: bool, remark: str) -> None:  # noqa: FBT001
    assert f"  conversation {CONVERSATION}{remark}\n" in read(tell(routes), drawn=drawn)


def test_what_was_not_listed_is_counted() -> None:
    whole = tell([Route(f"r{number:03}", NetworkAddress(f"h{number}"), "Billing") for number in range(53)])

    text = read(whole)

    assert 2 == text.count("      and 3 more\n")
    assert 1 == text.count("\n  and 3 more\n")


GUIDS = [UUID(int=0xABCDEFABCDEFABCDEFABCDEFABCDEF00 + number) for number in range(9)]


def long_names() -> Explanation:
    """Everything as long as it can be."""
    routes = [Route(f"{number} {'long ' * 9}name", FAR_HOST, "Billing", guid) for number, guid in enumerate(GUIDS)]
    return tell([*routes, Route("local", LOCAL), Route("last resort", FAR_HOST)])


def test_no_guid_is_ever_broken() -> None:
    """Whatever the width of the terminal, narrower than a GUID included."""
    explanation = long_names()

    def whole(width: int) -> list[int]:
        text = read(explanation, width=width)
        return [text.count(str(guid)) for guid in (CONVERSATION, *GUIDS)]

    expected = whole(100)
    assert [] == [width for width in range(20, 100, 3) if whole(width) != expected]


def test_permissions_of_a_peer_stand_before_the_routes_and_the_missing_statement_in_the_answer() -> None:
    told = tell([Route("r", FAR_HOST)], msdb=[Route("r", FAR_HOST)], database=None)
    grants = Grants(
        [PermissionRule(Permission.CONNECT, "*", parse_principal("public"), PermissionState.GRANT)],
        is_default_deny=True,
    )

    text = read(with_permissions(told, who_is("CN=a"), grants), width=100)

    lines = text.splitlines()
    first = lines.index("Permissions of CN=a")
    assert "  ✓ CONNECT: GRANT CONNECT ON ENDPOINT::[Broker] TO [public]" == lines[first + 1]
    assert "  · SEND: no GRANT SEND ON SERVICE::[Billing] TO [CN=a] or public" == lines[first + 2]
    assert "  With these permissions, the routes would decide as follows." == lines[first + 3]
    assert first < lines.index("Matching, by the routes of msdb")
    assert "dropped: not permitted (11215): no GRANT SEND ON SERVICE::[Billing] TO [CN=a] or public;" in text

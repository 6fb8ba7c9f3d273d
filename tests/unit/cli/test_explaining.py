"""The command explain: what is asked, of whom, what is shown, and how it ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, answer
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, hosted
from broker.routing.route import Route
from broker.routing.table import build_table
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


def explain(fake_admin: Any, *arguments: object, told: dict[str, Any] | None = None) -> Any:
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
    result = explain(fake_admin, *arguments)

    assert 0 == result.exit_code
    [(method, path, body)] = fake_admin.asked
    assert ("POST", "/v1/explain") == (method, path)
    assert question == {name: value for name, value in body.items() if value}


def test_the_answer_is_read_from_the_question_to_the_last_line(fake_admin: Any) -> None:
    lines = explain(fake_admin, "--to", "S").stdout.splitlines()

    assert "one: to S, from outside" == lines[0]
    assert "forwarded to tcp://far:4022 by route to" == lines[-1]
    assert 80 >= max(map(len, lines))


def test_json_is_the_answer_of_the_api(fake_admin: Any) -> None:
    result = explain(fake_admin, "--to", "S", "-o", "json")

    assert json.loads(json.dumps(plain(FAR))) == json.loads(result.stdout)
    assert result.stdout.startswith('{\n  "instance": "one",')


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_way_is_3(fake_admin: Any, output: str) -> None:
    assert 3 == explain(fake_admin, "--to", "S", "-o", output, told=plain(LOST)).exit_code


def test_no_such_database_is_3_and_the_daemons_own_sentence(fake_admin: Any) -> None:
    fake_admin.answers["/v1/explain"] = (404, {"number": 911, "detail": "the database 'x' does not exist here"})

    result = run("explain", "--socket", fake_admin.path, "--to", "S", "-d", "x")

    assert (3, "the database 'x' does not exist here\n") == (result.exit_code, result.stderr)


def test_nobody_there_is_4(tmp_path: Path) -> None:
    assert 4 == run("explain", "--socket", tmp_path / "none.sock", "--to", "S").exit_code


def test_the_socket_is_found_through_the_configuration_of_the_environment(
    configuration: Path, fake_admin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CONFIG", str(configuration))
    fake_admin.answers["/v1/explain"] = (200, plain(FAR))

    assert 0 == run("explain", "--to", "S").exit_code
    assert 1 == len(fake_admin.asked)


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
    assert f"not asked, but read from {described}" in " ".join(result.stdout.split())
    assert "forwarded to tcp://far:4022 by route far" == result.stdout.splitlines()[-1]
    assert [] == fake_admin.asked


def test_a_configuration_answers_in_json_as_the_instance_would(described: Path) -> None:
    result = run("explain", "-c", described, "--to", "//a", "--incoming", "-o", "json")

    told = msgspec.json.decode(result.stdout, type=ExplainAnswer)
    assert ("delivered", "orders") == (told.explanation.outcome, told.explanation.database)


def test_a_configuration_without_a_route_is_3(described: Path) -> None:
    assert 3 == run("explain", "-c", described, "--to", "//c").exit_code


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

    result = explain(fake_admin, "--to", "S", "--through", "--admin", f"tcp://far=http://127.0.0.1:{fake_port.port}")

    assert 3 == result.exit_code
    assert ["one: to S, from outside", "two: to S, from outside"] == [
        line for line in result.stdout.splitlines() if ": to S" in line
    ]
    assert "\none -> two: dropped by route to: service not here (9796);" in result.stdout
    assert [("S", True)] == [(body["to"], body["incoming"]) for _, _, body in fake_port.asked]


def test_through_goes_on_from_a_configuration_that_nobody_runs(described: Path, fake_port: Any) -> None:
    fake_port.answers["/v1/explain"] = (200, plain(LOST) | {"instance": "two", "broker_instance": str(UUID(int=2))})
    where = f"tcp://far=http://127.0.0.1:{fake_port.port}"

    result = run("explain", "-c", described, "--to", "//b", "--through", "--admin", where)

    assert (3, 1) == (result.exit_code, len(fake_port.asked))
    assert 1 == " ".join(result.stdout.split()).count(f"no daemon answers, so read from {described}")


def test_through_tells_a_loop(fake_admin: Any) -> None:
    result = explain(fake_admin, "--to", "S", "--through", "--admin", f"tcp://far:4022={fake_admin.path}")

    assert 3 == result.exit_code
    assert "one -> one: a loop" in result.stdout.splitlines()[-2] + result.stdout.splitlines()[-1]


def test_through_ends_well_where_knowledge_ends(fake_admin: Any, tmp_path: Path) -> None:
    result = explain(
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

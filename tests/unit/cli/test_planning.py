"""The command routes plan: what is asked, what is shown, and how it ends."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.observe.explain import ExplainRequest, InstanceView, answer
from broker.observe.plan import PlanAnswer, PlannedRoute, RouteEdit
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, RoutingContext, hosted
from broker.routing.plan import Fate
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.command import run

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
SCRIPT = "DROP ROUTE there;\n"
HARMLESS = PlanAnswer(
    edits=[RouteEdit("orders", "there", PlannedRoute("S", None, "tcp://far:4022", None, 1, None), None)],
    more_edits=0,
    fates={Fate.KEEPS.value: 3},
    passing=0,
    harmed=0,
    consequences=[],
)
HARMFUL = msgspec.structs.replace(HARMLESS, fates={Fate.LOSES.value: 1}, harmed=1)


def explained(name: str, to: str) -> Any:
    """What a gateway with one route answers."""
    table = build_table([Route("r", NetworkAddress(to))], now=NOW)
    here = RoutingContext(table, hosted({}), lambda _: AddressHealth.UNTRIED, is_forwarding=True, msdb=table)
    place = InstanceView(name, UUID(int=ord(name[0])).bytes, here, {})
    return answer(place, ExplainRequest("S", conversation=UUID(int=9), incoming=True))


def plan(fake_admin: Any, *arguments: object, told: PlanAnswer = HARMLESS, script: str | bytes = SCRIPT) -> Any:
    fake_admin.answers["/v1/plan"] = (200, msgspec.to_builtins(told))
    return run("routes", "plan", "-", "--socket", fake_admin.path, *arguments, stdin=script)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ([], {}),
        (["-d", "orders"], {"database": "orders"}),
        (["--through"], {"arrivals": True}),
    ],
)
def test_the_running_instance_is_asked_what_the_options_say(
    fake_admin: Any, arguments: list[str], asked: dict[str, Any]
) -> None:
    plan(fake_admin, *arguments)

    [(method, path, body)] = fake_admin.asked
    assert ("POST", "/v1/plan") == (method, path)
    assert asked | {"script": SCRIPT, "source": "<stdin>"} == {name: value for name, value in body.items() if value}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_script_is_read_from_a_file_as_every_script_is(fake_admin: Any, tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "new.sql"
    path.write_bytes("DROP ROUTE größe".encode(encoding))
    fake_admin.answers["/v1/plan"] = (200, msgspec.to_builtins(HARMLESS))

    run("routes", "plan", path, "--socket", fake_admin.path)

    [(_, _, body)] = fake_admin.asked
    assert ("DROP ROUTE größe", str(path)) == (body["script"], body["source"])


def test_a_plan_without_harm_is_0_and_its_verdict_comes_last(fake_admin: Any) -> None:
    result = plan(fake_admin)

    assert 0 == result.exit_code
    lines = result.stdout.splitlines()
    assert ["Routes of orders", "  - there: S -> tcp://far:4022"] == lines[:2]
    assert lines[-1].startswith("no harm: ")


@pytest.mark.parametrize("output", ["table", "json"])
@pytest.mark.parametrize(("arguments", "exit_code"), [([], 6), (["--accept-harm"], 0)])
def test_harm_is_6_unless_it_is_accepted(fake_admin: Any, output: str, arguments: list[str], exit_code: int) -> None:
    assert exit_code == plan(fake_admin, "-o", output, *arguments, told=HARMFUL).exit_code


def test_json_is_the_answer_of_the_api_without_the_arrivals(fake_admin: Any) -> None:
    told = json.loads(plan(fake_admin, "-o", "json", told=HARMFUL).stdout)

    api = msgspec.to_builtins(HARMFUL)
    del api["arrivals"], api["more_arrivals"]
    assert api | {"followed": None} == told


def test_a_refusal_is_told_in_the_daemons_own_words(fake_admin: Any) -> None:
    text = "Msg 15151, Level 16, <stdin>:1:12\ncannot drop the route 'there'"
    fake_admin.answers["/v1/plan"] = (404, {"number": 15151, "detail": text})

    result = run("routes", "plan", "-", "--socket", fake_admin.path, stdin=SCRIPT)

    assert (3, "", True) == (result.exit_code, result.stdout, "cannot drop the route" in result.stderr)


def test_bytes_that_are_no_text_are_told_with_their_place(fake_admin: Any) -> None:
    result = plan(fake_admin, script=b"DROP ROUTE\n\xff")

    assert (1, []) == (result.exit_code, fake_admin.asked)
    assert "<stdin>:2:1" in result.stderr


def test_nobody_there_is_4(tmp_path: Path) -> None:
    assert 4 == run("routes", "plan", "-", "--socket", tmp_path / "none.sock", stdin=SCRIPT).exit_code


# --- from instance to instance ---


def followed(fake_admin: Any, today: str, *arguments: object) -> Any:
    """A plan by which what arrives at a goes on to a itself; today it goes to another host."""
    told = msgspec.structs.replace(HARMLESS, arrivals=[explained("a", "back")])
    fake_admin.answers["/v1/explain"] = (200, msgspec.to_builtins(explained("a", today)))
    return plan(fake_admin, "--through", "--admin", f"tcp://back={fake_admin.path}", *arguments, told=told)


def test_a_loop_that_appears_is_6(fake_admin: Any, tmp_path: Path) -> None:
    result = followed(fake_admin, "elsewhere", "--admin", f"tcp://elsewhere={tmp_path / 'none.sock'}", "-o", "json")

    told = json.loads(result.stdout)
    assert 6 == result.exit_code
    [loop] = told["followed"]["loops"]
    assert ("S", False, True) == (loop["to_service"], loop["was_there"], loop["path"].startswith("a -> a: a loop"))
    assert (1, True) == (told["followed"]["count"], told["followed"]["is_all"])
    assert "arrivals" not in told


def test_a_loop_that_is_accepted_is_0(fake_admin: Any, tmp_path: Path) -> None:
    where = f"tcp://elsewhere={tmp_path / 'none.sock'}"

    assert 0 == followed(fake_admin, "elsewhere", "--admin", where, "--accept-harm").exit_code


def test_a_loop_that_is_there_already_is_0(fake_admin: Any) -> None:
    result = followed(fake_admin, "back")

    assert 0 == result.exit_code
    assert "it is there today" in " ".join(result.stdout.split())


def test_more_services_than_could_be_followed_are_told(fake_admin: Any) -> None:
    result = plan(fake_admin, "--through", told=msgspec.structs.replace(HARMLESS, more_arrivals=True))

    assert "there are more services than were followed" in result.stdout


# --- usage ---


@pytest.mark.parametrize("arguments", [[], ["nix.sql"], ["."], ["-", "--admin", "tcp://far=admin.sock"]], ids=" ".join)
def test_a_question_that_makes_no_sense_is_wrong_usage(arguments: list[str]) -> None:
    result = run("routes", "plan", *arguments, stdin=SCRIPT)

    assert (2, "") == (result.exit_code, result.stdout)

"""The command routes plan: what is asked, what is shown, and how it ends."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from broker.cli.output import Terminal
from broker.cli.routes import EDITS_SHOWN, GROUPS_SHOWN, WAYS_SHOWN, render_plan
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


def test_bytes_that_are_no_text_are_told_with_their_place(fake_admin: Any) -> None:
    result = plan(fake_admin, script=b"DROP ROUTE\n\xff")

    assert (1, []) == (result.exit_code, fake_admin.asked)
    assert "<stdin>:2:1" in result.stderr


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


# --- usage ---


@pytest.mark.parametrize("arguments", [[], ["nix.sql"], ["."], ["-", "--admin", "tcp://far=admin.sock"]], ids=" ".join)
def test_a_question_that_makes_no_sense_is_wrong_usage(arguments: list[str]) -> None:
    result = run("routes", "plan", *arguments, stdin=SCRIPT)

    assert (2, "") == (result.exit_code, result.stdout)


# --- in a terminal ---


HANDLES = [f"5b0f3c1e-5d5e-4f0b-8a55-0000000000{number:02x}" for number in range(100)]


def route(**properties: Any) -> dict[str, Any]:
    plain = {
        "remote_service_name": "//shop/Billing",
        "broker_instance": None,
        "address": "tcp://old:4022",
        "mirror_address": None,
        "weight": 1,
        "lifetime": None,
    }
    return plain | properties


def edit(
    name: str, before: dict[str, Any] | None, after: dict[str, Any] | None, database: str = "orders"
) -> dict[str, Any]:
    return {"database": database, "name": name, "before": before, "after": after}


def change(number: int = 0, fate: Fate = Fate.MOVES, **fields: Any) -> dict[str, Any]:
    one = {
        "database": "orders",
        "conversation": HANDLES[number],
        "to_service": "//shop/Billing",
        "fate": fate.value,
        "is_harm": fate in {Fate.MOVES, Fate.LOSES, Fate.FAILS},
        "before": "forwarded to tcp://old:4022 by route there",
        "after": "forwarded to tcp://new:4022 by route there",
    }
    return one | fields


def a_plan(*edits: dict[str, Any], consequences: tuple[dict[str, Any], ...] = (), **fields: Any) -> dict[str, Any]:
    fates: dict[str, int] = {}
    for one in consequences:
        fates[one["fate"]] = fates.get(one["fate"], 0) + 1
    plain = {
        "edits": list(edits),
        "more_edits": 0,
        "fates": fates,
        "passing": 0,
        "harmed": sum(one["is_harm"] for one in consequences),
        "consequences": list(consequences),
        "expired": None,
        "followed": None,
    }
    return plain | fields


def ways(*loops: dict[str, Any], unknown: tuple[str, ...] = (), count: int = 2, is_all: bool = True) -> Any:
    return {"loops": list(loops), "unknown": list(unknown), "count": count, "is_all": is_all}


def loop(*, was_there: bool) -> dict[str, Any]:
    return {"to_service": "//shop/Billing", "path": "a -> b -> a: a loop", "was_there": was_there}


def read(plan: dict[str, Any], *, width: int = 80) -> str:
    file = io.StringIO()
    render_plan(plan, Terminal(file, width=width))
    return file.getvalue()


WHOLE = """\
Routes of orders
  ~ there: address tcp://old:4022 -> tcp://new:4022
  + more: any service -> LOCAL
Routes of msdb
  - back: //shop/Orders -> tcp://orders:4022

Conversations under way
       2  would move
       1  would find a route
   1,200  would keep their target

  ! 2 of orders, to //shop/Billing: would move; the first is
      5b0f3c1e-5d5e-4f0b-8a55-000000000000
    now:  forwarded to tcp://old:4022 by route there
    then: forwarded to tcp://new:4022 by route there

  · 5b0f3c1e-5d5e-4f0b-8a55-000000000002 of orders, to //shop/Stock: would find
      a route
    now:  delayed
    then: forwarded

Over the next instances
  3 services followed, no loop found

harm: 2 conversations that have sent would move, or lose their route or service
"""


def test_a_plan_is_read_from_the_routes_to_the_verdict() -> None:
    found = change(2, Fate.FINDS, to_service="//shop/Stock", before="delayed", after="forwarded")
    plan = a_plan(
        edit("there", route(), route(address="tcp://new:4022")),
        edit("more", None, route(remote_service_name=None, address="LOCAL")),
        edit("back", route(remote_service_name="//shop/Orders", address="tcp://orders:4022"), None, "msdb"),
        consequences=(change(0), change(1), found),
        followed=ways(count=3),
    )
    plan["fates"][Fate.KEEPS.value] = 1200

    assert WHOLE == read(plan)


def test_a_plan_of_nothing_says_so() -> None:
    assert (
        "Routes\n  nothing changes\n\nConversations under way\n  there are none\n\n"
        "no harm: no conversation that has sent would move, or lose its route or service\n"
    ) == read(a_plan())


# --- routes ---


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            None,
            route(broker_instance="G", mirror_address="tcp://m", weight=3, lifetime="2025-03-01T12:00:00.5Z"),
            "+ r: //shop/Billing -> tcp://old:4022, broker instance G, mirror tcp://m, weight 3, expires {NOON}",
        ),
        (route(), route(weight=7), "~ r: weight 1 -> 7"),
        (route(), route(remote_service_name=None), "~ r: service //shop/Billing -> any service"),
        (route(), route(broker_instance="G"), "~ r: broker instance any -> G"),
        (route(), route(mirror_address="tcp://m"), "~ r: mirror none -> tcp://m"),
        (
            route(lifetime="2025-03-01T12:00:00Z"),
            route(lifetime=None, weight=2),
            "~ r: weight 1 -> 2, expires {NOON} -> never",
        ),
    ],
)
def test_a_route_is_told_by_what_is_not_as_usual(
    before: dict[str, Any] | None, after: dict[str, Any], line: str
) -> None:
    text = " ".join(read(a_plan(edit("r", before, after))).split())

    told = line.replace("{NOON}", "2025-03-01 12:00:00 UTC")
    assert f"Routes of orders {told} Conversations" in text


def test_many_routes_are_cut() -> None:
    edits = [edit(f"r{number}", None, route()) for number in range(EDITS_SHOWN + 1)]

    assert "r49: " in read(a_plan(*edits))
    assert "  and 1 more\n" in read(a_plan(*edits))
    assert "  and 2,001 more\n" in read(a_plan(*edits, more_edits=2000))
    assert "  and 7 more\n" not in read(a_plan(*edits[:-1]))


# --- conversations ---


@pytest.mark.parametrize("fate", list(Fate))
@pytest.mark.parametrize(("count", "its"), [(1, "its"), (2, "their")])
def test_every_fate_has_its_words(fate: Fate, count: int, its: str) -> None:
    text = read(a_plan(fates={fate.value: count}))

    [row] = [line for line in text.splitlines() if line.startswith(f"       {count}  would ")]
    assert ({"its", "their"} - {its}).isdisjoint(row.split())


@pytest.mark.parametrize(
    ("conversations", "line"),
    [
        ([None], "! in transit, to //shop/Billing: would move"),
        (HANDLES[:1], f"! {HANDLES[0]} in transit, to //shop/Billing: would move"),
        (HANDLES[:2], f"! 2 in transit, to //shop/Billing: would move; the first is {HANDLES[0]}"),
    ],
)
def test_what_passes_through_is_in_transit(conversations: list[str | None], line: str) -> None:
    changes = tuple(change(database=None, conversation=one) for one in conversations)

    text = read(a_plan(consequences=changes, passing=len(changes)), width=100)

    assert f"  {line}\n" in text
    assert f"  {len(changes)} of them in transit, where those that go the same way count as one\n" in text
    assert "\nharm: at least " in text


def test_harm_to_some_that_are_otherwise_alike_is_told_apart() -> None:
    text = read(a_plan(consequences=(change(0), change(1, is_harm=False))), width=100)

    assert f"  ! {HANDLES[0]} of orders" in text
    assert f"  · {HANDLES[1]} of orders" in text


def test_many_groups_are_cut_and_the_rest_counted() -> None:
    changes = tuple(change(number, to_service=f"S{number}") for number in range(GROUPS_SHOWN + 2))
    plan = a_plan(consequences=changes)
    plan["fates"] = {Fate.MOVES.value: 100, Fate.KEEPS.value: 7}

    text = read(plan)

    assert f"to S{GROUPS_SHOWN - 1}: " in text
    assert f"to S{GROUPS_SHOWN}: " not in text
    assert f"\n\n  and {100 - GROUPS_SHOWN} more that change\n" in text


# --- ways ---


def test_loops_are_told_and_whether_they_are_there_today() -> None:
    text = read(a_plan(followed=ways(loop(was_there=False), loop(was_there=True))))

    assert "  ! to //shop/Billing: a -> b -> a: a loop\n" in text
    assert "  ! to //shop/Billing: a -> b -> a: a loop; it is there today\n" in text
    assert text.endswith("\nharm: 1 loop would appear\n")


def test_old_loops_are_no_harm() -> None:
    assert read(a_plan(followed=ways(loop(was_there=True)))).endswith(";\n  no loop would appear\n")


def test_harm_of_both_kinds_is_in_the_verdict() -> None:
    plan = a_plan(consequences=(change(),), followed=ways(*[loop(was_there=False)] * 2))

    assert read(plan, width=100).endswith(
        "\nharm: 1 conversation that has sent would move, or lose its route or service; 2 loops would appear\n"
    )


def test_where_nobody_could_be_asked_the_verdict_is_less_sure() -> None:
    text = read(a_plan(followed=ways(unknown=("a -> b: not known from there on",))))

    assert "  ? a -> b: not known from there on\n" in text
    assert "no loop would appear, as far as is known" in " ".join(text.split())


def test_more_services_than_were_followed_make_the_verdict_less_sure() -> None:
    text = read(a_plan(followed=ways(is_all=False)))

    assert "  ? there are more services than were followed\n" in text
    assert "as far as is known" in " ".join(text.split())


def test_many_ways_are_cut() -> None:
    loops = [loop(was_there=False)] * (WAYS_SHOWN + 1)
    unknown = tuple(f"way {number}" for number in range(WAYS_SHOWN + 2))

    text = read(a_plan(followed=ways(*loops, unknown=unknown)))

    assert "  and 1 more loop\n" in text
    assert "  and 2 more ways whose end is not known\n" in text
    assert WAYS_SHOWN == text.count("  ? way ")


# --- any text ---


def test_what_comes_when_the_last_lifetime_has_ended_is_told() -> None:
    expired = {"at": "2025-03-01T12:00:00Z", "fates": {Fate.LOSES.value: 2, Fate.KEEPS.value: 1}, "harmed": 2}

    text = read(a_plan(expired=expired))

    assert "When the last LIFETIME has ended, at " in text
    assert "2  would lose their route" in text
    assert "harm: 2 conversations when the last LIFETIME has ended" in text
    assert "LIFETIME" not in read(
        a_plan(expired={"at": "2025-03-01T12:00:00Z", "fates": {Fate.KEEPS.value: 3}, "harmed": 0})
    )

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


def test_a_script_is_read_from_a_file_as_every_script_is(fake_admin: Any, tmp_path: Path) -> None:
    path = tmp_path / "new.sql"
    path.write_bytes("DROP ROUTE größe".encode("utf-16"))
    fake_admin.answers["/v1/plan"] = (200, msgspec.to_builtins(HARMLESS))

    result = run("routes", "plan", path, "--socket", fake_admin.path)

    [(_, _, body)] = fake_admin.asked
    assert ("DROP ROUTE größe", str(path)) == (body["script"], body["source"])
    lines = result.stdout.splitlines()
    assert (0, ["Routes of orders", "  - there: S -> tcp://far:4022"]) == (result.exit_code, lines[:2])
    assert lines[-1].startswith("no harm: ")


@pytest.mark.parametrize(("arguments", "exit_code"), [([], 6), (["--accept-harm"], 0)])
def test_harm_is_6_unless_it_is_accepted(fake_admin: Any, arguments: list[str], exit_code: int) -> None:
    result = plan(fake_admin, "-o", "json", *arguments, told=HARMFUL)

    api = msgspec.to_builtins(HARMFUL)
    del api["arrivals"], api["more_arrivals"]
    assert (exit_code, api | {"followed": None}) == (result.exit_code, json.loads(result.stdout))


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


@pytest.mark.parametrize(
    ("today", "arguments", "exit_code"), [("elsewhere", [], 6), ("elsewhere", ["--accept-harm"], 0), ("back", [], 0)]
)
def test_a_loop_that_appears_is_harm(
    fake_admin: Any, tmp_path: Path, today: str, arguments: list[str], exit_code: int
) -> None:
    elsewhere = f"tcp://elsewhere={tmp_path / 'none.sock'}"

    result = followed(fake_admin, today, "--admin", elsewhere, "-o", "json", *arguments)

    told = json.loads(result.stdout)
    [loop] = told["followed"]["loops"]
    assert (exit_code, "S", today == "back") == (result.exit_code, loop["to_service"], loop["was_there"])
    assert loop["path"].startswith("a -> a: a loop")
    assert (1, True) == (told["followed"]["count"], told["followed"]["is_all"])


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
  ~ all: service //shop/Billing -> any service, broker instance any -> G, mirror none -> tcp://m,
      weight 1 -> 7
  ~ short: expires 2025-03-01 12:00:00 UTC -> never
  + more: any service -> LOCAL, broker instance G, mirror tcp://m, weight 3, expires 2025-03-01
      12:00:00 UTC
Routes of msdb
  - back: //shop/Orders -> tcp://orders:4022

Conversations under way
       1  would lose its route
       3  would move
       1  would find a route
   1,200  would keep their target
  1 of them in transit, where those that go the same way count as one

  ! 2 of orders, to //shop/Billing: would move; the first is 5b0f3c1e-5d5e-4f0b-8a55-000000000000
    now:  forwarded to tcp://old:4022 by route there
    then: forwarded to tcp://new:4022 by route there

  · 5b0f3c1e-5d5e-4f0b-8a55-000000000002 of orders, to //shop/Billing: would move
    now:  forwarded to tcp://old:4022 by route there
    then: forwarded to tcp://new:4022 by route there

  ! in transit, to //shop/Billing: would lose its route
    now:  forwarded to tcp://old:4022 by route there
    then: forwarded to tcp://new:4022 by route there

  · 5b0f3c1e-5d5e-4f0b-8a55-000000000003 of orders, to //shop/Stock: would find a route
    now:  delayed
    then: forwarded

When the last LIFETIME has ended, at 2025-03-01 12:00:00 UTC
       5  would lose their route

Over the next instances
  ! to //shop/Billing: a -> b -> a: a loop
  ! to //shop/Billing: a -> b -> a: a loop; it is there today
  ? a -> b: not known from there on
  ? there are more services than were followed

harm: at least 3 conversations that have sent would move, or lose their route or service; 5
  conversations when the last LIFETIME has ended; 1 loop would appear
"""
NOON = "2025-03-01T12:00:00.5Z"


def test_a_plan_is_read_from_the_routes_to_the_verdict() -> None:
    usual = {"broker_instance": "G", "mirror_address": "tcp://m"}
    plan = a_plan(
        edit("there", route(), route(address="tcp://new:4022")),
        edit("all", route(), route(remote_service_name=None, weight=7, **usual)),
        edit("short", route(lifetime=NOON), route()),
        edit("more", None, route(remote_service_name=None, address="LOCAL", weight=3, lifetime=NOON, **usual)),
        edit("back", route(remote_service_name="//shop/Orders", address="tcp://orders:4022"), None, "msdb"),
        consequences=(
            change(0),
            change(1),
            change(2, is_harm=False),
            change(4, Fate.LOSES, database=None, conversation=None),
            change(3, Fate.FINDS, to_service="//shop/Stock", before="delayed", after="forwarded"),
        ),
        passing=1,
        expired={"at": NOON, "fates": {Fate.LOSES.value: 5, Fate.KEEPS.value: 1}, "harmed": 5},
        followed=ways(
            loop(was_there=False), loop(was_there=True), unknown=("a -> b: not known from there on",), is_all=False
        ),
    )
    plan["fates"][Fate.KEEPS.value] = 1200

    assert WHOLE == read(plan, width=120)


def test_a_plan_of_nothing_says_so() -> None:
    assert (
        "Routes\n  nothing changes\n\nConversations under way\n  there are none\n\n"
        "no harm: no conversation that has sent would move, or lose its route or service\n"
    ) == read(a_plan(expired={"at": NOON, "fates": {Fate.KEEPS.value: 3}, "harmed": 0}))


@pytest.mark.parametrize(
    ("followed", "verdict"),
    [
        (ways(count=3), "no loop would appear"),
        (ways(loop(was_there=True)), "no loop would appear"),
        (ways(unknown=("a -> b: not known",)), "no loop would appear, as far as is known"),
        (ways(is_all=False), "no loop would appear, as far as is known"),
    ],
)
def test_a_verdict_is_as_sure_as_what_is_known(followed: dict[str, Any], verdict: str) -> None:
    text = read(a_plan(followed=followed), width=120)

    assert verdict == " ".join(text.rpartition("; ")[2].split())
    assert ("3 services followed, no loop found" in text) == (followed["count"] == 3)


@pytest.mark.parametrize("fate", list(Fate))
def test_every_fate_has_its_words(fate: Fate) -> None:
    text = read(a_plan(fates={fate.value: 2}))

    [row] = [line for line in text.splitlines() if line.startswith("       2  would ")]
    assert "its" not in row.split()


def test_long_lists_are_cut_and_the_rest_is_counted() -> None:
    edits = [edit(f"r{number}", None, route()) for number in range(EDITS_SHOWN + 1)]
    changes = tuple(change(number, to_service=f"S{number}") for number in range(GROUPS_SHOWN + 2))
    loops = [loop(was_there=False)] * (WAYS_SHOWN + 1)
    unknown = tuple(f"way {number}" for number in range(WAYS_SHOWN + 2))
    fates = {Fate.MOVES.value: 100, Fate.KEEPS.value: 7}

    text = read(a_plan(*edits, consequences=changes, fates=fates, followed=ways(*loops, unknown=unknown)))

    assert ("r49: " in text, "r50: " in text, "\n  and 1 more\n" in text) == (True, False, True)
    assert (f"to S{GROUPS_SHOWN - 1}: " in text, f"to S{GROUPS_SHOWN}: " in text) == (True, False)
    assert f"\n\n  and {100 - GROUPS_SHOWN} more that change\n" in text
    assert "  and 1 more loop\n" in text
    assert "  and 2 more ways whose end is not known\n" in text
    assert WAYS_SHOWN == text.count("  ? way ")
    assert "  and 2,001 more\n" in read(a_plan(*edits, more_edits=2000))
    assert "more than 10,000 changes" in read(a_plan(*edits, more_edits=None))
    assert " more\n" not in read(a_plan(*edits[:-1]))

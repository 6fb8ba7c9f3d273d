"""The command routes plan: what is asked, what is shown, and how it ends."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from broker.cli.routes import EDITS_SHOWN, GROUPS_SHOWN, WAYS_SHOWN, plan_lines
from broker.observe.explain import ExplainRequest, answer
from broker.observe.plan import Consequence, PlanAnswer, PlannedRoute, RouteEdit, WhenExpired
from broker.routing.plan import Fate
from tests.support.command import printed, run
from tests.support.why import place

SCRIPT = "DROP ROUTE there;\n"
HARMLESS = PlanAnswer(
    edits=[RouteEdit("orders", "there", PlannedRoute("S", None, "tcp://far:4022", None, 1, None), None)],
    more_edits=0,
    fates={Fate.KEEPS.value: 3},
    passing=0,
    harmed=0,
    consequences=[],
)
HARMFUL = replace(HARMLESS, fates={Fate.LOSES.value: 1}, harmed=1)


def explained(name: str, to: str) -> Any:
    """What a gateway with one route answers."""
    return answer(place(name, 1, to), ExplainRequest("S", conversation=UUID(int=9), incoming=True))


def plan(fake_admin: Any, *arguments: object, told: PlanAnswer = HARMLESS, script: str | bytes = SCRIPT) -> Any:
    fake_admin.answers["/v1/plan"] = (200, msgspec.to_builtins(told))
    return run("routes", "plan", "-", "--socket", fake_admin.path, *arguments, stdin=script)


@pytest.mark.parametrize(
    ("arguments", "asked"), [([], {}), (["-d", "orders"], {"database": "orders"}), (["--through"], {"arrivals": True})]
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


@pytest.mark.parametrize(("address", "is_told"), [("tcp://far:4022", True), ("LOCAL", False)])
def test_a_gateway_says_since_when_it_knows_what_passes(fake_admin: Any, address: str, *, is_told: bool) -> None:
    dropped = RouteEdit("msdb", "there", PlannedRoute("S", None, address, None, 1, None), None)
    fake_admin.answers["/v1/status"] = (200, {"uptime_s": 25.3})

    lines = plan(fake_admin, told=replace(HARMLESS, edits=[dropped], fates={})).stdout.splitlines()

    known = "  ? of those in transit, at most what passed since the start 25.3 s ago is known"
    at = lines.index("Conversations under way") + 1
    assert (["  none is known", known] if is_told else ["  there are none", ""]) == lines[at : at + 2]


def followed(fake_admin: Any, today: str, *arguments: object) -> Any:
    """A plan by which what arrives at a goes on to a itself; today it goes to another host."""
    told = replace(HARMLESS, arrivals=[explained("a", "back")])
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


OLD = PlannedRoute("//shop/Billing", None, "tcp://old:4022", None, 1, None)
NOON = datetime(2025, 3, 1, 12, microsecond=500_000, tzinfo=UTC)
LOOP = {"to_service": "//shop/Billing", "path": "a -> b -> a: a loop", "was_there": False}


def change(number: int = 0, fate: Fate = Fate.MOVES, **fields: Any) -> Consequence:
    """A conversation of orders that would move, or come to another end."""
    handle = f"5b0f3c1e-5d5e-4f0b-8a55-0000000000{number:02x}"
    before, after = (f"forwarded to tcp://{host}:4022 by route there" for host in ("old", "new"))
    is_harm = fate in {Fate.MOVES, Fate.LOSES}
    return replace(Consequence("orders", handle, "//shop/Billing", fate, is_harm, before, after), **fields)


def ways(*loops: dict[str, Any], unknown: tuple[str, ...] = (), count: int = 2, is_all: bool = True) -> Any:
    return {"loops": list(loops), "unknown": list(unknown), "count": count, "is_all": is_all}


def read(*edits: RouteEdit, width: int = 120, followed: Any = None, **fields: Any) -> str:
    """The plan of these edits on a terminal."""
    of_nothing: dict[str, Any] = {"more_edits": 0, "fates": {}, "passing": 0, "harmed": 0, "consequences": []}
    plan = msgspec.to_builtins(PlanAnswer(list(edits), **of_nothing | fields)) | {"followed": followed}
    return printed(plan_lines(plan), width=width)


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
  1 of them in transit (those that go the same way count as one, and one whose target became known
    as two)

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

harm: about 3 conversations that have sent would move, or lose their route or service; 5
  conversations when the last LIFETIME has ended; 1 loop would appear
"""


def test_a_plan_is_read_from_the_routes_to_the_verdict() -> None:
    any_of_g = {"remote_service_name": None, "broker_instance": "G", "mirror_address": "tcp://m"}
    orders = OLD.address.replace("old", "orders")

    text = read(
        RouteEdit("orders", "there", OLD, replace(OLD, address="tcp://new:4022")),
        RouteEdit("orders", "all", OLD, replace(OLD, weight=7, **any_of_g)),
        RouteEdit("orders", "short", replace(OLD, lifetime=NOON), OLD),
        RouteEdit("orders", "more", None, replace(OLD, address="LOCAL", weight=3, lifetime=NOON, **any_of_g)),
        RouteEdit("msdb", "back", replace(OLD, remote_service_name="//shop/Orders", address=orders), None),
        consequences=[
            change(0),
            change(1),
            change(2, is_harm=False),
            change(4, Fate.LOSES, database=None, conversation=None),
            change(3, Fate.FINDS, to_service="//shop/Stock", before="delayed", after="forwarded"),
        ],
        fates={Fate.MOVES: 3, Fate.LOSES: 1, Fate.FINDS: 1, Fate.KEEPS: 1200},
        harmed=3,
        passing=1,
        expired=WhenExpired(NOON, {Fate.LOSES: 5, Fate.KEEPS: 1}, 5),
        followed=ways(LOOP, LOOP | {"was_there": True}, unknown=("a -> b: not known from there on",), is_all=False),
    )

    assert WHOLE == text


def test_a_plan_of_nothing_says_so() -> None:
    assert (
        "Routes\n  nothing changes\n\nConversations under way\n  there are none\n\n"
        "no harm: no conversation that has sent would move, or lose its route or service\n"
    ) == read(expired=WhenExpired(NOON, {Fate.KEEPS: 3}, 0))


@pytest.mark.parametrize("refused", [None, []])
def test_a_plan_with_a_gap_does_not_say_that_there_is_no_harm(refused: list[str] | None) -> None:
    plan = msgspec.to_builtins(replace(HARMLESS, refused=refused)) | {"followed": None, "gap": "most is not known"}

    verdict = printed(plan_lines(plan), width=120).splitlines()[-2:]

    assert (True, False) == ("is known: no conversation" in " ".join(verdict), "no harm:" in verdict[-1])


def test_permissions_that_change_are_harmless_to_connected_peers_at_most(fake_admin: Any) -> None:
    lost = "CN=b could no longer send to S: no GRANT SEND ON SERVICE::[S] TO [CN=b] or public"

    harmless, harmful = (plan(fake_admin, told=replace(HARMLESS, refused=one)) for one in ([], [lost]))

    assert (0, 6) == (harmless.exit_code, harmful.exit_code)
    assert "no harm to conversations and connected peers: " in harmless.stdout
    assert ("broker explain --to SERVICE --peer" in harmless.stdout, f"! {lost[:40]}" in harmful.stdout) == (True, True)


@pytest.mark.parametrize(
    ("followed", "verdict"),
    [
        (ways(count=3), "no loop would appear"),
        (ways(LOOP | {"was_there": True}), "no loop would appear"),
        (ways(unknown=("a -> b: not known",)), "no loop would appear, as far as is known"),
        (ways(is_all=False), "no loop would appear, as far as is known"),
    ],
)
def test_a_verdict_is_as_sure_as_what_is_known(followed: dict[str, Any], verdict: str) -> None:
    text = read(followed=followed)

    assert verdict == " ".join(text.rpartition("; ")[2].split())
    assert ("3 services followed, no loop found" in text) == (followed["count"] == 3)


def test_every_fate_has_its_words() -> None:
    assert len(Fate) == len(re.findall("\n       2  would (?!.*{)", read(fates=dict.fromkeys(Fate, 2))))


def test_long_lists_are_cut_and_the_rest_is_counted() -> None:
    edits = [RouteEdit("orders", f"r{number}", None, OLD) for number in range(EDITS_SHOWN + 1)]
    changes = [change(number, to_service=f"S{number}") for number in range(GROUPS_SHOWN + 2)]
    loops, unknown = [LOOP] * (WAYS_SHOWN + 1), tuple(f"way {number}" for number in range(WAYS_SHOWN + 2))

    fates = {Fate.MOVES: 100, Fate.KEEPS: 7}
    text = read(*edits, consequences=changes, fates=fates, followed=ways(*loops, unknown=unknown))

    assert ("r49: " in text, "r50: " in text, "\n  and 1 more\n" in text) == (True, False, True)
    assert (f"to S{GROUPS_SHOWN - 1}: " in text, f"to S{GROUPS_SHOWN}: " in text) == (True, False)
    assert f"\n\n  and {100 - GROUPS_SHOWN} more that change\n" in text
    assert ("  and 1 more loop\n" in text, "  and 2 more ways whose end is not known\n" in text) == (True, True)
    assert WAYS_SHOWN == text.count("  ? way ")
    assert "  and 2,001 more\n" in read(*edits, more_edits=2000)
    assert "more than 10,000 changes" in read(*edits, more_edits=None)
    assert " more\n" not in read(*edits[:-1])

"""The page of `broker status`, and the commands that show it once or again and again."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from broker.cli.access import Asked
from broker.cli.status import UNTRIED_SHOWN, render_status
from broker.observe.health import judge
from broker.observe.status import Status
from tests.support.command import run

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def status(**changes: Any) -> dict[str, Any]:
    frames = {"forwarded": 7, "delivered": 2, "held": 1, "pool_bytes": 300, "pool_limit_bytes": 1000}
    runs_on = {"software": "broker 1", "loop": "uvloop", "kernel": "compiled", "listen": ["127.0.0.1:4022"]}
    usual = {"name": "gateway-a", "uptime_s": 61.5, "broker_instance": GUID.upper()} | runs_on | changes
    usual["forwarding"] = frames | changes.get("forwarding", {})
    told = msgspec.convert(usual, Status)
    judged: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(told, verdict=judge(told)))
    return judged


def database(**changes: Any) -> dict[str, Any]:
    counts = {"sent": 5, "resent": 4, "acknowledged": 3, "delivered": 2}
    return {"services": {"//shop/Orders": counts}, "waiting_messages": 6} | changes


def page(capsys: pytest.CaptureFixture[str], answer: dict[str, Any]) -> str:
    render_status(answer)
    return capsys.readouterr().out


def cells(text: str) -> list[list[str]]:
    """The rows of tables."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]


def test_the_page_begins_with_whether_all_is_well_and_who_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    answer = status(forwarding={"held": 0, "pool_limit_bytes": 1_000_000})

    first, second, *lines = page(capsys, answer).splitlines()

    assert "All is well: 0 connections, nothing waits for a next hop" == first
    identity = r"gateway-a ready, up 0:01:01, broker 1 on uvloop, compiled kernel, as of \d{4}(-\d\d){2} [\d:]{8} UTC"
    assert re.fullmatch(identity, second)
    assert [
        f"listens on 127.0.0.1:4022, broker instance of msdb {GUID.upper()}",
        "forwarding is on; since the start 7 frames sent on, 2 delivered here; 0 held, 300 of 1,000,000 bytes",
    ] == lines


def test_what_is_wrong_stands_before_everything_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    lines = page(capsys, status(addresses=DOWN, transport={"warnings": ["connections are not encrypted"]})).splitlines()

    assert "Something is wrong: tcp://c:4022 is not reached: refused, and 4 frames wait for it" == lines[0]
    assert lines[1].startswith("-> start the instance at tcp://c:4022")
    assert "notice: connections are not encrypted" == lines[2]


def test_statements_for_the_instance_itself_are_run_with_its_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    missing = "no GRANT CONNECT ON ENDPOINT::[e] TO [CN=a]"
    notices = [{"kind": "peer refused", "text": f"refused: {missing}"}]
    queues = [{"name": "Q", "is_receive_enabled": False, "oldest_s": 1.0}]
    answer = status(transport={"notices": notices}, databases={"shop": database(queues=queues)})

    render_status(answer, asked=Asked(Path("x.toml")))

    text = capsys.readouterr().out
    assert "-> at gateway-a, with broker sql -c x.toml: USE [shop]; ALTER QUEUE [Q] WITH STATUS = ON;" in text
    grant = "USE [msdb]; GRANT CONNECT ON ENDPOINT::[e] TO [CN=a];"
    assert f"-> at this instance, with broker sql -c x.toml, and in its script if it has one: {grant}" in text


def test_commands_name_the_socket_that_was_given(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, status(reload={"problem": "line 3"}))

    text = " ".join(run("status", "--socket", fake_admin.path).stdout.split())

    assert f"run broker reload --socket {fake_admin.path};" in text


def test_tables_have_what_waits_what_moved_and_whose_partner_is_what(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"next_hop": "tcp://c:4022", "held": 4, "held_bytes": 900, "oldest_s": 2.5, "why": "no connection"}
    link = {"name": "b", "address": "tcp://b:4022", "direction": "out", "state": "LOGGED IN", "flow": "stalled"}
    moved = {"flow_reason": "no answer", "last_progress": "2020-01-01T00:00:00+00:00", "slowed_by": ""}
    role = {"role": "mirror", "epoch": 7, "since": "now", "source": "lock", "principal": "second", "problem": ""}
    answer = status(
        waiting=[waiting | {"next_attempt_s": 3.0}],
        connections=[link | moved],
        mirroring={"orders": role, "own": {**role, "source": "off"}},
        addresses={"tcp://d:4022": {"health": "connected", "problem": "", "held": 0}},
    )

    connection, *rows = cells(page(capsys, answer))

    assert ["b", "tcp://b:4022", "out", "LOGGED IN", "stalled", "no answer"] == connection[:6]
    assert re.fullmatch(r"\d+ days, [\d:]+ ago", connection[6])
    assert [
        ["tcp://c:4022", "4", "900", "2.5", "no connection", "3.0"],
        ["orders", "mirror", "7", "now", "lock", "second", ""],
    ] == rows


def test_next_hops_that_nobody_has_dialled_are_named_the_first_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    untried = {"health": "untried", "problem": "", "held": 0}
    few = {"tcp://a:1": untried, "tcp://b:1": untried | {"health": "connected"}, "tcp://c:1": untried | {"held": 1}}
    many = {f"tcp://{number}:1": untried for number in range(UNTRIED_SHOWN + 2)}

    shown = [" ".join(page(capsys, status(addresses=addresses)).split()) for addresses in (few, many)]

    assert shown[0].endswith("not dialled yet, so it is not known whether they can be reached: tcp://a:1")
    assert "tcp://9:1 and 2 more" in shown[1]


DOWN = {"tcp://c:4022": {"health": "suppressed", "problem": "refused", "held": 4}}
LEDGER = {"sent": 3, "acknowledged": 2, "held": 1, "failed": {}, "unaccounted": 0}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (status(ready=False), "gateway-a not ready"),
        (status(uptime_s=-157_680_000.0), "up since later than now (the clock of this machine has gone back)"),
        (status(name="[/red]"), "[/red] ready"),
        (status(listen=[]), "listens on nothing"),
        (status(forwarding={"enabled": False}), "forwarding is off: only messages of databases here are sent; since"),
        (status(forwarding={"dropped": {"no route": 2, "already held": 1}}), "dropped: 1 already held, 2 no route"),
        (status(forwarding={"unaccounted": 3}), "3 frames are unaccounted for\n-> this is a fault of the program"),
        (status(connections=[{"name": "b", "slowed_by": "limits.bytes_per_second"}]), "limits.bytes_per_second"),
        (status(transport={"warnings": ["it ends: CN=\x1b[2J"]}), "one thing is worth knowing: it ends: CN=\\x1b[2J"),
        (status(transport={"refused": {"connections": 3}}), "connections refused: 3 connections"),
        (status(addresses=DOWN), "Addresses with a problem"),
        (status(databases={"orders": database()}), "Database orders: 6 messages wait to be acknowledged"),
        (
            status(databases={"orders": database(broker_instance=GUID)}),
            f"Database orders (broker instance {GUID}): 6 messages wait",
        ),
        (status(databases={"orders": database(waiting_messages=None)}), "an unknown number of messages wait"),
        (status(databases={"orders": database(problem="disk full")}), "the store of orders has failed: disk full"),
        (status(databases={"orders": database(dropped={"duplicate": 9})}), "dropped at orders: 9 duplicate"),
        (status(databases={"orders": database(ledger=LEDGER)}), "ledger of orders: 3 sent = 2 acknowledged + 1 held"),
        (
            status(databases={"orders": database(ledger=LEDGER | {"held": 0, "unaccounted": 1})}),
            "+ 0 failed + 1 UNACCOUNTED",
        ),
    ],
)
def test_the_page_tells(capsys: pytest.CaptureFixture[str], answer: dict[str, Any], told: str) -> None:
    assert told in page(capsys, answer)


# --- the commands ---


def test_status_is_a_page_or_the_daemons_own_json(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, status())

    pages = [run(*command, "--socket", fake_admin.path).stdout for command in (["status"], ["top", "--once"])]
    text = run("status", "--socket", fake_admin.path, "-o", "json")

    assert ["gateway-a ready, up 0:01:01"] * 2 == [shown.splitlines()[1][:27] for shown in pages]
    assert status() == json.loads(text.stdout)


@pytest.mark.parametrize("command", [["top"], ["status", "--watch"]], ids=" ".join)
def test_watching_without_a_terminal_prints_one_state_after_the_other(
    fake_admin: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    fake_admin.answers["/v1/status"] = (200, status())
    left = iter([None, None])

    def sleep(seconds: float) -> None:
        assert 7 == seconds
        if next(left, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("broker.cli.status.time", SimpleNamespace(sleep=sleep))
    result = run(*command, "--socket", fake_admin.path, "--interval", "7", "-o", "json")

    assert (0, [status()] * 3) == (result.exit_code, [json.loads(line) for line in result.stdout.splitlines()])


def test_watching_ends_when_the_instance_refuses(fake_admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_admin.answers["/v1/status"] = (200, status())

    def sleep(_: float) -> None:
        fake_admin.answers["/v1/status"] = (403, {"detail": "no"})

    monkeypatch.setattr("broker.cli.status.time", SimpleNamespace(sleep=sleep))

    result = run("top", "--socket", fake_admin.path)

    assert (5, "no") == (result.exit_code, result.stderr.strip())

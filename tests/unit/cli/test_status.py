"""How an instance is, as an exit code."""

from __future__ import annotations

import io
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker.cli.output import Terminal, render_table
from broker.cli.status import UNTRIED_SHOWN, HealthState, judge, render_status
from tests.support.command import run

READY = "[+] ready\n[+] not stopping\nok\n"
WORRIED = "[+] ready\n[!] orders: the disk is full\nok\n"
STOPPING = "[-] ready\n[-] not stopping\nfailed\n"


@contextmanager
def answering(status: int, text: str, *, behind: int = 0) -> Iterator[tuple[str, list[str]]]:
    """A port of observation that says this, `behind` so many times that it stops, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            code, told = (status, text) if len(asked) > behind else (503, STOPPING)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, *words: object) -> None:
            del words

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, READY, HealthState.OK),
        (200, "ok\n", HealthState.OK),
        (200, WORRIED, HealthState.WARNING),
        (503, STOPPING, HealthState.CRITICAL),
        (503, "failed\n", HealthState.CRITICAL),
        (200, "<html>it works</html>", HealthState.UNKNOWN),
        (404, "ok", HealthState.UNKNOWN),
        (502, STOPPING, HealthState.UNKNOWN),
    ],
)
def test_an_answer_is_one_of_the_four_states(status: int, text: str, expected: HealthState) -> None:
    assert expected == judge("ready", "here", status, text).state


@pytest.mark.parametrize(("status", "text"), [(200, READY), (200, WORRIED), (503, STOPPING)])
def test_the_state_is_the_exit_code_and_the_first_word(status: int, text: str) -> None:
    with answering(status, text) as (where, _):
        result = run("health", "ready", "--at", where)

    expected = judge("ready", where, status, text)
    assert expected.state == result.exit_code
    assert [expected.state.name, *text.splitlines()[:-1]] == [
        result.stdout.partition(":")[0],
        *result.stdout.splitlines()[1:],
    ]


@pytest.mark.parametrize(("question", "path"), [("live", "/livez"), ("ready", "/readyz"), ("startup", "/startupz")])
def test_each_question_has_its_path(question: str, path: str) -> None:
    with answering(200, READY) as (where, asked):
        run("health", question, "--at", where)

    assert [f"{path}?verbose"] == asked


def test_an_instance_that_is_not_there_is_critical(free_port: int) -> None:
    result = run("health", "live", "--at", f"127.0.0.1:{free_port}")

    assert 2 == result.exit_code
    assert f"CRITICAL: nobody answers at 127.0.0.1:{free_port}: Connection refused\n" == result.stdout


def test_an_instance_that_does_not_answer_is_critical() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        result = run("health", "live", "--at", f"127.0.0.1:{port}", "--timeout", "0.2")

    assert 2 == result.exit_code
    assert f"CRITICAL: no answer from 127.0.0.1:{port} within 0.2 s\n" == result.stdout


def test_waiting_ends_with_the_first_yes() -> None:
    with answering(200, READY, behind=2) as (where, asked):
        result = run("health", "ready", "--at", where, "--wait", "30")

    assert (0, 3) == (result.exit_code, len(asked))


def test_waiting_ends_when_the_time_is_up(free_port: int) -> None:
    result = run("health", "ready", "--at", f"127.0.0.1:{free_port}", "--wait", "0.2")

    assert 2 == result.exit_code


def test_nobody_waits_for_what_is_no_instance() -> None:
    with answering(404, "ok") as (where, asked):
        result = run("health", "ready", "--at", where, "--wait", "30")

    assert (3, 1) == (result.exit_code, len(asked))


def test_the_configuration_says_where(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    with answering(200, READY) as (where, asked):
        config.write_text(f'[observe]\nlisten = "0.0.0.0:{where.rpartition(":")[2]}"\n')
        result = run("health", "-c", str(config), "-o", "json")

    assert 0 == result.exit_code
    assert {"state": "OK", "question": "ready"} == {
        key: value for key, value in json.loads(result.stdout).items() if key in {"state", "question"}
    }
    assert ["/readyz?verbose"] == asked


def test_the_environment_goes_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('[observe]\nlisten = "127.0.0.1:1"\n')
    with answering(200, READY) as (where, _):
        monkeypatch.setenv("BROKER_OBSERVE__LISTEN", where)
        result = run("health", "-c", str(config))

    assert 0 == result.exit_code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[observe]\nlisten = ""\n', 'observe.listen is ""'),
        ("[observe]\nlisten = 1\n", "observe.listen: 1 has no port"),
        ('[observe]\nlisten = "127.0.0.1:0"\n', "is no address to ask"),
        ("[observe\n", "broker check says more"),
    ],
)
def test_a_configuration_that_names_nobody_is_unknown(text: str, expected: str, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text)

    result = run("health", "-c", str(config))

    assert 3 == result.exit_code
    assert result.stdout.startswith("UNKNOWN: ")
    assert expected in result.stdout


def test_a_configuration_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    result = run("health", "-c", str(tmp_path / "none.toml"))

    assert 3 == result.exit_code
    assert f"UNKNOWN: {tmp_path / 'none.toml'}: cannot be read: No such file or directory" in result.stdout


# --- test_glance ---
# Tables and the status page: nothing is cut, nothing is obeyed, nothing breaks a terminal.


GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"


def drawn(columns: list[str], rows: list[dict[str, Any]], *, width: int = 80, title: str | None = None) -> list[str]:
    file = io.StringIO()
    render_table(columns, rows, title=title, terminal=Terminal(file, width=width))
    return file.getvalue().splitlines()


def test_a_narrow_table_is_a_table() -> None:
    lines = drawn(["name", "address"], [{"name": "a", "address": "LOCAL"}], title="Routes")

    assert "Routes" == lines[0].strip()
    assert ["a", "LOCAL"] == [cell.strip() for cell in lines[4].strip("│").split("│")]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "NULL"), (0, "0"), (False, "False"), ("", ""), ("[/x] [b]", "[/x] [b]")]
)
def test_a_value_is_shown_as_it_is(value: object, shown: str) -> None:
    lines = drawn(["v"], [{"v": value}])

    assert shown == lines[3].strip("│").strip()


def test_a_missing_value_is_an_empty_cell() -> None:
    assert "" == drawn(["v"], [{}])[3].strip("│").strip()


@pytest.mark.parametrize(
    ("value", "shown"), [("\x1b[2Jgone", "\\x1b[2Jgone"), ("two\nlines", "two\\nlines"), ("bell\a", "bell\\x07")]
)
def test_what_a_terminal_would_obey_is_written_out(value: str, shown: str) -> None:
    lines = drawn(["v"], [{"v": value}])

    assert shown == lines[3].strip("│").strip()


def test_a_guid_stays_on_one_line_beside_a_long_text() -> None:
    lines = drawn(["handle", "body"], [{"handle": GUID, "body": "x" * 500}])

    assert all(len(line) <= 80 for line in lines)
    assert any(GUID in line for line in lines)
    assert 500 == sum(line.count("x") for line in lines)


def test_a_table_that_is_too_wide_becomes_a_block_for_each_row() -> None:
    columns = ["one", "second", "three"]

    lines = drawn(columns, [dict.fromkeys(columns, GUID), {"one": "x" * 100, "second": None}], title="Wide")

    assert [
        "Wide",
        "-- 1 of 2",
        f"one     {GUID}",
        f"second  {GUID}",
        f"three   {GUID}",
        "-- 2 of 2",
        f"one     {'x' * 100}",
        "second  NULL",
        "three   ",
    ] == lines


def test_wide_columns_without_rows_say_so() -> None:
    assert ["no rows"] == drawn([GUID, GUID + "2", GUID + "3"], [])


def status(**changes: Any) -> dict[str, Any]:
    forwarding = {
        "enabled": True,
        "forwarded": 7,
        "delivered": 2,
        "held": 1,
        "pool_bytes": 300,
        "pool_limit_bytes": 1000,
        "dropped": {},
        "unaccounted": 0,
    } | changes.pop("forwarding", {})
    return {
        "name": "gateway-a",
        "ready": True,
        "uptime_s": 61.5,
        "software": "broker 1",
        "loop": "uvloop",
        "kernel": "compiled",
        "listen": ["127.0.0.1:4022"],
        "broker_instance": GUID.upper(),
        "forwarding": forwarding,
        "connections": [],
        "addresses": {},
        "mirroring": {},
        "databases": {},
    } | changes


def database(**changes: Any) -> dict[str, Any]:
    counts = {"sent": 5, "resent": 4, "acknowledged": 3, "delivered": 2}
    return {"services": {"//shop/Orders": counts}, "problem": "", "dropped": {}, "waiting_messages": 6} | changes


def page(capsys: pytest.CaptureFixture[str], answer: dict[str, Any]) -> str:
    render_status(answer)
    return capsys.readouterr().out


def test_the_page_begins_with_whether_all_is_well_and_who_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    answer = status(forwarding={"held": 0, "pool_limit_bytes": 1_000_000})

    first, second, *lines = page(capsys, answer).splitlines()

    assert "All is well: 0 connections, nothing waits for a next hop" == first
    identity = r"gateway-a ready, up 0:01:01, broker 1 on uvloop, compiled kernel, as of \d{4}(-\d\d){2} [\d:]{8} UTC"
    assert re.fullmatch(identity, second)
    assert [
        f"listens on 127.0.0.1:4022, broker instance {GUID.upper()}",
        "forwarding on: 7 forwarded, 2 delivered, 0 held, 300 of 1,000,000 bytes",
    ] == lines


def test_a_clock_that_went_back_behind_the_start_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    second = page(capsys, status(uptime_s=-157_680_000.0)).splitlines()[1]

    told = "gateway-a ready, up since later than now (the clock of this machine has gone back), broker 1 on uvloop, "
    assert second.startswith(told)


def test_what_is_wrong_stands_before_everything_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    down = {"tcp://c:4022": {"health": "suppressed", "problem": "refused", "held": 4}}

    lines = page(capsys, status(addresses=down, transport={"warnings": ["connections are not encrypted"]})).splitlines()

    assert "Something is wrong: tcp://c:4022 is not reached: refused, and 4 frames wait for it" == lines[0]
    assert lines[1].startswith(
        "bad: tcp://c:4022 is not reached: refused, and 4 frames wait for it -> see that it runs"
    )
    assert "notice: connections are not encrypted" == lines[2]


def test_what_waits_for_a_next_hop_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"next_hop": "tcp://c:4022", "held": 4, "held_bytes": 900, "oldest_s": 2.5, "why": "no connection"}
    answer = status(waiting=[waiting | {"next_attempt_s": 3.0}])

    shown = page(capsys, answer)

    told = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if line[0] == "│"]
    assert [["tcp://c:4022", "4", "900", "2.5", "no connection", "3.0"]] == told


def test_a_connection_is_told_with_what_really_moved(capsys: pytest.CaptureFixture[str]) -> None:
    link = {"name": "b", "address": "tcp://b:4022", "direction": "out", "state": "LOGGED IN", "flow": "stalled"}
    answer = status(connections=[link | {"flow_reason": "no answer", "last_progress": "2020-01-01T00:00:00+00:00"}])

    shown = page(capsys, answer)

    assert [] == [word for word in ("stalled", "no answer", "days", "ago") if word not in shown]


def test_databases_with_a_partner_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    role = {"role": "mirror", "epoch": 7, "since": "now", "source": "lock", "principal": "second", "problem": ""}

    shown = page(capsys, status(mirroring={"orders": role, "own": {**role, "source": "off"}}))

    told = [[cell.strip() for cell in line.strip("│").split("│")] for line in shown.splitlines() if line[0] == "│"]
    assert [["orders", "mirror", "7", "now", "lock", "second", ""]] == told


def test_next_hops_that_nobody_has_dialled_are_named_the_first_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    untried = {"health": "untried", "problem": "", "held": 0}
    few = {"tcp://a:1": untried, "tcp://b:1": untried | {"health": "connected"}, "tcp://c:1": untried | {"held": 1}}
    many = {f"tcp://{number}:1": untried for number in range(UNTRIED_SHOWN + 2)}

    shown = [" ".join(page(capsys, status(addresses=addresses)).split()) for addresses in (few, many)]

    assert shown[0].endswith("not dialled yet, so nobody knows whether they can be reached: tcp://a:1")
    assert "tcp://9:1 and 2 more" in shown[1]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (status(ready=False), "gateway-a not ready"),
        (status(name="[/red]"), "[/red] ready"),
        (status(listen=[]), "listens on nothing"),
        (status(listen=["[::1]:4022"]), "listens on [::1]:4022"),
        (status(forwarding={"enabled": False}), "forwarding off"),
        (status(forwarding={"dropped": {"no route": 2, "already held": 1}}), "dropped: 1 already held, 2 no route"),
        (status(forwarding={"unaccounted": 3}), "bad: 3 frames are unaccounted for -> this is a fault of the program"),
        (
            status(connections=[{"name": "b", "address": "tcp://b:4022", "direction": "out", "state": "online"}]),
            "Connections",
        ),
        (
            status(connections=[{"name": "b", "slowed_by": "limits.bytes_per_second"}, {"name": "c", "slowed_by": ""}]),
            "limits.bytes_per_second",
        ),
        (status(transport={"warnings": ["connections are not encrypted"]}), "notice: connections are not encrypted"),
        (status(transport={"warnings": ["it ends: CN=\x1b[2J"]}), "notice: it ends: CN=\\x1b[2J"),
        (status(transport={"refused": {"connections": 3}}), "connections refused: 3 connections"),
        (
            status(addresses={"tcp://c:4022": {"health": "suppressed", "problem": "refused", "held": 4}}),
            "Addresses with a problem",
        ),
        (status(databases={"orders": database()}), "Database orders: 6 messages wait to be acknowledged"),
        (status(databases={"orders": database(waiting_messages=None)}), "an unknown number of messages wait"),
        (status(databases={"orders": database(problem="disk full")}), "the store of orders has failed: disk full"),
        (status(databases={"orders": database(dropped={"duplicate": 9})}), "dropped at orders: 9 duplicate"),
    ],
)
def test_the_page_tells(capsys: pytest.CaptureFixture[str], answer: dict[str, Any], told: str) -> None:
    assert told in page(capsys, answer)


def test_an_address_that_works_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    answer = status(addresses={"tcp://c:4022": {"health": "connected", "problem": "", "held": 0}})

    assert "tcp://c:4022" not in page(capsys, answer)


@pytest.mark.parametrize(
    ("ledger", "line"),
    [
        ({"sent": 3, "acknowledged": 2, "held": 1, "failed": {}, "unaccounted": 0}, "+ 1 held + 0 failed"),
        ({"sent": 3, "acknowledged": 1, "held": 1, "failed": {}, "unaccounted": 1}, "+ 0 failed + 1 UNACCOUNTED"),
    ],
)
def test_the_ledger_of_a_database_is_one_line(
    capsys: pytest.CaptureFixture[str], ledger: dict[str, Any], line: str
) -> None:
    lines = page(capsys, status(databases={"orders": database(ledger=ledger)})).splitlines()

    [told] = [one for one in lines if one.startswith("ledger of orders: 3 sent = ")]
    assert told.rstrip().endswith(line)


@pytest.mark.parametrize("more", [{}, {"ledger": None}])
def test_a_ledger_that_is_not_known_is_not_told(capsys: pytest.CaptureFixture[str], more: dict[str, Any]) -> None:
    assert "ledger" not in page(capsys, status(databases={"orders": database(**more)}))

"""The commands sql and status: what is asked, and how the answer is shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.command import run

ROUTES = {"columns": ["name", "mirror_address"], "rows": [["a", None], ["b", "tcp://m:4022"]], "messages": []}


def test_sql_prints_rows_as_json(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    result = run("sql", "--socket", fake_admin.path, "-d", "orders", "-o", "json", "SELECT 1")

    assert 0 == result.exit_code
    assert [{"name": "a", "mirror_address": None}, {"name": "b", "mirror_address": "tcp://m:4022"}] == json.loads(
        result.stdout
    )
    assert [("POST", "/v1/sql", {"statement": "SELECT 1", "database": "orders"})] == fake_admin.asked


def test_sql_prints_rows_as_a_table(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    result = run("sql", "--socket", fake_admin.path, "SELECT 1")

    assert ["name", "mirror_address", "NULL", "tcp://m:4022"] == [
        word for word in ("name", "mirror_address", "NULL", "tcp://m:4022") if word in result.stdout
    ]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("csv", "name,mirror_address\r\na,\r\nb,tcp://m:4022\r\n"),
        ("jsonl", '{"name": "a", "mirror_address": null}\n{"name": "b", "mirror_address": "tcp://m:4022"}\n'),
    ],
)
def test_sql_prints_rows_for_other_programs(fake_admin: Any, output: str, expected: str) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    assert expected.encode() == run("sql", "--socket", fake_admin.path, "-o", output, "SELECT 1").stdout_bytes


def test_sql_tells_columns_of_one_name_apart(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["a", "a", "a_2"], "rows": [[1, 2, 3]], "messages": []})

    assert [{"a": 1, "a_2": 2, "a_2_2": 3}] == json.loads(
        run("sql", "--socket", fake_admin.path, "-o", "json", "x").stdout
    )


def test_sql_without_rows_keeps_the_columns_in_json_an_empty_list(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES | {"rows": []})

    assert [] == json.loads(run("sql", "--socket", fake_admin.path, "-o", "json", "SELECT 1").stdout)


def test_sql_reads_standard_input_and_says_what_was_done_beside_the_output(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": [], "rows": [], "messages": ["route a created"]})

    result = run("sql", "--socket", fake_admin.path, stdin="CREATE ROUTE a ...;\n")

    assert ("", "route a created\n") == (result.stdout, result.stderr)
    assert "CREATE ROUTE a ...;\n" == fake_admin.asked[0][2]["statement"]


def test_sql_says_that_there_are_more_rows(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES | {"truncated": True})

    assert "there are more rows than one answer holds" in run("sql", "--socket", fake_admin.path, "SELECT 1").stderr


def test_sql_finds_the_socket_through_the_configuration(configuration: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    assert 0 == run("sql", "-c", configuration, "SELECT 1").exit_code


STATUS = {
    "name": "one",
    "ready": True,
    "uptime_s": 1,
    "software": "broker",
    "loop": "uvloop",
    "kernel": "compiled",
    "listen": [],
    "broker_instance": "B",
    "forwarding": dict.fromkeys(
        ("enabled", "forwarded", "delivered", "held", "pool_bytes", "pool_limit_bytes", "dropped", "unaccounted"), 0
    ),
    "connections": [],
    "addresses": {},
    "databases": {},
}


def test_status_is_a_page_or_the_daemons_own_json(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)

    page = run("status", "--socket", fake_admin.path)
    text = run("status", "--socket", fake_admin.path, "-o", "json")

    assert "All is well: 0 connections, nothing waits for a next hop" == page.stdout.splitlines()[0]
    assert "\none ready, up 0:00:01" in page.stdout
    assert STATUS == json.loads(text.stdout)


def test_top_once_is_status(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)

    pages = [run(*command, "--socket", fake_admin.path).stdout for command in (["status"], ["top", "--once"])]

    assert pages[0].splitlines()[1:] == pages[1].splitlines()[1:]


@pytest.mark.parametrize("command", [["top"], ["status", "--watch"]], ids=" ".join)
def test_watching_without_a_terminal_prints_one_state_after_the_other(
    fake_admin: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)
    left = iter([None, None])

    def sleep(seconds: float) -> None:
        assert 7 == seconds
        if next(left, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("broker.cli.sql.time", SimpleNamespace(sleep=sleep))
    result = run(*command, "--socket", fake_admin.path, "--interval", "7", "-o", "json")

    assert (0, [STATUS] * 3) == (result.exit_code, [json.loads(line) for line in result.stdout.splitlines()])


def test_watching_ends_when_the_instance_refuses(fake_admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)

    def sleep(_: float) -> None:
        fake_admin.answers["/v1/status"] = (403, {"detail": "no"})

    monkeypatch.setattr("broker.cli.sql.time", SimpleNamespace(sleep=sleep))

    result = run("top", "--socket", fake_admin.path)

    assert (5, "no") == (result.exit_code, result.stderr.strip())

"""The commands sql and status: what is asked, and how the answer is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.cli import main
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

    assert page.stdout.startswith("one ready, up 0:00:01")
    assert STATUS == json.loads(text.stdout)


class Terminal:
    """Standard input of somebody who types these lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    def isatty(self) -> bool:
        return True

    def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def typed(monkeypatch: pytest.MonkeyPatch, fake_admin: Any, *lines: str) -> Terminal:
    terminal = Terminal(*lines)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", terminal.ask)
    with pytest.raises(SystemExit) as done:
        main(["sql", "--socket", str(fake_admin.path)])
    assert 0 == done.value.code
    return terminal


@pytest.mark.parametrize("last", [(), ("exit",), ("QUIT",)], ids=["end of input", "exit", "quit"])
def test_statements_at_the_prompt_end_with_go_or_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, fake_admin: Any, last: tuple[str, ...]
) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    terminal = typed(monkeypatch, fake_admin, "", "SELECT", "1", "", "SELECT 2", "go", *last)

    assert ["SELECT\n1", "SELECT 2"] == [body["statement"] for _, _, body in fake_admin.asked]
    assert ["broker> ", "broker> ", "    -> ", "    -> ", "broker> ", "    -> ", "broker> "] == terminal.prompts


def test_a_mistake_at_the_prompt_ends_neither_the_session_nor_stays_in_it(
    monkeypatch: pytest.MonkeyPatch, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_admin.answers["/v1/sql"] = (400, {"detail": "incorrect syntax"})

    typed(monkeypatch, fake_admin, "SELCT", "", "SELECT", "")

    assert ["SELCT", "SELECT"] == [body["statement"] for _, _, body in fake_admin.asked]
    captured = capsys.readouterr()
    assert 2 == captured.err.count("incorrect syntax")
    assert captured.err.startswith("GO or an empty line ends a statement")

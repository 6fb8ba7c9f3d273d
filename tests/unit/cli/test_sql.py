"""`broker sql`: what is asked, how the answer is printed, and how a long script is followed."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from broker.admin.client import AdminClient, ProblemError
from broker.cli import sql as module
from broker.cli.sql import run_long_script
from broker.errors import DaemonUnreachableError
from tests.support.command import run

ROUTES = {"columns": ["name", "mirror_address"], "rows": [["a", None], ["b", "tcp://m:4022"]], "messages": []}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("csv", "name,mirror_address\na,\nb,tcp://m:4022\n"),
        ("jsonl", '{"name": "a", "mirror_address": null}\n{"name": "b", "mirror_address": "tcp://m:4022"}\n'),
    ],
)
def test_sql_prints_rows(fake_admin: Any, output: str, expected: str) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES | {"truncated": True})

    result = run("sql", "--socket", fake_admin.path, "-d", "orders", "-o", output, "SELECT 1")

    assert (0, expected.encode()) == (result.exit_code, result.stdout_bytes)
    assert "there are more rows than one answer holds" in result.stderr
    assert [("POST", "/v1/sql", {"statement": "SELECT 1", "database": "orders"})] == fake_admin.asked


def test_sql_tells_columns_of_one_name_apart(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["a", "a", "a_2"], "rows": [[1, 2, 3]], "messages": []})

    assert [{"a": 1, "a_2": 2, "a_2_2": 3}] == json.loads(
        run("sql", "--socket", fake_admin.path, "-o", "json", "x").stdout
    )


def test_sql_reads_standard_input_and_says_what_was_done_beside_the_output(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": [], "rows": [], "messages": ["route a created"]})

    result = run("sql", "--socket", fake_admin.path, stdin="CREATE ROUTE a ...;\n")

    assert ("", "route a created\n") == (result.stdout, result.stderr)
    assert "CREATE ROUTE a ...;\n" == fake_admin.asked[0][2]["statement"]


TEXT = "x" * 200
ANSWER = {"messages": ["done"]}


class ScriptDaemon:
    """Answers the script once its state was asked for `polls` times."""

    def __init__(self, polls: int, error: Exception | None = None) -> None:
        self.polls = polls
        self.asked: list[Any] = []
        self.error = error
        self._enough = threading.Event()

    def sql(self, text: str, database: str | None = None) -> Any:
        self.asked.append((text, database))
        self._enough.wait()
        if self.error is not None:
            raise self.error
        return ANSWER

    def get(self, target: str) -> Any:
        assert target == "/v1/status"
        self.polls -= 1
        if self.polls <= 0:
            self._enough.set()
        if self.polls == 1:
            raise DaemonUnreachableError("socket", "a hiccup")
        other = {"size": 7, "position": 1, "statements": 1, "stage": "waiting"}
        return {"running_scripts": [other, {"size": 200, "position": 50, "statements": 1234, "stage": "running"}]}


def _run(monkeypatch: pytest.MonkeyPatch, daemon: ScriptDaemon, *, is_terminal: bool) -> Any:
    monkeypatch.setattr(AdminClient, "sql", daemon.sql)
    monkeypatch.setattr(AdminClient, "get", daemon.get)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(module, "LINE_SECONDS", 0.002)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    return run_long_script(AdminClient(Path("socket")), TEXT, "orders")


def test_without_a_terminal_lines_tell_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = ScriptDaemon(polls=6)

    assert _run(monkeypatch, daemon, is_terminal=False) == ANSWER

    out, err = capsys.readouterr()
    assert daemon.asked == [(TEXT, "orders")]
    assert (out, set(err.splitlines())) == ("", {"running, 1,234 statements, 25 %"})


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert _run(monkeypatch, ScriptDaemon(polls=6), is_terminal=True) == ANSWER

    out, err = capsys.readouterr()
    assert (out, "1,234 statements" in err, "25%" in err) == ("", True, True)


def test_refusal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProblemError):
        _run(monkeypatch, ScriptDaemon(polls=1, error=ProblemError(400, {})), is_terminal=False)

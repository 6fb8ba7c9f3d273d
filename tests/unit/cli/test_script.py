"""A long script is sent whole, and how far it is is shown meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from broker.admin import client as module
from broker.admin.client import AdminClient, ProblemError
from broker.cli import sql as script
from broker.cli.sql import run_long_script
from broker.errors import DaemonUnreachableError

TEXT = "x" * 200
ANSWER = {"messages": ["done"]}


class Daemon:
    """Answers the script once its state was asked for `looks` times."""

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self.looks = looks
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
        self.looks -= 1
        if self.looks <= 0:
            self._enough.set()
        if self.looks == 1:
            raise DaemonUnreachableError("socket", "a hiccup")
        other = {"size": 7, "position": 1, "statements": 1, "stage": "waiting"}
        return {"running_scripts": [other, {"size": 200, "position": 50, "statements": 1234, "stage": "running"}]}


def _run(monkeypatch: pytest.MonkeyPatch, daemon: Daemon, *, is_terminal: bool) -> Any:
    monkeypatch.setattr(module.AdminClient, "sql", daemon.sql)
    monkeypatch.setattr(module.AdminClient, "get", daemon.get)
    monkeypatch.setattr(script, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(script, "LINE_SECONDS", 0.002)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    return run_long_script(AdminClient(Path("socket")), TEXT, "orders")


def test_without_a_terminal_lines_tell_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon(looks=6)

    assert _run(monkeypatch, daemon, is_terminal=False) == ANSWER

    out, err = capsys.readouterr()
    assert daemon.asked == [(TEXT, "orders")]
    assert (out, set(err.splitlines())) == ("", {"running, 1,234 statements, 25 %"})


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert _run(monkeypatch, Daemon(looks=6), is_terminal=True) == ANSWER

    out, err = capsys.readouterr()
    assert (out, "1,234 statements" in err, "25%" in err) == ("", True, True)


def test_refusal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProblemError):
        _run(monkeypatch, Daemon(looks=1, error=ProblemError(400, {})), is_terminal=False)

"""`broker reload`: what is asked, what is reported of the answer, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.command import run

ANSWER: dict[str, Any] = {
    "changed": True,
    "dry_run": False,
    "settings": [
        {"key": "endpoint.max_hops", "effect": "live", "before": "16", "after": "3", "place": "a.toml:2:3"},
        {"key": "instance.name", "effect": "restart", "before": '"a"', "after": '"b"', "place": ""},
    ],
    "databases": ["msdb"],
    "messages": ["route a created"],
    "connections": 2,
    "waiting": ["instance.name"],
}
NOTHING = ANSWER | {"changed": False, "settings": [], "databases": [], "messages": [], "connections": 0, "waiting": []}


def test_each_setting_has_a_line_that_says_what_became_of_it(fake_admin: Any) -> None:
    fake_admin.answers["/v1/reload"] = (200, ANSWER)

    result = run("reload", "--socket", fake_admin.path)

    assert [
        "1 setting changed, 1 waits for a restart, scripts of msdb executed",
        "  endpoint.max_hops: 16 -> 3, in force  (a.toml:2:3)",
        '  instance.name: "a" -> "b", waits for a restart',
        "  route a created",
        "2 connections go on with what they had; new ones have the new settings",
        "restart the instance for: instance.name",
    ] == result.stdout.splitlines()
    assert (0, [("POST", "/v1/reload", {"dry_run": False})]) == (result.exit_code, fake_admin.asked)


def test_a_database_that_comes_or_goes_has_no_second_value(fake_admin: Any) -> None:
    come = {"key": "databases.y", "effect": "restart", "before": "", "after": "a new database", "place": ""}
    gone = {"key": "databases.x", "effect": "restart", "before": "a database", "after": "", "place": ""}
    fake_admin.answers["/v1/reload"] = (200, NOTHING | {"changed": True, "settings": [come, gone]})

    lines = run("reload", "--socket", fake_admin.path).stdout.splitlines()

    assert [
        "  databases.y: a new database, waits for a restart",
        "  databases.x: a database, removed, waits for a restart",
    ] == lines[1:]


def test_what_is_unwise_about_the_new_settings_is_told(fake_admin: Any) -> None:
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"warnings": ["a.toml:3:1: endpoint.encryption: is unwise"]})

    lines = run("reload", "--socket", fake_admin.path).stdout.splitlines()

    assert "  warning: a.toml:3:1: endpoint.encryption: is unwise" == lines[3]


def test_a_dry_run_says_would(fake_admin: Any) -> None:
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"dry_run": True})

    result = run("reload", "--dry-run", "--socket", fake_admin.path)

    assert [
        "1 setting would be changed, 1 would wait for a restart, scripts of msdb would be executed",
        "  endpoint.max_hops: 16 -> 3, would be in force  (a.toml:2:3)",
        '  instance.name: "a" -> "b", would wait for a restart',
    ] == result.stdout.splitlines()[:3]
    assert [("POST", "/v1/reload", {"dry_run": True})] == fake_admin.asked


def test_a_wrong_configuration_is_told_whole_with_exit_code_2(fake_admin: Any) -> None:
    errors = [{"key": "a", "text": "a.toml:1:2: a: is wrong; do b"}, {"key": "c", "text": "a.toml:2:2: c: is wrong"}]
    problem = {"status": 422, "detail": "x", "errors": errors, "more_errors": 3}
    fake_admin.answers["/v1/reload"] = (422, problem)

    result = run("reload", "--socket", fake_admin.path)

    assert 2 == result.exit_code
    assert [*(one["text"] for one in errors), "and 3 more", "nothing has changed"] == result.stderr.splitlines()


def test_a_file_that_is_wrong_is_exit_code_2_and_asks_nobody(fake_admin: Any, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'[admin]\nsocket = "{fake_admin.path}"\n[endpoint]\nmax_hops = 0\n')

    result = run("reload", "-c", config)

    assert (2, []) == (result.exit_code, fake_admin.asked)
    assert "endpoint.max_hops: 0 is out of range; allowed is 1 to 255" in result.stderr
    assert "is not known, so the daemon was not asked; name its socket with --socket" in result.stderr

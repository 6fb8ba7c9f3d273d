"""`broker reload`: what is asked, what is reported of the answer, and how it ends."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run

UNCHANGED = "nothing has changed: the configuration before stays in force"
ANSWER: dict[str, Any] = {
    "changed": True,
    "dry_run": False,
    "settings": [
        {"key": "endpoint.max_hops", "effect": "live", "before": "16", "after": "3", "place": "a.toml:2:3"},
        {"key": "instance.name", "effect": "restart", "before": '"a"', "after": '"b"', "place": ""},
        {"key": "databases.y", "effect": "restart", "before": "", "after": "a new database", "place": ""},
        {"key": "databases.x", "effect": "restart", "before": "a database", "after": "", "place": ""},
    ],
    "warnings": ["a.toml:3:1: endpoint.encryption: is not safe"],
    "databases": ["msdb"],
    "messages": ["route a created"],
    "connections": 2,
    "waiting": ["instance.name", "databases.y", "databases.x"],
}


@pytest.mark.parametrize("dry_run", [False, True])
def test_each_setting_has_a_line_that_says_what_became_of_it(fake_admin: Any, *, dry_run: bool) -> None:
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"dry_run": dry_run})

    result = run("reload", *(["--dry-run"] if dry_run else []), "--socket", fake_admin.path)

    expected = [
        "1 setting changed, 3 wait for a restart, scripts of msdb executed",
        "  endpoint.max_hops: 16 -> 3, in force  (a.toml:2:3)",
        '  instance.name: "a" -> "b", waits for a restart',
        "  databases.y: a new database, waits for a restart",
        "  databases.x: a database, removed, waits for a restart",
        "  warning: a.toml:3:1: endpoint.encryption: is not safe",
        "  route a created",
        "2 connections as before; new ones have the new settings",
        "restart the instance for: instance.name, databases.y, databases.x",
    ]
    if dry_run:
        expected[0] = "1 setting would be changed, 3 would wait for a restart, scripts of msdb would be executed"
        expected[1:5] = [line.replace("in force", "would be in force") for line in expected[1:5]]
        expected[1:5] = [line.replace("waits", "would wait") for line in expected[1:5]]
    assert expected == result.stdout.splitlines()
    assert (0, [("POST", "/v1/reload", {"dry_run": dry_run})]) == (result.exit_code, fake_admin.asked)


def test_a_wrong_configuration_is_told_whole_with_exit_code_2(fake_admin: Any) -> None:
    errors = [{"key": "a", "text": "a.toml:1:2: a: is wrong; do b"}, {"key": "c", "text": "a.toml:2:2: c: is wrong"}]
    problem = {"status": 422, "detail": "x", "errors": errors, "more_errors": 3}
    fake_admin.answers["/v1/reload"] = (422, problem)

    result = run("reload", "--socket", fake_admin.path)

    assert 2 == result.exit_code
    assert [*(one["text"] for one in errors), "and 3 more", UNCHANGED] == result.stderr.splitlines()


def test_a_file_that_is_wrong_is_exit_code_2_and_asks_nobody(fake_admin: Any, tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f'[admin]\nsocket = "{fake_admin.path}"\n[endpoint]\nmax_hops = 0\n')

    result = run("reload", "-c", config)

    assert (2, []) == (result.exit_code, fake_admin.asked)
    assert "endpoint.max_hops: 0 is out of range; allowed is 1 to 255" in result.stderr
    assert "daemon: was not asked, as its socket is read from the configuration" in result.stderr
    assert result.stderr.endswith(f"scripts: were not checked; correct the settings first\n{UNCHANGED}\n")


def test_pruning_shows_first_what_it_drops(fake_admin: Any) -> None:
    drop, kept = "USE [msdb]; DROP ROUTE [a];", "USE [orders]; DROP QUEUE [a];"
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"unscripted": [drop], "unscripted_more": 2, "kept": [kept]})
    fates = {"keeps its target": 8, "loses its route": 2, "moves": 1}
    fake_admin.answers["/v1/plan"] = (200, {"fates": fates, "refused": ["CN=b could no longer connect: no GRANT"]})

    ways: tuple[list[str], ...] = (["--prune"], [], ["--prune", "--yes"])
    asked, plain, sure = (run("reload", *how, "--socket", fake_admin.path) for how in ways)

    assert (2, 0, 0) == (asked.exit_code, plain.exit_code, sure.exit_code)
    assert ["in no script:", f"  {drop}", "  and 2 more"] == asked.stderr.splitlines()[:3]
    assert asked.stderr.splitlines()[3].startswith("3 open dialogs use what is dropped; ")
    assert "CN=b could no longer connect: no GRANT" == asked.stderr.splitlines()[4]
    assert asked.stderr.splitlines()[3:5] == sure.stderr.splitlines()
    assert f"broker reload --socket {fake_admin.path} --prune drops it" in plain.stdout
    assert all(f"  {kept}" in one.stdout.splitlines() for one in (plain, sure))
    assert drop not in sure.stdout
    planned, script = ("POST", "/v1/reload", {"dry_run": True, "prune": True}), ("POST", "/v1/plan", {"script": drop})
    real = ("POST", "/v1/reload", {"dry_run": False, "prune": True})
    assert [planned, script, ("POST", "/v1/reload", {"dry_run": False}), planned, script, real] == fake_admin.asked


@pytest.mark.parametrize(
    ("fates", "passing", "told"),
    [
        ({}, 0, "no open dialog is known"),
        ({"moves": 1}, 0, "1 open dialog uses"),
        ({"loses its route": 1}, 1, "about 1 open dialog uses what is dropped (of those in transit, those that go the"),
    ],
)
def test_a_gateway_says_since_when_it_knows_what_passes(
    fake_admin: Any, fates: dict[str, int], passing: int, told: str
) -> None:
    """After a restart it knows nothing of dialogs that are silent."""
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"unscripted": ["USE [msdb]; DROP ROUTE [a];"]})
    dropped = {"database": "msdb", "name": "a", "before": {"address": "tcp://far:4022"}, "after": None}
    fake_admin.answers["/v1/plan"] = (200, {"fates": fates, "passing": passing, "edits": [dropped]})
    fake_admin.answers["/v1/status"] = (200, {"uptime_s": 25.3})

    text = run("reload", "--prune", "--dry-run", "--socket", fake_admin.path).stderr

    assert text.startswith(told)
    assert text.endswith("of those in transit, at most what passed since the start 25.3 s ago is known\n")


def test_pruning_goes_on_where_its_effect_on_dialogs_is_not_known(fake_admin: Any) -> None:
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"unscripted": ["USE [msdb]; DROP ROUTE [a];"]})
    fake_admin.answers["/v1/plan"] = (503, {"status": 503, "title": "Service Unavailable", "detail": "no time"})

    result = run("reload", "--prune", "--yes", "--socket", fake_admin.path)

    assert (0, ("POST", "/v1/reload", {"dry_run": False, "prune": True})) == (result.exit_code, fake_admin.asked[-1])
    assert "how many open dialogs use what is dropped is not known: no time" in result.stderr


def test_what_is_in_no_script_is_dropped_with_the_configuration_that_was_named(fake_admin: Any, tmp_path: Path) -> None:
    fake_admin.answers["/v1/reload"] = (200, ANSWER | {"unscripted": ["USE [msdb]; DROP ROUTE [a];"]})
    config = tmp_path / "broker.toml"
    config.write_text(f'[admin]\nsocket = "{fake_admin.path}"\n')

    assert f"broker reload -c {config} --prune drops it" in run("reload", "-c", config).stdout

"""`broker config`: what is written, what runs, what differs, and the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.config.settings import render_schema
from tests.support.command import run


def running(**values: Any) -> tuple[int, Any]:
    """What an instance answers that has these settings only."""
    return 200, {
        "settings": [
            {"key": key.replace("__", "."), "value": value, "origin": "default", "reload": "live"}
            for key, value in values.items()
        ]
    }


def test_written_settings_are_shown_with_their_origin(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ENDPOINT__HEARTBEAT", "90s")

    result = run("config", "show", "-c", configuration, "--set", "endpoint.max_hops=4", "-o", "json")

    rows = {row["key"]: row for row in json.loads(result.stdout)}
    assert 0 == result.exit_code
    assert [(4, "flag"), ("90s", "BROKER_ENDPOINT__HEARTBEAT"), ("64MiB", "default")] == [
        (rows[f"endpoint.{key}"]["value"], rows[f"endpoint.{key}"]["origin"])
        for key in ("max_hops", "heartbeat", "message_forward_size")
    ]
    assert rows["endpoint.listen"]["origin"].startswith(f"{configuration}:")


@pytest.mark.parametrize("origin", [True, False])
def test_table_has_the_origin_when_asked_for(configuration: Path, *, origin: bool) -> None:
    result = run("config", "show", "-c", configuration, *(["--origin"] if origin else []))

    assert 0 == result.exit_code
    assert ("default" in result.stdout, "endpoint.max_hops" in result.stdout) == (origin, True)


def test_running_settings_are_asked_for(configuration: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/config"] = running(endpoint__max_hops=7)

    result = run("config", "show", "-c", configuration, "--running", "-o", "json")

    assert [("endpoint.max_hops", 7)] == [(row["key"], row["value"]) for row in json.loads(result.stdout)]


def test_running_settings_have_no_flags(configuration: Path) -> None:
    result = run("config", "show", "-c", configuration, "--running", "--set", "endpoint.max_hops=4")

    assert 2 == result.exit_code
    assert "give one of them" in result.stderr


def test_what_differs_is_told_with_both_values(configuration: Path, fake_admin: Any) -> None:
    written = json.loads(run("config", "show", "-c", configuration, "-o", "json").stdout)
    fake_admin.answers["/v1/config"] = (200, {"settings": written})

    same = run("config", "diff", "-c", configuration)
    differing = run("config", "diff", "-c", configuration, "--set", "endpoint.max_hops=4", "-o", "json")

    assert (0, "the running instance has what the configuration says\n") == (same.exit_code, same.stdout)
    expected = {"key": "endpoint.max_hops", "running": "16", "written": "4", "origin": "flag", "reload": "live"}
    assert (0, [expected]) == (differing.exit_code, json.loads(differing.stdout))


def test_database_of_one_side_only_has_no_value_on_the_other(configuration: Path, fake_admin: Any) -> None:
    written = json.loads(run("config", "show", "-c", configuration, "-o", "json").stdout)
    fake_admin.answers["/v1/config"] = running(databases__old__path="/var/old.db")
    fake_admin.answers["/v1/config"][1]["settings"] += [
        row for row in written if not row["key"].startswith("databases.")
    ]

    rows = json.loads(run("config", "diff", "-c", configuration, "-o", "json").stdout)

    sides = {row["key"]: (row["running"], row["written"]) for row in rows}
    assert ('"/var/old.db"', "") == sides["databases.old.path"]
    assert "" == sides["databases.orders.path"][0]


def test_schema_is_printed() -> None:
    result = run("config", "schema")

    assert (0, render_schema()) == (result.exit_code, result.stdout)


@pytest.mark.parametrize("text", ["endpoint.max_hops", "=4", ""])
def test_flag_without_key_and_value_is_2(configuration: Path, text: str) -> None:
    result = run("config", "show", "-c", configuration, "--set", text)

    assert 2 == result.exit_code
    assert "write KEY=VALUE, like endpoint.max_hops=4" in result.stderr

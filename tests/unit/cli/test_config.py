"""`broker config`: what is written, what runs, what differs, and the schema."""

import json
from pathlib import Path
from typing import Any

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


def test_table_has_the_origin_when_asked_for(configuration: Path) -> None:
    tables = [run("config", "show", "-c", configuration, *more).stdout for more in ([], ["--origin"])]

    assert [(True, False), (True, True)] == [("endpoint.max_hops" in text, "default" in text) for text in tables]


def test_running_settings_are_asked_for_and_have_no_flags(configuration: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/config"] = running(endpoint__max_hops=7)

    result = run("config", "show", "-c", configuration, "--running", "-o", "json")
    flagged = run("config", "show", "-c", configuration, "--running", "--set", "endpoint.max_hops=4")

    assert [("endpoint.max_hops", 7)] == [(row["key"], row["value"]) for row in json.loads(result.stdout)]
    assert (2, True) == (flagged.exit_code, "give one of them" in " ".join(flagged.stderr.split()))


def test_what_differs_is_told_with_both_values(configuration: Path, fake_admin: Any) -> None:
    written = json.loads(run("config", "show", "-c", configuration, "-o", "json").stdout)
    fake_admin.answers["/v1/config"] = (200, {"settings": written})
    same = run("config", "diff", "-c", configuration)
    changed = json.loads(
        run("config", "diff", "-c", configuration, "--set", "endpoint.max_hops=4", "-o", "json").stdout
    )
    old = {"key": "databases.old.path", "value": "/var/old.db", "origin": "default", "reload": "live"}
    others = [row for row in written if not row["key"].startswith("databases.")]
    fake_admin.answers["/v1/config"] = (200, {"settings": [old, *others]})
    databases = json.loads(run("config", "diff", "-c", configuration, "-o", "json").stdout)
    mistaken = run("config", "diff", "-c", configuration, "--set", "endpoint.max_hops")

    assert (0, "the running instance has what the configuration says\n") == (same.exit_code, same.stdout)
    expected = {"key": "endpoint.max_hops", "running": "16", "written": "4", "origin": "flag", "reload": "live"}
    assert [expected] == changed
    sides = {row["key"]: (row["running"], row["written"]) for row in databases}
    assert ('"/var/old.db"', "") == sides["databases.old.path"]
    assert "" == sides["databases.orders.path"][0]
    assert (2, True) == (mistaken.exit_code, "write KEY=VALUE, like endpoint.max_hops=4" in mistaken.stderr)


def test_schema_is_printed() -> None:
    result = run("config", "schema")

    assert (0, render_schema()) == (result.exit_code, result.stdout)

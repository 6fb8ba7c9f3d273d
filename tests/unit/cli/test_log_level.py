"""`broker log-level` asks a running instance, and shows what holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from broker.cli.group import main

UNTIL = "2026-11-22T12:00:00+00:00"
STATE = {"configured": "info", "special": [{"component": "net", "level": "debug", "until": UNTIL}]}


def test_levels_are_shown(fake_admin: Any) -> None:
    fake_admin.answers["/v1/log-level"] = 200, STATE

    result = CliRunner().invoke(main, ["log-level", "--socket", str(fake_admin.path)])

    assert result.exit_code == 0, result.output
    assert result.stdout == f"configured: info\nnet: debug until {UNTIL}\n"


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["debug", "--component", "net", "--for", "10m"], {"component": "net", "level": "debug", "seconds": 600.0}),
        (["warning"], {"component": "", "level": "warning", "seconds": 900.0}),
        (["reset", "--component", "net"], {"component": "net", "level": None, "seconds": 900.0}),
    ],
)
def test_level_is_asked_for(fake_admin: Any, arguments: list[str], asked: dict[str, Any]) -> None:
    fake_admin.answers["/v1/log-level"] = 200, STATE

    result = CliRunner().invoke(main, ["log-level", *arguments, "--socket", str(fake_admin.path), "-o", "json"])

    assert (result.exit_code, json.loads(result.stdout)) == (0, STATE)
    assert fake_admin.asked == [("POST", "/v1/log-level", asked)]


@pytest.mark.parametrize("time", ["9d", "86401s", "0s"])
def test_a_time_that_no_instance_takes_is_told_with_the_bounds(time: str) -> None:
    result = CliRunner().invoke(main, ["log-level", "debug", "--for", time])

    assert result.exit_code == 2
    assert f"'{time}' is not between 0s and 1d; for good, set observe.log_level" in result.stderr


@pytest.mark.parametrize("arguments", [["loud"], ["debug", "--for", "soon"]])
def test_what_makes_no_sense_is_a_mistake_of_the_command(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, ["log-level", *arguments]).exit_code == 2


def test_the_longest_time_is_that_of_the_instance() -> None:
    from broker.cli import log_level
    from broker.observe import log_level as instance

    assert instance.SECONDS_MAX == log_level.SECONDS_MAX

"""The command top where there is no terminal, and what its keys mean. The screen itself is in tests/loopback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.admin.event_stream import PULSES
from broker.cli.top import after_key
from broker.cli.top_keys import END
from broker.cli.top_screen import Look
from tests.support.command import run
from tests.unit.cli.test_top_screen import FULL


def stream(*pulses: dict[str, Any]) -> bytes:
    return b"".join(b"event: pulse\ndata: " + json.dumps(pulse).encode() + b"\n\n" for pulse in pulses)


def test_once_as_json_is_one_line_with_rates(fake_admin: Any) -> None:
    """The first snapshot has none."""
    fake_admin.answers[PULSES] = (200, stream({"n": 1}, {"n": 2}))

    result = run("top", "--socket", fake_admin.path, "--once", "-o", "json")

    assert (0, [{"n": 2}]) == (result.exit_code, [json.loads(line) for line in result.stdout.splitlines()])


def test_once_without_a_terminal_is_text_of_every_panel(fake_admin: Any) -> None:
    fake_admin.answers[PULSES] = (200, stream(FULL, FULL))

    result = run("top", "--socket", fake_admin.path, "--once")

    assert 0 == result.exit_code
    assert "gateway-a  READY" == result.stdout.splitlines()[0][:16]
    assert "\x1b" not in result.stdout
    assert [] == [word for word in ("Links: 7", "Databases: 1", "Mirrored routes: 1") if word not in result.stdout]


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_daemon_that_is_not_there_is_told_at_once(tmp_path: Any, output: str) -> None:
    result = run("top", "--socket", tmp_path / "none.sock", "-o", output)

    assert (4, "") == (result.exit_code, result.stdout)
    assert "no daemon answers on" in result.stderr


def test_a_daemon_that_refuses_is_told(fake_admin: Any) -> None:
    fake_admin.answers[PULSES] = (403, {"detail": "this needs the role viewer"})

    result = run("top", "--socket", fake_admin.path, "--once")

    assert (5, "this needs the role viewer\n") == (result.exit_code, result.stderr)


@pytest.mark.parametrize(
    ("look", "key", "expected"),
    [
        (Look(), "q", None),
        (Look(), END, None),
        (Look(), "p", Look(is_paused=True)),
        (Look(is_paused=True), " ", Look()),
        (Look(offset=3), "right", Look(panel="links")),
        (Look(), "left", Look(panel="mirrors")),
        (Look(offset=3), "4", Look(panel="waiting")),
        (Look(), "8", Look()),
        (Look(), "down", Look(offset=1)),
        (Look(), "up", Look()),
        (Look(offset=7), "page up", Look()),
        (Look(offset=7), "home", Look()),
        (Look(), "x", Look()),
    ],
    ids=str,
)
def test_a_key_changes_what_is_shown(look: Look, key: str, expected: Look | None) -> None:
    assert expected == after_key(look, key)

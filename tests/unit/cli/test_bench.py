"""The command bench: what it asks for, shows and keeps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.bench import suite
from broker.bench.figures import FigureChange, Result, Row, load
from broker.cli.bench import readable, show, show_changes
from tests.support.command import run

# --- tables ---


RELAY = Row("forwarding", "256 B", "flood", "relay", "cpu_us", {"cpu_us": 0.5, "messages_s": 2_000_000.0}, 0.1, True)
GATEWAY = Row("forwarding", "256 B", "flood", "gateway", "cpu_us", {"cpu_us": 1.5, "messages_s": 666_666.6})
PING = Row("forwarding", "256 B", "ping", "gateway", "p50_us", {"p50_us": 31.25})
OWN = Row("memory", "", "MiB", "held", "value", {"value": 64.0})
RESULT = Result(
    {"cpu": "abacus"}, "2026-01-01T00:00:00+00:00", {"before": "0.1 0.2 0.3"}, (RELAY, GATEWAY, PING, OWN), ("beware",)
)


@pytest.mark.parametrize(
    ("value", "text"), [(0.01234, "0.0123"), (1.5, "1.5"), (31.26, "31.3"), (100.4, "100"), (2e6, "2,000,000")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert text == readable(value)


def test_machine_load_and_notes_stand_above_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT)

    lines = capsys.readouterr().out.splitlines()
    assert ["cpu abacus", "load averages before 0.1 0.2 0.3", "note: beware"] == lines[:3]


def test_each_benchmark_and_mode_has_a_table_with_ratios_to_the_yardstick(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT)

    text = capsys.readouterr().out
    titles = [line.strip() for line in text.splitlines() if line.strip().startswith(("forwarding,", "memory,"))]
    (gateway, *_) = [line for line in text.splitlines() if "gateway" in line]
    assert ["forwarding, flood", "forwarding, ping", "memory, MiB"] == titles
    assert ["256 B", "gateway", "1.5", "3.00", "666,667", "0%"] == [cell.strip() for cell in gateway.split("│")[1:-1]]


def test_changes_say_then_and_now_and_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    show_changes([FigureChange(GATEWAY, 3.0, 1.5, 0.2), FigureChange(OWN, 1.0)], RESULT)

    text = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert "against that of 2026-01-01" in text
    assert ["forwarding, 256 B, flood, gateway", "1.50", "3.00", "20%", "WORSE, 2.00 times"] in rows
    assert ["memory, MiB, held", "", "1.00", "5%", "new"] in rows


ROWS = (
    Row("codec", "64 B", "encode", "struct.pack", "cpu_us", {"cpu_us": 0.1}, is_yardstick=True),
    Row("codec", "64 B", "encode", "header and body", "cpu_us", {"cpu_us": 0.4}),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was asked for; nothing is measured."""
    seen: list[tuple[Any, ...]] = []

    def fake(benches: Mapping[str, suite.Bench], *, is_full: bool, tell: suite.Tell) -> Result:
        seen.append((*benches, is_full))
        tell("forwarding: measuring")
        return Result({"cpu": "abacus"}, "2026-01-01T00:00:00+00:00", {"before": "0"}, ROWS)

    monkeypatch.setattr(suite, "run", fake)
    return seen


def test_without_a_name_everything_is_measured(asked: list[tuple[Any, ...]]) -> None:
    result = run("bench")

    assert (0, [("forwarding", "dialogs", False)]) == (result.exit_code, asked)
    assert "forwarding: measuring\n" == result.stderr
    assert "cpu abacus" == result.stdout.splitlines()[0]
    assert "4.00" in result.stdout


def test_figures_are_kept_and_compared_with(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    run("bench", "--save", tmp_path / "first.json")

    result = run("bench", "--compare", tmp_path / "first.json")

    assert ROWS == load(tmp_path / "first.json").rows
    assert "│ same" in result.stdout


def test_json_has_rows_and_verdicts(asked: list[tuple[Any, ...]], tmp_path: Path) -> None:
    run("bench", "--save", tmp_path / "first.json")

    told = json.loads(run("bench", "-o", "json", "--compare", tmp_path / "first.json").stdout)

    assert ["struct.pack", "header and body"] == [row["subject"] for row in told["rows"]]
    assert [{"row": ["codec", "64 B", "encode", "header and body"], "verdict": "same"}] == told["changes"]


def test_a_file_that_holds_no_figures_is_refused_before_anything_is_measured(
    asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    (tmp_path / "none.json").write_text("{}")

    result = run("bench", "--compare", tmp_path / "none.json")

    assert (1, []) == (result.exit_code, asked)
    assert "holds no results of broker bench" in result.stderr

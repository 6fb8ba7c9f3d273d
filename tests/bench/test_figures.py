"""Rows from samples, stored results, and what has changed between two of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.figures import FigureChange, Result, ResultError, Row, compare, load, row_of, save
from bench.report import show, show_changes

KEY = ("forwarding", "256 B", "flood", "gateway")


def row(subject: str, value: float, *, spread: float = 0.0, headline: str = "cpu_us") -> Row:
    return Row("forwarding", "256 B", "flood", subject, headline, {headline: value}, spread, subject == "relay")


def test_a_row_has_the_medians_of_its_samples_and_the_spread_of_its_headline() -> None:
    samples = [{"cpu_us": cpu, "p99_us": p99} for cpu, p99 in zip((8.0, 9.0, 10.0, 11.0, 100.0), range(5), strict=True)]

    made = row_of(KEY, "cpu_us", samples, yardstick="relay")

    assert {"cpu_us": 10.0, "p99_us": 2} == made.values
    assert (KEY, 10.0, 0.1, False) == (made.key, made.figure, made.spread, made.is_yardstick)
    assert row_of((*KEY[:3], "relay"), "cpu_us", samples[:1], yardstick="relay").is_yardstick


@pytest.mark.parametrize(
    ("then", "now", "verdict"),
    [
        ([row("relay", 1.0), row("gateway", 10.0)], 10.4, "same"),
        ([row("relay", 1.0), row("gateway", 10.0)], 20.0, "WORSE, 2.00 times"),
        ([row("relay", 1.0), row("gateway", 10.0)], 5.0, "better, 2.00 times"),
        ([row("relay", 1.0, spread=0.2), row("gateway", 10.0)], 13.0, "same"),
        ([row("relay", 1.0, spread=0.2), row("gateway", 10.0)], 15.0, "WORSE, 1.50 times"),
        ([row("relay", 1.0, spread=0.3), row("gateway", 10.0)], 13.0, "too noisy"),
        ([row("relay", 1.0)], 10.0, "new"),
        ([row("gateway", 1.0)], 10.0, "new"),
    ],
)
def test_a_row_is_compared_by_its_ratio_to_the_yardstick_of_its_run(then: list[Row], now: float, verdict: str) -> None:
    """This run is on a machine three times as slow."""
    (change,) = compare([row("relay", 3.0), row("gateway", 3 * now)], then)

    assert verdict == change.verdict
    assert now == pytest.approx(change.now)


def test_of_a_rate_more_is_better_and_without_a_yardstick_nothing_is_compared() -> None:
    then = [row("relay", 100.0, headline="messages_s"), row("gateway", 10.0, headline="messages_s")]
    now = [row("relay", 100.0, headline="messages_s"), row("gateway", 20.0, headline="messages_s")]

    (change,) = compare(now, then)

    assert "better, 2.00 times" == change.verdict
    assert [] == compare(now[1:], then[1:])


def test_a_stored_result_is_read_again_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = (row("relay", 0.5), row("gateway", 1.5))
    result = Result({"cpu": "abacus"}, "2026-01-01T00:00:00+00:00", {"before": "0.1"}, rows, ("a note",))

    save(result, tmp_path / "new" / "result.json")
    show(load(tmp_path / "new" / "result.json"))
    show_changes([FigureChange(rows[1], 3.0, 1.5, 0.2)], result)

    lines = capsys.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "gateway" in line]
    assert ["cpu abacus", "load averages before 0.1", "note: a note"] == lines[:3]
    assert ["256 B", "gateway", "1.5", "3.00", "0%"] == cells[0]
    assert ["forwarding, 256 B, flood, gateway", "1.50", "3.00", "20%", "WORSE, 2.00 times"] == cells[1]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no JSON", "holds no results"),
        ("{}", "holds no results"),
        (json.dumps({"format": 1, "rows": [{"bench": "codec"}]}), "holds no results"),
        (json.dumps({"format": 0}), "stored by another version"),
        (None, "No such file"),
    ],
)
def test_another_file_is_refused_by_name(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "result.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ResultError, match=rf"result\.json: {problem}"):
        load(path)

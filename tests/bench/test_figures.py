"""Rows from samples, stored results, and what has changed between two of them."""

from pathlib import Path

import pytest

from bench.figures import FigureChange, Result, Row, compare, load, save
from bench.report import show, show_changes

KEY = ("forwarding", "256 B", "flood", "gateway")


def row(subject: str, value: float, *, spread: float = 0.0, headline: str = "cpu_us") -> Row:
    return Row("forwarding", "256 B", "flood", subject, headline, {headline: value}, spread, subject == "relay")


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

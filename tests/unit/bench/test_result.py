"""Rows from samples, files of results, and what has changed between two of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.bench.figures import Result, ResultError, Row, compare, load, row_of, save

KEY = ("forwarding", "256 B", "flood", "gateway")


def row(subject: str, cpu_us: float, *, spread: float = 0.0, headline: str = "cpu_us") -> Row:
    return Row("forwarding", "256 B", "flood", subject, headline, {headline: cpu_us}, spread, subject == "relay")


def test_a_row_holds_the_median_of_every_value() -> None:
    samples = [{"cpu_us": cpu, "p99_us": p99} for cpu, p99 in ((3.0, 10.0), (1.0, 30.0), (2.0, 20.0))]

    made = row_of(KEY, "cpu_us", samples, yardstick="relay")

    assert {"cpu_us": 2.0, "p99_us": 20.0} == made.values
    assert (KEY, 2.0, False) == (made.key, made.figure, made.is_yardstick)


def test_the_spread_is_half_of_what_the_middle_half_of_the_samples_differ_by() -> None:
    samples = [{"cpu_us": value} for value in (8.0, 9.0, 10.0, 11.0, 100.0)]

    assert 0.1 == row_of(KEY, "cpu_us", samples, yardstick="relay").spread
    assert 0.0 == row_of(KEY, "cpu_us", samples[:1], yardstick="relay").spread


def test_the_row_of_the_yardstick_is_marked() -> None:
    assert row_of((*KEY[:3], "relay"), "cpu_us", [{"cpu_us": 1.0}], yardstick="relay").is_yardstick


@pytest.mark.parametrize(
    ("now", "verdict"),
    [(10.0, "same"), (10.4, "same"), (20.0, "WORSE, 2.00 times"), (5.0, "better, 2.00 times")],
)
def test_a_row_is_judged_by_its_ratio_to_the_yardstick_of_its_own_run(now: float, verdict: str) -> None:
    earlier = [row("relay", 1.0), row("gateway", 10.0)]
    machine_three_times_slower = [row("relay", 3.0), row("gateway", 3 * now)]

    (change,) = compare(machine_three_times_slower, earlier)

    assert verdict == change.verdict


def test_of_a_rate_more_is_better() -> None:
    earlier = [row("relay", 100.0, headline="messages_s"), row("gateway", 10.0, headline="messages_s")]
    now = [row("relay", 100.0, headline="messages_s"), row("gateway", 20.0, headline="messages_s")]

    (change,) = compare(now, earlier)

    assert "better, 2.00 times" == change.verdict


@pytest.mark.parametrize(
    ("spread", "now", "verdict"),
    [(0.2, 13.0, "same"), (0.2, 15.0, "WORSE, 1.50 times"), (0.3, 13.0, "too noisy to tell")],
)
def test_a_change_is_held_against_the_noise_of_both_runs(spread: float, now: float, verdict: str) -> None:
    earlier = [row("relay", 1.0, spread=spread), row("gateway", 10.0)]

    (change,) = compare([row("relay", 1.0), row("gateway", now)], earlier)

    assert (verdict, 2 * spread) == (change.verdict, change.tolerance)


@pytest.mark.parametrize("earlier", [[], [row("relay", 1.0)], [row("gateway", 1.0)]], ids=["none", "relay", "gateway"])
def test_a_row_that_the_earlier_run_cannot_judge_is_new(earlier: list[Row]) -> None:
    (change,) = compare([row("relay", 2.0), row("gateway", 6.0)], earlier)

    assert ("new", 3.0) == (change.verdict, change.now)


def test_rows_without_a_yardstick_are_not_compared() -> None:
    assert [] == compare([row("gateway", 1.0)], [row("gateway", 1.0)])


def test_what_was_saved_is_loaded_again(tmp_path: Path) -> None:
    result = Result({"cpu": "one"}, "2026-01-01T00:00:00+00:00", {"before": "0.1"}, (row("relay", 1.0),), ("a note",))

    save(result, tmp_path / "new" / "result.json")

    assert result == load(tmp_path / "new" / "result.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no JSON", "holds no results of broker bench"),
        ("[]", "holds no results of broker bench"),
        ("{}", "holds no results of broker bench"),
        (json.dumps({"format": 1, "rows": [{"bench": "codec"}]}), "holds no results of broker bench"),
        (json.dumps({"format": 0}), "stored by another version of broker bench"),
    ],
)
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)

    with pytest.raises(ResultError) as caught:
        load(path)

    assert str(caught.value).startswith(f"{path}: {says}")


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none\.json: No such file"):
        load(tmp_path / "none.json")

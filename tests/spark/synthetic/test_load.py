"""The truth of instances: counts by route and window, peaks; against what DuckDB makes of the files."""

from pathlib import Path

import pytest

from tests.support import duck
from tests.support.synthetic import history

PASSED = """
SELECT instance, route_table, route, to_service, outcome, reason, count(*) AS frames, sum(bytes)::BIGINT AS bytes,
    make_timestamptz((epoch_us(left_at) // 300000000) * 300000000) AS window_start
FROM visits GROUP BY ALL
"""


def test_an_independent_engine_counts_the_same_frames(tmp_path: Path) -> None:
    """By instance, service, route, window, outcome and reason."""
    made = history(tmp_path / "h")
    key = ("instance", "to_service", "route", "window_start", "outcome", "reason")

    found = duck.rows(duck.ask(PASSED, made.files), *key)

    assert duck.rows(made.truth("routes"), *key) == found


@pytest.mark.parametrize("apart", [0.0, 100.0])
def test_an_independent_engine_finds_the_same_peaks(tmp_path: Path, apart: float) -> None:
    """In every window in which something entered or left."""
    made = history(tmp_path / "h", clocks_apart=apart)
    truth = duck.rows(made.truth("capacity"), "instance", "window_start")

    found = duck.rows(duck.capacity(made.files), "instance", "window_start")

    assert truth == [{name: row[name] for name in truth[0]} for row in found]
    assert max(row["peak_frames"] for row in truth) > 2

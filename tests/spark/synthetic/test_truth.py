"""The truth of transmissions, against what DuckDB makes of the files."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import duck
from tests.support.synthetic import history

UNSEEN = ["fate", "last_left_at"]
SCENARIOS: list[dict[str, Any]] = [
    {},
    {"clocks_apart": 100.0},
    {"sample": 0.3},
    {"hot_share": 0.5, "seed": 3},
    {"has_bad_files": True, "late_share": 0.3, "doubled": 0.5},
]


@pytest.mark.parametrize("asked", SCENARIOS, ids=str)
def test_an_independent_engine_finds_the_same_paths(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Every column of every transmission."""
    made = history(tmp_path / "h", **asked)

    found = duck.rows(duck.paths(made.files), "message_id")

    assert duck.rows(made.truth("transmissions").drop_columns(UNSEEN), "message_id") == found


def test_there_is_something_of_everything(tmp_path: Path) -> None:
    """Every end but that of a target without a journal; loops; what nobody can see."""
    rows = history(tmp_path / "h", messages=3_000).truth("transmissions").to_pylist()

    assert {"delivered", "duplicate", "dropped", "lost", "under way"} <= {row["end"] for row in rows}
    assert {"ended", "lost"} <= {row["fate"] for row in rows}
    assert {row["kind"] for row in rows} == {"message", "ack", "fault"}
    assert {row["has_loop"] for row in rows} == {True, False}
    assert {"hops exhausted", "pool limit exceeded", "no route"} <= {row["reason"] for row in rows}
    assert set(range(2, 6)) <= {len(row["path"]) for row in rows}


def test_clocks_that_differ_hide_times_on_links(tmp_path: Path) -> None:
    """Between instances where a frame seems to arrive before it left, in both directions, and only there."""
    rows = history(tmp_path / "h", clocks_apart=100.0).truth("transmissions").to_pylist()

    assert any(row["unknown_links"] for row in rows)
    assert all(row["link_us"].count(None) == row["unknown_links"] for row in rows)
    links = [one for row in rows for one in zip(row["path"][:-1], row["path"][1:], row["link_us"], strict=True)]
    hidden = {frozenset((one, other)) for one, other, took in links if took is None}
    assert all(took is None for one, other, took in links if frozenset((one, other)) in hidden)


def test_of_what_is_not_sampled_only_drops_are_known(tmp_path: Path) -> None:
    """With the hops that nobody tells of."""
    rows = history(tmp_path / "h", sample=0.0).truth("transmissions").to_pylist()

    assert rows
    assert {"dropped"} == {row["end"] for row in rows}
    assert all(len(row["path"]) == 1 and row["is_resend"] is None and row["missing_hops"] > 0 for row in rows)

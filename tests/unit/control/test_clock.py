"""A clock that is behind is told by what was written before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.catalog.database_files import SLACK_SECONDS, clock_problem
from broker.store.sqlite.file_identity import RECORD

USED_AT = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    (tmp_path / RECORD).touch()
    os.utime(tmp_path / RECORD, (USED_AT, USED_AT))
    return tmp_path


def test_clock_before_the_last_use_is_told(state_dir: Path) -> None:
    assert (
        "the clock says 2026-09-20 14:13 UTC, and this instance was last started or stopped at 2026-09-21 14:13 UTC,"
        " which is later"
    ) == clock_problem(state_dir, now=USED_AT - 86_400)


@pytest.mark.parametrize("now", [USED_AT - SLACK_SECONDS, USED_AT, USED_AT + 1e9])
def test_clock_that_can_be_right_is_not_told(state_dir: Path, now: float) -> None:
    assert clock_problem(state_dir, now=now) is None


def test_first_start_has_nothing_to_compare_with(tmp_path: Path) -> None:
    assert clock_problem(tmp_path, now=0.0) is None

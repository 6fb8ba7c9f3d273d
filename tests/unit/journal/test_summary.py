"""What a journal holds is counted from what can be read to its end, and everything else is named."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from broker.journal import reading
from broker.journal.summary import Summary, Written, summarize
from broker.journal.survey import FileState, Fitness
from tests.support.journalled import START, visit, write

BEGIN = int(START.timestamp()) * 1_000_000


def test_rows_are_counted_by_instance_outcome_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_ROWS", 3)
    lost = visit(5, outcome="dropped", reason="no route", code=9798)
    late = visit(9, outcome="dropped", reason="expired here", code=11290, took=60)
    one = write(tmp_path / "a.parquet", *[visit(n) for n in range(4)], lost, shed=2, group_rows=2)
    two = write(tmp_path / "b.parquet", lost, late, shed=3, sample=0.5)
    three = write(tmp_path / "c.parquet", visit(-7, outcome="sent"), instance="shop")
    seen: list[FileState] = []

    summary = summarize(tmp_path, seen.append)

    sizes = [path.stat().st_size for path in (one, two, three)]
    expected = Written(2, 7, sizes[0] + sizes[1], 5, {1.0, 0.5}, (BEGIN, BEGIN + 69_000_000))
    assert expected == summary.instances["gateway"]
    assert Written(1, 1, sizes[2], 0, {1.0}, (BEGIN - 7_000_000, BEGIN - 6_999_000)) == summary.instances["shop"]
    assert {("forwarded", None): 4, ("dropped", "no route"): 2, ("dropped", "expired here"): 1, ("sent", None): 1} == (
        summary.outcomes
    )
    assert (Counter({Fitness.GOOD: 3}), Counter({1: 3}), [], 0) == (
        summary.files,
        summary.versions,
        summary.troubled,
        summary.untimed,
    )
    assert Written(3, 8, sum(sizes), 5, {1.0, 0.5}, (BEGIN - 7_000_000, BEGIN + 69_000_000)) == summary.total
    assert [one, two, three] == [state.path for state in seen]


def test_file_that_cannot_be_read_to_its_end_counts_nowhere(tmp_path: Path) -> None:
    good = write(tmp_path / "a.parquet", visit(0))
    shutil.copy(good, tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    outcomes = ["sent", "forwarded", "delivered", "dropped"]
    spoilt = write(
        tmp_path / "d.parquet",
        *[visit(n, outcome=outcomes[n * n % 4], message_id=n.to_bytes(16)) for n in range(3000)],
        instance="spoilt",
    )
    data = bytearray(spoilt.read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    spoilt.write_bytes(data)

    summary = summarize(tmp_path)

    assert {Fitness.GOOD: 1, Fitness.COPY: 1, Fitness.DAMAGED: 2} == summary.files
    assert ["b.parquet", "c.parquet", "d.parquet"] == [state.path.name for state in summary.troubled]
    assert ({"gateway"}, {("forwarded", None): 1}) == (set(summary.instances), summary.outcomes)


def test_file_that_does_not_tell_its_times_is_counted_as_such(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", visit(0, took=None))

    summary = summarize(tmp_path)

    assert (1, None, 1) == (summary.untimed, summary.times, summary.total.rows)


def test_empty_directory_holds_nothing(tmp_path: Path) -> None:
    assert Summary() == summarize(tmp_path)
    assert Written() == Summary().total
    with pytest.raises(FileNotFoundError):
        summarize(tmp_path / "gone")

"""Every number of a journal's status is a metric, and all are 0 where none is kept."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from broker.observe.metrics import JOURNAL_METRICS, journal_readers

STATUS = {
    "records": 1, "pending": 2, "shed": 3, "files": 4, "bytes": 5, "errors": 6, "removed_files": 7,
    "spans": 8, "spans_pending": 9, "spans_dropped": 10, "directory": "/flows", "sample": 1.0, "problem": "",
}  # fmt: skip


def told(journal: Any) -> list[float]:
    instance: Any = SimpleNamespace(journal=journal)
    readers = journal_readers()
    return [value for metric in JOURNAL_METRICS for _, value in readers[metric.name](instance)]


def test_metrics_are_what_the_status_says() -> None:
    assert list(range(1, 11)) == told(SimpleNamespace(status=lambda: STATUS))


def test_without_a_journal_they_are_all_nothing() -> None:
    assert [0.0] * 10 == told(None)

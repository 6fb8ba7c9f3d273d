"""What was read, as the report tells it, and the axis of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from broker.pipeline.report.digest import InputFacts, Series, Timeline


def test_facts_of_an_inventory_hold_every_sample_once() -> None:
    summary = {"read": 3, "rows": 40, "bytes": 900, "instances": 2, "samples": {"a": [0.5, 1.0], "b": [1.0]}}

    facts = InputFacts.of(summary, flows="here", troubles=["2 damaged"], version="1")

    assert InputFacts("here", 3, 40, 900, 2, (0.5, 1.0), ("2 damaged",), "1") == facts


def test_buckets_follow_each_other() -> None:
    axis = Timeline(datetime(2026, 3, 1, tzinfo=UTC), 300, 4)

    assert axis.first_at + timedelta(minutes=15) == axis.start_of(3)


def test_a_series_knows_its_sum() -> None:
    assert 6 == Series("frames", (1, 2, 3)).total

"""What gateways held at once, against an oracle in plain Python."""

import random
from datetime import UTC, timedelta
from math import ceil
from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.forwarding.pool import HELD_OVERHEAD
from broker.pipeline.capacity import MARGIN, ROUNDING, capacity
from tests.spark.visiting import START, visits

SECOND = 1_000_000
Row = dict[str, Any]


def held(entered: int | None, left: int | None, **more: Any) -> Row:
    """A frame of 100 bytes at a gateway; microseconds behind START, where a window of a second begins."""
    return {"entered_at": entered, "left_at": left, **more}


def test_recommendation_has_overhead_and_margin(spark: SparkSession) -> None:
    """Both as the pool charges, rounded up; headroom is what the peak leaves of the pool."""
    rows = [held(0, 10, bytes=5_000_000) for _ in range(3)]
    charge = 3 * (5_000_000 + HELD_OVERHEAD)

    (row,) = capacity(visits(spark, *rows), pool_bytes=2 * charge).collect()

    assert row.recommended_bytes == ceil(charge * MARGIN / ROUNDING) * ROUNDING
    assert row.headroom == pytest.approx(0.5)


def test_headroom_without_and_with_too_small_a_pool(spark: SparkSession) -> None:
    rows = visits(spark, held(0, 10))

    (unknown,), (none,) = capacity(rows).collect(), capacity(rows, pool_bytes=1).collect()

    assert (unknown.headroom, none.headroom) == (None, 0.0)
    assert unknown.recommended_bytes == ROUNDING
    with pytest.raises(PipelineError, match="a pool of 0 bytes; give"):
        capacity(rows, pool_bytes=0)


def test_nothing_is_recommended_where_only_some_dialogs_were_followed(spark: SparkSession) -> None:
    """The amount that the others held is not known."""
    rows = visits(spark, held(0, 10, bytes=5_000_000), held(0, 10, instance="b", bytes=5_000_000))

    found = {row.instance: row for row in capacity(rows, pool_bytes=10_000_000, sampled={"a"}).collect()}

    assert (found["a"].peak_bytes, found["a"].recommended_bytes, found["a"].headroom) == (5_000_000, None, None)
    assert found["b"].recommended_bytes > 5_000_000
    assert found["b"].headroom == pytest.approx(0.5, abs=0.01)


def test_what_leaves_goes_first_and_what_did_not_stay_adds_nothing(spark: SparkSession) -> None:
    """At one instant; and a clock was set back, or an instant is not known."""
    instants: dict[str, list[tuple[int | None, int | None]]] = {
        "one by one": [(0, 10), (10, 20), (20, 30)],
        "set back": [(10, 5)],
        "has not left": [(20, None)],
        "has not come": [(None, 30)],
        "unknown": [(None, None)],
    }
    rows = [held(*one, instance=name) for name, ends in instants.items() for one in ends]

    found = capacity(visits(spark, *rows), window_seconds=1).collect()

    nothing = dict.fromkeys(("set back", "has not left", "has not come"), (START, 0, 0, 0, 0))
    assert nothing | {"one by one": (START, 1, 100, 1, 100)} == {
        row.instance: (
            row.window_start.astimezone(UTC),
            *(row.peak_frames, row.peak_bytes, row.p99_frames, row.p99_bytes),
        )
        for row in found
    }


def test_against_an_oracle(spark: SparkSession) -> None:
    """Random frames of every outcome, most of them at one instance, some held for many windows."""
    random_ = random.Random(3)
    rows = []
    for number in range(900):
        entered = number * 20_000 + random_.randrange(10_000)
        lasted = random_.choice((0, 500, 90_000, 90_000, 3 * SECOND))
        instance = "hot" if random_.random() < 0.7 else f"i{random_.randrange(3)}"
        more: Row = {"instance": instance, "bytes": random_.randrange(1, 9999), "outcome": random_.choice(OUTCOMES)}
        rows.append(held(entered, entered + lasted, **more))

    found = capacity(visits(spark, *rows), window_seconds=1).collect()

    assert _expected(rows) == sorted(
        (
            row.instance,
            (row.window_start.astimezone(UTC) - START) // timedelta(seconds=1),
            *(row.peak_frames, row.peak_bytes, row.p99_frames, row.p99_bytes),
        )
        for row in found
    )


OUTCOMES = ("forwarded", "forwarded", "dropped", "sent", "resent", "delivered", "duplicate", "acknowledged")


def _expected(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Only what waits in the pool counts."""
    rows = [row for row in rows if row["outcome"] in {"forwarded", "dropped"}]
    windows: dict[tuple[str, int], list[tuple[int, int, bool]]] = {}
    for instance in {row["instance"] for row in rows}:
        mine = [row for row in rows if row["instance"] == instance]
        instants = {row["entered_at"] for row in mine}
        borders = {second * SECOND for second in range(max(row["left_at"] for row in mine) // SECOND + 1)}
        for at in sorted(instants | borders):
            now = [row["bytes"] for row in mine if row["entered_at"] <= at < row["left_at"]]
            if now or at in instants:
                entry = (len(now), sum(now), at in instants)
                windows.setdefault((instance, at // SECOND), []).append(entry)
    return sorted(
        (
            *key,
            max(frames for frames, _, _ in found),
            max(held_bytes for _, held_bytes, _ in found),
            _p99([frames for frames, _, is_entry in found if is_entry]),
            _p99([held_bytes for _, held_bytes, is_entry in found if is_entry]),
        )
        for key, found in windows.items()
    )


def _p99(values: list[int]) -> int | None:
    return sorted(values)[ceil(0.99 * len(values)) - 1] if values else None

"""What is settled, what is carried along, what is late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.pipeline.carry import ByUnit, ByWindow, Carry, Split
from tests.spark.visiting import START, visits

MINUTE = 60_000_000  # microseconds
BY_MESSAGE = ByUnit(("message_id",))
BY_DIALOG = ByUnit(("conversation_id", "from_target"), order="sequence_number", max_open=timedelta(hours=1))


def at(minute: float) -> datetime:
    return START + timedelta(minutes=minute)


def visit(
    message: int, minute: float, *, lasted: float = 0, sequence: int = 0, conversation: int = 1
) -> dict[str, object]:
    """A visit that ended at a minute."""
    return {
        "message_id": message,
        "conversation_id": 1,
        "sequence_number": sequence,
        "entered_at": at(minute - lasted),
        "left_at": at(minute),
    }


def told(frame: DataFrame) -> list[tuple[int, float]]:
    """Message and minute of each visit."""
    rows = frame.selectExpr("message_id", "unix_micros(left_at) AS us").collect()
    origin = int(START.timestamp()) * 1_000_000
    return sorted((int.from_bytes(row.message_id, "big"), (row.us - origin) / MINUTE) for row in rows)


def split(
    spark: SparkSession,
    carry: Carry,
    new: list[dict[str, object]],
    carried: list[dict[str, object]] | None = None,
    *,
    emitted: float | None = None,
    settled: float | None = None,
) -> Split:
    return carry.split(
        visits(spark, *new),
        visits(spark, *carried) if carried else visits(spark, {}).limit(0),
        emitted_before=None if emitted is None else at(emitted),
        settled_before=None if settled is None else at(settled),
    )


def test_a_unit_is_settled_when_its_newest_visit_is_older_than_the_watermark(spark: SparkSession) -> None:
    found = split(spark, BY_MESSAGE, [visit(1, 0), visit(1, 5), visit(2, 0), visit(2, 20)], settled=10)

    assert [(1, 0), (1, 5)] == told(found.settled)
    assert [(2, 0), (2, 20)] == told(found.carried)
    assert [] == told(found.late)


def test_in_the_end_all_is_settled(spark: SparkSession) -> None:
    found = split(spark, BY_MESSAGE, [visit(1, 0)], [visit(2, 20)], emitted=0)

    assert [(1, 0), (2, 20)] == told(found.settled)
    assert [] == told(found.carried)


def test_an_old_visit_is_late_unless_its_unit_goes_on(spark: SparkSession) -> None:
    """One was carried along, one has a recent visit in the same run, one has neither."""
    new = [visit(1, 1), visit(2, 1), visit(2, 11), visit(3, 1)]

    found = split(spark, BY_MESSAGE, new, [visit(1, 12)], emitted=10, settled=15)

    assert [(3, 1)] == told(found.late)
    assert [(1, 1), (1, 12), (2, 1), (2, 11)] == told(found.settled)


def test_a_visit_without_an_id_is_settled_at_once(spark: SparkSession) -> None:
    new = [{**visit(1, 20), "message_id": None}]

    found = split(spark, BY_MESSAGE, new, settled=10)

    assert (1, 0) == (found.settled.count(), found.carried.count())


def test_a_dialog_waits_whole_while_it_is_not_long_open(spark: SparkSession) -> None:
    new = [visit(1, 0), visit(2, 30, sequence=1), visit(3, 50, sequence=2)]

    found = split(spark, BY_DIALOG, new, settled=40)

    assert [] == told(found.settled)
    assert [(1, 0), (2, 30), (3, 50)] == told(found.carried)


def test_of_a_dialog_that_is_long_open_what_lies_before_the_first_open_message_is_settled(spark: SparkSession) -> None:
    new = [visit(1, 0), visit(2, 30, sequence=1), visit(3, 40, sequence=2), visit(4, 200, sequence=2)]
    new += [visit(5, 50, sequence=3)]

    found = split(spark, BY_DIALOG, new, settled=100)

    assert [(1, 0), (2, 30)] == told(found.settled)
    assert [(3, 40), (4, 200), (5, 50)] == told(found.carried)


def test_what_comes_for_a_message_that_was_settled_in_part_is_late(spark: SparkSession) -> None:
    new = [visit(2, 30, sequence=1), visit(6, 55, sequence=2)]

    found = split(spark, BY_DIALOG, new, [visit(3, 140, sequence=2)], emitted=100, settled=120)

    assert [(2, 30)] == told(found.late)
    assert [(3, 140), (6, 55)] == told(found.carried)


def test_a_window_is_settled_when_it_ended_before_the_watermark(spark: SparkSession) -> None:
    found = split(spark, ByWindow(300), [visit(1, 4), visit(2, 9), visit(3, 11)], [visit(4, 5)], emitted=5, settled=12)

    assert [(1, 4)] == told(found.late)
    assert [(2, 9), (4, 5)] == told(found.settled)
    assert [(3, 11)] == told(found.carried)
    assert (at(5), at(10)) == found.windows


def test_a_visit_that_covers_windows_counts_now_and_is_carried_along(spark: SparkSession) -> None:
    """It ended in a window that is open, and began in one that is settled."""
    found = split(spark, ByWindow(300, covers=True), [visit(1, 12, lasted=8)], settled=11)

    assert [(1, 12)] == told(found.settled) == told(found.carried)


def test_the_last_visit_of_a_stream_is_carried_along_for_the_next(spark: SparkSession) -> None:
    """For a day; what did not leave, or is older, is not."""
    carry = ByWindow(300, streams=("instance", "conversation_id", "from_target"), memory=timedelta(minutes=20))
    other, dropped = {"conversation_id": 2}, {"outcome": "dropped"}
    new = [visit(1, 1), visit(2, 3), visit(3, 4) | dropped, visit(4, 26), visit(5, 2) | other]
    new += [visit(6, -12) | {"instance": "x"}]

    found = split(spark, carry, new, settled=13)

    assert [(2, 3), (4, 26), (5, 2)] == told(found.carried)


def test_only_the_windows_between_the_watermarks_are_written(spark: SparkSession) -> None:
    result = spark.createDataFrame([(at(minute),) for minute in (0, 5, 10, 15)], "window_start timestamp")
    nothing = result.limit(0)

    def kept(first: float | None, behind: float | None) -> int:
        windows = (None if first is None else at(first), None if behind is None else at(behind))
        return Split(nothing, nothing, nothing, windows).of_this_run(result).count()

    assert (4, 3, 2) == (kept(None, None), kept(5, None), kept(5, 15))


@pytest.mark.parametrize(("second", "expected"), [(0, 0), (299, 0), (300, 300), (-1, -300)])
def test_windows_begin_at_multiples_of_their_length(second: int, expected: int) -> None:
    instant, begin = (datetime.fromtimestamp(one, UTC) for one in (second, expected))

    assert begin == ByWindow(300).floor(instant)

"""Parts of a history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from broker.journal.schema import FileState, Fitness
from broker.pipeline.jobs import JOBS, PeriodBounds, files_of, micros, result_of, visits_of
from tests.spark.visiting import START, visits

HOUR = timedelta(hours=1)
BOUNDS = PeriodBounds(START, START + HOUR)


@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("/x/date=2026-02-28/hour=09/a.parquet", False),
        ("/x/date=2026-02-28/hour=10/a.parquet", True),
        ("/x/date=2026-03-02/hour=14/a.parquet", True),
        ("/x/date=2026-03-02/hour=15/a.parquet", False),
        ("/x/a.parquet", True),
    ],
)
def test_files_are_chosen_by_their_hour_with_a_margin(path: str, *, may: bool) -> None:
    """A day and two hours on both sides: one for what is read around the period, and the age that a file may have."""
    assert may == bool(files_of([Path(path)], BOUNDS))


@pytest.mark.parametrize(
    ("first", "last", "has"),
    [
        (-7 * HOUR, -HOUR - timedelta(microseconds=1), False),
        (-7 * HOUR, -HOUR, True),
        (-7 * HOUR, 9 * HOUR, True),
        (2 * HOUR - timedelta(microseconds=1), 9 * HOUR, True),
        (2 * HOUR, 9 * HOUR, False),
        (None, None, True),
    ],
)
def test_files_are_chosen_by_what_their_footers_tell(
    first: timedelta | None, last: timedelta | None, *, has: bool
) -> None:
    """With the hour around; a file that does not tell may have anything."""
    begun, ended = (None if one is None else micros(START + one) for one in (first, last))
    state = FileState(Path("x"), Fitness.GOOD, first_us=begun, last_us=ended)

    assert has == BOUNDS.has(state)


def test_bounds_at_the_end_of_the_calendar_have_no_margin() -> None:
    assert PeriodBounds() == PeriodBounds(datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)).wider()


def test_without_bounds_every_file_is_read() -> None:
    path = Path("/x/date=1999-01-01/hour=00/a.parquet")

    assert [path] == files_of([path], PeriodBounds())


def test_paths_are_not_cut_at_the_bounds(spark: SparkSession) -> None:
    """Their visits are read from an hour before to an hour after, and then the rows are chosen."""
    frame = visits(
        spark,
        *(
            {"message_id": 10 + number, "entered_at": START + number * HOUR / 2, "left_at": None}
            for number in range(-4, 6)
        ),
    )

    chosen = visits_of(frame, JOBS["paths"], BOUNDS)
    rows = result_of(chosen.select(F.col("entered_at").alias("started_at")), JOBS["paths"], BOUNDS)

    assert 6 == chosen.count()
    assert 2 == rows.count()


def test_of_dialogs_those_are_taken_that_began_in_the_period(spark: SparkSession) -> None:
    """With what they did in the hour after it."""
    rows = [
        {"conversation_id": 1, "entered_at": START - HOUR / 2},
        {"conversation_id": 1, "entered_at": START + HOUR / 2},
        {"conversation_id": 2, "entered_at": START + HOUR / 4},
        {"conversation_id": 2, "entered_at": START + 1.5 * HOUR},
        {"conversation_id": 2, "entered_at": START + 5 * HOUR},
    ]

    chosen = visits_of(visits(spark, *rows), JOBS["reconcile"], BOUNDS).collect()

    assert [2, 2] == [int.from_bytes(row.conversation_id, "big") for row in chosen]


def test_a_dialog_whose_first_message_is_not_in_sight_is_an_older_one(spark: SparkSession) -> None:
    """However long it was silent; and the direction of the target belongs to the dialog."""
    rows = [
        {"conversation_id": 1, "sequence_number": 7, "entered_at": START + HOUR / 2},
        {"conversation_id": 1, "from_target": True, "entered_at": START + HOUR / 2},
        {"conversation_id": 2, "entered_at": START + HOUR / 4},
        {"conversation_id": 2, "from_target": True, "entered_at": START + HOUR / 2},
    ]

    chosen = visits_of(visits(spark, *rows), JOBS["dialogs"], BOUNDS).collect()

    assert [(2, False), (2, True)] == sorted(
        (int.from_bytes(row.conversation_id, "big"), row.from_target) for row in chosen
    )


def test_without_bounds_nothing_is_left_out(spark: SparkSession) -> None:
    frame = visits(spark, {"entered_at": datetime(1999, 1, 1, tzinfo=UTC)})

    assert frame is visits_of(frame, JOBS["paths"], PeriodBounds())
    assert frame is result_of(frame, JOBS["paths"], PeriodBounds())

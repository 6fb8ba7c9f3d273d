"""The place of a visit on its frame's way."""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812
import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.pipeline.visits import begin_us, is_hop, length_us, order, outcome_of, residence_us, slot_of, step_of
from tests.spark.visiting import visits


def test_sender_is_before_the_first_gateway_of_the_same_hop_count(spark: SparkSession) -> None:
    """Slots have no gap, and each knows its outcome; one of a later version went on."""
    ways = [
        ("sent", 0),
        ("resent", 0),
        ("forwarded", 0),
        ("dropped", 1),
        ("duplicate", 2),
        ("delivered", 2),
        ("new", 3),
    ]
    rows = visits(spark, *({"outcome": outcome, "hop_count": hop} for outcome, hop in (*ways, ("forwarded", None))))
    visit = F.struct(order().alias("order"))

    found = rows.select(slot_of(visit), step_of(visit), outcome_of(visit)).collect()

    assert [tuple(row) for row in found] == [
        (0, 0, "sent"),
        (0, 1, "resent"),
        (1, 2, "forwarded"),
        (2, 3, "dropped"),
        (3, 4, "duplicate"),
        (3, 5, "delivered"),
        (4, 2, "forwarded"),
        (1, 2, "forwarded"),
    ]


def test_residence_is_null_where_it_cannot_be_known(spark: SparkSession) -> None:
    """Not left, or left before it came."""
    rows = visits(spark, *({"entered_at": 10, "left_at": left} for left in (10, 35, None, 5)))

    assert [row[0] for row in rows.select(residence_us()).collect()] == [0, 25, None, None]


def test_note_of_an_acknowledgement_is_no_hop(spark: SparkSession) -> None:
    """All others are."""
    rows = visits(spark, {"outcome": "acknowledged"}, {"outcome": "dropped"})

    assert [row[0] for row in rows.select(is_hop()).collect()] == [False, True]


# --- test_window ---
# Windows of time.


def test_window_begins_at_or_before_the_instant(spark: SparkSession) -> None:
    """Also before the epoch."""
    instants = spark.createDataFrame([(number,) for number in (-1, 0, 1, 9, 10, 25)], "at long")

    found = [row[0] for row in instants.select(begin_us(F.col("at"), 10)).collect()]

    assert found == [-10, 0, 0, 0, 10, 20]


def test_length_in_microseconds() -> None:
    """Of seconds."""
    assert length_us(300) == 300_000_000


@pytest.mark.parametrize("seconds", [0, -5])
def test_window_of_no_length_is_refused(seconds: int) -> None:
    """With what to do."""
    with pytest.raises(PipelineError, match=rf"windows of {seconds} seconds; give a length"):
        length_us(seconds)

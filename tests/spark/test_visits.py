"""The place of a visit on its frame's path, and windows of time."""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812
import pytest
from pyspark.sql import SparkSession

from broker.errors import PipelineError
from broker.pipeline.visits import begin_us, is_hop, length_us, order, outcome_of, residence_us, slot_of, step_of
from tests.spark.visiting import visits


def test_sender_is_before_the_first_gateway_of_the_same_hop_count(spark: SparkSession) -> None:
    """Slots have no gap; an outcome of a later version counts as forwarded."""
    ways = {
        ("sent", 0): (0, 0, "sent"),
        ("resent", 0): (0, 1, "resent"),
        ("forwarded", 0): (1, 2, "forwarded"),
        ("dropped", 1): (2, 3, "dropped"),
        ("duplicate", 2): (3, 4, "duplicate"),
        ("delivered", 2): (3, 5, "delivered"),
        ("new", 3): (4, 2, "forwarded"),
        ("forwarded", None): (1, 2, "forwarded"),
    }
    rows = visits(spark, *({"outcome": outcome, "hop_count": hop} for outcome, hop in ways))
    visit = F.struct(order().alias("order"))

    found = rows.select(slot_of(visit), step_of(visit), outcome_of(visit)).collect()

    assert [tuple(row) for row in found] == list(ways.values())


def test_residence_is_null_where_it_cannot_be_known(spark: SparkSession) -> None:
    """The frame has not left, or left before it came; and an acknowledgement is not a hop."""
    rows = visits(spark, *({"entered_at": 10, "left_at": left} for left in (10, 35, None, 5)))
    outcomes = visits(spark, {"outcome": "acknowledged"}, {"outcome": "dropped"})

    assert [row[0] for row in rows.select(residence_us()).collect()] == [0, 25, None, None]
    assert [row[0] for row in outcomes.select(is_hop()).collect()] == [False, True]


def test_window_begins_at_or_before_the_instant(spark: SparkSession) -> None:
    instants = spark.createDataFrame([(number,) for number in (-1, 0, 1, 9, 10, 25)], "at long")

    found = [row[0] for row in instants.select(begin_us(F.col("at"), 10)).collect()]

    assert found == [-10, 0, 0, 0, 10, 20]
    for seconds in (0, -5):
        with pytest.raises(PipelineError, match=rf"windows of {seconds} seconds; give a length"):
            length_us(seconds)

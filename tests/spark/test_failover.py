"""Frames that left by another way than the one before."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from broker.pipeline import routes as failover
from broker.pipeline.routes import failovers
from tests.spark.visiting import visits


def moved(spark: SparkSession, *rows: dict[str, Any]) -> list[int]:
    """Sequence numbers of the frames that moved, in order; a row leaves a millisecond after its number."""
    numbered = [
        {"entered_at": 1000 * number, "sequence_number": number, "message_id": number + 1, "route": "r", **row}
        for number, row in enumerate(rows)
    ]
    return sorted(row.sequence_number for row in failovers(visits(spark, *numbered)).collect())


def way(hop: str | None, **more: Any) -> dict[str, Any]:
    """A frame that left for a next hop."""
    return {"adjacent_out": hop, **more}


def test_frame_after_one_that_took_another_next_hop(spark: SparkSession) -> None:
    """There and back are two."""
    assert moved(spark, way("x"), way("x"), way("y"), way("y"), way("x")) == [2, 4]


def test_other_route_to_the_same_next_hop_is_another_way(spark: SparkSession) -> None:
    """And so are another route table, and a way without a next hop."""
    assert moved(spark, way("x"), way("x", route="s"), way("x", route="s", route_table="t"), way(None)) == [1, 2, 3]


def test_dialogs_directions_and_instances_are_apart(spark: SparkSession) -> None:
    """Each has its own way."""
    assert moved(spark, way("x"), way("y", conversation_id=2), way("z", from_target=True), way("q", instance="b")) == []


def test_only_frames_that_left_count(spark: SparkSession) -> None:
    """What is delivered or dropped took no way."""
    rows = (way("x"), way(None, outcome="delivered", route=None), way(None, outcome="dropped"), way("x"))

    assert moved(spark, *rows) == []


def test_frames_of_one_instant_are_in_order_of_their_sequence(spark: SparkSession) -> None:
    """One change, however their rows lie in the files."""
    at = {"entered_at": 0}
    rows = [way(hop, sequence_number=number, **at) for number, hop in ((3, "y"), (0, "x"), (2, "y"), (1, "x"))]

    assert moved(spark, *rows) == [2]


def test_frame_of_which_the_dialog_is_not_known_has_none_before_it(spark: SparkSession) -> None:
    """Foreign data: what lacks the same column is no dialog."""
    unknown = ("instance", "conversation_id", "from_target")
    lacking = [way(hop, **{name: None}) for name in unknown for hop in ("x", "y")]

    assert moved(spark, *lacking) == []


def test_one_bit_for_each_dialog_with_more_than_one_way(spark: SparkSession) -> None:
    """However many frames it has, and none for the others; so nearly all frames are never put in order."""
    wavering = [way(hop, conversation_id=number) for number in range(1, 6) for hop in ("x", "y", "x")]
    steady = [way("x", conversation_id=number) for number in range(100, 200)]

    (row,) = failover._mask(visits(spark, *wavering, *steady)).collect()

    assert (failover._WORDS, 5) == (len(row.mask), sum(word.bit_count() for word in _unsigned(row.mask)))


def test_dialogs_that_share_a_bit_are_apart(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four bits for three hundred dialogs, one of which has two ways."""
    monkeypatch.setattr(failover, "_WORDS", 1)
    steady = [way(f"hop {number % 3}", conversation_id=number) for number in range(2, 300)]

    assert moved(spark, way("x"), *steady, way("y"), way("y")) == [299]


def _unsigned(words: list[int]) -> list[int]:
    return [word % 2**64 for word in words]

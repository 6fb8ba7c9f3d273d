"""Who talks with whom, how much, and how long it takes."""

import math
import random
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from broker.pipeline.dialogs import PERCENTILES, dialogs
from tests.spark.visiting import START, visits

OUTCOMES = ("sent", "resent", "forwarded", "delivered", "duplicate", "dropped", "acknowledged")


def visit(outcome: str, entered_at: int, left_at: int | None, **columns: Any) -> dict[str, Any]:
    return {"outcome": outcome, "entered_at": entered_at, "left_at": left_at, **columns}


def rows_of(spark: SparkSession, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """What `dialogs` makes of them, in order."""
    found: list[Row] = dialogs(visits(spark, *rows)).collect()
    return [row.asDict() for row in sorted(found, key=lambda row: (row.conversation_id, row.from_target))]


def test_a_dialog_is_told_from_end_to_end(spark: SparkSession) -> None:
    """Two messages, the second of two fragments, of which one was dropped, resent, and its first copy came late."""
    row = rows_of(
        spark,
        visit("sent", 0, 10, instance="s"),
        visit("delivered", 20, 25, instance="t", hop_count=1),
        visit("acknowledged", 0, 40, instance="s"),
        visit("sent", 100, 110, instance="s", message_id=2, sequence_number=2),
        visit("forwarded", 112, 115, instance="g", message_id=2, sequence_number=2),
        visit("sent", 100, 120, instance="s", message_id=3, sequence_number=2, fragment_number=1, bytes=70),
        visit("dropped", 125, 125, instance="g", message_id=3, sequence_number=2, fragment_number=1, bytes=70),
        visit("resent", 100, 1120, instance="s", message_id=4, sequence_number=2, bytes=100),
        visit("duplicate", 1200, 1200, instance="t", message_id=4, sequence_number=2),
        visit("delivered", 1300, 1300, instance="t", message_id=2, sequence_number=2),
        visit("acknowledged", 100, 1500, instance="s", message_id=4, sequence_number=2),
        visit("sent", 7, 7, kind="ack", message_id=5, from_target=True),
        visit("sent", 7, 7, conversation_id=None),
    )[0]

    assert ("Initiator", "Target", "s", "t") == tuple(
        row[name] for name in ("from_service", "to_service", "from_instance", "to_instance")
    )
    assert (2, 3, 4, 1, 1, 1, 370, 1) == tuple(row[name] for name in _COUNTED)
    assert (START, START + timedelta(microseconds=1300)) == tuple(_utc(row[name]) for name in ("first_at", "last_at"))
    assert [25, 1200, 1200] == [row[f"delivery_{word}_us"] for word in PERCENTILES]
    assert [30, 1390, 1390] == [row[f"round_trip_{word}_us"] for word in PERCENTILES]


def test_clocks_of_two_instances_are_wrong_for_all_their_dialogs(spark: SparkSession) -> None:
    """An acknowledgement before the delivery shows that the target's clock is ahead; the way back only looks slow."""
    ahead = 300_000_000
    rows = rows_of(
        spark,
        visit("sent", 100, 110, instance="s"),
        visit("delivered", 200 + ahead, 200 + ahead, instance="t"),
        visit("acknowledged", 100, 300, instance="s"),
        visit("sent", 100, 110, instance="s", message_id=2, conversation_id=2),
        visit("delivered", 200 + ahead, 200 + ahead, instance="t", message_id=2, conversation_id=2),
        visit("sent", 100, 110, instance="s", message_id=3, conversation_id=3),
        visit("delivered", 200, 200, instance="u", message_id=3, conversation_id=3),
    )

    assert [None, None, 100] == [row["delivery_p50_us"] for row in rows]
    assert [190, None, None] == [row["round_trip_p50_us"] for row in rows]


@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_is_told_as_the_oracle_tells_it(spark: SparkSession, seed: int) -> None:
    """Every count and every percentile, one dialog with half of it all."""
    dice = random.Random(seed)
    rows = [
        visit(
            dice.choice(OUTCOMES),
            entered := dice.randrange(1000),
            entered + dice.randrange(1, 5000),
            instance=dice.choice("abc"),
            message_id=(place := dice.randrange(150)) * 3 + dice.randrange(3),
            conversation_id=dice_of_place(place),
            sequence_number=place // 2,
            fragment_number=place % 2,
        )
        for _ in range(900)
    ]

    found = rows_of(spark, *rows)

    expected = oracle(rows)
    assert expected == [{name: row[name] for name in (*_COUNTED, *_TIMES)} for row in found]


_COUNTED = ("messages", "fragments", "transmissions", "resends", "duplicates", "drops", "bytes", "gaps")
_TIMES = [f"{measure}_{word}_us" for measure in ("delivery", "round_trip") for word in PERCENTILES]


def dice_of_place(place: int) -> int:
    """Half of the messages are of one dialog."""
    return 1 if place // 2 % 2 else 2 + place // 2 % 3


def oracle(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, slowly, in the order of the dialogs."""
    told = []
    for conversation in sorted({row["conversation_id"] for row in rows}):
        own = [row for row in rows if row["conversation_id"] == conversation]
        sequences = {row["sequence_number"] for row in own}
        places = {(row["sequence_number"], row["fragment_number"]) for row in own}
        frames = {row["message_id"] for row in own}
        seen = {(row["message_id"], row["outcome"]) for row in own}
        one: dict[str, Any] = {
            "messages": len(sequences),
            "fragments": len(places),
            "transmissions": len(frames),
            "resends": sum(outcome == "resent" for _, outcome in seen),
            "duplicates": sum(outcome == "duplicate" for _, outcome in seen),
            "drops": sum(outcome == "dropped" for _, outcome in seen),
            "bytes": 100 * len(frames),
            "gaps": max(sequences) - min(sequences) + 1 - len(sequences),
        }
        deliveries, round_trips = [], []
        for place in places:
            here = [row for row in own if (row["sequence_number"], row["fragment_number"]) == place]
            queued = [row["entered_at"] for row in here if row["outcome"] in {"sent", "resent", "acknowledged"}]
            sent = [row["left_at"] for row in here if row["outcome"] in {"sent", "resent"}]
            delivered = [row["left_at"] for row in here if row["outcome"] == "delivered"]
            acknowledged = [row["left_at"] for row in here if row["outcome"] == "acknowledged"]
            if queued and delivered:
                deliveries.append(min(delivered) - min(queued))
            if sent and acknowledged:
                round_trips.append(min(acknowledged) - min(sent))
        if deliveries and min(deliveries) < 0:
            deliveries = []
        told.append(one | _percentiles("delivery", deliveries) | _percentiles("round_trip", round_trips))
    return told


def _percentiles(measure: str, values: list[int]) -> dict[str, int | None]:
    ordered = sorted(values)
    return {
        f"{measure}_{word}_us": ordered[math.ceil(share * len(ordered)) - 1] if ordered else None
        for word, share in PERCENTILES.items()
    }


def _utc(instant: Any) -> Any:
    """Spark gives instants without a zone, in that of this process."""
    return instant.astimezone(START.tzinfo)


def test_what_the_sender_does_not_tell_is_null(spark: SparkSession) -> None:
    """Times need it; the counts do not."""
    row = rows_of(spark, visit("delivered", 20, 25, instance="t"))[0]

    assert (None, "t", None, None) == (
        row["from_instance"],
        row["to_instance"],
        row["delivery_p50_us"],
        row["round_trip_p50_us"],
    )
    assert (1, 1) == (row["messages"], row["transmissions"])


def test_a_sender_that_moved_is_told_by_where_it_is_now(spark: SparkSession) -> None:
    """Another partner of a mirrored pair."""
    rows = [
        visit("sent", 0, 100 - number, instance=f"s{number}", message_id=number, sequence_number=number)
        for number in range(3)
    ]

    assert "s0" == rows_of(spark, *rows)[0]["from_instance"]

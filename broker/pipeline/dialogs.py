"""
Statistics of dialogs: which services talk with each other, how much, and how long it takes.

A *place* is a sequence and a fragment number in one direction of a dialog; a transmission (message_id) is one attempt
to bring it over. Times run from place to place: from the transmission queue to the first delivery, which needs the
journals of both ends, and from the first sending to the first acknowledgement, which needs that of the sender.

When one of a dialog's deliveries took less than no time, none of its delivery times is reported. When it was so by more
than `CLOCK_TOLERANCE_US`, or a message was acknowledged before it was delivered, the clocks of the two instances
contradict each other. Then no delivery time of any dialog between them is reported, in either direction.

How: all of a message comes together first, which spreads also a dialog with half of all records. Percentiles are made
of ten thousand ranks at most, however long a dialog is. Instances travel as hashes of 64 bits and get their names at
the end, because Spark would sort strings in aggregates. The services are keys: the endpoints let no frame of a dialog
change them.
"""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import DataFrame, Window

from broker.flow import VisitOutcome
from broker.pipeline.results import DIALOGS, as_result
from broker.pipeline.visits import CLOCK_TOLERANCE_US, DIALOG, SENDING, messages_of

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_MEASURES = ("delivery", "round_trip")
_SUMS = ("messages", "fragments", "transmissions", "resends", "duplicates", "drops", "bytes")


def dialogs(visits: DataFrame) -> DataFrame:
    """
    Return one row per dialog and direction, as in DIALOGS.

    The visits are as in VISIT, and none occurs twice. `from_instance` and `to_instance` are the last ones where it was
    sent and delivered. Visits without a conversation_id belong to no dialog and are left out.
    """
    names = visits.select(F.xxhash64("instance").alias("hash"), "instance").distinct()
    return (
        visits.transform(_messages)
        .transform(_transmissions)
        .transform(_places)
        .transform(_dialogs)
        .transform(_with_name, names, "from_instance")
        .transform(_with_name, names, "to_instance")
        .transform(as_result, DIALOGS)
    )


def _messages(visits: DataFrame) -> DataFrame:
    """Return one row per visit of a message, those of one message together; instants in microseconds."""
    return messages_of(
        visits,
        *(*DIALOG, "sequence_number", "fragment_number", "message_id", "outcome", "bytes"),
        F.xxhash64("instance").alias("instance"),
        F.unix_micros("entered_at").alias("entered_us"),
        F.unix_micros(F.coalesce("left_at", "entered_at")).alias("left_us"),
    )


def _transmissions(messages: DataFrame) -> DataFrame:
    """Return one row per transmission; instants in microseconds, instances as hashes."""
    outcome, left_us = F.col("outcome"), F.col("left_us")
    is_sent, is_delivered = outcome.isin(*SENDING), outcome == VisitOutcome.DELIVERED.value
    is_acknowledged = outcome == VisitOutcome.ACKNOWLEDGED.value
    return messages.groupBy(*DIALOG, "sequence_number", "fragment_number", "message_id").agg(
        F.max("bytes").alias("bytes"),
        F.max((outcome == VisitOutcome.RESENT.value).cast("int")).alias("resends"),
        F.max((outcome == VisitOutcome.DUPLICATE.value).cast("int")).alias("duplicates"),
        F.max((outcome == VisitOutcome.DROPPED.value).cast("int")).alias("drops"),
        F.min("entered_us").alias("first_us"),
        F.max(F.when(~is_acknowledged, left_us)).alias("last_us"),
        F.min(F.when(is_sent | is_acknowledged, F.col("entered_us"))).alias("queued_us"),
        F.min(F.when(is_sent, left_us)).alias("sent_us"),
        F.min(F.when(is_delivered, left_us)).alias("delivered_us"),
        F.min(F.when(is_acknowledged, left_us)).alias("acknowledged_us"),
        F.max(F.when(is_sent, F.col("instance"))).alias("sender"),
        F.max(F.when(is_delivered, F.col("instance"))).alias("receiver"),
    )


def _places(transmissions: DataFrame) -> DataFrame:
    """Return one row per place: `_SUMS`, instants, the newest instances, `delivery_us` and `round_trip_us`."""
    places = transmissions.groupBy(*DIALOG, "sequence_number", "fragment_number").agg(
        F.count("*").alias("transmissions"),
        *[F.sum(name).alias(name) for name in ("resends", "duplicates", "drops", "bytes")],
        *[F.min(name).alias(name) for name in ("first_us", "queued_us", "sent_us", "acknowledged_us")],
        F.max("last_us").alias("last_us"),
        F.max_by("sender", "sent_us").alias("sender"),
        F.max_by("receiver", "delivered_us").alias("receiver"),
        F.min("delivered_us").alias("delivered_us"),
    )
    fragments = Window.partitionBy("conversation_id", "from_target", "sequence_number").orderBy("fragment_number")
    return places.select(
        "*",
        (F.row_number().over(fragments) == 1).cast("int").alias("messages"),
        F.lit(1).alias("fragments"),
        (F.col("delivered_us") - F.col("queued_us")).alias("delivery_us"),
        (F.col("acknowledged_us") - F.col("sent_us")).alias("round_trip_us"),
    )


def _dialogs(places: DataFrame) -> DataFrame:
    """Return one row per dialog and direction, the instances as hashes."""
    rows = places.groupBy(*DIALOG).agg(
        *[F.sum(name).alias(name) for name in _SUMS],
        F.timestamp_micros(F.min("first_us")).alias("first_at"),
        F.timestamp_micros(F.coalesce(F.max("last_us"), F.max("acknowledged_us"))).alias("last_at"),
        *[F.percentile_approx(f"{name}_us", list(PERCENTILES.values())).alias(name) for name in _MEASURES],
        F.min("delivery_us").alias("fastest"),
        F.least(F.min("delivery_us"), F.min(F.col("acknowledged_us") - F.col("delivered_us"))).alias("least_us"),
        F.max_by("sender", "sent_us").alias("from_instance"),
        F.max_by("receiver", "delivered_us").alias("to_instance"),
        (F.max("sequence_number") - F.min("sequence_number") + 1).alias("span"),
    )
    ends = ("from_instance", "to_instance")
    pair = Window.partitionBy(F.least(*ends), F.greatest(*ends))
    is_apart = (F.col("from_instance") != F.col("to_instance")) & (F.col("pair_us") < -CLOCK_TOLERANCE_US)
    is_told = (F.col("fastest") >= 0) & ~F.coalesce(is_apart, F.lit(col=False))
    judged = rows.withColumn("pair_us", F.min("least_us").over(pair))
    ranks = {"delivery": F.when(is_told, F.col("delivery")), "round_trip": F.col("round_trip")}
    times = {
        f"{name}_{word}_us": F.get(ranks[name], F.lit(place))
        for name in _MEASURES
        for place, word in enumerate(PERCENTILES)
    }
    return judged.withColumns(times | {"gaps": F.col("span") - F.col("messages")})


def _with_name(rows: DataFrame, names: DataFrame, column: str) -> DataFrame:
    """The names of instances in place of their hashes."""
    named = names.select(F.col("hash").alias(column), F.col("instance").alias("name"))
    return rows.join(F.broadcast(named), on=column, how="left").drop(column).withColumnRenamed("name", column)

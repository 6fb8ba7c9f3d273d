"""
The questions to the router that a history holds: its visits, grouped by what a routing decision depends on.

A key is an instance and what the facts of a frame are for it: where it begins its way or that it arrived, for whom it
is, and its conversation, which may have a say. What was never routed is left out: acknowledgements that end a visit at
the sender, and frames that were dropped before a route was looked for.
"""

from __future__ import annotations

from enum import IntEnum

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T  # noqa: N812 - as everybody writes it

from broker.flow import Disposition, Outcome


class Origin(IntEnum):
    """Where a frame of a visit came from, as far as the visit tells."""

    UNKNOWN = 0  # columns are missing, so no router could be asked
    HERE = 1  # its database is known: the visit is that of its sender
    MAYBE_HERE = 2  # no peer is known; if its sender lives here, it was dropped on the way out, else it arrived
    MAYBE_TOLD = 3  # likewise; if its sender lives here, the visit of its sender has told of it already
    ARRIVED = 4


KEYED = T.StructType(
    [
        T.StructField("instance", T.StringType()),
        T.StructField("origin", T.IntegerType()),  # of Origin
        T.StructField("database", T.BinaryType()),  # the broker instance that may have sent it; null when it arrived
        T.StructField("from_service", T.StringType()),  # of HERE; else null
        T.StructField("to_service", T.StringType()),
        T.StructField("to_broker_instance", T.BinaryType()),  # null: any
        T.StructField("from_target", T.BooleanType()),
        T.StructField("conversation_id", T.BinaryType()),
        T.StructField("frames", T.LongType()),
        T.StructField("bytes", T.LongType()),
        T.StructField("forwarded", T.IntegerType()),  # 1 when one was; what arrived was sent on
        T.StructField("refused", T.IntegerType()),  # 1 when one was, because forwarding is off
        T.StructField("delivered", T.IntegerType()),  # 1 when one was, to a database here
    ]
)
"""One row per key and conversation; the three last columns tell what the instance has shown of itself."""

KEY = KEYED.fieldNames()[:7]
_BEFORE_ROUTING = (Disposition.MALFORMED, Disposition.HOPS_EXHAUSTED, Disposition.LIFETIME_EXCEEDED)
_AT_THE_END = tuple(Disposition)[list(Disposition).index(Disposition.DUPLICATE) :]
_ENDS = (Outcome.DELIVERED, Outcome.DUPLICATE)
_LEAVES = (Outcome.SENT, Outcome.RESENT)


def route_keys(visits: DataFrame) -> DataFrame:
    """
    Visits (VISIT) grouped by what a routing decision depends on (KEYED).

    Frames of all kinds count, and every transmission: each was routed.
    """
    outcome = F.col("outcome")
    is_maybe_here = F.col("origin").isin(int(Origin.HERE), int(Origin.MAYBE_HERE), int(Origin.MAYBE_TOLD))
    is_known = F.col("origin") != int(Origin.UNKNOWN)
    return (
        visits.where(_was_routed())
        .select(
            "instance",
            _origin().alias("origin"),
            *("from_broker_instance", "from_service", "to_service", "to_broker_instance"),
            *("from_target", "conversation_id", "bytes"),
            _flag(outcome == str(Outcome.FORWARDED)).alias("forwarded"),
            _flag(F.col("reason") == str(Disposition.FORWARDING_DISABLED)).alias("refused"),
            _flag(outcome.isin(*map(str, _ENDS))).alias("delivered"),
        )
        .groupBy(
            "instance",
            "origin",
            F.when(is_maybe_here, F.col("from_broker_instance")).alias("database"),
            F.when(F.col("origin") == int(Origin.HERE), F.col("from_service")).alias("from_service"),
            *(F.when(is_known, F.col(name)).alias(name) for name in _FACTS),
        )
        .agg(
            F.count(F.lit(1)).alias("frames"),
            F.sum("bytes").alias("bytes"),
            *(F.max(name).alias(name) for name in ("forwarded", "refused", "delivered")),
        )
        .select(*KEYED.fieldNames())
    )


def clues(keyed: DataFrame) -> DataFrame:
    """
    What the instances have shown of themselves (KEYED to a few rows).

    Shape: one row per instance, database and service: of a HERE row the ones that sent, of a `delivered` one those that
    it was for (`database` null: any), else both null; `has_sent`, `forwarded` and `refused` 1 when one did.
    """
    is_here = F.col("origin") == int(Origin.HERE)
    is_end = F.col("delivered") == 1
    return (
        keyed.groupBy(
            "instance",
            F.when(is_here, F.col("database")).when(is_end, F.col("to_broker_instance")).alias("database"),
            F.when(is_here, F.col("from_service")).when(is_end, F.col("to_service")).alias("service"),
        )
        .agg(*(F.max(name).alias(name) for name in ("forwarded", "refused")))
        .select("instance", "database", "service", "forwarded", "refused")
    )


_FACTS = ("to_service", "to_broker_instance", "from_target", "conversation_id")


def _was_routed() -> Column:
    """Missing words must not make a visit disappear, so comparisons are null-safe."""
    is_ending = F.col("outcome").eqNullSafe(str(Outcome.ACKNOWLEDGED))
    is_dropped_early = F.coalesce(F.col("reason").isin(*map(str, _BEFORE_ROUTING)), F.lit(False))
    return ~is_ending & ~is_dropped_early


def _origin() -> Column:
    outcome, reason = F.col("outcome"), F.col("reason")
    needed = ("instance", "outcome", "to_service", "conversation_id", "from_target")
    is_incomplete = F.greatest(*(F.col(name).isNull() for name in needed))
    is_here = outcome.isin(*map(str, _LEAVES))
    is_alone = F.col("adjacent_in").isNull() & F.col("from_broker_instance").isNotNull() & (F.col("hop_count") == 0)
    is_told = outcome.isin(*map(str, _ENDS)) | reason.isin(*map(str, _AT_THE_END))
    is_dropped = outcome == str(Outcome.DROPPED)
    return (
        F.when(is_incomplete | (is_here & F.col("from_broker_instance").isNull()), int(Origin.UNKNOWN))
        .when(is_here, int(Origin.HERE))
        .when(is_alone & is_told, int(Origin.MAYBE_TOLD))
        .when(is_alone & is_dropped, int(Origin.MAYBE_HERE))
        .otherwise(int(Origin.ARRIVED))
    )


def _flag(condition: Column) -> Column:
    return F.coalesce(condition.cast("int"), F.lit(0))

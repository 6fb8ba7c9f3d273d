"""
The path of each transmission: its hops in order, how long it stayed at each, how long it was between them, its end.

All visits of a transmission come together in one shuffle by its id, sorted by it, and are collected into one array of
structs. Nothing but the id is a key: any value that can change along a path would tear it into two rows without an
error. Every other figure is computed from that array, so paths have any length. Operations that are costly on arrays
are done only for the few rows that need them: two visits of one slot, or clocks that contradict each other. Functions
of array elements are not compiled by Spark but interpreted, so each row has one: the times between its hops. None may
be in a filter: Spark would push that down to where the array is made, and make the array again for each element.

Clocks contradict each other when a frame seems to come to an instance before it left the one before, or to end before
it began, by more than `CLOCK_TOLERANCE_US`. The wrong clock is then wrong in the other direction as well, where nothing
looks odd. So no time between these two instances is reported, in either direction, nor of a whole path that leads from
one to the other. It cannot be known which of the two is wrong, or which other clocks are as wrong. So all paths are
checked for contradictions first, by the same shuffle.

Cost: with `spark.sql.execution.replaceHashWithSortAgg` the aggregate takes the sorted rows as they come and holds one
transmission at a time; without it Spark's object hash aggregate does the same by sorting once more.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame

from broker.flow import VisitOutcome
from broker.pipeline.results import PATHS, as_result
from broker.pipeline.visits import (
    CLOCK_TOLERANCE_US,
    STEPS,
    end_us,
    is_hop,
    order,
    outcome_of,
    pair_of,
    residence_us,
    slot_of,
    step_of,
)

GRACE_SECONDS = 60
"""How long before the end of the history a frame's loss cannot be known: longer than a link holds a frame back."""

LOST, UNDER_WAY = "lost", "under way"

_CONSTANT = (
    "conversation_id",
    "from_target",
    "kind",
    "sequence_number",
    "fragment_number",
    "from_service",
    "to_service",
    "bytes",
)
_PASSING = (STEPS.index(VisitOutcome.FORWARDED), STEPS.index(VisitOutcome.DROPPED))
_LAST = 2**31 - 1  # the order of acknowledgements
_MASK_BITS = 62  # slots from here on share the last bit of the mask, which then has fewer bits than there are hops


def paths(visits: DataFrame, *, grace_seconds: int = GRACE_SECONDS, until: datetime | None = None) -> DataFrame:
    """
    Return one row per transmission, as in PATHS.

    Args:
        visits: One row per visit, as in VISIT.
        grace_seconds: A frame that left so shortly before `until` is under way rather than lost.
        until: The end of the history, up to when every journal is complete. When not given, it is the newest instant
            of `visits`, which reads two columns once more.
    """
    threshold = end_us(visits, until) - grace_seconds * 1_000_000
    measured = visits.transform(_collected).transform(_ordered).transform(_measured)
    apart = measured.transform(_contradictions).scalar()
    return measured.withColumn("apart", F.coalesce(apart, F.array())).transform(_told, left_since_us=threshold)


def _collected(visits: DataFrame) -> DataFrame:
    """`visits` in order, acknowledgements last; `hops` how many are none; `mask` of slots; the frame's `constant`s."""
    visit = F.struct(
        F.when(is_hop(), order()).otherwise(F.lit(_LAST)).alias("order"),
        F.unix_micros("entered_at").alias("entered_us"),
        F.unix_micros("left_at").alias("left_us"),
        residence_us().alias("residence_us"),
        *("instance", "reason", "code", "adjacent_out", "adjacent_in"),
    )
    slot = F.least(slot_of(F.col("visit")), F.lit(_MASK_BITS))
    bit = F.when(F.col("is_hop"), F.call_function("shiftleft", F.lit(1).cast("long"), slot))
    return (
        visits.select(
            "message_id", is_hop().alias("is_hop"), visit.alias("visit"), F.struct(*_CONSTANT).alias("constant")
        )
        .repartition("message_id")
        .sortWithinPartitions("message_id")
        .groupBy("message_id")
        .agg(
            F.min_by("constant", "visit.order").alias("constant"),
            F.sort_array(F.collect_list("visit")).alias("visits"),
            F.count_if("is_hop").alias("hops"),
            F.bit_or(bit).alias("mask"),
        )
    )


def _ordered(collected: DataFrame) -> DataFrame:
    """Add `hops`, without acknowledgements and each once, however many files have it; and `first` of all visits."""
    hops = F.slice("visits", F.lit(1), F.col("hops").cast("int"))
    is_plain = F.bit_count("mask") == F.col("hops")
    return collected.select(
        *("message_id", "constant"),
        F.get("visits", F.lit(0)).alias("first"),
        (F.col("hops") < F.size("visits")).alias("is_acknowledged"),
        is_plain.alias("is_plain"),
        F.when(is_plain & (F.col("hops") == F.size("visits")), F.col("visits"))
        .when(is_plain, hops)
        .otherwise(F.array_distinct(hops))
        .alias("hops"),
    )


def _measured(ordered: DataFrame) -> DataFrame:
    """
    Add `last`, `between_us`, `lasted_us` and `ends`.

    `last` is the last of the hops, null without one. `between_us` is of each link, null where a hop is missing,
    otherwise of any sign. `lasted_us` is of the whole path, null without its sender. `ends` is a pair.
    """

    def took(hop: Column, place: Column) -> Column:
        following = F.get("hops", place + 1)
        return F.when(slot_of(following) == slot_of(hop) + 1, following["entered_us"] - hop["left_us"])

    last = F.get("hops", F.size("hops") - 1)
    return ordered.select(
        *("*", last.alias("last"), _links(took).alias("between_us")),
        F.when(_has_sender(), last["left_us"] - F.col("first.left_us")).alias("lasted_us"),
        pair_of(F.col("first.instance"), last["instance"]).alias("ends"),
    )


def _links(told: Callable[[Column, Column], Column]) -> Column:
    """Return an array of the function's values for each hop and its place, except the last: no link follows it."""
    return F.slice(F.transform("hops", told), F.lit(1), F.greatest(F.size("hops") - 1, F.lit(0)))


def _pairs() -> Column:
    """The pair of instances of each link; dear, so asked of few rows."""
    return _links(lambda hop, place: pair_of(hop["instance"], F.get("hops", place + 1)["instance"]))


def _contradictions(measured: DataFrame) -> DataFrame:
    """
    One row, one column: the pairs of instances whose clocks contradict each other.

    It asks for the frame's constants, which it does not need, so that Spark shuffles once for both; and for a row of
    every frame, nearly all of them null, because a filter would be pushed down.
    """
    is_negative = F.array_min("between_us") < -CLOCK_TOLERANCE_US
    is_over = F.col("lasted_us") < -CLOCK_TOLERANCE_US
    links = F.zip_with(_pairs(), "between_us", lambda pair, took: F.when(took < -CLOCK_TOLERANCE_US, pair))
    found = F.concat(links, F.array(F.when(is_over, F.col("ends"))))
    is_wanted = (is_negative | is_over) & F.col("constant").isNotNull()
    rows = measured.select(F.explode_outer(F.when(is_wanted, found)).alias("pair"))
    return rows.agg(F.collect_set("pair").alias("apart"))


def _told(measured: DataFrame, *, left_since_us: Column) -> DataFrame:
    is_dropped = F.col("end") == VisitOutcome.DROPPED.value
    is_lost = F.col("end") == LOST
    has_ended_here = F.col("end") != VisitOutcome.ACKNOWLEDGED.value
    may_hide = (F.array_min("between_us") < 0) | (F.size("apart") > 0)
    known = F.zip_with("between_us", _pairs(), lambda took, pair: F.when((took >= 0) & ~_is_apart(pair), took))
    hidden = F.zip_with("between_us", _pairs(), lambda took, pair: (took < 0) | (took.isNotNull() & _is_apart(pair)))
    contradictions = F.size(F.filter(hidden, lambda one: one))
    crosses = F.when(F.size("apart") > 0, _is_apart(F.col("ends")) | F.exists(_pairs(), _is_apart))
    columns = {
        **{name: F.col(f"constant.{name}") for name in _CONSTANT},
        "is_resend": F.when(_has_sender(), step_of(F.col("first")) == STEPS.index(VisitOutcome.RESENT)),
        "started_at": F.timestamp_micros(_started_us()),
        "ended_at": F.timestamp_micros(_ended_us()),
        "path": F.col("hops.instance"),
        "came_from": F.when(~_has_sender(), F.get("hops", F.lit(0))["adjacent_in"]),
        "next_hops": F.col("hops.adjacent_out"),
        "residence_us": F.col("hops.residence_us"),
        "link_us": F.when(may_hide, known).otherwise(F.col("between_us")),
        "total_us": F.when((F.col("lasted_us") >= 0) & ~F.coalesce(crosses, F.lit(col=False)), F.col("lasted_us")),
        "end_instance": F.when(has_ended_here, F.col("last.instance")),
        "lost_to": F.when(is_lost, F.col("last.adjacent_out")),
        "reason": F.when(is_dropped, F.col("last.reason")),
        "code": F.when(is_dropped, F.col("last.code")),
        "has_loop": _has_loop(),
        "missing_hops": _missing_hops(),
        "unknown_links": F.when(may_hide, contradictions).otherwise(F.lit(0)),
    }
    return as_result(measured.withColumn("end", _end(left_since_us)), PATHS, columns)


def _end(left_since_us: Column) -> Column:
    last = F.col("last")
    left_us = F.coalesce("last.left_us", "last.entered_us")
    return (
        F.when(step_of(last) >= STEPS.index(VisitOutcome.DROPPED), outcome_of(last))
        .when(F.col("is_acknowledged"), F.lit(VisitOutcome.ACKNOWLEDGED.value))
        .when(left_us < left_since_us, F.lit(LOST))
        .otherwise(F.lit(UNDER_WAY))
    )


def _has_sender() -> Column:
    return slot_of(F.col("first")) == 0


def _started_us() -> Column:
    """Return when it left its sender, or the earliest instant known: of its hops, or of the rest if it has none."""
    earliest = F.least(F.array_min("hops.entered_us"), F.array_min("hops.left_us"), F.col("first.entered_us"))
    return F.coalesce(F.when(_has_sender(), F.col("first.left_us")), earliest)


def _ended_us() -> Column:
    """The latest instant known of it, when it was acknowledged only when nothing else is known."""
    latest = F.greatest(F.array_max("hops.left_us"), F.array_max("hops.entered_us"))
    return F.coalesce(latest, F.col("first.left_us"), F.col("first.entered_us"))


def _is_apart(pair: Column) -> Column:
    """Whether the clocks of a pair of instances contradict each other; never null."""
    return F.coalesce(F.array_contains("apart", pair), F.lit(col=False))


def _missing_hops() -> Column:
    """Slots up to the last known one, the sender's among them, of which no visit is known."""
    distinct = F.when(F.col("is_plain"), F.size("hops")).otherwise(
        F.size(F.array_distinct(F.transform("hops", slot_of)))
    )
    return F.coalesce(slot_of(F.col("last")) + 1 - distinct, F.lit(0))


def _has_loop() -> Column:
    """True if an instance is twice among the gateways; one instance as both sender and target does not make a loop."""
    is_repeated = F.size(F.array_distinct("hops.instance")) < F.size("hops")
    gateways = F.filter("hops", lambda hop: step_of(hop).isin(*_PASSING))
    passing = F.transform(gateways, lambda hop: hop["instance"])
    return F.when(is_repeated, F.size(F.array_distinct(passing)) < F.size(passing)).otherwise(F.lit(col=False))

"""
The small tables of the report, made by Spark from the results of the jobs: `gather` makes the digest of them.

Every table has at most `LISTED_MAX` rows, and every line at most `BUCKETS_MAX` points. The columns of a table are the
fields of its class in `broker.pipeline.report.digest`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any, TypeVar

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame, Row, Window

from broker.pipeline.paths import LOST, UNDER_WAY
from broker.pipeline.report.digest import (
    BUCKETS_MAX,
    INCIDENT_GAP,
    LISTED_MAX,
    NO_RECORD,
    Digest,
    Extent,
    Gap,
    Hold,
    Imbalance,
    InputFacts,
    Journey,
    LedgerTotal,
    LinkRow,
    Listing,
    LoopRow,
    Loss,
    RouteUse,
    Series,
    Spread,
    StationRow,
    Talker,
    Timeline,
)
from broker.pipeline.results import RESULTS
from broker.protocol.layout import show_guid

NEEDED = tuple(RESULTS)
"""The jobs whose results the report is made of."""
TALKERS_MAX = 10
_OF_HOPS = ("residence_us", "next_hops", "link_us")  # of each hop in `path`
_PROBLEMS_SHOWN = 3
_BALANCE = tuple(LedgerTotal.__dataclass_fields__)
_SPREADS = ("residence", "transit", "total", "typical")

Shown = TypeVar("Shown")


def gather(results: Mapping[str, DataFrame], facts: InputFacts) -> Digest:
    """
    Make the digest.

    Args:
        results: The result of each job of `NEEDED` by name, with the columns that `broker.pipeline.results` describes.
            Each is read several times: give what was written, or persist it.
        facts: The input from which they were made.
    """
    axis = timeline(results["routes"], results["capacity"])
    services, conversations = talkers(results["dialogs"])
    return replace(
        course(ways(results["paths"], facts.holes), results["routes"], axis),
        facts=facts,
        balance=balance(results["reconcile"]),
        imbalances=imbalances(results["reconcile"]),
        holds=holds(results["capacity"], axis),
        services=services,
        conversations=conversations,
    )


def plain(row: Row) -> dict[str, Any]:
    """Return the columns by name: instants in UTC, `_ranked` ones as a `Spread`, arrays as tuples, ids as text."""
    return {name: Spread(*(value or ())) if name in _SPREADS else _plain(value) for name, value in row.asDict().items()}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)  # PySpark gives it in the zone of the machine, whatever that of the session is
    if isinstance(value, bytes | bytearray):
        return show_guid(bytes(value))
    return tuple(value) if isinstance(value, list) else value


def _listing(kind: type[Shown], table: DataFrame) -> Listing[Shown]:
    """Return the first rows of a table; one more is read, so that it is known whether there are more."""
    rows = table.limit(LISTED_MAX + 1).collect()
    return Listing(tuple(kind(**plain(row)) for row in rows[:LISTED_MAX]), len(rows))


# --- reconcile and dialogs: what adds up, and which services send most ---


def balance(reconcile: DataFrame) -> LedgerTotal | None:
    """Return the ledger's total; None if there is none, because there are no messages."""
    rows = reconcile.where(F.col("conversation_id").isNull()).select(*_BALANCE).limit(1).collect()
    return LedgerTotal(**rows[0].asDict()) if rows else None


def imbalances(reconcile: DataFrame) -> Listing[Imbalance]:
    """Return what does not add up, the worst first."""
    wrong = reconcile.where(F.col("conversation_id").isNotNull() & ~F.col("adds_up"))
    worst = F.col("missing") + F.col("doubled") + F.col("invented")
    found = _listing(
        Imbalance,
        wrong.orderBy(worst.desc(), "conversation_id", "from_target").select(
            F.col("conversation_id").alias("conversation"),
            *("from_service", "to_service", "missing", "doubled", "invented", "problems"),
        ),
    )
    rows = (replace(one, problems=tuple(map(_problem, one.problems or ()))[:_PROBLEMS_SHOWN]) for one in found.rows)
    return Listing(tuple(rows), wrong.count() if found.total > LISTED_MAX else found.total)


def _problem(one: Any) -> str:
    fragment = f", fragment {one['fragment_number']}" if one["fragment_number"] else ""
    reason = f", dropped last: {one['reason']}" if one["reason"] else ""
    return f"{one['problem']}: message {one['sequence_number']}{fragment}{reason}"


def talkers(dialogs: DataFrame) -> tuple[Listing[Talker], Listing[Talker]]:
    """Return the pairs of services, and the conversations by direction, that send most bytes."""
    sums = (F.sum(one).alias(one) for one in ("messages", "bytes", "resends"))
    services = dialogs.groupBy("from_service", "to_service").agg(*sums, F.count("*").alias("dialogs"))
    single = dialogs.orderBy(F.desc("bytes"), "conversation_id", "from_target").select(
        *("from_service", "to_service", "messages", "bytes", "resends"),
        F.col("conversation_id").alias("conversation"),
    )
    by_bytes = services.orderBy(F.desc("bytes"), "from_service", "to_service")
    return _listing(Talker, by_bytes), _listing(Talker, single.limit(TALKERS_MAX))


# --- paths ---
# Small tables out of `paths`: the instances and links of the traffic map, losses, loops, journeys, and what is
# unknown.
#
# Frames of all kinds are counted, for acknowledgements load a link as messages do; journeys are messages only.
#
# A loss is known by the address that the frame was given to, a link by the instances at its ends. The instance of an
# address is found from the frames that arrived: the one that got most of what the same instance gave to the address.
# When none of that arrived anywhere, it is the one that got most of what other instances gave to it. Without any, no
# instance of that address keeps a journal here: what it got is not lost but unknown, a gap. So is what an instance got
# while its journal has a hole. A message may be known as acknowledged even so.


RANKS = (0.5, 0.95, 0.99)
_IS_LOST = f"end = '{LOST}' AND went_to IS NOT NULL"  # of an instance that has a journal, and no hole in it then
_ACKNOWLEDGED, _DROPPED, _DELIVERED = "acknowledged", "dropped", "delivered"


def _ranked(times: Column | str) -> Column:
    """Return an aggregate for a `Spread`: percentiles, and of how many; null without any."""
    return F.concat(F.percentile_approx(times, RANKS), F.array(F.count(times)))


def ways(paths: DataFrame, holes: Mapping[str, Sequence[Sequence[int]]] | None = None) -> Digest:
    """Return a digest with the contents of `paths`; `holes` as `Inventory.holes`."""
    whole = paths.transform(_with_unrecorded, _owners(paths), holes or {})
    lost = whole.transform(losses).persist()
    try:
        return Digest(
            stations=_listing(StationRow, whole.transform(stations, lost)),
            links=_listing(LinkRow, lossy_links(whole, lost)),
            losses=_listing(Loss, lost.orderBy(F.desc("lost"), "from_instance", "next_hop")),
            gaps=_listing(Gap, whole.transform(gaps)),
            loops=_listing(LoopRow, paths.transform(loops)),
            journeys=_listing(Journey, whole.transform(journeys)),
            extent=_extent(whole),
        )
    finally:
        lost.unpersist()


def _owners(paths: DataFrame) -> dict[str, str]:
    """
    Return by address the instance at which most frames for it arrived.

    Likewise by the instance that gave it the frames, a space and the address.
    """
    seen = paths.transform(_steps, "missing_hops").where((F.col("missing_hops") == 0) | F.col("link_us").isNotNull())
    counts = seen.where("next_hop IS NOT NULL").groupBy("from_instance", "next_hop", "to_instance").count()
    arrived: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sender, address, instance, frames in counts.orderBy("to_instance").collect():
        for key in (address, f"{sender} {address}"):
            arrived[key][instance] += frames
    return {key: instances.most_common(1)[0][0] for key, instances in arrived.items()}


def _dictionary(values: Mapping[str, Any], form: str) -> Column:
    return F.from_json(F.lit(json.dumps(values)), f"map<string,{form}>")


def _with_unrecorded(
    paths: DataFrame, owners: Mapping[str, str], holes: Mapping[str, Sequence[Sequence[int]]]
) -> DataFrame:
    """
    Put the instances that are missing into each path, by the address at which the one before reached them: `gaps`.

    It is the owner of that address, which was killed before it wrote, or else the address itself. So is the last one,
    when a frame left for it and nothing more is known: of an address without an owner, or of an owner in one of its
    `holes`. `went_to` is that owner if it has no hole then. Null are a sender without a journal, and what is missing
    after the first of several in a row: no link leads to these. A frame that came from an instance that keeps a journal
    has passed it.
    """
    by_address, known = _dictionary(owners, "string"), _dictionary(holes, "array<array<bigint>>")
    last, left_us = F.size("path") - 1, F.unix_micros("ended_at")
    is_open = F.col("end").isin(LOST, _ACKNOWLEDGED, UNDER_WAY)
    is_missing = F.coalesce(F.col("missing_hops") > 0, F.lit(col=False))
    has_no_sender = is_missing & F.col("is_resend").isNull()
    nulls = F.size(F.filter("link_us", lambda link: link.isNull()))
    are_more = F.col("missing_hops") - has_no_sender.cast("int") > nulls

    def owner(instance: Column, place: Column) -> Column:
        address = F.get("next_hops", place)
        return F.coalesce(by_address[F.concat(instance, F.lit(" "), address)], by_address[address])

    def hop(instance: Column, place: Column | None = None, *, is_gap: bool = False) -> Column:
        values = [(F.lit(None) if place is None else F.get(name, place)).alias(name) for name in _OF_HOPS]
        return F.struct(instance.alias("path"), *values, F.lit(is_gap).alias("is_gap"))

    def with_gap(instance: Column, place: Column) -> Column:
        to = owner(instance, place)
        is_in_hole = F.exists(known[to], lambda one: left_us.between(one[0], one[1]))
        there = F.coalesce(to, _unrecorded(F.get("next_hops", place)))
        is_within = is_missing & F.get("link_us", place).isNull() & (there != F.get("path", place + 1))
        is_gap = F.when(place == last, is_open & (to.isNull() | is_in_hole)).otherwise(is_within)
        gap, more = F.when(is_gap, hop(there, is_gap=True)), F.when(is_gap & are_more & (place < last), unknown)
        return F.array(hop(instance, place), gap, more)

    unknown = hop(F.lit(None).cast("string"))
    is_passed = has_no_sender & F.coalesce(F.col("came_from").isin(sorted(set(owners.values()))), F.lit(col=False))
    before = F.array(F.when(has_no_sender, unknown), F.when(is_passed, hop(F.col("came_from"), is_gap=True)))
    hops = F.array_compact(F.concat(before, F.flatten(F.transform("path", with_gap))))
    found = paths.withColumn("hops", F.when(is_missing | is_open, hops))
    columns = {name: F.coalesce(f"hops.{name}", name) for name in ("path", *_OF_HOPS)}
    is_gone = is_open & ~F.get("hops.is_gap", F.size("hops") - 1)
    went_to = F.when(is_gone, owner(F.get("path", last), last)).alias("went_to")
    return found.withColumns(
        {"gaps": F.filter("hops", lambda one: one["is_gap"])["path"], "went_to": went_to, **columns}
    ).drop("hops")


def _unrecorded(address: Column) -> Column:
    return F.concat(F.lit(NO_RECORD), F.coalesce(address, F.lit("?")))


def stations(paths: DataFrame, lost: DataFrame) -> DataFrame:
    """One row per instance: what passed it, how long that stayed, and its average position on the paths."""
    last = F.size("path") - 1
    way = F.col("place") / F.greatest("last", F.lit(1))
    is_last = F.col("place") == F.col("last")
    lost_there = lost.groupBy(F.col("from_instance").alias("instance")).agg(F.sum("lost").alias("lost"))
    return (
        paths.select("*", last.alias("last"))
        .select("bytes", "from_target", "end", "residence_us", "last", F.posexplode("path"))
        .withColumnsRenamed({"pos": "place", "col": "instance"})
        .where("instance IS NOT NULL")
        .groupBy("instance")
        .agg(
            F.count("*").alias("frames"),
            F.sum("bytes").alias("bytes"),
            F.count_if((F.col("place") == 0) | is_last).alias("ends"),
            F.avg(F.when(F.col("from_target"), 1 - way).otherwise(way)).alias("position"),
            F.count_if((F.col("end") == _DROPPED) & is_last).alias("dropped"),
            _ranked(F.get("residence_us", F.col("place"))).alias("residence"),
        )
        .join(lost_there, on="instance", how="left")
        .fillna(0, subset=["bytes", "lost"])
        .orderBy(F.desc("frames"), "instance")
    )


def links(paths: DataFrame) -> DataFrame:
    """One row per pair of neighbours on a way: what arrived, and how long it took."""
    is_gap = F.arrays_overlap(F.array("from_instance", "to_instance"), "gaps")
    return (
        paths.transform(_steps, "bytes", "gaps")
        .where("from_instance IS NOT NULL AND to_instance IS NOT NULL")
        .groupBy("from_instance", "to_instance")
        .agg(
            F.count("*").alias("frames"),
            F.sum("bytes").alias("bytes"),
            _ranked("link_us").alias("transit"),
            F.count_if(is_gap).alias("unrecorded"),
        )
    )


def _steps(paths: DataFrame, *names: str) -> DataFrame:
    """One row per step from neighbour to neighbour: instances, `next_hop` it was given to, `link_us`, and `names`."""
    place = F.explode(F.sequence(F.lit(0), F.size("path") - 2)).alias("place")
    return (
        paths.where(F.size("path") > 1)
        .select("path", "next_hops", "link_us", *names, place)
        .select(
            F.get("path", F.col("place")).alias("from_instance"),
            F.get("path", F.col("place") + 1).alias("to_instance"),
            F.get("next_hops", F.col("place")).alias("next_hop"),
            F.get("link_us", F.col("place")).alias("link_us"),
            *names,
        )
    )


def losses(paths: DataFrame) -> DataFrame:
    """One row per instance and next hop, an instance with a journal, after which frames were seen nowhere."""
    last = F.size("path") - 1
    ends = F.get("path", last).alias("from_instance"), F.get("next_hops", last).alias("next_hop")
    return paths.where(_IS_LOST).groupBy(*ends, F.col("went_to").alias("to_instance")).agg(F.count("*").alias("lost"))


def gaps(paths: DataFrame) -> DataFrame:
    """One row per instance or address whose record is missing, of the frames that it got."""
    return (
        paths.select("started_at", "ended_at", F.explode("gaps").alias("instance"))
        .groupBy("instance")
        .agg(F.count("*").alias("frames"), F.min("started_at").alias("first_at"), F.max("ended_at").alias("last_at"))
        .orderBy(F.desc("frames"), "instance")
    )


def lossy_links(paths: DataFrame, lost: DataFrame) -> DataFrame:
    """`links` with what was `lost` on each; one on which nothing arrived has no frames."""
    ends = ["from_instance", "to_instance"]
    on_links = lost.groupBy(*ends).agg(F.sum("lost").alias("lost"))
    found = paths.transform(links).join(on_links, on=ends, how="full")
    counts = {name: F.coalesce(name, F.lit(0)) for name in ("frames", "bytes", "lost", "unrecorded")}
    return found.withColumns(counts).orderBy(F.desc(F.col("frames") + F.col("lost")), *ends)


def loops(paths: DataFrame) -> DataFrame:
    """One row per way that came to an instance twice and incident, and what became of the frames."""
    alike = Window.partitionBy("path", "end", "reason").orderBy("started_at")
    pause = F.col("started_at") - F.lag("started_at").over(alike)
    is_new = F.coalesce(pause > F.lit(INCIDENT_GAP), F.lit(col=True)).cast("int")
    return (
        paths.where("has_loop")
        .select("path", "end", "reason", "started_at", "ended_at", is_new.alias("is_new"))
        .withColumn("incident", F.sum("is_new").over(alike))
        .groupBy("path", "end", "reason", "incident")
        .agg(F.count("*").alias("frames"), F.min("started_at").alias("first_at"), F.max("ended_at").alias("last_at"))
        .orderBy(F.desc("frames"), "path", "end", "reason", "first_at")
        .drop("incident")
    )


def journeys(paths: DataFrame) -> DataFrame:
    """One row per pair of services: messages delivered, or acknowledged from where no record is, and their times."""
    is_delivered = F.col("end") == _DELIVERED
    took = _ranked(F.when(is_delivered, F.col("total_us")))
    is_gap = F.get("path", F.size("path") - 1) == F.get("gaps", F.size("gaps") - 1)
    is_known = (F.col("end") == _ACKNOWLEDGED) & is_gap
    return (
        paths.where((F.col("kind") == "message") & (is_delivered | is_known))
        .groupBy("from_service", "to_service")
        .agg(F.count("*").alias("messages"), took.alias("total"))
        .orderBy(F.desc("messages"), "from_service", "to_service")
    )


def _extent(paths: DataFrame) -> Extent:
    """Return from when to when, how many transmissions there are, and of how many something is not known."""
    [row] = paths.agg(
        F.min("started_at").alias("first_at"),
        F.max("ended_at").alias("last_at"),
        F.count("*").alias("transmissions"),
        F.count_if((F.col("missing_hops") > 0) & F.col("is_resend").isNull()).alias("unsent"),
        F.count_if(F.col("unknown_links") > 0).alias("unknown_links"),
        F.count_if((F.col("end") == UNDER_WAY) & F.col("went_to").isNotNull()).alias("under_way"),
        F.count_if(F.expr(_IS_LOST)).alias("lost"),
        F.count_if("has_loop").alias("looped"),
        F.count_if(F.size("gaps") > 0).alias("unrecorded"),
    ).collect()
    return Extent(**plain(row))


# --- time ---
# Small tables out of `routes` and `capacity`: traffic over time, on one axis for all of it.
#
# The axis has at most `BUCKETS_MAX` buckets of whole windows, so a history of months is as small as one of an hour.
# No percentile of the whole time can be made of percentiles of windows: a route has those of its middle window, up to
# which half of its frames left when windows are in order of p99, and the worst.


SERIES_MAX = 24  # lines that are drawn of one kind
_RANKS = ("residence_p50_us", "residence_p95_us", "residence_p99_us")


def timeline(*results: DataFrame) -> Timeline | None:
    """The axis that all windows of some results fit on; None when they have none."""
    windows = reduce(DataFrame.unionByName, (one.select("window_start", "window_seconds") for one in results))
    [row] = windows.agg(
        F.unix_timestamp(F.min("window_start")).alias("begin"),
        F.max(F.unix_timestamp("window_start") + F.col("window_seconds")).alias("end"),
        F.max("window_seconds").alias("window"),
    ).collect()
    if row["begin"] is None:
        return None
    seconds, window = row["end"] - row["begin"], row["window"]
    step = window * max(1, -(-seconds // (window * BUCKETS_MAX)))
    return Timeline(datetime.fromtimestamp(row["begin"], UTC), step, -(-seconds // step))


def course(digest: Digest, routes: DataFrame, axis: Timeline | None) -> Digest:
    """Return a digest with the contents of `routes` too; `axis` as `timeline` found it."""
    if axis is None:
        return digest
    drops = routes.select("window_start", F.explode("drops_by_reason").alias("label", "value"))
    moves = routes.select("window_start", F.col("instance").alias("label"), F.col("failovers").alias("value"))
    traffic = routes.select("window_start", F.lit("frames").alias("label"), F.col("frames").alias("value"))
    return replace(
        digest,
        timeline=axis,
        traffic=next(iter(_series(traffic, axis)), Series("frames", (0,) * axis.buckets)),
        drops=_series(drops, axis),
        failovers=_series(moves, axis),
        routes=_listing(RouteUse, routes.transform(uses)),
    )


def uses(routes: DataFrame) -> DataFrame:
    """One row per instance, table and route: sums over all windows, the middle window and the worst one."""
    of = "instance", "route_table", "route"
    p99, whole = F.col("residence_p99_us"), Window.partitionBy(*of)
    timed = F.sum(F.when(p99.isNotNull(), F.col("frames")))
    ranks = F.concat(F.min_by(F.array(*_RANKS), "half_p99"), F.array(timed))
    is_half = 2 * timed.over(whole.orderBy(p99)) >= timed.over(whole)
    return (
        routes.withColumn("half_p99", F.when(is_half, p99))
        .groupBy(*of)
        .agg(
            F.sum("frames").alias("frames"),
            ranks.alias("typical"),
            F.max("residence_p99_us").alias("worst_p99"),
            F.max_by("window_start", "residence_p99_us").alias("worst_at"),
        )
        .orderBy(F.desc("frames"), "instance", "route_table", "route")
    )


def holds(capacity: DataFrame, axis: Timeline | None) -> Listing[Hold]:
    """Return what instances held, those with the greatest peaks first; a line for `SERIES_MAX` of them."""
    if axis is None:
        return Listing()
    greatest = ("peak_bytes", "peak_frames", "p99_bytes", "recommended_bytes")
    peaks = capacity.groupBy("instance").agg(
        *(F.max(name).alias(name) for name in greatest),
        F.max_by("window_start", "peak_bytes").alias("peak_at"),
        F.min("headroom").alias("headroom"),
    )
    found = _listing(Hold, peaks.withColumn("peaks", F.array()).orderBy(F.desc("peak_bytes"), "instance"))
    drawn = [one.instance for one in found.rows[:SERIES_MAX]]
    lines: dict[str, list[int | None]] = {instance: [None] * axis.buckets for instance in drawn}
    by_bucket = capacity.where(F.col("instance").isin(drawn)).groupBy("instance", _bucket(axis).alias("bucket"))
    for row in by_bucket.agg(F.max("peak_bytes").alias("peak")).collect():
        lines[row["instance"]][row["bucket"]] = row["peak"]
    return Listing(tuple(replace(one, peaks=tuple(lines.get(one.instance, ()))) for one in found.rows), found.total)


def _series(counts: DataFrame, axis: Timeline) -> tuple[Series, ...]:
    """The labels with most, the most first; bounded, because labels are reasons and instances."""
    value = F.sum("value").alias("value")
    most = counts.groupBy("label").agg(value).where(F.col("value") > 0)
    labels = [row["label"] for row in most.orderBy(F.desc("value"), "label").limit(SERIES_MAX).collect()]
    lines = {label: [0] * axis.buckets for label in labels}
    if labels:
        of_buckets = counts.where(F.col("label").isin(labels)).groupBy("label", _bucket(axis).alias("bucket"))
        for row in of_buckets.agg(value).collect():
            lines[row["label"]][row["bucket"]] = row["value"]
    return tuple(Series(label, tuple(points)) for label, points in lines.items())


def _bucket(axis: Timeline) -> Column:
    since = F.unix_timestamp("window_start") - F.lit(round(axis.first_at.timestamp()))
    return F.floor(since / axis.step_seconds).cast("int")

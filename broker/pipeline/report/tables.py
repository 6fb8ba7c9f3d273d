"""Small tables out of `reconcile` and `dialogs`: what adds up, who talks most."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame, Row, Window

from broker.pipeline.report.digest import (
    BUCKETS_MAX,
    INCIDENT_GAP,
    LISTED_MAX,
    Extent,
    Hold,
    Imbalance,
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

TALKERS_MAX = 10
_PROBLEMS_SHOWN = 3
_BALANCE = tuple(LedgerTotal.__dataclass_fields__)


def balance(reconcile: DataFrame) -> LedgerTotal | None:
    """The ledger's total; None when there is none, because there are no messages."""
    rows = reconcile.where(F.col("conversation_id").isNull()).select(*_BALANCE).limit(1).collect()
    return LedgerTotal(**rows[0].asDict()) if rows else None


def imbalances(reconcile: DataFrame) -> Listing[Imbalance]:
    """What does not add up, the worst first."""
    wrong = reconcile.where(F.col("conversation_id").isNotNull() & ~F.col("adds_up"))
    worst = F.col("missing") + F.col("doubled") + F.col("invented")
    rows = wrong.orderBy(worst.desc(), "conversation_id", "from_target").limit(LISTED_MAX).collect()
    return Listing(tuple(_imbalance(row) for row in rows), wrong.count() if len(rows) == LISTED_MAX else len(rows))


def talking_services(dialogs: DataFrame) -> DataFrame:
    """One row per pair of services, the one with most bytes first."""
    return (
        dialogs.groupBy("from_service", "to_service")
        .agg(
            *(F.sum(one).alias(one) for one in ("messages", "bytes", "resends")),
            F.count("*").alias("dialogs"),
        )
        .orderBy(F.desc("bytes"), "from_service", "to_service")
        .select("from_service", "to_service", "messages", "bytes", "resends", "dialogs")
    )


def talkers(dialogs: DataFrame) -> tuple[Listing[Talker], Listing[Talker]]:
    """Services, and conversations by direction, that send most."""
    columns = ("from_service", "to_service", "messages", "bytes", "resends")
    services = dialogs.transform(talking_services).limit(LISTED_MAX + 1).collect()
    order = (F.desc("bytes"), "conversation_id", "from_target")
    single = dialogs.orderBy(*order).select("conversation_id", *columns).limit(TALKERS_MAX).collect()
    pairs = tuple(Talker(**row.asDict()) for row in services[:LISTED_MAX])
    alone = tuple(
        Talker(**{one: row[one] for one in columns}, conversation=_guid(row["conversation_id"])) for row in single
    )
    return Listing(pairs, len(services)), Listing(alone, len(alone))


def _imbalance(row: Any) -> Imbalance:
    problems = row["problems"] or []
    words = [_problem(one) for one in problems]
    plain = ("from_target", "from_service", "to_service", "missing", "doubled", "invented")
    return Imbalance(
        conversation=_guid(row["conversation_id"]),
        problems=tuple(words[:_PROBLEMS_SHOWN]),
        **{one: row[one] for one in plain},
    )


def _problem(one: Any) -> str:
    fragment = f", fragment {one['fragment_number']}" if one["fragment_number"] else ""
    reason = f", dropped last: {one['reason']}" if one["reason"] else ""
    return f"{one['problem']}: message {one['sequence_number']}{fragment}{reason}"


def _guid(octets: bytes) -> str:
    return str(UUID(bytes=bytes(octets)))


# --- row ---
# Rows as Spark hands them over, as plain values.
#
# PySpark gives instants without a zone in the zone of the machine, whatever the session's zone is: they become UTC
# here,
# before anything else looks at them.


def plain(row: Row) -> dict[str, Any]:
    """The columns by name, instants in UTC."""
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in row.asDict().items()}


def utc(when: datetime) -> datetime:
    """An instant that Spark gave."""
    return when.astimezone(UTC)


def spread(ranks: list[float | None] | None) -> Spread:
    """Three percentiles; unknown ones when Spark had no value to rank."""
    return Spread(*(None if rank is None else round(rank) for rank in ranks)) if ranks else Spread()


# --- paths ---
# Small tables out of `paths`: the instances and links of the traffic map, losses, loops, journeys, and what is
# unknown.
#
# Frames of all kinds are counted, for acknowledgements load a link as messages do; journeys are messages only.
#
# A loss is known by the address that the frame was given to, a link by the instances at its ends. The instance of an
# address is found from the frames that arrived: the one that got most of what the same instance gave to the address.
# When none of that arrived anywhere, it is the one that got most of what other instances gave to it.


RANKS = (0.5, 0.95, 0.99)
_LOST = "lost"
_DROPPED = "dropped"


class PathTables(NamedTuple):
    """What `paths` gives to the report."""

    stations: Listing[StationRow]
    links: Listing[LinkRow]
    losses: Listing[Loss]
    loops: Listing[LoopRow]
    journeys: Listing[Journey]
    extent: Extent


def ways(paths: DataFrame) -> PathTables:
    """Gather all of it."""
    lost = paths.transform(losses).persist()
    try:
        return PathTables(
            stations=_listing([_station(row) for row in _rows(paths.transform(stations))]),
            links=_listing([_link(row) for row in _rows(lossy_links(paths, lost))]),
            losses=_listing([_loss(row) for row in _rows(losses_of(paths, lost))]),
            loops=_listing([_loop(row) for row in _rows(paths.transform(loops))]),
            journeys=_listing([_journey(row) for row in _rows(paths.transform(journeys))]),
            extent=_extent(paths, lost),
        )
    finally:
        lost.unpersist()


def stations(paths: DataFrame) -> DataFrame:
    """One row per instance: what passed it, how long it stayed, and where on their ways it stands."""
    last = F.size("path") - 1
    way = F.col("place") / F.greatest("last", F.lit(1))
    is_last = F.col("place") == F.col("last")
    return (
        paths.select("*", last.alias("last"))
        .select("bytes", "from_target", "end", "residence_us", "last", F.posexplode("path"))
        .withColumnsRenamed({"pos": "place", "col": "instance"})
        .groupBy("instance")
        .agg(
            F.count("*").alias("frames"),
            _sum(F.col("bytes")).alias("bytes"),
            F.count_if((F.col("place") == 0) | is_last).alias("ends"),
            F.avg(F.when(F.col("from_target"), 1 - way).otherwise(way)).alias("position"),
            F.count_if((F.col("end") == _DROPPED) & is_last).alias("dropped"),
            F.count_if((F.col("end") == _LOST) & is_last).alias("lost"),
            F.percentile(F.get("residence_us", F.col("place")), RANKS).alias("residence"),
        )
        .orderBy(F.desc("frames"), "instance")
        .select("instance", "frames", "bytes", "ends", "position", "dropped", "residence", "lost")
    )


def links(paths: DataFrame) -> DataFrame:
    """
    One row per pair of neighbours on a way: what arrived, and how long it took.

    A way with missing hops has neighbours that are none. Their time is unknown, and such a step is left out.
    """
    return (
        paths.transform(_steps)
        .groupBy("from_instance", "to_instance")
        .agg(
            F.count("*").alias("frames"),
            _sum(F.col("bytes")).alias("bytes"),
            F.percentile("link_us", RANKS).alias("transit"),
        )
        .orderBy(F.desc("frames"), "from_instance", "to_instance")
        .select("from_instance", "to_instance", "frames", "bytes", "transit")
    )


def _steps(paths: DataFrame) -> DataFrame:
    """One row per step from neighbour to neighbour: instances, `next_hop` it was given to, `link_us`, `bytes`."""
    is_gap = (F.col("missing_hops") > 0) & F.col("link_us").isNull()
    place = F.explode(F.sequence(F.lit(0), F.size("path") - 2)).alias("place")
    return (
        paths.where(F.size("path") > 1)
        .select("path", "next_hops", "link_us", "bytes", "missing_hops", place)
        .select(
            F.get("path", F.col("place")).alias("from_instance"),
            F.get("path", F.col("place") + 1).alias("to_instance"),
            F.get("next_hops", F.col("place")).alias("next_hop"),
            F.get("link_us", F.col("place")).alias("link_us"),
            "bytes",
            "missing_hops",
        )
        .where(~F.coalesce(is_gap, F.lit(False)))
    )


def losses(paths: DataFrame) -> DataFrame:
    """One row per instance and next hop where transmissions were lost; `to_instance` whose address it is, or null."""
    given = (
        paths.transform(_steps).groupBy("from_instance", "next_hop", "to_instance").agg(F.count("*").alias("frames"))
    )
    most = F.max(F.struct("frames", F.col("to_instance").alias("instance")))
    by_sender = given.groupBy("from_instance", "next_hop").agg(most["instance"].alias("of_sender"))
    by_all = (
        given.groupBy("next_hop", "to_instance")
        .agg(F.sum("frames").alias("frames"))
        .groupBy("next_hop")
        .agg(most["instance"].alias("of_all"))
    )
    return (
        paths.where(F.col("end") == _LOST)
        .groupBy(F.col("end_instance").alias("from_instance"), F.col("lost_to").alias("next_hop"))
        .agg(F.count("*").alias("lost"))
        .join(by_sender, on=["from_instance", "next_hop"], how="left")
        .join(by_all, on="next_hop", how="left")
        .select("from_instance", "next_hop", "lost", F.coalesce("of_sender", "of_all").alias("to_instance"))
    )


def losses_of(paths: DataFrame, lost: DataFrame) -> DataFrame:
    """Return the groups of `lost` frames, the greatest first, each with all frames that were at its instance."""
    here = (
        paths.select(F.explode("path").alias("from_instance"))
        .groupBy("from_instance")
        .agg(F.count("*").alias("frames"))
    )
    found = lost.join(here, on="from_instance", how="left")
    return found.orderBy(F.desc("lost"), "from_instance", "next_hop").select(
        *("from_instance", "next_hop", "lost", "frames", "to_instance")
    )


def lossy_links(paths: DataFrame, lost: DataFrame) -> DataFrame:
    """`links` with what was `lost` on each; one on which nothing arrived has no frames."""
    ends = ["from_instance", "to_instance"]
    on_links = lost.where(F.col("to_instance").isNotNull()).groupBy(*ends).agg(F.sum("lost").alias("lost"))
    found = paths.transform(links).join(on_links, on=ends, how="full")
    counts = {name: F.coalesce(name, F.lit(0)) for name in ("frames", "bytes", "lost")}
    return (
        found.withColumns(counts)
        .orderBy(F.desc(F.col("frames") + F.col("lost")), *ends)
        .select(*ends, "frames", "bytes", "lost", "transit")
    )


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
        .select("path", "frames", "end", "reason", "first_at", "last_at")
    )


def journeys(paths: DataFrame) -> DataFrame:
    """One row per pair of services: how long messages took that were delivered."""
    return (
        paths.where((F.col("kind") == "message") & (F.col("end") == "delivered"))
        .groupBy("from_service", "to_service")
        .agg(F.count("*").alias("messages"), F.percentile("total_us", RANKS).alias("total"))
        .orderBy(F.desc("messages"), "from_service", "to_service")
        .select("from_service", "to_service", "messages", "total")
    )


def extent(paths: DataFrame) -> DataFrame:
    """One row: from when to when, how many transmissions there are, and of how many something is not known."""
    return paths.agg(
        F.min("started_at").alias("first_at"),
        F.max("ended_at").alias("last_at"),
        F.count("*").alias("transmissions"),
        F.count_if(F.col("missing_hops") > 0).alias("missing_hops"),
        F.count_if(F.col("unknown_links") > 0).alias("unknown_links"),
        F.count_if(F.col("end") == "under way").alias("under_way"),
        F.count_if(F.col("end") == _LOST).alias("lost"),
        F.count_if("has_loop").alias("looped"),
    ).select(*("first_at", "last_at", "transmissions", "missing_hops", "unknown_links", "under_way", "lost", "looped"))


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))


def _rows(table: DataFrame) -> list[Any]:
    """One more than is listed, so that it shows when there are more."""
    return table.limit(LISTED_MAX + 1).collect()


def _listing(rows: list[Any]) -> Listing[Any]:
    return Listing(tuple(rows[:LISTED_MAX]), len(rows))


def _extent(paths: DataFrame, lost: DataFrame) -> Extent:
    found = Extent(**plain(paths.transform(extent).collect()[0]))
    if not found.lost:
        return found
    nowhere = lost.where(F.col("to_instance").isNull()).agg(_sum(F.col("lost")).alias("lost"))
    return replace(found, lost_nowhere=nowhere.collect()[0]["lost"])


def _station(row: Any) -> StationRow:
    return StationRow(**plain(row) | {"residence": spread(row["residence"])})


def _link(row: Any) -> LinkRow:
    return LinkRow(**plain(row) | {"transit": spread(row["transit"])})


def _loss(row: Any) -> Loss:
    found = plain(row)
    return Loss(**found | {name: found[name] or "" for name in ("from_instance", "next_hop", "to_instance")})


def _loop(row: Any) -> LoopRow:
    return LoopRow(**plain(row) | {"path": tuple(row["path"])})


def _journey(row: Any) -> Journey:
    return Journey(**plain(row) | {"total": spread(row["total"])})


# --- time ---
# Small tables out of `routes` and `capacity`: traffic over time, on one axis for all of it.
#
# The axis has at most `BUCKETS_MAX` buckets of whole windows, so a history of months is as small as one of an hour.
# No percentile of the whole time can be made of percentiles of windows: a route has those of its typical window, the
# median weighted by frames, and the worst.


SERIES_MAX = 24  # lines that are drawn of one kind
_RANKS = ("residence_p50_us", "residence_p95_us", "residence_p99_us")


class Course(NamedTuple):
    """What `routes` gives to the report."""

    traffic: Series
    drops: tuple[Series, ...]
    failovers: tuple[Series, ...]
    routes: Listing[RouteUse]


def timeline(*results: DataFrame) -> Timeline | None:
    """The axis that all windows of some results fit on; None when they have none."""
    found = []
    for result in results:
        [row] = result.agg(
            F.min("window_start").alias("first"),
            F.max(F.unix_timestamp("window_start") + F.col("window_seconds")).alias("end"),
            F.unix_timestamp(F.min("window_start")).alias("begin"),
            F.max("window_seconds").alias("window"),
        ).collect()
        if row["first"] is not None:
            found.append(row)
    if not found:
        return None
    first = min(found, key=lambda row: row["begin"])
    seconds = max(row["end"] for row in found) - first["begin"]
    window = max(row["window"] for row in found)
    step = window * max(1, -(-seconds // (window * BUCKETS_MAX)))
    return Timeline(utc(first["first"]), step, -(-seconds // step))


def course(routes: DataFrame, axis: Timeline | None) -> Course:
    """Gather the contents of `routes`; `axis` as `timeline` found it."""
    if axis is None:
        return Course(Series("frames", ()), (), (), Listing())
    drops = routes.select("window_start", F.explode("drops_by_reason").alias("label", "value"))
    moves = routes.select("window_start", F.col("instance").alias("label"), F.col("failovers").alias("value"))
    traffic = routes.select("window_start", F.lit("frames").alias("label"), F.col("frames").alias("value"))
    rows = routes.transform(uses).limit(LISTED_MAX + 1).collect()
    return Course(
        traffic=next(iter(_series(traffic, axis)), Series("frames", (0,) * axis.buckets)),
        drops=_series(drops, axis),
        failovers=_series(moves, axis),
        routes=Listing(tuple(_use(row) for row in rows[:LISTED_MAX]), len(rows)),
    )


def uses(routes: DataFrame) -> DataFrame:
    """One row per instance, table and route: sums over all windows, the typical window and the worst one."""
    typical = [F.percentile(rank, 0.5, F.col("weight")).alias(rank) for rank in _RANKS]
    return (
        routes.withColumn("weight", F.greatest("frames", F.lit(0)))
        .groupBy("instance", "route_table", "route")
        .agg(
            *(F.sum(one).alias(one) for one in ("frames", "bytes", "drops", "failovers")),
            *typical,
            F.max("residence_p99_us").alias("worst_p99"),
            F.max_by("window_start", "residence_p99_us").alias("worst_at"),
        )
        .orderBy(F.desc("frames"), "instance", "route_table", "route")
        .select(
            *("instance", "route_table", "route", "frames", "bytes", "drops", "failovers"),
            F.array(*_RANKS).alias("typical"),
            *("worst_p99", "worst_at"),
        )
    )


def holds(capacity: DataFrame, axis: Timeline | None) -> Listing[Hold]:
    """Return what instances held, those with the greatest peaks first; a line for `SERIES_MAX` of them."""
    if axis is None:
        return Listing()
    rows = capacity.transform(peaks).limit(LISTED_MAX + 1).collect()
    drawn = [row["instance"] for row in rows[:SERIES_MAX]]
    lines: dict[str, list[int | None]] = {instance: [None] * axis.buckets for instance in drawn}
    for row in (
        capacity.where(F.col("instance").isin(drawn))
        .groupBy("instance", _bucket(axis).alias("bucket"))
        .agg(F.max("peak_bytes").alias("peak"))
        .collect()
    ):
        lines[row["instance"]][row["bucket"]] = row["peak"]
    found = (Hold(**plain(row), peaks=tuple(lines.get(row["instance"], ()))) for row in rows[:LISTED_MAX])
    return Listing(tuple(found), len(rows))


def peaks(capacity: DataFrame) -> DataFrame:
    """One row per instance: the greatest of all its windows."""
    return (
        capacity.groupBy("instance")
        .agg(
            F.max("peak_bytes").alias("peak_bytes"),
            F.max("peak_frames").alias("peak_frames"),
            F.max("p99_bytes").alias("p99_bytes"),
            F.max_by("window_start", "peak_bytes").alias("peak_at"),
            F.max("recommended_bytes").alias("recommended_bytes"),
            F.min("headroom").alias("headroom"),
        )
        .orderBy(F.desc("peak_bytes"), "instance")
        .select(
            *("instance", "peak_bytes", "peak_frames", "p99_bytes"),
            *("peak_at", "recommended_bytes", "headroom"),
        )
    )


def over_time(counts: DataFrame, axis: Timeline) -> DataFrame:
    """One row per label and bucket that has any; `counts` has `window_start`, `label`, `value`."""
    return (
        counts.where(F.col("value") > 0)
        .groupBy("label", _bucket(axis).alias("bucket"))
        .agg(F.sum("value").alias("value"))
        .orderBy("label", "bucket")
        .select("label", "bucket", "value")
    )


def _series(counts: DataFrame, axis: Timeline) -> tuple[Series, ...]:
    """The labels with most, the most first; bounded, because labels are reasons and instances."""
    most = counts.groupBy("label").agg(F.sum("value").alias("value")).where(F.col("value") > 0)
    labels = [row["label"] for row in most.orderBy(F.desc("value"), "label").limit(SERIES_MAX).collect()]
    lines = {label: [0] * axis.buckets for label in labels}
    if labels:
        for row in counts.where(F.col("label").isin(labels)).transform(over_time, axis).collect():
            lines[row["label"]][row["bucket"]] = row["value"]
    return tuple(Series(label, tuple(points)) for label, points in lines.items())


def _bucket(axis: Timeline) -> Column:
    since = F.unix_timestamp("window_start") - F.lit(round(axis.first_at.timestamp()))
    return F.floor(since / axis.step_seconds).cast("int")


def _use(row: Any) -> RouteUse:
    return RouteUse(**plain(row) | {"typical": spread(row["typical"])})

"""
Small tables out of `paths`: the instances and links of the traffic map, losses, loops, journeys, and what is unknown.

Frames of all kinds are counted, for acknowledgements load a link as messages do; journeys are messages only.

A loss is known by the address that the frame was given to, a link by the instances at its ends. Whose address it is,
the frames tell that arrived: most of what the same instance gave to it, or, when none of that arrived anywhere, most of
what others did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame, Window

from broker.pipeline.report.digest import (
    INCIDENT_GAP,
    LISTED_MAX,
    Extent,
    Journey,
    LinkRow,
    Listing,
    LoopRow,
    Loss,
    StationRow,
)
from broker.pipeline.report.row import plain, spread

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
    """What was `lost`, the greatest first, each with all frames that were at its instance."""
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

"""
Small tables out of `paths`: the instances and links of the traffic map, losses, loops, journeys, and what is unknown.

Frames of all kinds are counted, for acknowledgements load a link as messages do; journeys are messages only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame

from broker.pipeline.report.digest import LISTED_MAX, Extent, Journey, Link, Listing, Loop, Loss, Station
from broker.pipeline.report.row import plain, spread

RANKS = (0.5, 0.95, 0.99)
_LOST = "lost"
_DROPPED = "dropped"


class Ways(NamedTuple):
    """What `paths` gives to the report."""

    stations: Listing[Station]
    links: Listing[Link]
    losses: Listing[Loss]
    loops: Listing[Loop]
    journeys: Listing[Journey]
    extent: Extent


def ways(paths: DataFrame) -> Ways:
    """Gather all of it."""
    lost = {(row["from_instance"], row["to_instance"]): row["lost"] for row in _rows(paths.transform(losses))}
    used = {(row["from_instance"], row["to_instance"]): _link(row, lost) for row in _rows(paths.transform(links))}
    after = Counter[str]()
    for (end, _), frames in lost.items():
        after[end] += frames
    found = [_station(row, after) for row in _rows(paths.transform(stations))]
    frames = {one.instance: one.frames for one in found}
    lossy = [Loss(end or "", to or "", number, frames.get(end, 0)) for (end, to), number in lost.items()]
    return Ways(
        stations=_listing(found),
        links=_listing(list(used.values())),
        losses=_listing(lossy),
        loops=_listing([_loop(row) for row in _rows(paths.transform(loops))]),
        journeys=_listing([_journey(row) for row in _rows(paths.transform(journeys))]),
        extent=Extent(**plain(paths.transform(extent).collect()[0])),
    )


def stations(paths: DataFrame) -> DataFrame:
    """One row per instance: what passed it, how long it stayed, and where on their ways it stands."""
    last = F.size("path") - 1
    way = F.col("place") / F.greatest("last", F.lit(1))
    is_dropped_here = (F.col("end") == _DROPPED) & (F.col("place") == F.col("last"))
    return (
        paths.select("*", last.alias("last"))
        .select("bytes", "from_target", "end", "residence_us", "last", F.posexplode("path"))
        .withColumnsRenamed({"pos": "place", "col": "instance"})
        .groupBy("instance")
        .agg(
            F.count("*").alias("frames"),
            _sum(F.col("bytes")).alias("bytes"),
            F.count_if((F.col("place") == 0) | (F.col("place") == F.col("last"))).alias("ends"),
            F.avg(F.when(F.col("from_target"), 1 - way).otherwise(way)).alias("position"),
            F.count_if(is_dropped_here).alias("dropped"),
            F.percentile(F.get("residence_us", F.col("place")), RANKS).alias("residence"),
        )
        .orderBy(F.desc("frames"), "instance")
        .select("instance", "frames", "bytes", "ends", "position", "dropped", "residence")
    )


def links(paths: DataFrame) -> DataFrame:
    """
    One row per pair of neighbours on a way: what arrived, and how long it took.

    A way with missing hops has neighbours that are none. Their time is unknown, and such a step is left out.
    """
    is_gap = (F.col("missing_hops") > 0) & F.col("link_us").isNull()
    return (
        paths.where(F.size("path") > 1)
        .select(
            "path",
            "link_us",
            "bytes",
            "missing_hops",
            F.explode(F.sequence(F.lit(0), F.size("path") - 2)).alias("place"),
        )
        .select(
            F.get("path", F.col("place")).alias("from_instance"),
            F.get("path", F.col("place") + 1).alias("to_instance"),
            F.get("link_us", F.col("place")).alias("link_us"),
            "bytes",
            "missing_hops",
        )
        .where(~F.coalesce(is_gap, F.lit(False)))
        .groupBy("from_instance", "to_instance")
        .agg(
            F.count("*").alias("frames"),
            _sum(F.col("bytes")).alias("bytes"),
            F.percentile("link_us", RANKS).alias("transit"),
        )
        .orderBy(F.desc("frames"), "from_instance", "to_instance")
        .select("from_instance", "to_instance", "frames", "bytes", "transit")
    )


def losses(paths: DataFrame) -> DataFrame:
    """One row per link on which transmissions were lost."""
    return (
        paths.where(F.col("end") == _LOST)
        .groupBy(F.col("end_instance").alias("from_instance"), F.col("lost_to").alias("to_instance"))
        .agg(F.count("*").alias("lost"))
        .orderBy(F.desc("lost"), "from_instance", "to_instance")
        .select("from_instance", "to_instance", "lost")
    )


def loops(paths: DataFrame) -> DataFrame:
    """One row per way that came to an instance twice, and what became of the frames."""
    return (
        paths.where("has_loop")
        .groupBy("path", "end", "reason")
        .agg(F.count("*").alias("frames"), F.min("started_at").alias("first_at"), F.max("ended_at").alias("last_at"))
        .orderBy(F.desc("frames"), "path", "end", "reason")
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
    ).select("first_at", "last_at", "transmissions", "missing_hops", "unknown_links", "under_way")


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))


def _rows(table: DataFrame) -> list[Any]:
    """One more than is listed, so that it shows when there are more."""
    return table.limit(LISTED_MAX + 1).collect()


def _listing(rows: list[Any]) -> Listing[Any]:
    return Listing(tuple(rows[:LISTED_MAX]), len(rows))


def _station(row: Any, after: Mapping[str, int]) -> Station:
    lost = after.get(row["instance"], 0)
    return Station(**plain(row) | {"residence": spread(row["residence"]), "lost": lost})


def _link(row: Any, lost: dict[tuple[str, str], int]) -> Link:
    between = (row["from_instance"], row["to_instance"])
    return Link(**plain(row) | {"transit": spread(row["transit"]), "lost": lost.get(between, 0)})


def _loop(row: Any) -> Loop:
    return Loop(**plain(row) | {"path": tuple(row["path"])})


def _journey(row: Any) -> Journey:
    return Journey(**plain(row) | {"total": spread(row["total"])})

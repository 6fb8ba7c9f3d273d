"""
Frames that left an instance by another way than the frame before them of the same dialog and direction.

To see that takes the frames in order, which is dear; but a dialog whose frames all left by one way has no such frame,
and nearly all do. So the first look only asks whether a dialog has more than one way, which needs no order, and the
second puts the frames of the others in order.
"""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame, Window

from broker.pipeline.visit_order import LEAVING

_STREAM = ("instance", "conversation_id", "from_target")


def failovers(visits: DataFrame) -> DataFrame:
    """
    The visits with which a frame left by another way (route table, route, next hop) than the one before it.

    Shape: any columns, among them those of a visit that are used here; the same columns, some of the rows. Of frames
    that left in one instant that of the lesser sequence and fragment number was before; the first one known had none.
    """
    leaving = visits.where(F.col("outcome").isin(*LEAVING))
    ways = leaving.select(*_STREAM, way().alias("way")).groupBy(*_STREAM)
    wavering = ways.agg(F.min("way").alias("least"), F.max("way").alias("most")).where("least <> most").select(*_STREAM)
    place = ("sequence_number", "fragment_number", "message_id")
    in_order = Window.partitionBy(*_STREAM).orderBy(F.coalesce("left_at", "entered_at"), *place)
    return (
        leaving.join(wavering, on=list(_STREAM), how="left_semi")
        .select("*", way().alias("way"))
        .select("*", F.lag("way").over(in_order).alias("way_before"))
        .where("way <> way_before")
        .select(*visits.columns)
    )


def way() -> Column:
    """
    Long that is equal for equal ways: 64 bits of a hash, for numbers are what an aggregate keeps without a sort.

    Null counts as a name of no letters, which nothing has; without that the hash would pass it over.
    """
    return F.xxhash64(*(F.coalesce(name, F.lit("")) for name in ("route_table", "route", "adjacent_out")))

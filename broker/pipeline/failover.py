"""
Frames that left an instance by another way than the frame before them of the same dialog and direction.

To see that takes the frames in order, which is dear; but a dialog whose frames all left by one way has no such frame,
and nearly all do. So the first look only asks which dialogs have more than one way, which needs no order, and the
second puts the frames of those in order. What the first one finds is one bit each in a mask of fixed size, by a hash,
that every task of the second look holds: no join brings all frames together only to leave out nearly all of them. A
dialog that shares its bit with another is put in order for nothing, and has no such frame either.
"""

from __future__ import annotations

from functools import reduce

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame, Window

from broker.pipeline.visit_order import LEAVING

_STREAM = ("instance", "conversation_id", "from_target")
_WORDS = 4096  # of 64 bits: with 10,000 such dialogs 4 % of the others share a bit with one of them
_BIT_SHIFT = 58  # the upper 6 bits of a hash are its bit in a word, the lower ones the word


def failovers(visits: DataFrame) -> DataFrame:
    """
    The visits with which a frame left by another way (route table, route, next hop) than the one before it.

    Shape: any columns, among them those of a visit that are used here; the same columns, some of the rows. Of frames
    that left in one instant that of the lesser sequence and fragment number was before; the first one known had none.
    """
    is_known = reduce(Column.__and__, (F.col(name).isNotNull() for name in _STREAM))
    leaving = visits.where(F.col("outcome").isin(*LEAVING) & is_known)
    place = ("sequence_number", "fragment_number", "message_id")
    in_order = Window.partitionBy(*_STREAM).orderBy(F.coalesce("left_at", "entered_at"), *place)
    return (
        leaving.where(_is_marked(leaving.transform(_mask).scalar()))
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


def _mask(leaving: DataFrame) -> DataFrame:
    """One row, one column: an array of _WORDS longs, with the bits of all dialogs that have more than one way."""
    ways = leaving.select(F.xxhash64(*_STREAM).alias("stream"), way().alias("way")).groupBy("stream")
    wavering = ways.agg(F.min("way").alias("least"), F.max("way").alias("most")).where("least <> most")
    marks = wavering.select(_word(F.col("stream")).alias("word"), _bit(F.col("stream")).alias("bits"))
    blank = leaving.sparkSession.range(_WORDS).select(F.col("id").alias("word"), F.lit(0).cast("long").alias("bits"))
    words = marks.unionByName(blank).groupBy("word").agg(F.bit_or("bits").alias("bits"))
    in_order = F.sort_array(F.collect_list(F.struct("word", "bits")))
    return words.agg(in_order.alias("words")).select(F.col("words.bits").alias("mask"))


def _is_marked(mask: Column) -> Column:
    stream = F.xxhash64(*_STREAM)
    return F.get(mask, _word(stream).cast("int")).bitwiseAND(_bit(stream)) != 0


def _word(stream: Column) -> Column:
    """Long: its place in the mask."""
    return F.pmod(stream, F.lit(_WORDS))


def _bit(stream: Column) -> Column:
    """Long with one bit."""
    return F.call_function("shiftleft", F.lit(1).cast("long"), F.shiftrightunsigned(stream, _BIT_SHIFT).cast("int"))

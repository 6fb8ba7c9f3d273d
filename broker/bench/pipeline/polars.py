"""The questions `paths`, `routes` and `capacity` put to Polars: the same answers, written as the same kind of files."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from broker.bench.pipeline.task import Pass, Task
from broker.forwarding.pool import HELD_OVERHEAD

WINDOW_US = 300_000_000
GRACE_US = 60_000_000
TOLERANCE_US = 10_000  # by which clocks may seem to contradict each other
SENDS = ("sent", "resent")
ENDS = ("delivered", "duplicate", "dropped")


def prepare(task: Task) -> Pass:
    """Nothing is kept between passes."""

    def answer(out: Path) -> None:
        visits = pl.scan_parquet(f"{task.journal}/date=*/hour=*/*.parquet", hive_partitioning=False)
        for job in task.jobs:
            QUESTIONS[job](visits).collect().write_parquet(out / f"{job}.parquet")

    return answer


CONSTANT = (
    "conversation_id",
    "from_target",
    "kind",
    "sequence_number",
    "fragment_number",
    "from_service",
    "to_service",
)


def _stepped(visits: pl.LazyFrame) -> pl.DataFrame:
    """
    One row per hop, those of a transmission in order, with what it knows of the one before it.

    Shape: `is_next` when that is the step before; `took` from there, of any sign; `pair` of the two instances, 0 when
    they are one; `lasted` and `ends` likewise from the sender.
    """
    at = pl.col("instance").hash()
    known = visits.filter(pl.col("outcome") != "acknowledged").select(
        *("message_id", "conversation_id", "from_target", "kind", "sequence_number", "fragment_number"),
        *("from_service", "to_service", "bytes", "outcome", "reason", "code", "adjacent_out", "instance"),
        pl.when(pl.col("outcome").is_in(SENDS)).then(0).otherwise(pl.col("hop_count") + 1).alias("step"),
        pl.col("entered_at").to_physical().alias("came"),
        pl.col("left_at").to_physical().alias("went"),
        at.alias("at"),
    )
    goes_on = (pl.col("message_id") == pl.col("message_id").shift()).fill_null(value=False)
    first = {name: pl.when(~goes_on).then(name).forward_fill() for name in ("step", "went", "at")}
    is_next = goes_on & (pl.col("step") - pl.col("step").shift() == 1)
    return (
        known.sort("message_id", "step")
        .with_columns(
            is_next.alias("is_next"),
            pl.when(is_next).then(pl.col("came") - pl.col("went").shift()).alias("took"),
            pl.when(goes_on).then(pl.col("at") ^ pl.col("at").shift()).alias("pair"),
            pl.when(first["step"] == 0).then(pl.col("went") - first["went"]).alias("lasted"),
            (pl.col("at") ^ first["at"]).alias("ends"),
        )
        .collect()
    )


def _apart(stepped: pl.DataFrame) -> pl.Series:
    """The pairs of instances whose clocks contradict each other, on a link or over the whole way."""
    is_last = (pl.col("message_id") != pl.col("message_id").shift(-1)).fill_null(value=True)
    links = stepped.filter(pl.col("took") < -TOLERANCE_US)["pair"]
    ends = stepped.filter(is_last & (pl.col("lasted") < -TOLERANCE_US))["ends"]
    found = pl.concat([links, ends.alias("pair")]).unique()
    return found.filter(found != 0)


def _gathered(visits: pl.LazyFrame) -> pl.LazyFrame:
    """One row per transmission, before it is judged how it ended."""
    stepped = _stepped(visits)
    apart = _apart(stepped).implode()
    is_apart = pl.col("pair").is_in(apart).fill_null(value=False)
    known = stepped.lazy().with_columns(
        pl.when((pl.col("took") >= 0) & ~is_apart).then("took").alias("link_us"),
        (pl.col("is_next") & ((pl.col("took") < 0) | is_apart)).alias("is_hidden"),
        is_apart.alias("is_apart"),
        pl.col("ends").is_in(apart).alias("is_wholly_apart"),
    )
    return known.group_by("message_id", maintain_order=True).agg(
        *(pl.col(name).first() for name in (*CONSTANT, "bytes")),
        (pl.col("outcome") == "resent").any().alias("is_resend"),
        (pl.col("step").first() == 0).alias("has_sender"),
        pl.col("went").first().alias("left_sender"),
        pl.col("came").min().alias("first_came"),
        pl.max_horizontal(pl.col("went").max(), pl.col("came").filter(pl.col("step") > 0).max()).alias("ended"),
        pl.col("went").last().alias("last_went"),
        pl.col("instance").alias("path"),
        (pl.col("went") - pl.col("came")).alias("residence_us"),
        pl.col("link_us").slice(1),
        *(pl.col(name).last() for name in ("outcome", "reason", "code", "adjacent_out")),
        pl.col("instance").last().alias("end_instance"),
        (pl.col("instance").n_unique() < pl.len()).alias("has_loop"),
        (pl.col("step").last() + 1 - pl.len()).alias("missing_hops"),
        pl.col("is_hidden").sum().alias("unknown_links"),
        (pl.col("is_apart").any() | pl.col("is_wholly_apart").last()).alias("crosses"),
    )


def paths(visits: pl.LazyFrame) -> pl.LazyFrame:
    """One row per transmission."""
    acknowledged = visits.filter(pl.col("outcome") == "acknowledged").select("message_id").unique()
    horizon = visits.select(
        pl.max_horizontal(pl.col("left_at").max(), pl.col("entered_at").max()).to_physical() - GRACE_US
    )
    told = _gathered(visits).join(acknowledged.with_columns(is_acked=pl.lit(True)), on="message_id", how="left")
    told = told.join(horizon.rename({"left_at": "under_way_after"}), how="cross")
    end = (
        pl.when(pl.col("outcome").is_in(ENDS))
        .then(pl.col("outcome"))
        .when(pl.col("is_acked"))
        .then(pl.lit("acknowledged"))
        .when(pl.col("last_went") >= pl.col("under_way_after"))
        .then(pl.lit("under way"))
        .otherwise(pl.lit("lost"))
    )
    return told.with_columns(end=end).select(
        *("message_id", *CONSTANT, "bytes"),
        pl.when("has_sender").then("is_resend").alias("is_resend"),
        pl.when("has_sender").then("left_sender").otherwise("first_came").alias("started_at"),
        pl.col("ended").alias("ended_at"),
        *("path", "residence_us", "link_us"),
        pl.when(pl.col("has_sender") & (pl.col("last_went") >= pl.col("left_sender")) & ~pl.col("crosses"))
        .then(pl.col("last_went") - pl.col("left_sender"))
        .alias("total_us"),
        "end",
        pl.when(pl.col("end") != "acknowledged").then("end_instance").alias("end_instance"),
        pl.when(pl.col("end") == "lost").then("adjacent_out").alias("lost_to"),
        *(pl.when(pl.col("end") == "dropped").then(name).alias(name) for name in ("reason", "code")),
        *("has_loop", "missing_hops", "unknown_links"),
    )


def routes(visits: pl.LazyFrame) -> pl.LazyFrame:
    """One row per instance, route and window."""
    went, came = pl.col("left_at").to_physical(), pl.col("entered_at").to_physical()
    window = (went // WINDOW_US * WINDOW_US).alias("window_us")
    key = ["instance", "route_table", "route", "window_us"]
    passed = visits.filter(pl.col("outcome") != "acknowledged").with_columns(
        window, went.alias("went"), (went - came).alias("residence")
    )
    stream = ["instance", "conversation_id", "from_target"]
    way = pl.struct("route_table", "route", "adjacent_out").hash().alias("way")
    leaving = passed.filter(pl.col("outcome").is_in((*SENDS, "forwarded"))).with_columns(way)
    wavering = leaving.group_by(stream).agg(pl.col("way").min(), most=pl.col("way").max())
    wavering = wavering.filter(pl.col("way") != pl.col("most"))
    moved = (
        leaving.join(wavering, on=stream, how="semi")
        .sort("went", "sequence_number", "fragment_number", "message_id")
        .filter(pl.col("way").shift().over(stream) != pl.col("way"))
        .group_by(key)
        .agg(pl.len().alias("failovers"))
    )
    is_dropped = pl.col("outcome") == "dropped"
    counted = passed.group_by(key).agg(
        pl.len().alias("frames"),
        pl.col("bytes").cast(pl.Int64).sum(),
        *(
            _ranked(pl.col("residence"), rank).alias(f"residence_{name}_us")
            for name, rank in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999))
        ),
        is_dropped.sum().alias("drops"),
        pl.col("reason").filter(is_dropped).value_counts().alias("drops_by_reason"),
    )
    return counted.join(moved, on=key, how="left", nulls_equal=True).with_columns(pl.col("failovers").fill_null(0))


def capacity(visits: pl.LazyFrame) -> pl.LazyFrame:
    """One row per instance and window."""
    came, went = pl.col("entered_at").to_physical(), pl.col("left_at").to_physical()
    passed = visits.filter(pl.col("outcome").is_in(("forwarded", "dropped"))).select(
        "instance",
        came.alias("came"),
        went.alias("went"),
        (went > came).cast(pl.Int64).alias("frames"),
        pl.when(went > came).then("bytes").otherwise(0).cast(pl.Int64).alias("bytes"),
    )
    step = ("frames", "bytes")
    entries = passed.select("instance", _window("came"), pl.col("came").alias("at"), *step, is_entry=pl.lit(1) > 0)
    leaves = passed.filter(pl.col("frames") > 0).select(
        "instance", _window(pl.col("went") - 1), pl.col("went").alias("at"), -pl.col(*step), is_entry=pl.lit(1) < 0
    )
    held = [pl.col(name).cum_sum().over("instance").alias(f"held_{name}") for name in step]
    running = pl.concat([entries, leaves]).sort("instance", "begins", "at", *step).with_columns(held)
    frames, size = pl.col("held_frames"), pl.col("held_bytes")
    before_frames, before_size = frames - pl.col("frames"), size - pl.col("bytes")
    charge = pl.max_horizontal(size + HELD_OVERHEAD * frames, before_size + HELD_OVERHEAD * before_frames)
    swept = running.group_by("instance", "begins").agg(
        pl.max_horizontal(frames, before_frames).max().alias("peak_frames"),
        pl.max_horizontal(size, before_size).max().alias("peak_bytes"),
        charge.max().alias("peak_charge"),
        _ranked(frames.filter("is_entry"), 0.99).alias("p99_frames"),
        _ranked(size.filter("is_entry"), 0.99).alias("p99_bytes"),
        frames.last().alias("after_frames"),
        size.last().alias("after_bytes"),
    )
    followed = swept.sort("begins").with_columns(following=pl.col("begins").shift(-1).over("instance"))
    between = pl.int_ranges(pl.col("begins") + WINDOW_US, pl.col("following"), WINDOW_US)
    gaps = (
        followed.filter((pl.col("after_frames") > 0) & pl.col("following").is_not_null())
        .with_columns(begins=between)
        .explode("begins")
        .drop_nulls("begins")
        .select(
            "instance",
            "begins",
            pl.col("after_frames").alias("peak_frames"),
            pl.col("after_bytes").alias("peak_bytes"),
            (pl.col("after_bytes") + HELD_OVERHEAD * pl.col("after_frames")).alias("peak_charge"),
        )
    )
    told = pl.concat([followed, gaps], how="diagonal").drop("after_frames", "after_bytes", "following")
    wanted = (pl.col("peak_charge") * 1.25 / 2**20).ceil().cast(pl.Int64) * 2**20
    return told.with_columns(recommended_bytes=pl.max_horizontal(wanted, 2**20))


def _window(at: str | pl.Expr) -> pl.Expr:
    """Where the window of an instant begins."""
    instant = pl.col(at) if isinstance(at, str) else at
    return (instant // WINDOW_US * WINDOW_US).alias("begins")


def _ranked(values: pl.Expr, share: float) -> pl.Expr:
    """The value of rank ceil(share * n)."""
    return values.sort().get((values.len() * share).ceil().cast(pl.Int64) - 1)


QUESTIONS = {"paths": paths, "routes": routes, "capacity": capacity}

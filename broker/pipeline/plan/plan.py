"""
The job `plan`: what a change of routes would have done to a history.

The history is grouped to the questions that it put to the routers (`plan_key`); each is decided by the routes before
and after, by the functions that route real frames (`plan_ruling`, in Arrow batches, `plan_batch`); the counts go
through with them, so nothing is joined back. What each question comes to is `decided`; the results are made of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T  # noqa: N812 - as everybody writes it
from pyspark.sql.pandas.types import from_arrow_schema

from broker.pipeline.plan.batch import COUNTS, DECIDED, decider
from broker.pipeline.plan.key import route_keys
from broker.pipeline.plan.script import MSDB
from broker.pipeline.plan.site import Change
from broker.pipeline.schema import PLAN, PLAN_FATES, PLAN_LOAD, PLAN_ROUTES
from broker.routing.journey import Site

_WHEN = ("before", "after")
_USES = [("used", f"frames_{when}", when) for when in _WHEN] + [("standby", f"standby_{when}", when) for when in _WHEN]
_USE = T.ArrayType(T.StructType([*PLAN_ROUTES.fields[1:3], *PLAN_ROUTES.fields[5:]]))
_GROUPS = [name for name in DECIDED.names if name not in COUNTS]


def plan(
    visits: DataFrame,
    *,
    before: Mapping[str, Site],
    after: Mapping[str, Site],
    names: Mapping[bytes, str] | None = None,
) -> DataFrame:
    """
    The ways that change (PLAN).

    Args:
        visits: VISIT.
        before: What holds for each instance, by name; visits of others are left out.
        after: What would hold; the same instances.
        names: Databases by broker instance.
    """
    return changes(decided(route_keys(visits), Change(before, after, names or {})))


def decided(keyed: DataFrame, change: Change) -> DataFrame:
    """What becomes of each key (KEYED to DECIDED, each class in one row)."""
    told = keyed.mapInArrow(decider(change), from_arrow_schema(DECIDED))
    return told.groupBy(*_GROUPS).agg(*_sums(COUNTS)).select(*DECIDED.names)


def changes(told: DataFrame) -> DataFrame:
    """The ways that change (DECIDED to PLAN)."""
    names = PLAN.fieldNames()
    groups = [name for name in names if name not in COUNTS]
    return told.where(F.col("is_changed")).groupBy(*groups).agg(*_sums(COUNTS)).select(*names)


def load(told: DataFrame, addresses: Mapping[str, str]) -> DataFrame:
    """
    What goes to each next hop (DECIDED to PLAN_LOAD).

    Args:
        told: As `decided` gives it.
        addresses: The instances by their addresses.
    """
    sides = [
        F.struct(
            F.col(f"hop_{when}").alias("next_hop"),
            F.col(f"is_here_{when}").alias("is_here"),
            *(
                (F.col(name) if when == other else F.lit(0)).cast("long").alias(f"{name}_{other}")
                for name in ("frames", "bytes")
                for other in _WHEN
            ),
        )
        for when in _WHEN
    ]
    return (
        told.where(F.col("unplanned").isNull())
        .select("instance", F.explode(F.array(*sides)).alias("side"))
        .select("instance", "side.*")
        .groupBy("instance", "next_hop", "is_here")
        .agg(*_sums(name for name in PLAN_LOAD.fieldNames()[4:]))
        .withColumn("next_instance", _looked_up(F.col("next_hop"), addresses))
        .select(*PLAN_LOAD.fieldNames())
    )


def route_use(told: DataFrame, change: Change) -> DataFrame:
    """How much each route is used (DECIDED to PLAN_ROUTES)."""
    groups = PLAN_ROUTES.fieldNames()[:3]
    counts = PLAN_ROUTES.fieldNames()[5:]
    uses = [_uses(f"{kind}_{when}", count, counts) for kind, count, when in _USES]
    used = (
        told.select("instance", F.explode(F.flatten(F.array(*uses))).alias("use"))
        .select("instance", "use.*")
        .groupBy(*groups)
        .agg(*_sums(counts))
    )
    known = told.sparkSession.createDataFrame(_routes_of(change))
    return (
        known.join(used, groups, how="left")
        .withColumns({name: F.coalesce(F.col(name), F.lit(0)) for name in counts})
        .select(*PLAN_ROUTES.fieldNames())
    )


def fates(told: DataFrame) -> DataFrame:
    """How everything fares, in numbers (DECIDED to PLAN_FATES)."""
    groups = [name for name in PLAN_FATES.fieldNames() if name not in COUNTS]
    return told.groupBy(*groups).agg(*_sums(COUNTS)).select(*PLAN_FATES.fieldNames())


def _uses(routes: str, count: str, counts: Iterable[str]) -> Column:
    """Of each route in a column the frames, under one of the counts; nothing where there are no routes."""
    numbers = [(F.col("frames") if name == count else F.lit(0)).cast("long").alias(name) for name in counts]
    made = F.transform(routes, lambda one: F.struct(one["route_table"], one["route"], *numbers))
    return F.coalesce(made, F.array().cast(_USE))


def _sums(names: Iterable[str]) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]


def _looked_up(value: Column, mapping: Mapping[str, str]) -> Column:
    if not mapping:
        return F.lit(None).cast("string")
    return F.create_map(*(F.lit(one) for pair in mapping.items() for one in pair))[value]


def _routes_of(change: Change) -> pa.Table:
    """Every route before or after: instance, table, name, whether it is there before, and after."""
    there: dict[tuple[str, str, str], tuple[bool, bool]] = {}
    for number, sites in enumerate((change.before, change.after)):
        for instance, site in sites.items():
            tables = {MSDB: site.msdb} | {change.named(guid): table for guid, table in site.databases.items()}
            for name, table in tables.items():
                for route in table:
                    place = instance, name, route.name
                    was, _ = there.get(place, (False, False))
                    there[place] = was or not number, bool(number)
    rows = [(*place, *flags) for place, flags in there.items()]
    columns = zip(*rows, strict=True) if rows else ([] for _ in range(5))
    forms = [*[pa.string()] * 3, *[pa.bool_()] * 2]
    arrays = [pa.array(column, form) for column, form in zip(columns, forms, strict=True)]
    return pa.Table.from_arrays(arrays, names=PLAN_ROUTES.fieldNames()[:5])

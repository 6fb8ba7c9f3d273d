"""
What a change of routes would have done, in a few numbers and rows: what people are told of it.

The results themselves may have a row for each conversation; here those that fare alike are put together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import DataFrame

from broker.pipeline.plan.answer import Answer
from broker.pipeline.plan.batch import COUNTS

ROWS_MAX = 100  # of each list; the rest is counted
_ALIKE = (
    *("instance", "database", "to_service", "from_target", "fate", "is_harm", "is_loop"),
    *(f"{what}_{when}" for when in ("before", "after") for what in ("outcome", "route", "next")),
)


def summarize(answer: Answer, names: Mapping[bytes, str]) -> dict[str, Any]:
    """
    The results in numbers, as JSON values; runs one job for each.

    Shape: `fates` and `unplanned` by their words, `harmed` and `loops`, each conversations and frames; `changes` those
    that fare alike, harm first, and `more_changes`; `load` next hops that get more or less than before; `unused` routes
    that would be there and that nothing would use, and `more_unused`. A conversation counts in both directions, and
    again when it has found out its target.
    """
    fates, unplanned, totals = _fates(answer.plan_fates)
    changes = _changes(answer.plan)
    rows = [_change(row, names) for row in changes.limit(ROWS_MAX).collect()]
    changed = answer.plan_load.where("frames_before != frames_after").orderBy("instance", "next_hop")
    unused = answer.plan_routes.where("is_after AND frames_after = 0 AND standby_after = 0")
    routes = unused.orderBy("instance", "route_table", "route").limit(ROWS_MAX).collect()
    return {
        "fates": fates,
        "unplanned": unplanned,
        **totals,
        "changes": rows,
        "more_changes": changes.count() - len(rows) if len(rows) == ROWS_MAX else 0,
        "load": [row.asDict() for row in changed.limit(ROWS_MAX).collect()],
        "unused": [{name: row[name] for name in ("instance", "route_table", "route")} for row in routes],
        "more_unused": unused.count() - len(routes) if len(routes) == ROWS_MAX else 0,
    }


def _fates(frame: DataFrame) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    fates: dict[str, Counter[str]] = {}
    unplanned: dict[str, Counter[str]] = {}
    harmed, loops = Counter[str](), Counter[str]()
    for row in frame.collect():
        counts = Counter({name: row[name] for name in ("conversations", "frames")})
        where, what = (fates, row["fate"]) if row["unplanned"] is None else (unplanned, row["unplanned"])
        where.setdefault(what, Counter()).update(counts)
        if row["is_harm"]:
            harmed.update(counts)
        if row["is_loop"]:
            loops.update(counts)
    nothing = {"conversations": 0, "frames": 0}
    totals = {"harmed": nothing | harmed, "loops": nothing | loops}
    return (
        {one: dict(some) for one, some in fates.items()},
        {one: dict(some) for one, some in unplanned.items()},
        totals,
    )


def _changes(plan: DataFrame) -> DataFrame:
    harm = (F.desc("is_harm"), F.desc("is_loop"), F.desc("frames"))
    order = ("instance", "to_service", "from_target", "route_before", "route_after")
    return plan.groupBy(*_ALIKE).agg(*(F.sum(name).alias(name) for name in COUNTS)).orderBy(*harm, *order)


def _change(row: Any, names: Mapping[bytes, str]) -> dict[str, Any]:
    told: dict[str, Any] = row.asDict()
    guid = told.pop("database")
    return {"database": None if guid is None else names.get(bytes(guid)) or str(UUID(bytes=bytes(guid)))} | told

"""
Every job on synthetic histories: what it finds is what is true of them, and what DuckDB finds.

The truth is known from how a history was made; DuckDB reads the same files and shares nothing with Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.pipeline import inventory
from broker.pipeline.capacity import capacity
from broker.pipeline.dialogs import dialogs
from broker.pipeline.paths import paths
from broker.pipeline.reconcile import reconcile
from broker.pipeline.results import CAPACITY, DIALOGS, PATHS, RECONCILE, ROUTES
from broker.pipeline.routes import routes
from tests.support import duck
from tests.support.synthetic import History, history

SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {"doubled": 0.3, "abandoned": 0.01},
    "hot": {"hot_share": 0.5, "seed": 3, "instances": 7},
    "bad": {"has_bad_files": True, "late_share": 0.3, "clocks_apart": 120.0, "instances": 12, "seed": 4},
    "sampled": {"sample": 0.3, "seed": 6},
}
GRACE = 60
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", params=SCENARIOS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    return history(tmp_path_factory.mktemp("history") / "h", **SCENARIOS[request.param])


def visits_of(spark: SparkSession, made: History) -> DataFrame:
    """As the pipeline reads them: bad files are left out by their footers."""
    found = inventory.take([made.directory])
    return inventory.read(spark, (state.path for state in found.readable))


def rows(table: pa.Table, key: tuple[str, ...], without: tuple[str, ...] = ()) -> Rows:
    """In the order of the key; maps as dictionaries, missing ones as empty."""
    told = duck.rows(table, *key)
    for row in told:
        for name in without:
            row.pop(name, None)
        if "drops_by_reason" in row:
            row["drops_by_reason"] = dict(row["drops_by_reason"] or ())
    return told


def found_by(spark: SparkSession, job: Callable[..., DataFrame], made: History, **options: Any) -> pa.Table:
    return job(visits_of(spark, made), **options).toArrow()


def test_the_files_of_a_history_are_sorted_out(made: History) -> None:
    """What is read is what there is to read, and every bad file is told by what is wrong with it."""
    found = inventory.take([made.directory])

    summary = found.summary()
    bad = list(made.told["bad_files"].values())
    assert sorted(str(state.path) for state in found.readable) == [
        file for file in made.files if "newer" not in bad or Path(file).exists()
    ]
    assert [bad.count(why) for why in ("copy", "truncated", "foreign", "newer")] == [
        summary[why] for why in ("copy", "damaged", "foreign", "newer")
    ]
    assert made.told["counts"]["visits"] == summary["rows"]


def test_paths(spark: SparkSession, made: History) -> None:
    """Every column of every transmission."""
    key = ("message_id",)

    found = rows(found_by(spark, paths, made, grace_seconds=GRACE), key)

    assert set(PATHS.names) == set(found[0])
    assert rows(made.truth("transmissions").drop_columns(["fate", "last_left_at"]), key) == found
    assert rows(duck.paths(made.files), key) == found


def test_dialogs(spark: SparkSession, made: History) -> None:
    """Every column but the instances; the counts are the true ones."""
    key = ("conversation_id", "from_target")
    without = ("from_instance", "to_instance")

    found = rows(found_by(spark, dialogs, made), key, without)

    assert set(DIALOGS.names) - set(without) == set(found[0])
    assert rows(duck.dialogs(made.files), key) == found
    same = ("transmissions", "resends", "duplicates", "drops", "bytes", "first_at", "last_at", *key)
    truth = rows(made.truth("flows"), key)
    assert [{name: row[name] for name in same} for row in truth] == [
        {name: row[name] for name in same} for row in found
    ]


def test_reconcile(spark: SparkSession, made: History) -> None:
    """Every column; the counts are the true ones, and so are the places that are missing."""
    key = ("conversation_id", "from_target")

    found = rows(found_by(spark, reconcile, made, grace_seconds=GRACE), key)

    assert set(RECONCILE.names) == set(found[0])
    assert rows(duck.reconcile(made.files), key) == found
    truth = rows(made.truth("flows"), key)
    counts = {name: name for name in ("sent", "delivered", "acknowledged", "under_way", "missing", "doubled", "lost")}
    counts |= {"transmissions": "transmissions", "resent": "resends", "dropped": "drops", "duplicates": "duplicates"}
    by_dialog = [row for row in found if row["conversation_id"] is not None]
    assert [[row[name] for name in counts.values()] for row in truth] == [
        [row[name] for name in counts] for row in by_dialog
    ]
    missing = [row for row in made.truth("undelivered").to_pylist() if row["is_missing"]]
    assert {(*(row[name] for name in key), row["sequence_number"], row["fragment_number"]) for row in missing} == {
        (*(row[name] for name in key), one["sequence_number"], one["fragment_number"])
        for row in by_dialog
        for one in row["problems"]
        if one["problem"] == "missing"
    }


def test_routes(spark: SparkSession, made: History) -> None:
    """Every column; frames, bytes and drops are the true ones."""
    key = ("instance", "route_table", "route", "window_start")

    found = rows(found_by(spark, routes, made), key)

    assert set(ROUTES.names) == set(found[0])
    assert rows(duck.routes(made.files), key) == found
    truth: dict[tuple[Any, ...], list[int]] = {}
    for row in made.truth("routes").to_pylist():
        if row["outcome"] != "acknowledged":
            sums = truth.setdefault(tuple(row[name] for name in key), [0, 0, 0])
            dropped = row["frames"] if row["outcome"] == "dropped" else 0
            for place, count in enumerate((row["frames"], row["bytes"], dropped)):
                sums[place] += count
    told = {tuple(row[name] for name in key): [row[name] for name in ("frames", "bytes", "drops")] for row in found}
    assert truth == told


def test_capacity(spark: SparkSession, made: History) -> None:
    """Every column but the headroom, which is not asked for; the peaks are the true ones."""
    key = ("instance", "window_start")

    found = rows(found_by(spark, capacity, made), key, ("headroom",))

    assert set(CAPACITY.names) - {"headroom"} == set(found[0])
    assert rows(duck.capacity(made.files), key) == found
    truth = rows(made.truth("capacity"), key)
    assert truth == [{name: row[name] for name in truth[0]} for row in found]

"""Synthetic histories: what the jobs find of messages is what is true of them, known from how they were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from broker.pipeline import inventory
from broker.pipeline.dialogs import dialogs
from broker.pipeline.paths import paths
from broker.pipeline.reconcile import reconcile
from tests.support.synthetic import History, history, in_order

SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {"doubled": 0.3, "abandoned": 0.01},
    "hot": {"hot_share": 0.5, "seed": 3, "instances": 7},
    "bad": {"has_bad_files": True, "late_share": 0.3, "clocks_apart": 120.0, "instances": 12, "seed": 4},
    "sampled": {"sample": 0.3, "seed": 6},
}
GRACE = 60
FLOW = ("conversation_id", "from_target")
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module", params=SCENARIOS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> History:
    return history(tmp_path_factory.mktemp("history") / "h", **SCENARIOS[request.param])


def found_by(
    spark: SparkSession, job: Callable[..., DataFrame], made: History, *key: str, **options: Any
) -> list[dict[str, Any]]:
    """The result of a job as the pipeline reads the files: bad ones are left out by their footers."""
    states = inventory.take([made.directory]).readable
    visits = inventory.read(spark, (state.path for state in states))
    return in_order(job(visits, **options).toArrow().to_pylist(), key)


def only(rows: Rows, *names: str) -> Rows:
    return [{name: row[name] for name in names} for row in rows]


def test_files_are_read_or_left_out_by_their_footers(made: History) -> None:
    found = inventory.take([made.directory])

    summary = found.summary()
    bad = list(made.told["bad_files"].values())
    assert made.files == sorted(state.path for state in found.readable)
    assert [bad.count(why) for why in ("copy", "truncated", "foreign", "newer")] == [
        summary[why] for why in ("copy", "damaged", "foreign", "newer")
    ]
    assert made.told["counts"]["visits"] == summary["rows"]


def test_paths(spark: SparkSession, made: History) -> None:
    truth = made.rows("transmissions", "message_id")
    names = [name for name in truth[0] if name != "last_left_at"]

    found = found_by(spark, paths, made, "message_id", grace_seconds=GRACE)

    assert only(truth, *names) == only(found, *names)


def test_dialogs(spark: SparkSession, made: History) -> None:
    names = (*FLOW, "transmissions", "resends", "duplicates", "drops", "bytes", "first_at", "last_at")

    found = found_by(spark, dialogs, made, *FLOW)

    assert only(made.rows("flows", *FLOW), *names) == only(found, *names)


def test_reconcile(spark: SparkSession, made: History) -> None:
    """The counts, and the places that are missing."""
    found = [row for row in found_by(spark, reconcile, made, *FLOW, grace_seconds=GRACE) if row["conversation_id"]]

    counts = {name: name for name in ("sent", "delivered", "acknowledged", "under_way", "missing", "doubled", "lost")}
    counts |= {"transmissions": "transmissions", "resent": "resends", "dropped": "drops", "duplicates": "duplicates"}
    assert [[row[name] for name in counts.values()] for row in made.rows("flows", *FLOW)] == [
        [row[name] for name in counts] for row in found
    ]
    missing = [row for row in made.rows("undelivered") if row["is_missing"]]
    place = ("sequence_number", "fragment_number")
    assert {tuple(row[name] for name in (*FLOW, *place)) for row in missing} == {
        (*(row[name] for name in FLOW), *(one[name] for name in place))
        for row in found
        for one in row["problems"]
        if one["problem"] == "missing"
    }

"""DuckDB answers every question that it is compared by."""

from __future__ import annotations

from pathlib import Path

import duckdb

from broker.bench.pipeline.duck import SQL, prepare
from broker.bench.pipeline.task import Task
from tests.support.synthetic import history


def test_every_answer_is_written(tmp_path: Path) -> None:
    made = history(tmp_path / "history", messages=300)
    jobs = (*SQL, "plan")

    prepare(Task("duckdb", jobs, str(made.directory), ""))(tmp_path)

    written = {path.stem for path in tmp_path.glob("*.parquet")}
    assert {*jobs, "plan_fates", "plan_load", "plan_routes"} == written


def test_a_plan_finds_what_the_change_takes_away(tmp_path: Path) -> None:
    made = history(tmp_path / "history", messages=600)
    lost = made.told["change"]["loses"]

    prepare(Task("duckdb", ("plan",), str(made.directory), ""))(tmp_path)

    query = f"SELECT DISTINCT fate FROM '{tmp_path}/plan.parquet' WHERE instance = $instance AND to_service = $service"
    assert [("loses its route",)] == duckdb.execute(query, lost).fetchall()

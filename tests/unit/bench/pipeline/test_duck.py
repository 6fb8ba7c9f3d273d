"""DuckDB answers every question that it is compared by."""

from __future__ import annotations

from pathlib import Path

from broker.bench.pipeline.duck import SQL, prepare
from broker.bench.pipeline.task import Task
from tests.support.synthetic import history


def test_every_answer_is_written(tmp_path: Path) -> None:
    made = history(tmp_path / "history", messages=300)

    prepare(Task("duckdb", tuple(SQL), str(made.directory), ""))(tmp_path)

    written = {path.stem for path in tmp_path.glob("*.parquet")}
    assert set(SQL) == written

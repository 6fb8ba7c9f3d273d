"""The questions of the pipeline in SQL. Their answers are held against Spark's in tests/spark/test_truth.py."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from broker.bench.pipeline.sql import visits_of


def test_visits_are_those_of_all_files_whatever_their_names_and_columns(tmp_path: Path) -> None:
    for name, table in (("it's.parquet", pa.table({"a": [1]})), ("b.parquet", pa.table({"a": [2], "b": [3]}))):
        pq.write_table(table, tmp_path / name)

    with duckdb.connect() as engine:
        engine.execute(visits_of([str(path) for path in tmp_path.iterdir()]))
        found = engine.execute("SELECT a, b FROM visits ORDER BY a").fetchall()

    assert [(1, None), (2, 3)] == found

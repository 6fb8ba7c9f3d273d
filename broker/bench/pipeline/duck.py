"""The questions of the pipeline put to DuckDB: the same answers, written as the same kind of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from broker.bench.pipeline import sql as pipeline_sql
from broker.bench.pipeline.task import Pass, Task
from broker.forwarding.pool import HELD_OVERHEAD

SQL = {
    "paths": pipeline_sql.PATHS,
    "routes": pipeline_sql.ROUTES,
    "capacity": pipeline_sql.CAPACITY,
    "reconcile": pipeline_sql.RECONCILE,
}
VALUES: dict[str, dict[str, Any]] = {
    "paths": {"grace_us": 60_000_000},
    "routes": {"window_seconds": 300},
    "capacity": {"window_seconds": 300, "overhead": HELD_OVERHEAD},
    "reconcile": {"grace_us": 150_000_000},
}
THREADS = 2


def prepare(task: Task) -> Pass:
    """Open a database in memory, which the passes share."""
    journal = Path(task.journal)
    engine = duckdb.connect()
    engine.execute(f"SET timezone = 'UTC'; SET threads = {THREADS}")

    def answer(out: Path) -> None:
        files = sorted(str(path) for path in journal.glob("date=*/hour=*/*.parquet"))
        engine.execute(pipeline_sql.visits_of(files))
        for job in task.jobs:
            engine.execute(f"COPY ({SQL[job]}) TO '{out / job}.parquet' (COMPRESSION zstd)", VALUES[job])

    return answer

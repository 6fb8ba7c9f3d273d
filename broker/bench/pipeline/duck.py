"""
The questions of the pipeline put to DuckDB: the same answers, written as the same kind of files.

`plan` groups and sums in SQL and decides in the same Arrow batches as Spark does, in this process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from broker.bench.pipeline import sql as pipeline_sql
from broker.bench.pipeline.question import question_of
from broker.bench.pipeline.task import Pass, Task
from broker.flow import Disposition
from broker.forwarding.pool import HELD_OVERHEAD
from broker.pipeline.plan.batch import DECIDED, decider
from broker.pipeline.plan.site import change_of, gather

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
BATCH_ROWS = 10_000  # as many as Spark gives to Python at once


def prepare(task: Task) -> Pass:
    """Open a database in memory, which the passes share."""
    journal = Path(task.journal)
    engine = duckdb.connect()
    engine.execute(f"SET timezone = 'UTC'; SET threads = {THREADS}")

    def answer(out: Path) -> None:
        files = sorted(str(path) for path in journal.glob("date=*/hour=*/*.parquet"))
        engine.execute(pipeline_sql.visits_of(files))
        for job in task.jobs:
            if job == "plan":
                _plan(engine, journal, out)
                continue
            engine.execute(f"COPY ({SQL[job]}) TO '{out / job}.parquet' (COMPRESSION zstd)", VALUES[job])

    return answer


def _plan(engine: duckdb.DuckDBPyConnection, journal: Path, out: Path) -> None:
    question = question_of(journal)
    at_the_end = [str(reason) for reason in tuple(Disposition)[list(Disposition).index(Disposition.DUPLICATE) :]]
    engine.execute(f"CREATE OR REPLACE TEMP TABLE keys AS {pipeline_sql.KEYS}", {"at_the_end": at_the_end})
    shown = gather(engine.sql(pipeline_sql.CLUES).to_arrow_table().to_pylist())
    change = change_of(
        question.before,
        question.after,
        shown,
        now=question.now,
        addresses=question.addresses,
        given=question.databases,
    )
    batches = engine.sql("FROM keys").to_arrow_reader(BATCH_ROWS)
    decided = pa.Table.from_batches(decider(change)(batches), DECIDED)
    engine.register("decided", decided)
    for name, sql in pipeline_sql.PLAN.items():
        engine.execute(f"COPY ({sql}) TO '{out / name}.parquet' (COMPRESSION zstd)")
    engine.unregister("decided")

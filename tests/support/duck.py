"""The questions of the pipeline put to DuckDB, an engine that shares nothing with Spark."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa

from broker.forwarding.pool import HELD_OVERHEAD
from tests.support import pipeline_sql

GRACE_US = 60_000_000


def ask(sql: str, files: list[str], **values: Any) -> pa.Table:
    """The answer to a statement of `pipeline_sql` over these files. Shape: instants UTC."""
    with duckdb.connect() as engine:
        engine.execute("SET timezone = 'UTC'; SET threads = 2")
        engine.execute(pipeline_sql.visits_of(files))
        return engine.sql(sql, params=values or None).to_arrow_table()


def paths(files: list[str], *, grace_us: int = GRACE_US) -> pa.Table:
    """One row per transmission."""
    return ask(pipeline_sql.PATHS, files, grace_us=grace_us)


def reconcile(files: list[str], *, grace_us: int = GRACE_US) -> pa.Table:
    """One row per dialog and direction, and the total."""
    return ask(pipeline_sql.RECONCILE, files, grace_us=grace_us)


def capacity(files: list[str], *, window_seconds: int = 300) -> pa.Table:
    """One row per instance and window."""
    return ask(pipeline_sql.CAPACITY, files, window_seconds=window_seconds, overhead=HELD_OVERHEAD)


def dialogs(files: list[str]) -> pa.Table:
    """One row per dialog and direction, without the instances."""
    return ask(pipeline_sql.DIALOGS, files)


def routes(files: list[str], *, window_seconds: int = 300) -> pa.Table:
    """One row per instance, route and window."""
    return ask(pipeline_sql.ROUTES, files, window_seconds=window_seconds)


def rows(table: pa.Table, *key: str) -> list[dict[str, Any]]:
    """Rows as values, in the order of the key."""
    return sorted(table.to_pylist(), key=lambda row: tuple(str(row[name]) for name in key))

"""
Rows as Spark hands them over, as plain values.

PySpark gives instants without a zone in the zone of the machine, whatever the session's zone is: they become UTC here,
before anything else looks at them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Row

from broker.pipeline.report.digest import Spread


def plain(row: Row) -> dict[str, Any]:
    """The columns by name, instants in UTC."""
    return {name: utc(value) if isinstance(value, datetime) else value for name, value in row.asDict().items()}


def utc(when: datetime) -> datetime:
    """An instant that Spark gave."""
    return when.astimezone(UTC)


def spread(ranks: list[float | None] | None) -> Spread:
    """Three percentiles; unknown ones when Spark had no value to rank."""
    return Spread(*(None if rank is None else round(rank) for rank in ranks)) if ranks else Spread()

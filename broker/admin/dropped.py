"""What was dropped here, by reason, each with its last frame and with what to do: for the status and its snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from broker.admin.why_remedy import remedy_of
from broker.observe.drop import seconds_since
from broker.observe.query import shown_value
from broker.observe.view import DISPOSITIONS, MEMORY_VIEWS, RowSource

_COLUMNS = MEMORY_VIEWS[DISPOSITIONS]


def read_dropped(rows: RowSource, instance: str) -> list[dict[str, Any]]:
    """
    The rows of `sys.dm_broker_dispositions` by column, and in `do` what to do. Waits for the loop, so for a thread.

    Args:
        rows: What gives them.
        instance: The name of the instance, for what to do.
    """
    found: list[dict[str, Any]] = [dict(zip(_COLUMNS, map(shown_value, row), strict=True)) for row in rows()]
    for row in found:
        service = row["to_service_name"] or "SERVICE"
        row["do"] = remedy_of(row["disposition"], instance=instance, service=service)
    return found


def drops_of(rows: Iterable[Mapping[str, Any]], at: datetime) -> list[dict[str, Any]]:
    """What a status tells of them, as of an instant."""
    return [
        {
            "reason": row["disposition"],
            "database": row["database_name"],
            "frames": row["frames"],
            "last_s": _rounded(seconds_since(row["last_time"], at)),
            "do": row["do"],
        }
        for row in rows
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

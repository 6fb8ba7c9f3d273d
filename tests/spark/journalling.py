"""Files of journals for tests."""

import uuid
from pathlib import Path
from typing import Any

from tests.spark import visiting
from tests.support import journalled


def write(directory: Path, *rows: dict[str, Any], name: str = "", shed: int = 0, sample: float = 1.0) -> Path:
    """A file with these visits (see `visiting`), of the instance of the first; `name` is a path in the directory."""
    visits = [visiting.filled(row) for row in rows]
    instance, file = visits[0]["instance"], uuid.uuid4().hex
    path = directory / (name or f"date=2026-03-01/hour=12/{instance}-000001-{file[:8]}.parquet")
    return journalled.write(path, *visits, file=file, instance=instance, sample=sample, shed=shed)


def passage(message: int, *, at: int = 0, **columns: Any) -> list[dict[str, Any]]:
    """A message that went from `a` by `g` to `b`: three visits, `at` microseconds behind START, 10 ms apart."""
    shared = {"message_id": message, **columns}
    return [
        {**shared, "instance": "a", "outcome": "sent", "entered_at": at, "left_at": at + 1_000, "adjacent_out": "g"},
        {**shared, "instance": "g", "outcome": "forwarded", "entered_at": at + 10_000, "left_at": at + 12_000,
         "adjacent_out": "b", "route": "to-b", "route_table": "msdb"},
        {**shared, "instance": "b", "outcome": "delivered", "hop_count": 1, "entered_at": at + 20_000,
         "left_at": at + 21_000},
    ]  # fmt: skip

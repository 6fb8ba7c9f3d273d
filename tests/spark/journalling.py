"""Files of journals for tests."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from broker.journal.schema import JOURNAL, file_metadata
from tests.spark import visiting


def write(directory: Path, *rows: dict[str, Any], name: str = "", shed: int = 0, sample: float = 1.0) -> Path:
    """A file with these visits (see `visiting`), of the instance of the first; `name` is a path in the directory."""
    table = visiting.table(*rows).cast(pa.schema([field.with_nullable(True) for field in JOURNAL]))
    instance = str(table["instance"][0])
    file = uuid.uuid4().hex
    path = directory / (name or f"date=2026-03-01/hour=12/{instance}-000001-{file[:8]}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = file_metadata(file=file, instance=instance, sample=sample, shed=shed)
    pq.write_table(table.replace_schema_metadata(metadata), path, compression="zstd")
    return path


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

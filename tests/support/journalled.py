"""Files of a journal for tests: rows of which only what matters is named, written as instances write them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from broker.flow import VisitOutcome
from broker.journal.schema import JOURNAL, file_metadata

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


def visit(second: float = 0.0, *, took: float | None = 0.001, **more: Any) -> dict[str, Any]:
    """A visit that began so many seconds after START and took so many; None where its end is not told."""
    entered = START + timedelta(seconds=second)
    return {
        "entered_at": entered,
        "left_at": None if took is None else entered + timedelta(seconds=took),
        "instance": "gateway",
        "outcome": VisitOutcome.FORWARDED.value,
        "kind": "message",
        "message_id": bytes(16),
        "conversation_id": bytes(16),
        "from_target": False,
        "sequence_number": 0,
        "fragment_number": 0,
        "hop_count": 0,
        "hop_limit": 16,
        "time_to_live_ms": 60_000,
        "time_consumed_ms": 0,
        "bytes": 200,
        "to_service": "//bank",
        "from_service": "//shop",
        **more,
    }


def table(*visits: dict[str, Any]) -> pa.Table:
    """Rows in the schema of the journal."""
    return pa.Table.from_pylist([{name: one.get(name) for name in JOURNAL.names} for one in visits], JOURNAL)


def write(
    path: Path,
    *visits: dict[str, Any],
    file: str = "",
    instance: str = "gateway",
    sample: float = 1.0,
    shed: int = 0,
    group_rows: int = 1000,
) -> Path:
    """A file; its identity is made of its name unless one is given."""
    told = file_metadata(
        file=file or path.stem.encode().hex()[-32:].rjust(32, "0"), instance=instance, sample=sample, shed=shed
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(*visits).replace_schema_metadata(told), path, row_group_size=group_rows, compression="zstd")
    return path

"""
The rows of sys.dm_broker_audit: the newest lines of the audit file.

Read from the end, so that the size of the file does not matter. A line that is not an entry is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from broker.errors import StoreUnavailableError

AUDIT = "sys.dm_broker_audit"
# Each column, and what the file calls it.
COLUMNS = {
    "audit_time": "at",
    "request_id": "request",
    "principal_name": "who",
    "role": "role",
    "origin": "from",
    "operation": "operation",
    "database_name": "database",
    "statement": "statement",
    "target": "target",
    "outcome": "outcome",
    "problem": "problem",
    "unsaid": "unsaid",
}
ROWS_MAX = 10_000  # what one SELECT gives
INTEGER_MAX = 2**63 - 1  # of SQLite
BYTES_MAX = 32 * 1024 * 1024


def audit_rows(path: Path) -> list[tuple[object, ...]]:
    """
    The newest lines of the file, oldest first. Blocking.

    Raises:
        StoreUnavailableError: the file cannot be read.
    """
    try:
        lines = _last_lines(path, BYTES_MAX)
    except FileNotFoundError:
        return []  # none yet, or just rotated
    except OSError as error:
        raise StoreUnavailableError(str(path), error.strerror or str(error)) from error
    return list(islice(_rows(reversed(lines)), ROWS_MAX))[::-1]


def _last_lines(file: Path, most: int) -> list[bytes]:
    """The whole lines among the last bytes of a file."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        begin = max(0, size - most)
        opened.seek(begin)
        data = opened.read(size - begin)  # no more: memory is taken for as much as is asked for
    lines = data.splitlines()
    return lines[1:] if begin else lines


def _rows(lines: Iterator[bytes]) -> Iterator[tuple[object, ...]]:
    for line in lines:
        try:
            told = json.loads(line)
            at = datetime.fromisoformat(told["at"]).astimezone(UTC)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        yield (at, *(_shown(told.get(key)) for key in list(COLUMNS.values())[1:]))


def _shown(value: Any) -> object:
    """A value that a view can hold, whatever somebody has written into the file."""
    if isinstance(value, int) and not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
        return str(value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
    return text.encode(errors="replace").decode() if isinstance(text, str) else text

"""
`sys.messages`: what the numbers mean that this system tells, and what to do.

Source: Transact-SQL reference, "sys.messages".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from broker.errors import StatementError

MESSAGES = "sys.messages"
MESSAGE_COLUMNS = ("message_id", "language_id", "severity", "is_event_logged", "text", "reason", "remedy")

_ENGLISH = 1033
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # in a text of the catalogue, which pages are made of too


def message_rows() -> Iterator[tuple[object, ...]]:
    """A row for each number, by number."""
    from broker.numbers.catalogue import catalogue  # noqa: PLC0415 - files to read, which no start should pay

    for entry in catalogue().values():
        if entry.number:
            remedy = _LINK.sub(r"\1", entry.remedy)
            yield entry.number, _ENGLISH, StatementError.severity, False, entry.title, entry.reason, remedy

"""
The catalogue of numbers: what each number and each reason means, when it occurs, and what to do.

The code that raises an error or drops a frame has the number and the sentence; the rest of what operators need is here.
The texts are in the TOML files of `messages/`, a table for each number or reason. `sys.messages` shows them, and
`python -m tools.error_pages` makes a page of each. A test fails when a number of the code has no table here, or a table
no number of the code.

Source: Transact-SQL reference, "sys.messages"; SQL Server documentation, "Database Engine events and errors".
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from broker.errors import StatementError

_TEXTS = Path(__file__).parent / "messages"


class MessageChannel(StrEnum):
    """Where a number occurs; the word is the key of the tables `when` and `example`."""

    STATEMENT = "statement"
    SELECT = "select"
    APPLICATION = "application"
    DIALOG = "dialog"
    FRAME = "frame"
    CONNECTION = "connection"
    REQUEST = "request"
    START = "start"


class MessageEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    One number or reason.

    Attributes:
        number: 0 where the original has none for it.
        advice: The remedy for one frame or dialog, with `{instance}`, `{service}` and `{table}` where names belong.
        reason: The word of a disposition, empty for an error.
        title: One sentence.
        when: By channel, when it occurs.
        notified: The party that is notified of a dropped frame, or of a dialog that failed.
        original: The meaning of the number there.
        example: By channel, code that causes the error: a statement, a SELECT, Python.
    """

    number: int
    title: str
    when: Mapping[MessageChannel, str]
    remedy: str
    advice: str = ""
    reason: str = ""
    notified: str = ""
    original: str = ""
    example: Mapping[MessageChannel, str] = {}


@cache
def catalogue() -> Mapping[str, MessageEntry]:
    """All entries, by number and then by reason."""
    return read(_TEXTS)


def read(directory: Path) -> dict[str, MessageEntry]:
    """
    The entries of all TOML files of a directory, by number and then by reason.

    Raises:
        ValueError: two files have the same table.
    """
    tables: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.toml")):
        for key, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if key in tables:
                raise ValueError(f"{path.name} has a second table [{key}]")
            tables[key] = table
    return {
        key: msgspec.convert({**tables[key], "number": int(key) if key.isdigit() else 0}, MessageEntry)
        for key in sorted(tables, key=_order)
    }


def _order(key: str) -> tuple[bool, int, str]:
    return (not key.isdigit(), int(key) if key.isdigit() else 0, key)


# --- the view ---

MESSAGES = "sys.messages"
MESSAGE_COLUMNS = ("message_id", "language_id", "severity", "is_event_logged", "text", "reason", "remedy")

_ENGLISH = 1033
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # in a text of the catalogue, which pages are made of too


def message_rows() -> Iterator[tuple[object, ...]]:
    """A row for each number, by number."""
    for entry in catalogue().values():
        if entry.number:
            remedy = _LINK.sub(r"\1", entry.remedy)
            yield entry.number, _ENGLISH, StatementError.severity, False, entry.title, entry.reason, remedy

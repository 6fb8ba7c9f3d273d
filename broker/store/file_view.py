"""
A view of one database: an SQL view over its file, so a million rows cost nothing until somebody asks for them.

No user's text ever enters the SQL made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GUID_FUNCTION = "guid_text"  # SQL function, given by whoever asks: a blob of 16 bytes -> text
STATUS_FUNCTION = "transmission_status"  # the same: conversation_handle (blob) -> text
BODIES = frozenset({"message_body"})  # columns with what applications say to each other


@dataclass(frozen=True, slots=True)
class FileView:
    """
    A view of one database.

    Shape: `columns` name -> SQL over `source`; in both `{db}` stands for the attached file, `{now}` for UTC seconds,
    `{queue_id}` for the number of a queue.
    """

    columns: Mapping[str, str]
    source: str

    def render(self, *, db: str, now: float, queue_id: int = 0, shows_bodies: bool = True) -> str:
        """The SELECT of this view over the file attached as `db`; without the bodies of messages where not told to."""
        shown = (
            self.columns if shows_bodies else {**self.columns, **dict.fromkeys(BODIES & self.columns.keys(), "NULL")}
        )
        columns = ", ".join(f"{sql} AS {name}" for name, sql in shown.items())
        text = f"SELECT {columns} FROM {self.source}"  # noqa: S608 - made of this file's own words
        return text.format(db=db, now=repr(now), queue_id=queue_id)

    def render_empty(self) -> str:
        """The SELECT of this view where there is no file: the same columns, no row."""
        return f"SELECT {', '.join(f'NULL AS {name}' for name in self.columns)} WHERE 0"


def guid(column: str) -> str:
    """A GUID as text that compares without case."""
    return f"{GUID_FUNCTION}({column}) COLLATE NOCASE"


def instant(column: str) -> str:
    """An instant as text."""
    return f"strftime('%Y-%m-%d %H:%M:%f', {column}, 'unixepoch')"

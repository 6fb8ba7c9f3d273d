"""
The functions that a SELECT may call: SQLite's own, and the few of T-SQL that SQLite would take otherwise.

Each is a plain function over the values that SQLite knows: None, int, float, str, bytes. NULL in gives NULL out, as in
the original; a value that cannot be converted raises `ValueError`, which SQLite reports as a failed function. An
instant is a text `YYYY-MM-DD HH:MM:SS.mmm` in UTC; other ISO 8601 forms are read too. No function reads a file or a
setting.

Source: Transact-SQL reference, "String functions", "Date and time data types and functions".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TypeAlias

from broker.protocol.layout import show_guid
from broker.store.sqlite.views import GUID_FUNCTION

Known: TypeAlias = int | float | str | bytes
Value: TypeAlias = Known | None

RESULT_MAX = 2 * 1024 * 1024  # characters; a little more than a connection allows one value
# SQLite's own: those that read nothing but their arguments and the clock, and cannot be asked for a large result. And
# DB_NAME(), the database whose views are meant.
BUILT_IN = frozenset(
    {"abs", "avg", "coalesce", "count", "date", "datetime", "db_name", "dense_rank", "first_value", "group_concat"}
    | {"ifnull", "iif", "instr", "julianday", "lag", "last_value", "lead", "length", "like", "lower", "ltrim"}
    | {"max", "min", "ntile", "nullif", "percent_rank", "rank", "replace", "round", "row_number", "rtrim"}
    | {"sign", "substr", "substring", "sum", "time", "trim", "unixepoch", "upper"}
)


def render_instant(at: datetime) -> str:
    """An instant as the views show it."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")


def read_instant(value: Value) -> datetime:
    """
    An instant from ISO 8601 text, with `T` or a space; one without a zone is UTC.

    Raises:
        ValueError: the text is not one.
    """
    at = datetime.fromisoformat(str(value).strip())
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)


@lru_cache(maxsize=1024)  # a dialog's messages follow one another; a million rows name few dialogs
def render_guid(value: bytes | None) -> str | None:
    """A GUID as views show it. Cost: once for each row and GUID column."""
    return None if value is None else show_guid(value)


def _to_datetime(value: Value) -> Value:
    return render_instant(read_instant(value))


def _plus(left: Known, right: Known) -> Value:
    """`+` joins texts and adds numbers; a text next to a number is read as a number."""
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, bytes) and isinstance(right, bytes):
        return left + right
    return _number(left) + _number(right)


def _number(value: Known) -> float:
    if isinstance(value, int | float):
        return value
    try:
        return int(value)
    except ValueError:
        return float(value)


def _text(value: Known) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


# In place of SQLite's own, whose time grows with the product of both lengths.


def _instr(value: Known, wanted: Known) -> Value:
    if isinstance(value, bytes) and isinstance(wanted, bytes):
        return value.find(wanted) + 1
    return _text(value).find(_text(wanted)) + 1


def _replace(value: Known, old: Known, new: Known) -> Value:
    text, old, new = _text(value), _text(old), _text(new)
    if not old:
        return text
    if text.count(old) * (len(new) - len(old)) > RESULT_MAX:
        raise OverflowError("too large")  # SQLite reports a value that is too large
    return text.replace(old, new)


def _trim(strip: Callable[[str, str], str], value: Known, unwanted: Known) -> Value:
    return strip(_text(value), "".join(set(_text(unwanted))))


def _unless_null(function: Callable[..., Value], *values: Value) -> Value:
    return None if None in values else function(*values)


# By name, with the number of arguments; none is called with NULL.
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Value]]] = {
    "tsql_plus": (2, _plus),
    "tsql_to_datetime": (1, _to_datetime),
    "instr": (2, _instr),
    "ltrim": (2, partial(_trim, str.lstrip)),
    "replace": (3, _replace),
    "rtrim": (2, partial(_trim, str.rstrip)),
    "trim": (2, partial(_trim, str.strip)),
}
NOW = "tsql_now"  # GETUTCDATE() and its kin: one instant for the whole statement

ALLOWED = BUILT_IN | _FUNCTIONS.keys() | {NOW}


def add_functions(db: sqlite3.Connection, *, now: datetime, database: str = "msdb") -> None:
    """Register the functions of this file on a connection; `now` is the result of GETUTCDATE()."""
    for name, (arguments, function) in _FUNCTIONS.items():
        db.create_function(name, arguments, partial(_unless_null, function), deterministic=True)
    db.create_function(GUID_FUNCTION, 1, render_guid, deterministic=True)
    text = render_instant(now)
    db.create_function(NOW, 0, lambda: text, deterministic=True)
    db.create_function("db_name", 0, lambda: database, deterministic=True)

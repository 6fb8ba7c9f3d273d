"""
What SQLite says when a statement fails, as the numbered error that the original would give.

SQLite knows only its own version of the statement; the place shown is looked up in the text that was given. Faults of
the file (locked, damaged, gone) are the machine's, everything else is the caller's.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.errors import BrokerError, DdlSyntaxError, StatementError, StoreUnavailableError, UnknownNameError

if TYPE_CHECKING:
    from broker.observe.tsql import SelectQuery  # its import is slow and waits for the first statement

# SQLite's sentence, kind, number, ours; `{0}` is the name that SQLite's sentence holds. The last fits every sentence.
_SENTENCES: tuple[tuple[str, type[StatementError], int, str], ...] = (
    (r"no such column: (.+)", UnknownNameError, 207, "invalid column name '{0}'"),
    (r"ambiguous column name: (.+)", UnknownNameError, 209, "ambiguous column name '{0}': name its table too"),
    (r"no such table: (.+)", UnknownNameError, 208, "invalid object name '{0}'"),
    (r"no such function: (.+)", StatementError, 195, "'{0}' is not a recognized function name"),
    (r"not authorized to use function: (.+)", StatementError, 195, "'{0}' is not a recognized function name"),
    (r"wrong number of arguments to function (\w+)\(\)", StatementError, 174, "wrong number of arguments to '{0}'"),
    (
        r"misuse of (?:\w+:? )*(\w+)",
        StatementError,
        147,
        "an aggregate or window function is out of place: {0}",
    ),
    (r"access to (.+) is prohibited", StatementError, 229, "the SELECT permission was denied on '{0}'"),
    (r"not authorized", StatementError, 229, "the permission was denied: only the views can be read"),
    (r"user-defined function raised exception", StatementError, 241, "conversion failed: no date, time or number"),
    (r"circular reference: (.+)", StatementError, 252, "the expression '{0}' refers to itself without UNION ALL"),
    (r"string or blob too big", StatementError, 7119, "a value or a row is too large: 64 KiB, for admins 1.25 MiB"),
    (
        r"LIKE or GLOB pattern too complex",
        StatementError,
        102,
        "a pattern of LIKE may have 256 bytes; write a shorter one",
    ),
    (r'near "(.+)": syntax error', DdlSyntaxError, 102, "not supported near '{0}'"),
    (r"(?s)(.*)", DdlSyntaxError, 102, "not supported: {0}"),
)
_CALLERS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG})
_COLUMN = 207


def nearest(name: str, names: Iterable[str]) -> str:
    """What a misspelt name may have meant, as the end of a sentence; empty when nothing is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - for those who mistype; a slow import for all others

    by_folded = {known.casefold(): known for known in names}
    near = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.7)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


def translate(error: sqlite3.Error, statement: SelectQuery, *, columns: Iterable[str], path: str) -> BrokerError:
    """
    The error to raise for one of SQLite's.

    Args:
        error: As SQLite raised it.
        statement: The one that failed.
        columns: Every column of what it reads.
        path: The file it reads, for a fault of the file.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code not in _CALLERS:
        return StoreUnavailableError(path, str(error))
    kind, number, problem, found = next(
        (kind, number, problem, found)
        for pattern, kind, number, problem in _SENTENCES
        if (found := re.match(pattern, str(error)))
    )
    name = found[1] if found.groups() else ""
    hint = nearest(name.rsplit(".", 1)[-1], columns) if number == _COLUMN else ""
    return statement.error(number, problem.format(name) + hint, name, kind=kind)

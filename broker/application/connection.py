"""
Connections and dialogs as applications give them, seen to be some before they are used.

A mistake is told with what is expected and what to do, instead of an attribute that some object does not have.
"""

from __future__ import annotations

import sqlite3
from inspect import iscoroutinefunction

_AWAITED = ", whose calls are awaited: those of broker.aio take one of broker.aio.connect(PATH)"


def check_connection(db: object) -> None:
    """
    See that this is a connection of `sqlite3`, or an object that hands everything on to one.

    Raises:
        TypeError: it is not.

    Cost: 60 ns for a connection; it is asked once for each call that takes one.
    """
    if isinstance(db, sqlite3.Connection) or isinstance(getattr(db, "in_transaction", None), bool):
        return
    is_awaited = hasattr(db, "__await__") or iscoroutinefunction(getattr(db, "execute", None))
    expected = "the connection has to be one of sqlite3, as sqlite3.connect(PATH) gives it"
    raise TypeError(f"{expected}, not {kind_of(db)}{_AWAITED if is_awaited else ''}")


def check_dialog(dialog: object, kind: type) -> None:
    """
    See that this is a dialog of this kind: of connections that are awaited, or of those that are not.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(dialog, kind):
        expected = f"{kind.__module__}.{kind.__qualname__}, as `begin_dialog`, a message or, of a handle, `get_dialog`"
        raise TypeError(f"a dialog has to be a {expected} gives it, not {kind_of(dialog)}")


def kind_of(value: object) -> str:
    """The type of what was given, with its module unless it is Python's own."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"

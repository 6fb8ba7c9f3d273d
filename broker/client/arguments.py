"""
The arguments of applications, checked before they are used: numbers, times, names, GUIDs, connections and dialogs.

An error names the argument, what is expected and what was given, instead of an attribute that some object does not
have. A bool is not a number here, and neither is text.
"""

from __future__ import annotations

import math
import operator
import sqlite3
import uuid
from contextlib import suppress
from datetime import timedelta
from typing import SupportsFloat, SupportsIndex, cast

from broker.errors import ConversationError
from broker.protocol.layout import NAME_MAX_BYTES, show_guid

INT_MAX = 2**31 - 1  # the original's int
CURRENT_DATABASE = "CURRENT DATABASE"  # the original's word for the broker instance of the database itself
_SHOWN_MAX = 80  # characters of what was given
_CO_COROUTINE = 0x80  # of the code of a function; `inspect` has it, and takes longer to import than all of this

_NUMBERS = (int, float, SupportsFloat)  # in this order: to check a protocol takes 25 us
_AWAITED = ", whose calls are awaited: those of broker.aio take one of broker.aio.connect(PATH)"


def check_count(value: object, name: str, number: int, *, least: int, most: int = INT_MAX) -> int:
    """
    Check a whole number and its range.

    Raises:
        ConversationError: with this number.
    """
    if not isinstance(value, bool):
        try:
            count = operator.index(cast("SupportsIndex", value))
        except TypeError:
            pass
        else:
            if least <= count <= most:
                return count
    raise ConversationError(number, f"{name} has to be a whole number, {least} .. {most}, not {_shown(value)}")


def check_seconds(value: object, name: str, number: int, *, may_be_zero: bool = False, most: float = math.inf) -> float:
    """
    Check a duration, as a number of seconds or a timedelta; returns the seconds.

    Raises:
        ConversationError: with this number.
    """
    seconds = math.nan
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, _NUMBERS) and not isinstance(value, bool):
        with suppress(OverflowError, TypeError, ValueError):  # an int of hundreds of digits
            seconds = float(value)
    if 0 < seconds <= most or (may_be_zero and seconds == 0):
        return seconds
    span = "0 or more" if may_be_zero else "above 0"
    if most < math.inf:
        span += f" and at most {most:.0f}"
    raise ConversationError(number, f"{name} has to be a number of seconds, {span}, not {_shown(value)}")


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"  # which Python does not write out
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def check_connection(db: object) -> None:
    """
    Check that this is a connection of `sqlite3`, or an object that wraps one.

    Raises:
        TypeError: it is not.

    Cost: 60 ns for a connection; once for each call with one.
    """
    if isinstance(db, sqlite3.Connection) or isinstance(getattr(db, "in_transaction", None), bool):
        return
    code = getattr(getattr(db, "execute", None), "__code__", None)
    is_awaited = hasattr(db, "__await__") or bool(code is not None and code.co_flags & _CO_COROUTINE)
    expected = "the connection has to be one of sqlite3, as sqlite3.connect(PATH) gives it"
    raise TypeError(f"{expected}, not {kind_of(db)}{_AWAITED if is_awaited else ''}")


def check_dialog(dialog: object, kind: type) -> None:
    """
    Check that this is a dialog of this kind: of connections that are awaited, or of those that are not.

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


def guid_of(text: uuid.UUID | str) -> uuid.UUID:
    """
    A GUID in any of its spellings.

    Raises:
        ConversationError: 8413, it is not one.
    """
    if isinstance(text, uuid.UUID):
        return text
    try:
        return uuid.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise ConversationError(8413, f"{text!r} is not a GUID") from None


def unknown_handle(handle: uuid.UUID) -> ConversationError:
    """The error for a conversation handle that the database does not have."""
    return ConversationError(8426, f"the conversation handle {show_guid(handle)} is not found")


def check_text(text: object, what: str, number: int = 8412) -> int:
    """
    Check that this is text that can be written as UTF-8; returns how many bytes.

    Raises:
        ConversationError: with this number.
    """
    if not isinstance(text, str):
        raise ConversationError(number, f"{what} has to be text, not {text!r}")
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise ConversationError(number, f"{what} {text!r:.80} cannot be written as UTF-8") from None


def check_name(name: str, whose: str) -> None:
    """
    Check that a name fits on the wire.

    Raises:
        ConversationError: 8412, it does not have 1 .. 512 bytes of UTF-8.
    """
    if not 1 <= check_text(name, f"the {whose}'s name") <= NAME_MAX_BYTES:
        raise ConversationError(8412, f"the {whose}'s name {name!r} does not have 1 .. {NAME_MAX_BYTES} bytes")

"""
Numbers as applications give them, checked: a count, or a time in seconds.

A bool is no number here, and text is none. What does not fit is told with the name of the argument, its range and what
was given.
"""

from __future__ import annotations

import math
import operator
from contextlib import suppress
from datetime import timedelta
from typing import SupportsFloat, SupportsIndex, cast

from broker.errors import ConversationError

INT_MAX = 2**31 - 1  # the original's int
_SHOWN_MAX = 80  # characters of what was given

_NUMBERS = (int, float, SupportsFloat)  # in this order: a protocol takes 25 us to be asked


def check_count(value: object, name: str, number: int, *, least: int, most: int = INT_MAX) -> int:
    """
    See that this is a whole number of a range.

    Raises:
        ConversationError: with this number, it is not.
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
    See that this is a time that has not passed, as a number of seconds or a timedelta.

    Raises:
        ConversationError: with this number, it is not.
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

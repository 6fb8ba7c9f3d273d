"""
Durations, sizes and counts as people write and read them.

In settings and options: "250ms", "10s", "7d"; "512KiB", "10MB", or a plain number of bytes. A duration always names its
unit, because a bare 10 has meant seconds to one program and milliseconds to the next. A size may be a bare number,
because bytes are the only unit it could mean. KiB, MiB and GiB count in 1024, KB, MB and GB in 1000. `render_` writes
the shortest text that `parse_` reads back as the same value.

In pages and reports: a `Quantity` of three digits and a unit, with the exact figure for the tooltip. An unknown number
is a dash, never a zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple

DURATION_PATTERN = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)"
SIZE_PATTERN = r"([0-9]{1,18})(KiB|MiB|GiB|KB|MB|GB)?"
_DURATION = re.compile(DURATION_PATTERN)
_SIZE = re.compile(SIZE_PATTERN)

# Largest unit first: rendering takes the first that divides.
_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_BYTES = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6, "KiB": 1 << 10, "KB": 10**3, "": 1}


def parse_duration(text: str) -> float:
    """
    Read a duration.

    Returns:
        Seconds.

    Raises:
        ValueError: Not a number followed at once by one of ms, s, m, h, d.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration")
    whole, _, part = match[1].partition(".")
    parts: int = 1000 * 10 ** len(part)
    return int(whole + part) * _MILLISECONDS[match[2]] / parts  # whole numbers, so rounded once


def render_duration(seconds: float) -> str:
    """The shortest text for a duration that `parse_duration` may have read."""
    exact = Decimal(repr(seconds)) * 1000
    for unit, factor in _MILLISECONDS.items():
        if exact % factor == 0 and (exact or unit == "s"):
            return f"{int(exact / factor)}{unit}"
    return f"{exact.normalize():f}ms"


def parse_size(text: str) -> int:
    """
    Read a size.

    Returns:
        Bytes.

    Raises:
        ValueError: Not a whole number, alone or followed at once by one of KiB, MiB, GiB, KB, MB, GB.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size")
    return int(match[1]) * _BYTES[match[2] or ""]


def render_size(count: int) -> str:
    """The shortest text for a number of bytes, in the largest unit that divides it."""
    unit = next(unit for unit, factor in _BYTES.items() if count % factor == 0 and (count or not unit))
    return f"{count // _BYTES[unit]}{unit}"


# --- for pages and reports -----------------------------------------------------------------------------------

UNKNOWN = "–"  # noqa: RUF001 - an en dash, as printed tables have it
# From so many on a number is written in units of so many.
_DURATIONS = (
    *((0, 1, "µs"), (1_000, 1_000, "ms"), (1_000_000, 1_000_000, "s")),
    *((120_000_000, 60_000_000, "min"), (7_200_000_000, 3_600_000_000, "h")),
)
_SIZES = (
    (0, 1, "B"),
    *((1 << bits, 1 << bits, unit) for bits, unit in ((10, "KiB"), (20, "MiB"), (30, "GiB"), (40, "TiB"))),
)
_COUNTS = ((0, 1, ""), (10_000, 1_000, "k"), (1_000_000, 1_000_000, "M"), (1_000_000_000, 1_000_000_000, "G"))
_LITTLE = 0.0001  # a smaller share is written as "less than"


class Quantity(NamedTuple):
    """A number for people: `text` is short, `exact` whole, and empty when the text is exact."""

    text: str
    exact: str = ""


def duration(microseconds: float | None) -> Quantity:
    """A time in microseconds; minutes from two minutes, hours from two hours, and none in words."""
    return Quantity("at once") if microseconds == 0 else _scaled(microseconds, _DURATIONS)


def size(octets: float | None) -> Quantity:
    """Bytes, in powers of 1024."""
    return _scaled(octets, _SIZES)


def count(number: int | None) -> Quantity:
    """A count; below ten thousand written whole."""
    return _scaled(number, _COUNTS)


def plural(number: int, one: str, many: str = "") -> str:
    """A number with its noun; `many` when that is not `one` with an s."""
    return f"{count(number).text} {one if number == 1 else many or one + 's'}"


def counted(number: int, noun: str) -> str:
    """A number, exact, with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def share(part: float, whole: float) -> Quantity:
    """Part of a whole in per cent; a dash when there is no whole."""
    if not whole:
        return Quantity(UNKNOWN)
    ratio = part / whole
    exact = f"{part:,.0f} of {whole:,.0f}"
    if not part:
        return Quantity("0 %", exact)
    if abs(ratio) < _LITTLE:
        return Quantity("< 0.01 %", exact)
    # What is not quite all is never written as all of it.
    text = "> 99.99 %" if 1 - _LITTLE < ratio < 1 else f"{_digits(100 * ratio)} %"
    return Quantity(text, exact)


def instant(when: datetime | None) -> Quantity:
    """Date and time of day, UTC, to the second; exact to the microsecond."""
    if when is None:
        return Quantity(UNKNOWN)
    utc = when.astimezone(UTC)
    return Quantity(f"{utc:%Y-%m-%d %H:%M:%S}", f"{utc:%Y-%m-%d %H:%M:%S.%f} UTC")


def clock(when: datetime, *, span: timedelta) -> str:
    """A mark on a time axis that is `span` long: no finer than it has to be."""
    utc = when.astimezone(UTC)
    if span > timedelta(days=3):
        return f"{utc:%d %b}"
    if span > timedelta(hours=20):
        return f"{utc:%d %b %H:%M}"
    return f"{utc:%H:%M}" if span > timedelta(minutes=10) else f"{utc:%H:%M:%S}"


def _scaled(number: float | None, units: Sequence[tuple[int, int, str]]) -> Quantity:
    if number is None:
        return Quantity(UNKNOWN)
    _, scale, name = [unit for unit in units if abs(number) >= unit[0]][-1]
    whole = f"{number:,.0f} {units[0][2]}".strip()
    text = f"{_digits(number / scale)} {name}".strip()
    return Quantity(text, "" if text == whole else whole)


def _digits(number: float) -> str:
    """Three digits; no zeros after the point."""
    places = 0 if abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    text = f"{number:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

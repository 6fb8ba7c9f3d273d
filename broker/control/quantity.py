"""
Durations and sizes as people write them: "250ms", "10s", "7d"; "512KiB", "10MB", or a plain number of bytes.

A duration always names its unit, because a bare 10 has meant seconds to one program and milliseconds to the next.
A size may be a bare number, because bytes are the only unit it could mean. KiB, MiB and GiB count in 1024,
KB, MB and GB in 1000. `render_` writes the shortest text that `parse_` reads back as the same value.
"""

from __future__ import annotations

import re

DURATION_PATTERN = r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)"
SIZE_PATTERN = r"([0-9]{1,18})(KiB|MiB|GiB|KB|MB|GB)?"
_DURATION = re.compile(DURATION_PATTERN)
_SIZE = re.compile(SIZE_PATTERN)

# Largest unit first: rendering takes the first that divides.
_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_EXACT = 1 << 50  # milliseconds; a float holds all whole numbers below it
_BYTES = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "MB": 10**6, "KiB": 1 << 10, "KB": 10**3, "": 1}


def parse_duration(text: str) -> float:
    """
    Read a duration.

    Returns:
        Seconds.

    Raises:
        ValueError: no number followed at once by one of ms, s, m, h, d.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no duration")
    whole, _, part = match[1].partition(".")
    parts: int = 1000 * 10 ** len(part)
    return int(whole + part) * _MILLISECONDS[match[2]] / parts  # whole numbers, so rounded once


def render_duration(seconds: float) -> str:
    """The shortest text for a duration that `parse_duration` may have read."""
    whole = round(seconds * 1000)
    if whole / 1000 == seconds and whole < _EXACT:
        unit = next(unit for unit, factor in _MILLISECONDS.items() if whole % factor == 0 and (whole or unit == "s"))
        return f"{whole // _MILLISECONDS[unit]}{unit}"
    from decimal import Decimal  # noqa: PLC0415 - for parts of a millisecond; a slow import for all others

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
        ValueError: no whole number, alone or followed at once by one of KiB, MiB, GiB, KB, MB, GB.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size")
    return int(match[1]) * _BYTES[match[2] or ""]


def render_size(count: int) -> str:
    """The shortest text for a number of bytes, in the largest unit that divides it."""
    unit = next(unit for unit, factor in _BYTES.items() if count % factor == 0 and (count or not unit))
    return f"{count // _BYTES[unit]}{unit}"

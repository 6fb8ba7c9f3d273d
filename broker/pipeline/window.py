"""
Windows of time: of equal length, from the epoch on, known by the microsecond at which they begin.

Numbers and not timestamps, because integers are the cheapest keys there are.
"""

from __future__ import annotations

import pyspark.sql.functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql import Column

from broker.errors import PipelineError

WINDOW_SECONDS = 300
"""Long enough for percentiles of what passes in it, short enough to see an outage."""


def length_us(window_seconds: int) -> int:
    """
    Microseconds.

    Raises:
        PipelineError: It is no length.
    """
    if window_seconds < 1:
        raise PipelineError(f"windows of {window_seconds} seconds", "give a length of 1 or more")
    return window_seconds * 1_000_000


def begin_us(instant_us: Column, length: int) -> Column:
    """Where the window of an instant begins. Shape: microseconds since the epoch, before it as well."""
    return instant_us - F.pmod(instant_us, F.lit(length))

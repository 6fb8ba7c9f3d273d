"""
The place of a visit on its frame's path, computed without any clock.

A sender's visit has slot 0. A gateway that a frame reaches with hop count h, and a target after h gateways, have slot
h + 1, so that the slots of a path of which all is known are 0, 1, 2 ... without a gap. Clocks of instances may differ
by minutes; the slot does not depend on them.
"""

from __future__ import annotations

from datetime import datetime

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame

from broker.errors import PipelineError
from broker.flow import VisitOutcome

SENDING = (VisitOutcome.SENT.value, VisitOutcome.RESENT.value)
LEAVING = (*SENDING, VisitOutcome.FORWARDED.value)
"""Outcomes of visits that ended with the frame given to a next hop."""

STEPS = (
    VisitOutcome.SENT,
    VisitOutcome.RESENT,
    VisitOutcome.FORWARDED,
    VisitOutcome.DROPPED,
    VisitOutcome.DUPLICATE,
    VisitOutcome.DELIVERED,
)
"""Outcomes of a hop, in order of how much each says about the frame's end, least first."""

STEP_BITS = 3  # of the order of a visit

DIALOG = ["conversation_id", "from_target", "from_service", "to_service"]
"""A direction of a dialog."""

CLOCK_TOLERANCE_US = 10_000
"""By how much a frame may seem to arrive before it left: synchronized clocks differ by so much, read at busy times."""


def end_us(visits: DataFrame, until: datetime | None) -> Column:
    """Return the end of the history in microseconds: `until`, or the newest instant, by a separate scan."""
    newest = F.greatest(F.max("left_at"), F.max("entered_at"))
    end = visits.agg(newest).scalar() if until is None else F.lit(until).cast("timestamp")
    return F.unix_micros(end)


def messages_of(visits: DataFrame, *columns: Column | str) -> DataFrame:
    """Return these columns of the visits of messages of a dialog, those of one message together."""
    is_message = (F.col("kind") == "message") & F.col("conversation_id").isNotNull()
    return visits.where(is_message).select(*columns).repartition("conversation_id", "from_target", "sequence_number")


def is_hop() -> Column:
    """True if a frame was there: the sender's note of an acknowledgement does not count as a visit of the frame."""
    return F.col("outcome") != VisitOutcome.ACKNOWLEDGED.value


def order() -> Column:
    """
    Int: the slot, and in the bits below it the number of the outcome in STEPS, so that visits sort by it.

    A hop count that is missing counts as none, an outcome of a later version as forwarded.
    """
    slot = F.when(F.col("outcome").isin(*SENDING), F.lit(0)).otherwise(F.coalesce(F.col("hop_count"), F.lit(0)) + 1)
    step = F.lit(STEPS.index(VisitOutcome.FORWARDED))
    for number, outcome in enumerate(STEPS):
        step = F.when(F.col("outcome") == outcome.value, F.lit(number)).otherwise(step)
    placed: Column = slot * 2**STEP_BITS + step
    return placed


def slot_of(visit: Column) -> Column:
    """Int: of a struct with a field `order`."""
    return F.shiftright(visit["order"], STEP_BITS)


def step_of(visit: Column) -> Column:
    """Int: its number in STEPS."""
    return visit["order"].bitwiseAND(2**STEP_BITS - 1)


def outcome_of(visit: Column) -> Column:
    """String."""
    return F.element_at(F.array(*(F.lit(outcome.value) for outcome in STEPS)), step_of(visit) + 1)


def pair_of(one: Column, other: Column) -> Column:
    """Long: of two instances, whichever is first; null when they are one, which has one clock, or are not known."""
    return F.when(one != other, F.xxhash64(F.least(one, other), F.greatest(one, other)))


def residence_us() -> Column:
    """Microseconds from entering to leaving; null when not known, or negative: the clock was set back in between."""
    lasted = F.unix_micros("left_at") - F.unix_micros("entered_at")
    return F.when(lasted >= 0, lasted)


# --- window ---
# Windows of time: of equal length, from the epoch on, known by the microsecond at which they begin.
#
# Numbers and not timestamps, because integers are the cheapest keys there are.


WINDOW_SECONDS = 300
"""Long enough for percentiles of what passes in it, short enough to see an outage."""


def length_us(window_seconds: int) -> int:
    """
    Return the length of a window in microseconds.

    Raises:
        PipelineError: It is less than one second.
    """
    if window_seconds < 1:
        raise PipelineError(f"windows of {window_seconds} seconds", "give a length of 1 or more")
    return window_seconds * 1_000_000


def begin_us(instant_us: Column, length: int) -> Column:
    """Return where the window of an instant begins, in microseconds since the epoch; before the epoch as well."""
    return instant_us - F.pmod(instant_us, F.lit(length))

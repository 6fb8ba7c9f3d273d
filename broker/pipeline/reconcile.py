"""
The ledger: whether everything that was sent has arrived, once.

A *place* is a sequence and a fragment number in one direction of a dialog; a transmission (message_id) is one attempt
to bring it over. Resends, drops and losses do not count as faults as long as the place arrives. The counts are:

- `missing`: sent, and neither seen delivered nor acknowledged, nor so late that it cannot be known (`under_way`). The
  sender repeats with pauses of up to 64 seconds, so the grace is more than two of them. A dialog that ended by an
  error, by WITH CLEANUP or by its lifetime stops repeating: messages that it had not brought over are `missing`.
- `doubled`: delivered more than once. A `duplicate` is a message that the target had and discarded: not a fault.
- `invented`: delivered or acknowledged and never sent, although its sender's journal has later sends, or ends long
  before. Journals are written file by file, and one may lag another by the age at which a file is closed
  (`Inventory.horizon_us` is the end of the history that takes account of it).
  Otherwise it is `untold`: its sender keeps no journal, or none that goes so far. A sender that was killed, or that
  shed records, leaves a hole in its journal, and messages that it sent in that hole look invented.
- `lost`: a transmission of which no end was seen: not delivered, duplicate or dropped. An acknowledgement names the
  newest transmission of its place, which need not be the one that arrived. So it counts as an end only where no
  journal has the delivery of the place.

Of what is not sampled only drops are written: such rows count drops, and `adds_up` is null.

How: everything is brought together by message, which spreads also a dialog with half of all records. Counting by
transmission, then by place, is done where the rows lie, and only sums and problems travel to their dialog. Aggregates
hold integers only, because Spark would sort strings. The services are keys: the endpoints let no frame of a dialog
change them.
"""

from __future__ import annotations

from datetime import datetime
from functools import reduce

import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame, Window

from broker.flow import NUMBER, VisitOutcome
from broker.pipeline.results import RECONCILE, as_result
from broker.pipeline.visits import DIALOG, end_us, messages_of

GRACE_SECONDS = 150  # two of the sender's longest pauses, 64 s, and a little
BEHIND_SECONDS = 900  # the lag of one instance's journal to another's: the default age at which a file is closed
PROBLEMS_MAX = 20

PLACE = [*DIALOG, "sequence_number", "fragment_number"]
_FATES = ("delivered", "acknowledged", "under_way", "missing")
_TRANSMISSIONS = ("transmissions", "resent", "dropped", "lost", "duplicates")
_ENDS = (VisitOutcome.DELIVERED, VisitOutcome.DUPLICATE, VisitOutcome.DROPPED)


def reconcile(visits: DataFrame, *, grace_seconds: int = GRACE_SECONDS, until: datetime | None = None) -> DataFrame:
    """
    Return the ledger of a history, as in RECONCILE.

    Args:
        visits: As in VISIT, no visit twice.
        grace_seconds: A message last seen so shortly before the end of the history may still be under way.
        until: The end of the history, up to when every journal is complete; None for the newest instant in `visits`.

    Returns:
        One row per dialog and direction and a total; no row when there is no message. Visits without a
        conversation_id belong to no dialog and are left out.
    """
    end = end_us(visits, until)
    return (
        visits.transform(_messages)
        .transform(_transmissions)
        .transform(_places, end - grace_seconds * 1_000_000, end - BEHIND_SECONDS * 1_000_000)
        .transform(_dialogs)
        .transform(_with_total)
        .transform(as_result, RECONCILE)
    )


def _messages(visits: DataFrame) -> DataFrame:
    """Return one row per visit of a message, rows of one message together; `bit` of its outcome; `at` microseconds."""
    bits = {outcome.value: 1 << place for place, outcome in enumerate(VisitOutcome)}
    bit = reduce(lambda chain, one: chain.when(F.col("outcome") == one, bits[one]), bits, F)
    at = F.unix_micros(F.coalesce("left_at", "entered_at"))
    code = F.when(F.col("outcome") == VisitOutcome.DROPPED.value, F.col("code"))
    return messages_of(visits, *PLACE, "message_id", bit.otherwise(0).alias("bit"), at.alias("at"), code.alias("code"))


def _transmissions(messages: DataFrame) -> DataFrame:
    """Return one row per transmission: `outcomes` of its visits as bits; `seen_us` when last; `code` of a drop."""
    return messages.groupBy(*PLACE, "message_id").agg(
        F.bit_or("bit").alias("outcomes"),
        F.count_if(F.col("bit") == _bits(VisitOutcome.DELIVERED)).alias("deliveries"),
        F.max("at").alias("seen_us"),
        F.max("code").alias("code"),
    )


def _places(transmissions: DataFrame, since: Column, told_until: Column) -> DataFrame:
    """
    Return one row per place.

    `origin` is sent, unsent, or unsent lately. `fate` is delivered, acknowledged, under way, missing, or null if no
    journal has more than that it passed an instance. Its transmissions are counted; `code` is that of the last drop.

    Args:
        transmissions: As above.
        since: Microseconds; places seen later may be under way.
        told_until: Microseconds; every journal is taken to go so far.
    """
    is_gone = ~_has(*_ENDS) & (F.col("seen_us") <= since)
    places = transmissions.groupBy(*PLACE).agg(
        F.bit_or("outcomes").alias("outcomes"),
        F.sum("deliveries").alias("deliveries"),
        F.max("seen_us").alias("seen_us"),
        F.max_by("code", F.when(F.col("code").isNotNull(), F.col("seen_us"))).alias("code"),
        F.count("*").alias("transmissions"),
        F.count_if(_has(VisitOutcome.RESENT)).alias("resent"),
        F.count_if(_has(VisitOutcome.DROPPED)).alias("dropped"),
        F.count_if(is_gone).alias("gone"),
        F.count_if(is_gone & _has(VisitOutcome.ACKNOWLEDGED)).alias("gone_acknowledged"),
        F.count_if(_has(VisitOutcome.DUPLICATE)).alias("duplicates"),
    )
    lost = F.col("gone") - F.when(_has(VisitOutcome.DELIVERED), 0).otherwise(F.col("gone_acknowledged"))
    is_sent = _has(VisitOutcome.SENT, VisitOutcome.RESENT)
    arrived = F.when(_has(VisitOutcome.DELIVERED), "delivered").when(_has(VisitOutcome.ACKNOWLEDGED), "acknowledged")
    pending = F.when(F.col("seen_us") > since, "under way").otherwise("missing")
    unsent = F.when(F.col("seen_us") > told_until, "unsent lately").otherwise("unsent")
    return places.select(
        *PLACE,
        F.when(is_sent, "sent").otherwise(unsent).alias("origin"),
        F.coalesce(arrived, F.when(is_sent, pending)).alias("fate"),
        (F.col("deliveries") > 1).alias("is_doubled"),
        *("code", "transmissions", "resent", "dropped", lost.alias("lost"), "duplicates"),
    )


def _dialogs(places: DataFrame) -> DataFrame:
    """
    Return one row per dialog and direction, with the columns of the result.

    Places that are as they should be are summed up first. The others stay rows, of which the first ones are kept when
    they come together, so that no row ever holds them all.
    """
    is_told = (F.col("fate") == "missing") | (F.col("origin") != "sent") | F.col("is_doubled")
    kept = [F.when(is_told, F.col(name)).alias(name) for name in ("sequence_number", "fragment_number", "code")]
    sent_to = F.max(F.when(F.col("origin") == "sent", F.col("sequence_number"))).alias("sent_to")
    groups = places.groupBy(*DIALOG, "origin", "fate", "is_doubled", *kept).agg(
        sent_to, F.count("*").alias("places"), *[F.sum(name).alias(name) for name in _TRANSMISSIONS]
    )
    sent_to = F.max("sent_to").over(Window.partitionBy(*DIALOG)).alias("sent_to")
    named = groups.select(*groups.drop("sent_to").columns, sent_to).transform(_named)
    place = ("sequence_number", "fragment_number")
    problem = F.struct(*place, "problem", F.when(F.col("problem") == "missing", _reason()).alias("reason"))
    order = F.when(F.col("problem").isNotNull(), F.struct(*place))
    counts = {name: F.sum(F.when(condition, F.col("places")).otherwise(0)) for name, condition in _conditions().items()}
    return named.groupBy(*DIALOG).agg(
        *[total.alias(name) for name, total in counts.items()],
        *[F.sum(name).alias(name) for name in _TRANSMISSIONS],
        F.coalesce(F.min_by(problem, order, PROBLEMS_MAX), F.array()).alias("problems"),
    )


def _named(groups: DataFrame) -> DataFrame:
    """Add `is_invented` and `problem`, the first that holds; `sent_to` is null if no journal has a send."""
    is_behind = (F.col("origin") == "unsent lately") & (F.col("sequence_number") >= F.col("sent_to"))
    is_unsent = (F.col("origin") != "sent") & F.col("fate").isNotNull()
    is_invented = is_unsent & F.col("sent_to").isNotNull() & ~is_behind
    problem = (
        F.when(F.col("fate") == "missing", "missing")
        .when(F.col("is_doubled"), "doubled")
        .when(F.col("is_invented"), "invented")
    )
    return groups.withColumn("is_invented", is_invented).withColumn("problem", problem)


def _conditions() -> dict[str, Column]:
    """What is counted in places."""
    is_sent, has_arrived = F.col("origin") == "sent", F.col("fate").isNotNull()
    return {
        "sent": is_sent,
        **{name: F.col("fate") == name.replace("_", " ") for name in _FATES},
        "doubled": F.col("is_doubled"),
        "untold": ~is_sent & has_arrived & ~F.col("is_invented"),
        "invented": F.col("is_invented"),
    }


def _with_total(dialogs: DataFrame) -> DataFrame:
    counts = [name for name in dialogs.columns if name not in {*DIALOG, "problems"}]
    keys = [*DIALOG, "problems"]
    faults = F.col("missing") + F.col("doubled") + F.col("invented")
    rows = dialogs.withColumn("adds_up", F.when((faults > 0) | (F.col("sent") > 0), faults == 0))
    return rows.groupingSets([[F.col(name) for name in keys], []], *keys).agg(
        *[F.sum(name).alias(name) for name in counts], F.bool_and("adds_up").alias("adds_up")
    )


def _reason() -> Column:
    """The words for a code; the code itself when it is none of ours."""
    words = F.create_map(*[F.lit(one) for disposition, code in NUMBER.items() for one in (code, disposition.value)])
    return F.coalesce(words[F.col("code")], F.col("code").cast("string"))


def _bits(*outcomes: VisitOutcome) -> int:
    return sum(1 << list(VisitOutcome).index(one) for one in outcomes)


def _has(*outcomes: VisitOutcome) -> Column:
    """Whether one of them is among `outcomes`."""
    return F.col("outcomes").bitwiseAND(_bits(*outcomes)) != 0

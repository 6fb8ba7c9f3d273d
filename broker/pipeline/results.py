"""
The inputs and the results of the jobs, column by column.

`VISIT` is the journal as Spark reads it. Every result has a grain, which its docstring states; times are microseconds,
instants UTC. Ids are binary of 16 bytes.

A transform whose answer depends on how far the history goes (`paths` and `reconcile`: lost, or under way?) takes it as
`until: datetime | None = None`, keyword-only; None is the newest instant of the visits given.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.parquet as pq
import pyspark.sql.functions as F  # noqa: N812 - the conventional name
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T  # noqa: N812 - the conventional name

from broker.errors import PipelineError
from broker.files import write_file
from broker.flow import COLUMNS, Form

_TYPES: dict[Form, T.DataType] = {
    Form.INSTANT: T.TimestampType(),
    Form.WORD: T.StringType(),
    Form.GUID: T.BinaryType(),
    Form.FLAG: T.BooleanType(),
    Form.INT32: T.IntegerType(),
    Form.INT64: T.LongType(),
}

VISIT = T.StructType([T.StructField(one.name, _TYPES[one.form], nullable=True) for one in COLUMNS])
"""One row per visit of a dialog frame to an instance: the journal. Null everywhere: other versions are read as well."""


RESULTS: dict[str, T.StructType] = {}
"""The schema of each result, by job. Filled below, then never changed, like `MEANINGS`."""
MEANINGS: dict[str, dict[str, str]] = {}
"""The meaning of each column of each result, in words: by result, then by column."""


def _result(name: str, *columns: tuple[str, T.DataType, str]) -> T.StructType:
    """Return the schema of a result; each column with its type and its meaning."""
    MEANINGS[name] = {column: meaning for column, _, meaning in columns}
    RESULTS[name] = T.StructType([T.StructField(column, form, nullable=True) for column, form, _ in columns])
    return RESULTS[name]


_BINARY, _STRING, _BOOLEAN = T.BinaryType(), T.StringType(), T.BooleanType()
_INT, _LONG, _DOUBLE, _INSTANT = T.IntegerType(), T.LongType(), T.DoubleType(), T.TimestampType()
_WORDS, _LONGS = T.ArrayType(_STRING), T.ArrayType(_LONG)

PATHS = _result(
    "paths",
    ("message_id", _BINARY, "the transmission: a resend has another"),
    ("conversation_id", _BINARY, "the dialog"),
    ("from_target", _BOOLEAN, "whether the target of the dialog sent it"),
    ("kind", _STRING, "message, ack, fault; other for kinds of later versions"),
    ("sequence_number", _LONG, "of the message in its direction, from 0"),
    ("fragment_number", _INT, "of the fragment in its message, from 0"),
    ("from_service", _STRING, "the sender"),
    ("to_service", _STRING, "the receiver"),
    ("bytes", _INT, "the whole frame"),
    ("is_resend", _BOOLEAN, "whether its place was sent before; null when the sender keeps no journal"),
    ("started_at", _INSTANT, "left its sender; if that is not known, the earliest instant known of it"),
    ("ended_at", _INSTANT, "the latest instant known of it, an acknowledgement's only when nothing else is known"),
    ("path", _WORDS, "instances in the order of the hops"),
    ("next_hops", _WORDS, "the address that each of `path` gave it to; null where it went no further"),
    (
        "residence_us",
        _LONGS,
        "how long it was at each instance of `path`; null where it did not leave, or left before it arrived",
    ),
    ("link_us", _LONGS, "between them, one less; null where clocks contradict each other or a hop is missing"),
    (
        "total_us",
        _LONG,
        (
            "from leaving the sender to the last visit's end; null where an end is unknown, or its way leads from one"
            " instance to another whose clocks contradict each other"
        ),
    ),
    ("end", _STRING, "delivered, duplicate, dropped, acknowledged, lost, under way"),
    ("end_instance", _STRING, "where it ended; of a lost one the last that had it; null when acknowledged"),
    ("lost_to", _STRING, "of a lost one: the next hop that it was given to"),
    ("reason", _STRING, "of a dropped one: its disposition"),
    ("code", _INT, "of a dropped one: the number of its disposition"),
    ("has_loop", _BOOLEAN, "an instance is twice among its gateways (forwarded, dropped)"),
    (
        "missing_hops",
        _INT,
        "of the slots up to the last known one, the sender counted, those without a visit in any journal",
    ),
    ("unknown_links", _INT, "between neighbours whose clocks contradict each other, on this way or on any"),
)
"""
One row per transmission (message_id): a resend is another transmission.

`acknowledged`: its message was acknowledged while this was its newest transmission, and no journal has its end. So the
target keeps no journal, or this one was lost on a link after an earlier one arrived. `lost`: it left for a next hop
and was not seen again; `under way`: likewise, so late in the history that its loss cannot be known.
"""

DIALOGS = _result(
    "dialogs",
    ("conversation_id", _BINARY, "the dialog"),
    ("from_target", _BOOLEAN, "whether it is the direction from the target"),
    ("from_service", _STRING, "the sender in this direction"),
    ("to_service", _STRING, "the receiver"),
    ("from_instance", _STRING, "where it is sent; null when that keeps no journal"),
    ("to_instance", _STRING, "where it is delivered; null likewise"),
    ("messages", _LONG, "distinct sequence numbers"),
    ("fragments", _LONG, "distinct places"),
    ("transmissions", _LONG, "with resends"),
    ("resends", _LONG, "transmissions that were resends"),
    ("duplicates", _LONG, "transmissions that the target had already"),
    ("drops", _LONG, "transmissions that were dropped, wherever"),
    ("bytes", _LONG, "of all transmissions"),
    ("first_at", _INSTANT, "the first of its visits began"),
    ("last_at", _INSTANT, "the last of its visits ended, an acknowledgement's only when nothing else is known"),
    ("delivery_p50_us", _LONG, "of places, queued to first delivered; null if clocks contradict each other"),
    ("delivery_p95_us", _LONG, "likewise"),
    ("delivery_p99_us", _LONG, "likewise"),
    ("round_trip_p50_us", _LONG, "of places, first left the sender to first acknowledged"),
    ("round_trip_p95_us", _LONG, "likewise"),
    ("round_trip_p99_us", _LONG, "likewise"),
    ("gaps", _LONG, "sequence numbers between the first and the last of which nothing is known"),
)
"""
One row per dialog and direction; messages only, acknowledgements and faults are not counted. A place is a sequence and
a fragment number; percentiles are values that occurred, of rank ceil(p * n).
"""

ROUTES = _result(
    "routes",
    ("instance", _STRING, "name of the instance"),
    ("route_table", _STRING, "the database whose route it is, msdb for frames that arrived; null without a route"),
    ("route", _STRING, "its name; null: delivered here, or dropped before a route was found"),
    ("window_start", _INSTANT, "when the window began"),
    ("window_seconds", _INT, "how long it is"),
    ("frames", _LONG, "visits that left in the window, or entered in it when that is not known"),
    ("bytes", _LONG, "of these frames"),
    ("residence_p50_us", _LONG, "how long frames stayed, from entering to leaving"),
    ("residence_p95_us", _LONG, "likewise"),
    ("residence_p99_us", _LONG, "likewise"),
    ("residence_p999_us", _LONG, "likewise, 99.9 %"),
    ("drops", _LONG, "of these frames, those that were dropped here"),
    ("drops_by_reason", T.MapType(_STRING, _LONG), "drops by their disposition; empty when nothing was dropped"),
    ("failovers", _LONG, "frames that left by another route or next hop than the one before of dialog and direction"),
)
"""
One row per instance, route and window; a visit belongs to the window in which it left, a failover to the route that was
taken then. Every visit counts but those that record an acknowledgement. Percentiles are values that occurred, of rank
ceil(p * n).
"""

CAPACITY = _result(
    "capacity",
    ("instance", _STRING, "name of the instance"),
    ("window_start", _INSTANT, "when the window began"),
    ("window_seconds", _INT, "how long it is"),
    ("peak_frames", _LONG, "the most that were held at once"),
    ("peak_bytes", _LONG, "the most bytes held at once, which need not be in the instant of peak_frames"),
    ("p99_frames", _LONG, "the 99th percentile of what a frame found when it entered, itself counted"),
    ("p99_bytes", _LONG, "likewise"),
    (
        "recommended_bytes",
        _LONG,
        (
            "for message_forward_size: the pool's overhead of each frame and a margin included; null where only some"
            " dialogs were followed: what the others held is not known"
        ),
    ),
    ("headroom", _DOUBLE, "what is left of the pool at the peak, 0 .. 1; null likewise, and without the pool's size"),
)
"""
One row per instance and window in which something passed or was held: the amount held at once, by a sweep over enter
and leave of gateways' visits (forwarded, dropped). At one instant, frames that leave count first. A message that a
sender sends waits in the transmission queue, one that is delivered in the database, not in the pool. Percentiles as in
`ROUTES`; null in a window that nothing entered.
"""

PROBLEM = T.StructType(
    [
        T.StructField("sequence_number", _LONG),
        T.StructField("fragment_number", _INT),
        T.StructField("problem", _STRING),  # missing, doubled, invented
        T.StructField("reason", _STRING),  # of a missing one: why it was dropped last; null when it was not
    ]
)

RECONCILE = _result(
    "reconcile",
    ("conversation_id", _BINARY, "the dialog; null in the total"),
    ("from_target", _BOOLEAN, "whether it is the direction from the target; null in the total"),
    ("from_service", _STRING, "the sender in this direction; null in the total"),
    ("to_service", _STRING, "the receiver; null in the total"),
    ("sent", _LONG, "distinct places that were sent"),
    ("delivered", _LONG, "distinct places that were delivered"),
    ("acknowledged", _LONG, "distinct places not seen delivered, but acknowledged"),
    ("under_way", _LONG, "sent, neither delivered nor acknowledged, too late in the history to be missing"),
    ("missing", _LONG, "sent, and neither delivered nor acknowledged nor under way"),
    ("doubled", _LONG, "distinct places that were delivered more than once"),
    ("untold", _LONG, "delivered or acknowledged; its sender keeps no journal, or none that goes so far"),
    ("invented", _LONG, "delivered or acknowledged, and never sent, by the journal of its sender"),
    ("transmissions", _LONG, "of all its places, resends included"),
    ("resent", _LONG, "transmissions that were resends"),
    ("dropped", _LONG, "transmissions dropped with a reason"),
    (
        "lost",
        _LONG,
        "transmissions that left for a next hop and were not seen again, though their place may have arrived",
    ),
    ("duplicates", _LONG, "transmissions that the target had already"),
    ("adds_up", _BOOLEAN, "nothing missing, doubled or invented; null when nothing is and no place is known as sent"),
    (
        "problems",
        T.ArrayType(PROBLEM),
        "the first 20 by sequence and fragment number, of whatever kind; null in the total",
    ),
)
"""
One row per dialog and direction, and a total whose conversation_id is null; messages only. A place is a sequence and a
fragment number. In every row sent + untold + invented = delivered + acknowledged + under_way + missing. The total adds
up when no row fails and one adds up.
"""


def as_result(rows: DataFrame, schema: T.StructType, columns: Mapping[str, Column] = MappingProxyType({})) -> DataFrame:
    """Return rows with the columns of a schema; those in `columns` are computed, the others are there."""
    return rows.select(*(columns.get(one.name, F.col(one.name)).cast(one.dataType).alias(one.name) for one in schema))


# --- result ---
# Writing results so that a reader sees a whole one or none.
#
# A result is a directory of Parquet files. It is written next to its place, under a name that readers pass over, and
# renamed; the result that was there before stays until then. The report of a run is in `_report.json` inside.
#
# Two processes that wrote into one directory would take each other's work for the remains of killed runs: `held` lets
# one in.


REPORT = "_report.json"  # Spark reads no file that begins with an underscore
UNFINISHED = ".unfinished-"
REPLACED = ".replaced-"
LOCK = ".lock"
UNIQUE = ("message_id", "started_at", "ended_at")
"""Columns whose values hardly ever come twice, so that a dictionary is made of them for nothing."""


@contextmanager
def held(out: Path, names: Iterable[str]) -> Iterator[None]:
    """
    A directory of results for this process alone; results that a killed run had half replaced are back in their place.

    Args:
        out: The directory.
        names: Of results that are written.

    Raises:
        PipelineError: another process has it.
        OSError: it cannot be written to.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                f"another process writes results to {out}", "wait for it, or give another --out"
            ) from None
        for name in names:
            _recover(out / name)
        yield


def write(result: DataFrame, target: Path, report: Callable[[], Mapping[str, Any]]) -> int:
    """
    Write a result, in place of an earlier one, and return how many rows it has.

    Args:
        result: The result to write.
        target: Its place.
        report: Returns the report of the run; called once the rows are written.

    Raises:
        OSError: the place cannot be written to.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    # A separate name: the Java of a run that was killed may write a moment longer.
    made = target.with_name(f"{UNFINISHED}{target.name}-{uuid.uuid4().hex[:8]}")
    plain = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE}
    result.write.options(**plain).parquet(str(made))
    write_file(made / REPORT, json.dumps(report(), indent=1, default=str).encode())
    _publish(made, target)
    return rows(target)


def _publish(made: Path, target: Path) -> None:
    """Rename a result to its place, and remove what runs that were killed have left of it."""
    _recover(target)
    old = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():
        target.rename(old)
    made.rename(target)
    for left in (old, *target.parent.glob(f"{UNFINISHED}{target.name}-*")):
        shutil.rmtree(left, ignore_errors=True)


def _recover(target: Path) -> None:
    """Put back what a run had moved away that was killed before its own result was in place."""
    old = target.with_name(f"{REPLACED}{target.name}")
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
    elif old.exists():
        old.rename(target)


def rows(directory: Path) -> int:
    """How many rows the Parquet files of a result have, by their footers."""
    return sum(int(pq.read_metadata(path).num_rows) for path in directory.glob("*.parquet"))

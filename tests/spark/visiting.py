"""Visits for tests: a row names the columns that matter, the rest is filled in."""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from broker.journal.schema import JOURNAL
from tests.support import journalled

START = journalled.START
DEFAULTS: dict[str, Any] = journalled.visit(
    instance="a", message_id=1, conversation_id=1, bytes=100, to_service="Target", from_service="Initiator"
)


def visits(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """A frame with the schema VISIT and one row for each dictionary."""
    full = [filled(row) for row in rows]
    columns = {
        name: pa.array([row.get(name) for row in full], type=_plain(JOURNAL.field(name).type)) for name in JOURNAL.names
    }
    return spark.createDataFrame(pa.table(columns))


def guid(number: int | bytes | None) -> bytes | None:
    """An id of 16 bytes from a small number."""
    return number.to_bytes(16, "big") if isinstance(number, int) else number


def filled(row: dict[str, Any]) -> dict[str, Any]:
    """
    A visit of which only what matters was named.

    Shape: instants are datetimes, or microseconds behind START; ids are bytes, or small numbers that are padded to 16
    bytes; `left_at` is a millisecond behind `entered_at` when it is not named, what else is not named is null.
    """
    unknown = set(row) - set(JOURNAL.names)
    if unknown:
        raise KeyError(f"no column of a visit: {sorted(unknown)}")
    full = DEFAULTS | row
    entered_at = _instant(full["entered_at"])
    full["left_at"] = _instant(row["left_at"]) if "left_at" in row else entered_at + timedelta(milliseconds=1)
    full["entered_at"] = entered_at
    for name in ("message_id", "conversation_id", "to_broker_instance", "from_broker_instance"):
        full[name] = guid(full.get(name))
    return full


def _instant(value: datetime | int | None) -> Any:
    return START + timedelta(microseconds=value) if isinstance(value, int) else value


def _plain(form: pa.DataType) -> pa.DataType:
    """Spark takes no dictionaries and no binary of a fixed size from Arrow in memory."""
    if pa.types.is_dictionary(form):
        return form.value_type
    return pa.binary() if pa.types.is_fixed_size_binary(form) else form

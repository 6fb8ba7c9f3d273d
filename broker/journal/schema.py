"""
The journal's columns as an Arrow schema, and what the metadata of a file tells.

Timestamps are in microseconds with the zone UTC and ids plain binary of 16 bytes, because that is what every reader
understands: Spark refuses nanoseconds, and ids with the logical type UUID.
"""

from __future__ import annotations

import pyarrow as pa

from broker.flow import COLUMNS, JOURNAL_SCHEMA, Form

SCHEMA_KEY = b"journal_schema"  # the version of the columns
FILE_KEY = b"journal_file"  # 32 hexadecimal digits, another for each file: copies of a file are known by it
INSTANCE_KEY = b"journal_instance"
SAMPLE_KEY = b"journal_sample"  # the fraction of dialogs, as a decimal number
SHED_KEY = b"journal_shed"  # records lost for want of room since the file before this one

_TYPES: dict[Form, pa.DataType] = {
    Form.INSTANT: pa.timestamp("us", tz="UTC"),
    Form.WORD: pa.dictionary(pa.int32(), pa.string()),
    Form.GUID: pa.binary(16),
    Form.FLAG: pa.bool_(),
    Form.INT32: pa.int32(),
    Form.INT64: pa.int64(),
}

JOURNAL = pa.schema([pa.field(one.name, _TYPES[one.form], nullable=one.is_nullable) for one in COLUMNS])
"""One row per visit of a dialog frame to an instance."""


def file_metadata(*, file: str, instance: str, sample: float, shed: int) -> dict[bytes, bytes]:
    """What the metadata of a file tells."""
    return {
        SCHEMA_KEY: str(JOURNAL_SCHEMA).encode(),
        FILE_KEY: file.encode(),
        INSTANCE_KEY: instance.encode(),
        SAMPLE_KEY: repr(sample).encode(),
        SHED_KEY: str(shed).encode(),
    }

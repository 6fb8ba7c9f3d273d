"""The Arrow schema of the journal."""

import pyarrow as pa
import pytest

from broker.flow import COLUMNS
from broker.journal.schema import JOURNAL, file_metadata


def test_the_columns_are_those_of_a_flow_record() -> None:
    """In their order, null where a record may lack them."""
    assert [(one.name, one.is_nullable) for one in COLUMNS] == [(field.name, field.nullable) for field in JOURNAL]


@pytest.mark.parametrize("name", ["entered_at", "left_at"])
def test_instants_are_microseconds_in_utc(name: str) -> None:
    """Spark refuses nanoseconds, and takes instants without a zone for local ones."""
    assert pa.timestamp("us", tz="UTC") == JOURNAL.field(name).type


def test_ids_are_plain_bytes() -> None:
    """Spark refuses the logical type UUID."""
    assert pa.binary(16) == JOURNAL.field("message_id").type


def test_metadata_tells_whose_file_it_is() -> None:
    """All of it as text."""
    told = file_metadata(file="0" * 32, instance="dmz-1", sample=0.01, shed=7)

    assert {
        b"journal_schema": b"1",
        b"journal_file": b"0" * 32,
        b"journal_instance": b"dmz-1",
        b"journal_sample": b"0.01",
        b"journal_shed": b"7",
    } == told

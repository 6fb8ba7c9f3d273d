"""The files of a synthetic history."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.journal.schema import FILE_KEY, INSTANCE_KEY, JOURNAL, SCHEMA_KEY
from tests.support.synthetic import REFUSED, history


def test_a_file_tells_whose_it_is_and_holds_no_others_rows(tmp_path: Path) -> None:
    """In its name, in its metadata and in its rows."""
    for file in history(tmp_path / "h").files:
        table = pq.ParquetFile(file).read()
        names = set(table["instance"].to_pylist())
        assert {table.schema.metadata[INSTANCE_KEY].decode()} == names
        assert Path(file).name.startswith(names.pop() + "-")
        assert JOURNAL == table.schema.remove_metadata()


def test_no_two_files_have_one_number(tmp_path: Path) -> None:
    """But copies."""
    made = history(tmp_path / "h", has_bad_files=True)

    numbers = Counter(pq.read_metadata(file).metadata[FILE_KEY] for file in made.files)

    assert {1} == set(numbers.values())
    copy = next(name for name, why in made.told["bad_files"].items() if why == "copy")
    assert pq.read_metadata(made.directory / copy).metadata[FILE_KEY] in numbers


def test_late_rows_are_only_late(tmp_path: Path) -> None:
    """The same rows in all, some in the file of a later hour."""
    on_time, late = history(tmp_path / "a"), history(tmp_path / "b", late_share=0.5)

    rows = [sum(pq.read_metadata(file).num_rows for file in one.files) for one in (on_time, late)]

    assert rows[0] == rows[1]
    assert late.told["late_files"]
    assert len(late.files) == len(on_time.files) + len(late.told["late_files"])


def test_bad_files_are_what_they_are_called(tmp_path: Path) -> None:
    """One of each kind."""
    made = history(tmp_path / "h", has_bad_files=True)
    bad = {why: made.directory / name for name, why in made.told["bad_files"].items()}

    assert {*REFUSED, "older", "newer"} == set(bad)
    with pytest.raises(pa.ArrowInvalid):
        pq.read_metadata(bad["truncated"])
    assert FILE_KEY not in (pq.read_metadata(bad["foreign"]).metadata or {})
    assert {"adjacent_in"} == set(JOURNAL.names) - set(pq.read_schema(bad["older"]).names)
    assert {"colour"} == set(pq.read_schema(bad["newer"]).names) - set(JOURNAL.names)
    assert b"2" == pq.read_metadata(bad["newer"]).metadata[SCHEMA_KEY]

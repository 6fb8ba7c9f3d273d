"""A file appears whole and tells about itself, or it does not appear."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.forwarding.kernels import make_decoder
from broker.journal.files import JournalFile, remove_leftovers
from broker.journal.rows import RowBuffer
from broker.journal.schema import FILE_KEY, INSTANCE_KEY, JOURNAL, SAMPLE_KEY, SCHEMA_KEY, SHED_KEY
from tests.support.records import Tape, frame, way

BEGUN = datetime(2026, 3, 4, 5, 59, tzinfo=UTC).timestamp()


def table(rows: int = 3) -> pa.Table:
    tape, made = Tape(), RowBuffer("gw", make_decoder())
    for number in range(rows):
        tape.enter(frame(sequence_number=number), way())
    made.add(tape.batch(offset=BEGUN))
    return made.take()


def visible(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]


def test_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    file = JournalFile(tmp_path, "gw", sequence=7, begun_at=BEGUN)
    file.write(table())
    file.write(table(2))
    assert ([], 5) == (visible(tmp_path), file.rows)
    assert file.size > 4
    assert 0 == remove_leftovers(tmp_path, "gw")  # it is being written

    path, size = file.close(sample=0.25, shed=11)

    assert [path] == visible(tmp_path)
    assert tmp_path / "date=2026-03-04" / "hour=05" == path.parent
    assert size == path.stat().st_size
    assert path.name.startswith("gw-000007-")
    assert [] == list(tmp_path.glob(".*"))
    with pq.ParquetFile(path) as parquet:
        metadata = parquet.metadata.metadata
        assert [0, 1, 2, 0, 1] == parquet.read()["sequence_number"].to_pylist()
        assert 2 == parquet.num_row_groups
        group = parquet.metadata.row_group(0)
        assert {"ZSTD"} == {group.column(number).compression for number in range(group.num_columns)}
        assert pa.timestamp("us", tz="UTC") == parquet.schema_arrow.field("entered_at").type
    assert (b"1", b"gw", b"0.25", b"11") == tuple(
        metadata[key] for key in (SCHEMA_KEY, INSTANCE_KEY, SAMPLE_KEY, SHED_KEY)
    )
    assert path.stem.endswith(metadata[FILE_KEY].decode()[:8])
    assert 32 == len(metadata[FILE_KEY])


def test_schema_in_the_file_is_that_of_the_journal(tmp_path: Path) -> None:
    file = JournalFile(tmp_path, "gw", sequence=1, begun_at=BEGUN)
    file.write(table())
    path, _ = file.close(sample=1.0, shed=0)

    assert pq.read_schema(path).equals(JOURNAL)


def test_abandoned_file_leaves_nothing(tmp_path: Path) -> None:
    file = JournalFile(tmp_path, "gw", sequence=1, begun_at=BEGUN)
    file.write(table())

    file.abandon()
    file.abandon()

    assert [] == list(tmp_path.iterdir())


def test_directory_that_vanishes_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "flows"
    directory.mkdir()
    file = JournalFile(directory, "gw", sequence=1, begun_at=BEGUN)
    file.write(table())
    next(directory.iterdir()).unlink()
    directory.rmdir()

    with pytest.raises(FileNotFoundError):
        file.close(sample=1.0, shed=0)
    file.abandon()
    with pytest.raises(FileNotFoundError):
        JournalFile(tmp_path / "none", "gw", sequence=2, begun_at=BEGUN)


def test_file_that_cannot_be_written_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa, "OSFile", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(OSError, match="No space"):
        JournalFile(tmp_path, "gw", sequence=1, begun_at=BEGUN)

    assert ([], before) == (list(tmp_path.iterdir()), len(list(Path("/proc/self/fd").iterdir())))

"""A file appears whole and tells about itself, or it does not appear."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.forwarding.kernels import make_decoder
from broker.journal.files import JournalFile, file_name, files_of, instance_part, lock, remove_leftovers, retain
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
    assert (b"1", b"gw", b"0.25", b"11") == tuple(
        metadata[key] for key in (SCHEMA_KEY, INSTANCE_KEY, SAMPLE_KEY, SHED_KEY)
    )
    assert path.stem.endswith(metadata[FILE_KEY].decode()[:8])
    assert 32 == len(metadata[FILE_KEY])
    assert pq.read_schema(path).equals(JOURNAL)


def test_directory_that_vanishes_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "flows"
    directory.mkdir()
    file = JournalFile(directory, "gw", sequence=1, begun_at=BEGUN)
    file.write(table())
    next(directory.iterdir()).unlink()
    directory.rmdir()

    with pytest.raises(FileNotFoundError):
        file.close(sample=1.0, shed=0)
    for _ in range(2):  # it never fails
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


IDENTITY = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gw-1.eu", "gw-1.eu"), ("a/b", "a_2fb"), ("_a", "x_5fa"), (".a", "x.a"), ("-a", "x-a"), ("ä", "x_c3_a4")],
)
def test_instance_is_spelt_so_that_a_file_can_be_called_so(name: str, expected: str) -> None:
    assert expected == instance_part(name)


def test_longest_name_of_an_instance_still_makes_a_file(tmp_path: Path) -> None:
    file = tmp_path / f".{file_name('ä' * 128, 1, IDENTITY)}"

    file.touch()  # a name that is too long is an OSError

    assert [file] == list(tmp_path.iterdir())


def made(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_files_of_an_instance_are_its_own_and_whole(tmp_path: Path) -> None:
    hour = "date=2026-01-01/hour=08"
    mine = f"{hour}/gw-000001-01234567.parquet"
    made(
        tmp_path,
        mine,
        f"{hour}/gw-1-000001-01234567.parquet",
        f"{hour}/gw-notes.parquet",
        f"{hour}/gw-000001-01234567.parquet.bak",
        f"{hour}/.gw-000001-01234567.parquet",
        "elsewhere/gw-000001-01234567.parquet",
        "gw-000001-01234567.parquet",
    )

    assert [tmp_path / mine] == list(files_of(tmp_path, "gw"))


def test_leftovers_are_removed_unless_somebody_writes_them(tmp_path: Path) -> None:
    left, written = ".gw-000001-01234567.parquet", ".gw-000002-01234567.parquet"
    others = {".gw-2-000001-01234567.parquet", ".gw-notes.parquet", "gw-000003-01234567.parquet"}
    made(tmp_path, left, written, *others)
    descriptor = os.open(tmp_path / written, os.O_WRONLY)
    assert lock(descriptor)

    assert 1 == remove_leftovers(tmp_path, "gw")

    assert others | {written} == {path.name for path in tmp_path.iterdir()}
    os.close(descriptor)
    assert 1 == remove_leftovers(tmp_path, "gw")


NOW = 10_000.0


@pytest.mark.parametrize(
    ("most_bytes", "most_seconds", "removed"),
    [
        (0, 0.0, 0),
        (300, 0.0, 0),
        (299, 0.0, 1),
        (100, 0.0, 2),
        (1, 0.0, 3),
        (0, 2500.0, 1),
        (0, 500.0, 3),
        (200, 500.0, 3),
        (100, 2500.0, 2),
    ],
)
def test_the_oldest_are_removed_until_both_bounds_hold_with_the_directories_they_leave_empty(
    tmp_path: Path, most_bytes: int, most_seconds: float, removed: int
) -> None:
    paths = [
        tmp_path / f"date=2026-01-01/hour={hour}/gw-{number:06d}-01234567.parquet"
        for hour, number in (("08", 3), ("09", 2), ("09", 1))
    ]
    foreign = paths[1].with_name("notes.txt")
    for place, path in enumerate([*paths, foreign]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(100))
        os.utime(path, (7000 + 1000 * place, 7000 + 1000 * place))

    assert removed == retain(tmp_path, "gw", now=NOW, most_bytes=most_bytes, most_seconds=most_seconds)

    assert {*paths[removed:], foreign} == {path for path in tmp_path.rglob("*") if path.is_file()}
    assert (removed == 0) == paths[0].parent.exists()


@pytest.mark.parametrize("last", ["stat", "unlink"])
def test_a_file_that_another_program_removes_at_the_same_time_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    """Before it is looked at, or before it is removed; the next one is removed all the same."""
    hour = tmp_path / "date=2026-01-01/hour=08"
    gone, kept, old = (hour / f"gw-{number:06d}-01234567.parquet" for number in (1, 2, 3))
    made(tmp_path, *(str(path) for path in (gone, kept, old)))
    for path, age in ((gone, 900), (old, 800), (kept, 0)):
        os.utime(path, (NOW - age, NOW - age))
    call = getattr(Path, last)

    def racing(path: Path, **given: Any) -> Any:
        if path == gone:
            os.unlink(path)  # noqa: PTH108 - not the one that is replaced
        return call(path, **given)

    monkeypatch.setattr(Path, last, racing)

    assert 1 == retain(tmp_path, "gw", now=NOW, most_bytes=0, most_seconds=500.0)

    assert [kept] == list(hour.iterdir())


def test_a_file_that_cannot_be_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path, "date=2026-01-01/hour=08/gw-000001-01234567.parquet")
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=PermissionError(13, "Permission denied")))

    with pytest.raises(PermissionError):
        retain(tmp_path, "gw", now=NOW + 2**40, most_bytes=0, most_seconds=1.0)

"""A file is read piece by piece, and its footer tells when its rows were."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.journal import reader as module
from broker.journal.reader import UNREADABLE, FileReader, ended
from broker.journal.schema import JOURNAL
from tests.support.journalled import START, table, visit, write

BEGIN = int(START.timestamp()) * 1_000_000


def test_groups_tell_when_their_rows_were(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", *[visit(n, took=10 - n) for n in range(4)], group_rows=2)

    with FileReader(path) as reading:
        bounds = [reading.bounds(group) for group in reading.groups]

    assert [(BEGIN, BEGIN + 10_000_000), (BEGIN + 2_000_000, BEGIN + 10_000_000)] == bounds


@pytest.mark.parametrize("how", ["no statistics", "no end"])
def test_group_that_does_not_tell_has_no_bounds(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.parquet"
    rows = table(visit(took=None if how == "no end" else 1.0))
    pq.write_table(rows, path, write_statistics=how != "no statistics")

    with FileReader(path) as reading:
        assert [None] == [reading.bounds(group) for group in reading.groups]


def test_rows_come_in_pieces_and_columns_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE_ROWS", 2)
    path = write(tmp_path / "a.parquet", *[visit(sequence_number=n) for n in range(5)])

    with FileReader(path) as reading:
        pieces = list(reading.pieces(0, ["sequence_number", "outcome"]))
        whole = list(reading.pieces(0))

    assert [2, 2, 1] == [piece.num_rows for piece in pieces]
    assert ["sequence_number", "outcome"] == pieces[0].column_names
    assert list(range(5)) == [number for piece in pieces for number in piece["sequence_number"].to_pylist()]
    assert JOURNAL.names == whole[0].column_names


def test_column_that_a_version_does_not_have_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(visit(), visit()).drop(["route", "left_at"]), path)

    with FileReader(path) as reading:
        (piece,) = reading.pieces(0)
        assert reading.bounds(0) is None

    assert [None, None] == piece["route"].to_pylist()
    assert JOURNAL.field("route").type == piece["route"].type


def test_visit_without_an_end_ended_when_it_began() -> None:
    instants = ended(table(visit(1, took=2), visit(5, took=None)))

    assert [BEGIN + 3_000_000, BEGIN + 5_000_000] == instants.to_pylist()


def test_what_fails_is_one_of_the_errors_that_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", *[visit(n, sequence_number=n * n) for n in range(2000)])
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    path.write_bytes(data)

    with pytest.raises(UNREADABLE), FileReader(path) as reading:
        list(reading.pieces(0))
    with pytest.raises(UNREADABLE), FileReader(tmp_path / "gone.parquet"):
        pass
    assert issubclass(pa.ArrowInvalid, UNREADABLE)

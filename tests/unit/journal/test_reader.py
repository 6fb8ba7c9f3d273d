"""The newest visits of a journal, wherever they are, and those of files as they appear."""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.flow import VisitOutcome
from broker.journal import reader as kernel
from broker.journal.reader import CLOCKS_APART, UNREADABLE, Newest, NewFiles, Wanted, newest, pieces
from broker.journal.schema import Fitness
from tests.support.journalled import START, visit, write


def test_the_functions_that_are_not_needed_are_not_made() -> None:
    program = "import sys, broker.journal.reader; print('pyarrow.compute' in sys.modules)"

    assert (
        "False\n" == subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    )


ANY = Wanted()


def numbers(found: Newest) -> list[int]:
    return [one["sequence_number"] for one in found.visits]


def spoilt(path: Path) -> Path:
    """A file whose footer is whole and whose rows are not."""
    write(path, *[visit(n, sequence_number=n * n) for n in range(2000)])
    data = bytearray(path.read_bytes())
    data[4 : len(data) // 2] = b"\xff" * (len(data) // 2 - 4)
    path.write_bytes(data)
    return path


def change(path: Path, second: float) -> None:
    """It was changed so many seconds after START."""
    instant = START.timestamp() + second
    os.utime(path, (instant, instant))


@pytest.mark.parametrize("seed", range(8))
def test_last_visits_are_found_wherever_they_are(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = []
    for number in range(12):
        began = chance.uniform(0, 20_000)
        visits = [
            visit(began + chance.uniform(0, 900), took=chance.choice([None, 0.001, 30.0, 4000.0]), sequence_number=n)
            for n in range(len(rows), len(rows) + chance.randrange(40))
        ]
        rows += visits
        path = write(tmp_path / f"{number}.parquet", *visits, group_rows=chance.choice([3, 100]))
        if chance.random() < 0.3:  # as an earlier version or another tool has written it
            other = pq.read_table(path, partitioning=None).drop(["route"])
            pq.write_table(
                other,
                path,
                row_group_size=chance.choice([3, 100]),
                write_statistics=chance.choice([True, False]),
            )
        change(path, began + 900 + 4000 + chance.uniform(-1, 1) * CLOCKS_APART / 1_000_000)
    count = chance.choice([1, 7, 30, 1000])

    found = newest(tmp_path, ANY, count)

    ends = sorted(rows, key=lambda row: row["left_at"] or row["entered_at"])[-count:]
    assert [row["sequence_number"] for row in ends] == numbers(found)
    assert {None} == {one["route"] for one in found.visits}


def test_a_group_is_read_whose_ends_are_not_in_the_footer(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", visit(0, took=100.0, sequence_number=1), visit(50, sequence_number=2))
    pq.write_table(pq.read_table(path, partitioning=None), path, row_group_size=1, write_statistics=["entered_at"])

    assert [1] == numbers(newest(tmp_path, ANY, 1))


@pytest.mark.parametrize("group_rows", [2, 4, 100])
@pytest.mark.parametrize("count", [3, 7, 100])
def test_visits_of_one_instant_are_in_the_order_in_which_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group_rows: int, count: int
) -> None:
    monkeypatch.setattr(kernel, "PIECE_ROWS", 3)
    write(tmp_path / "a.parquet", *[visit(n // 10, sequence_number=n) for n in range(20)], group_rows=group_rows)

    assert list(range(20))[-count:] == numbers(newest(tmp_path, ANY, count))


def test_files_that_are_too_old_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        visits = [visit(number * 10_000 + n, sequence_number=100 * number + n) for n in range(20)]
        change(write(tmp_path / f"{number}.parquet", *visits, group_rows=5), number * 10_000 + 20)
    read: list[int] = []

    def note(file: pq.ParquetFile, group: int) -> Iterator[pa.Table]:
        read.append(group)
        return pieces(file, group)

    monkeypatch.setattr(kernel, "pieces", note)

    found = newest(tmp_path, ANY, 7)

    assert list(range(513, 520)) == numbers(found)
    assert [3, 2] == read


def test_one_dialog_or_outcome_is_found_among_others(tmp_path: Path) -> None:
    outcomes = [outcome.value for outcome in VisitOutcome]
    visits = [
        visit(n, sequence_number=n, conversation_id=bytes([n % 3]) * 16, outcome=outcomes[n % 7]) for n in range(42)
    ]
    write(tmp_path / "a.parquet", *visits[:20])
    write(tmp_path / "b.parquet", *visits[20:])

    one = newest(tmp_path, Wanted(bytes([1]) * 16), 5)
    some = newest(tmp_path, Wanted(outcomes=frozenset({"dropped", "duplicate"})), 100)
    both = newest(tmp_path, Wanted(bytes([1]) * 16, frozenset({"dropped"})), 100)
    none = newest(tmp_path, Wanted(bytes([9]) * 16), 5)

    assert [28, 31, 34, 37, 40] == numbers(one)
    assert [n for n in range(42) if outcomes[n % 7] in {"dropped", "duplicate"}] == numbers(some)
    assert [n for n in range(42) if n % 3 == 1 and outcomes[n % 7] == "dropped"] == numbers(both)
    assert [] == none.visits


def test_what_cannot_be_read_is_listed_and_copies_count_once(tmp_path: Path) -> None:
    good = write(tmp_path / "a.parquet", visit(0))
    shutil.copy(good, tmp_path / "b.parquet")
    (tmp_path / "c.parquet").write_bytes(good.read_bytes()[:-1])
    bad = spoilt(tmp_path / "d.parquet")
    for path in tmp_path.iterdir():
        change(path, 9000)

    found = newest(tmp_path, ANY, 10)

    assert [0] == numbers(found)
    fates = {state.path.name: state.fitness for state in found.unread}
    assert {"b.parquet": Fitness.COPY, "c.parquet": Fitness.DAMAGED, "d.parquet": Fitness.DAMAGED} == fates
    for path in (bad, tmp_path / "gone.parquet"):
        with pytest.raises(UNREADABLE), pq.ParquetFile(path) as file:
            list(pieces(file, 0))
    with pytest.raises(FileNotFoundError):
        newest(tmp_path / "gone", ANY, 10)


def test_new_files_are_shown_once_as_they_appear(tmp_path: Path) -> None:
    old = write(tmp_path / "a.parquet", visit(0, sequence_number=1))
    arriving = NewFiles(tmp_path)
    assert [] == list(arriving.poll(ANY))

    new = write(tmp_path / "x" / "b.parquet", *[visit(n, sequence_number=n) for n in (3, 4, 5)])
    write(tmp_path / "x" / ".c.parquet", visit())
    (tmp_path / "d.parquet").write_bytes(b"")
    shown = list(arriving.poll(Wanted()))
    assert [3, 4, 5] == [one["sequence_number"] for one in shown]
    assert [Fitness.DAMAGED] == [state.fitness for state in arriving.unread]
    spoilt(tmp_path / "g.parquet")
    assert ([], ["g.parquet"]) == (list(arriving.poll(ANY)), [state.path.name for state in arriving.unread])

    shutil.copy(new, tmp_path / "e.parquet")
    old.unlink()
    assert ([], []) == (list(arriving.poll(ANY)), arriving.unread)
    write(tmp_path / "f.parquet", visit(0, outcome="dropped"), visit(0))
    assert ["dropped"] == [one["outcome"] for one in arriving.poll(Wanted(outcomes=frozenset({"dropped"})))]


def test_file_that_is_copied_by_and_by_is_shown_when_it_is_whole(tmp_path: Path) -> None:
    arriving = NewFiles(tmp_path)
    path = write(tmp_path / "a.parquet", visit())
    data = path.read_bytes()
    path.write_bytes(data[:500])
    change(path, 1)
    assert ([], 1) == (list(arriving.poll(ANY)), len(arriving.unread))
    assert ([], 0) == (list(arriving.poll(ANY)), len(arriving.unread))

    path.write_bytes(data)
    change(path, 2)

    assert ([0], []) == ([one["sequence_number"] for one in arriving.poll(ANY)], arriving.unread)


def test_rows_come_in_pieces_and_columns_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "PIECE_ROWS", 2)
    path = write(tmp_path / "a.parquet", *[visit(sequence_number=n) for n in range(5)])

    with pq.ParquetFile(path) as file:
        found = [piece.to_pydict() for piece in pieces(file, 0, ["sequence_number"])]

    assert [{"sequence_number": numbers} for numbers in ([0, 1], [2, 3], [4])] == found

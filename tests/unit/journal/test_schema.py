"""The Arrow schema of the journal."""

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.flow import COLUMNS, JOURNAL_SCHEMA, VisitOutcome
from broker.journal.schema import (
    FILE_KEY,
    JOURNAL,
    SAMPLE_KEY,
    SCHEMA_KEY,
    FileState,
    Fitness,
    file_metadata,
    files,
    judge,
    survey,
)
from tests.support.journalled import START, table, visit, write

PAGE = Path(__file__).parents[3] / "docs" / "journal.md"


def test_the_columns_are_those_of_a_flow_record_and_of_the_page() -> None:
    """Spark refuses nanoseconds and the logical type UUID, and takes instants without a zone for local ones."""
    assert [(one.name, one.is_nullable) for one in COLUMNS] == [(field.name, field.nullable) for field in JOURNAL]
    assert {pa.timestamp("us", tz="UTC")} == {JOURNAL.field(name).type for name in ("entered_at", "left_at")}
    assert pa.binary(16) == JOURNAL.field("message_id").type
    page = PAGE.read_text(encoding="utf-8")
    rows = [
        f"| `{one.name}` | {one.form.value}{', null' if one.is_nullable else ''} | {one.meaning} |" for one in COLUMNS
    ]
    assert "\n".join(rows) in page
    assert [] == [str(outcome) for outcome in VisitOutcome if f"`{outcome}`" not in page]


TOLD = file_metadata(file="0" * 32, instance="gateway", sample=0.5, shed=7)


def put(path: Path, rows: pa.Table, told: dict[bytes, bytes]) -> FileState:
    pq.write_table(rows.replace_schema_metadata(told), path)
    return judge(path)


def test_good_file_has_everything_in_its_footer(tmp_path: Path) -> None:
    """The instants are those of all row groups, if there are statistics."""
    rows = [visit(5), visit(2, took=None), visit(3, took=4)]
    more: dict[str, Any] = {"file": "f" * 32, "instance": "shop", "sample": 0.25, "shed": 3}
    path = write(tmp_path / "a.parquet", *rows, group_rows=1, **more)
    bare = tmp_path / "bare.parquet"
    pq.write_table(pq.read_table(path, partitioning=None), bare, write_statistics=False)

    good, without = judge(path), judge(bare)

    size, start = path.stat().st_size, int(START.timestamp()) * 1_000_000
    span = (start + 2_000_000, start + 7_000_000, start + 2_000_000)
    assert FileState(path, Fitness.GOOD, "", "f" * 32, JOURNAL_SCHEMA, "shop", 0.25, 3, 3, size, *span) == good
    assert (True, None, None) == (without.is_readable, without.first_us, without.last_us)
    assert (Fitness.GOOD, 0) == (judge(write(tmp_path / "b.parquet")).fitness, judge(tmp_path / "b.parquet").rows)


@pytest.mark.parametrize("left", [0, 1, 4, 12, 500, -8, -1, None])
def test_file_that_broke_off_or_has_garbage_as_its_footer_is_damaged(tmp_path: Path, left: int | None) -> None:
    path = write(tmp_path / "a.parquet", *[visit(n) for n in range(50)])
    data = bytearray(path.read_bytes())
    if left is None:
        data[-200:-8] = b"\xff" * 192
    path.write_bytes(data[:left])

    state = judge(path)

    assert (Fitness.DAMAGED, False) == (state.fitness, state.is_readable)
    assert state.problem
    assert "\n" not in state.problem


def test_what_the_machine_does_not_let_us_open_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").mkdir()
    (tmp_path / "b.parquet").symlink_to(tmp_path / "b.parquet")

    told = [judge(tmp_path / name) for name in ("a.parquet", "b.parquet")]

    assert ["it is a directory", "Too many levels of symbolic links"] == [state.problem for state in told]
    assert [(Fitness.UNREADABLE, False)] * 2 == [(state.fitness, state.is_readable) for state in told]


def test_directory_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    """The path of the one in the middle is too long for the machine; so it is one that root cannot read either."""
    first, last = write(tmp_path / "a" / "a.parquet", visit()), write(tmp_path / "z.parquet", visit(), file="1" * 32)
    deep = tmp_path
    for _ in range(17):
        deep /= "m" * 250
    here = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(17):
            os.mkdir("m" * 250, dir_fd=here)
            below = os.open("m" * 250, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
    finally:
        os.close(here)

    states = list(survey(files(tmp_path)))

    assert [first, last] == [state.path for state in states if state.is_readable]
    (left_out,) = [state for state in states if not state.is_readable]
    assert (Fitness.UNREADABLE, "File name too long") == (left_out.fitness, left_out.problem)
    assert deep.is_relative_to(left_out.path)


def test_what_is_no_journal_is_foreign_and_says_why(tmp_path: Path) -> None:
    rows = table(visit())
    naive = rows.set_column(0, "entered_at", rows["entered_at"].cast(pa.timestamp("ns", "UTC")))
    cases = {
        "lacks journal_schema, journal_file": (rows, {}),
        "lacks journal_file": (rows, {key: value for key, value in TOLD.items() if key != FILE_KEY}),
        "cannot be understood": (rows, TOLD | {SAMPLE_KEY: b"half"}),
        "there is no version 0": (rows, TOLD | {SCHEMA_KEY: b"0"}),
        "it has no column bytes": (rows.drop(["bytes"]), TOLD),
        "its column entered_at is timestamp[ns, tz=UTC], not timestamp[us, tz=UTC]": (naive, TOLD),
    }

    for why, (content, told) in cases.items():
        state = put(tmp_path / "a.parquet", content, told)

        assert (Fitness.FOREIGN, False) == (state.fitness, state.is_readable)
        assert why in state.problem


@pytest.mark.parametrize("group_rows", [1, 1000])
def test_row_that_lacks_what_every_row_has_makes_its_file_foreign(tmp_path: Path, group_rows: int) -> None:
    """Visits without a message id would count as those of one message; other tools may write columns that allow it."""
    loose = pa.schema([field.with_nullable(True) for field in JOURNAL])
    rows = [visit(), visit() | {"message_id": None}, visit() | {"message_id": None}]
    path = tmp_path / "a.parquet"
    found = []
    for content, has_statistics in ((rows, True), (rows[:1], True), (rows[:1], False)):
        made = pa.Table.from_pylist([{name: one.get(name) for name in JOURNAL.names} for one in content], loose)
        made = made.replace_schema_metadata(TOLD)
        pq.write_table(made, path, row_group_size=group_rows, write_statistics=has_statistics)
        found.append(judge(path))

    assert [state.fitness for state in found] == [Fitness.FOREIGN, Fitness.GOOD, Fitness.FOREIGN]
    assert "its column message_id is null in 2 rows" in found[0].problem
    assert "may be null, and its footer does not say whether it is" in found[2].problem


def test_later_version_is_read_with_what_is_known(tmp_path: Path) -> None:
    rows = table(visit()).append_column("weight", pa.array([1.0]))

    state = put(tmp_path / "a.parquet", rows, TOLD | {SCHEMA_KEY: str(JOURNAL_SCHEMA + 1).encode()})

    plain = pa.schema(
        [(one.name, pa.large_string() if pa.types.is_dictionary(one.type) else one.type) for one in JOURNAL]
    )
    assert Fitness.GOOD is put(tmp_path / "b.parquet", table(visit()).cast(plain), TOLD).fitness
    assert (Fitness.NEWER, True, JOURNAL_SCHEMA + 1) == (state.fitness, state.is_readable, state.version)
    assert "columns that it adds are not read" in state.problem


def test_files_come_in_order_and_without_what_is_unfinished(tmp_path: Path) -> None:
    names = ["date=2026-03-01/hour=09/b.parquet", "date=2026-03-01/hour=10/a.parquet", "z.parquet"]
    for name in [*names[::-1], ".a.parquet", "_truth/a.parquet", "date=2026-03-01/_SUCCESS", ".x/a.parquet", "a.txt"]:
        write(tmp_path / name)

    assert [tmp_path / name for name in names] == list(files(tmp_path))


def test_directory_that_vanishes_meanwhile_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a" / "a.parquet")
    write(tmp_path / "b" / "a.parquet")
    found = files(tmp_path)

    assert tmp_path / "a" / "a.parquet" == next(found)
    shutil.rmtree(tmp_path / "b")

    assert [] == list(found)
    with pytest.raises(FileNotFoundError):
        next(files(tmp_path / "b"))


def test_what_goes_wrong_later_is_told_as_well(tmp_path: Path) -> None:
    state = judge(write(tmp_path / "a.parquet", visit()))

    assert Fitness.VANISHED is judge(tmp_path / "none.parquet").fitness
    vanished, damaged = state.failed(FileNotFoundError()), state.failed(OSError("bad\nblock"))
    unreadable = state.failed(OSError(5, "Input/output error"))

    assert [(Fitness.VANISHED, False), (Fitness.DAMAGED, False), (Fitness.UNREADABLE, False)] == [
        (one.fitness, one.is_readable) for one in (vanished, damaged, unreadable)
    ]
    assert ("bad", "Input/output error") == (damaged.problem, unreadable.problem)

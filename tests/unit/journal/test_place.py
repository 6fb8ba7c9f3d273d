"""Names of files tell whose they are, and what a crash has left is told from what is being written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.journal.files import file_name, files_of, hour_directory, instance_part, lock, remove_leftovers

IDENTITY = "0123456789abcdef" * 2


def test_file_stands_in_the_hour_in_which_it_was_begun() -> None:
    directory = hour_directory(Path("/flows"), 1_767_225_599.9)  # 2025-12-31 23:59:59 UTC

    assert Path("/flows/date=2025-12-31/hour=23") == directory
    assert "gw-1-000007-01234567.parquet" == file_name("gw-1", 7, IDENTITY)


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


def test_where_there_is_no_directory_nothing_is_left_over(tmp_path: Path) -> None:
    assert 0 == remove_leftovers(tmp_path / "none", "gw")

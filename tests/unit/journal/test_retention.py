"""The oldest files go first, no more of them than the bounds ask for, and none of anybody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.journal.files import StoredFile, read_files, remove, too_old_or_too_many

NOW = 10_000.0
FILES = [StoredFile(Path(f"/flows/{name}"), at, 100) for name, at in (("c", 9000.0), ("a", 7000.0), ("b", 8000.0))]


@pytest.mark.parametrize(
    ("most_bytes", "most_seconds", "expected"),
    [
        (0, 0.0, ""),
        (300, 0.0, ""),
        (299, 0.0, "a"),
        (100, 0.0, "ab"),
        (1, 0.0, "abc"),
        (0, 2500.0, "a"),
        (0, 500.0, "abc"),
        (200, 500.0, "abc"),
        (100, 2500.0, "ab"),
    ],
)
def test_oldest_go_until_both_bounds_hold(most_bytes: int, most_seconds: float, expected: str) -> None:
    removed = too_old_or_too_many(FILES, now=NOW, most_bytes=most_bytes, most_seconds=most_seconds)

    assert expected == "".join(file.path.name for file in removed)


def test_files_are_removed_with_the_directories_they_leave_empty(tmp_path: Path) -> None:
    paths = [
        tmp_path / f"date=2026-01-01/hour={hour}/gw-{number:06d}-01234567.parquet"
        for hour, number in (("08", 1), ("09", 2), ("09", 3))
    ]
    foreign = paths[1].with_name("notes.txt")
    for age, path in enumerate([*paths, foreign]):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"12345")
        os.utime(path, (1000 + age, 1000 + age))

    files = read_files(tmp_path, "gw")
    assert [(1000.0, 5), (1001.0, 5), (1002.0, 5)] == sorted((file.appeared_at, file.size) for file in files)
    paths[1].unlink()  # by another program

    assert 2 == remove(tmp_path, files)
    assert [foreign] == [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not paths[0].parent.exists()
    assert tmp_path.exists()

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from broker.catalog.scripts import closed_directory, script_files
from tests.support.nobody import as_nobody


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.sql", "a.sql", "c.txt", "d.sql/x.sql", "deep/er/y.sql"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["*.sql"], ["a.sql", "b.sql"]),  # d.sql is a directory
        (["b.sql", "*.sql"], ["b.sql", "a.sql"]),
        (["**/*.sql"], ["a.sql", "b.sql", "d.sql/x.sql", "deep/er/y.sql"]),
        (["[ab].sql", "?.txt"], ["a.sql", "b.sql", "c.txt"]),
        (["none.sql", "no/*.sql"], []),
        ([], []),
    ],
)
def test_files_come_in_the_order_of_patterns_and_names(tree: Path, patterns: list[str], names: list[str]) -> None:
    found = script_files(f"{tree}/{pattern}" for pattern in patterns)

    assert [tree / name for name in names] == found


@pytest.mark.parametrize(
    ("closed", "mode", "pattern"),
    [
        ("deep", 0o000, "deep/*.sql"),
        ("deep", 0o444, "deep/*.sql"),
        ("deep", 0o111, "deep/*.sql"),
        ("deep", 0o000, "deep/er/*.sql"),
        ("deep/er", 0o000, "*/er/*.sql"),
        ("deep/er", 0o000, "**/*.sql"),
        ("we*ird", 0o000, f"{glob.escape('we*ird')}/in/*.sql"),
    ],
)
def test_directory_that_may_not_be_looked_into_is_found(tree: Path, closed: str, mode: int, pattern: str) -> None:
    (tree / closed).mkdir(exist_ok=True)
    (tree / closed).chmod(mode)

    with as_nobody(tree):
        found = closed_directory(f"{tree}/{pattern}")

    assert found is not None
    assert found.startswith(str(tree / closed))


@pytest.mark.parametrize("pattern", ["*.sql", "none/*.sql", "a.sql/*.sql", "**/*.sql", "a.sql"])
def test_directory_that_is_not_there_or_empty_is_not_closed(tree: Path, pattern: str) -> None:
    assert closed_directory(f"{tree}/{pattern}") is None

from __future__ import annotations

from pathlib import Path

import pytest

from broker.control.script import script_files


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

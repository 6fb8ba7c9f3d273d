"""Where there was a database, no new one is made in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.sqlite.role_file import PrincipalRecord, check_remains, may_make, role_path, write_reign


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


def test_where_nothing_is_left_one_may_be_made(path: Path) -> None:
    check_remains(path)
    path.touch()  # as an application makes it that only connects
    check_remains(path)

    assert may_make(path)


@pytest.mark.parametrize("log", ["-wal", "-shm"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_log_without_its_file_is_not_used_for_another(path: Path, log: str, *, is_empty: bool) -> None:
    path.with_name(f"orders.db{log}").touch()
    if is_empty:
        path.touch()

    with pytest.raises(StoreUnavailableError, match=f"missing or empty, and its .*orders.db{log} is there") as caught:
        check_remains(path)

    assert "put the file back beside it" in caught.value.problem


def test_what_was_taken_over_and_is_gone_is_not_made_anew(path: Path) -> None:
    write_reign(path, PrincipalRecord(b"i" * 16, 4, "first", 1.0))

    with pytest.raises(StoreUnavailableError, match=r"put the file or a backup back; to begin anew"):
        check_remains(path)

    assert not may_make(path)
    role_path(path).unlink()
    check_remains(path)


def test_what_is_told_in_a_damaged_file_counts_as_well(path: Path) -> None:
    role_path(path).write_text("{", encoding="utf-8")

    assert not may_make(path)


def test_what_this_instance_was_told_counts_as_well(path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no database in it"):
        check_remains(path, told=4)

    assert not may_make(path, told=4)


def test_a_file_that_is_there_is_for_whoever_opens_it(path: Path) -> None:
    path.write_text("something", encoding="utf-8")
    path.with_name("orders.db-wal").touch()
    write_reign(path, PrincipalRecord(b"i" * 16, 4, "first", 1.0))

    check_remains(path, told=4)


def test_the_log_is_beside_the_file_to_which_a_name_leads(tmp_path: Path, path: Path) -> None:
    (tmp_path / "there").mkdir()
    path.symlink_to(tmp_path / "there" / "orders.db")
    (tmp_path / "there" / "orders.db-wal").touch()

    with pytest.raises(StoreUnavailableError, match="missing or empty"):
        check_remains(path)

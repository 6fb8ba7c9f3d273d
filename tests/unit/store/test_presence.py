"""A file that is no longer where it was is noticed, and so is its return."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.sqlite.database import FileWatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "orders.db"
    path.write_text("data")
    Path(f"{path}-wal").write_text("log")
    return path


def refusal(presence: FileWatch) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        presence.check()
    return caught.value.problem


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("other")
    other.replace(path)


def test_what_is_there_is_there(path: Path) -> None:
    presence = FileWatch(path)
    path.write_text("more data")

    presence.check()


def test_a_file_that_is_gone_is_told_and_goes_on_when_it_is_back(path: Path) -> None:
    presence = FileWatch(path)
    path.rename(path.with_name("away"))

    problem = refusal(presence)
    path.with_name("away").rename(path)

    assert problem.startswith("the file is gone while it is in use, so nothing more is stored or acknowledged: rename")
    presence.check()


def test_a_file_that_was_replaced_is_told(path: Path) -> None:
    presence = FileWatch(path)
    replace(path)

    assert "the file was replaced by another one while it is in use" in refusal(presence)


@pytest.mark.parametrize("is_gone", [True, False])
def test_the_log_is_part_of_the_database(path: Path, *, is_gone: bool) -> None:
    presence = FileWatch(path)
    log = Path(f"{path}-wal")
    if is_gone:
        log.unlink()
    else:
        replace(log)

    problem = refusal(presence)

    assert f"the write-ahead log {log} {'is gone' if is_gone else 'was replaced'}" in problem
    assert "stop the daemon and whoever else uses the database" in problem
    assert "rename" not in problem, "what was written meanwhile may be in another one"


def test_a_file_system_without_a_log_has_none_to_miss(path: Path) -> None:
    Path(f"{path}-wal").unlink()
    presence = FileWatch(path)
    Path(f"{path}-wal").write_text("one comes")

    presence.check()


def test_a_directory_that_is_gone_is_a_file_that_is_gone(path: Path) -> None:
    presence = FileWatch(path)
    path.parent.rename(path.parent.with_name("moved"))

    assert "the file is gone" in refusal(presence)

"""What is told beside a database file about its principal is read as it was written, or not at all."""

import json
import math
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.routing.mirrored import EPOCH_TOLD_MAX
from broker.store.sqlite.role_file import (
    PrincipalRecord,
    check_remains,
    check_writable,
    may_make,
    read_principal,
    recorded_epoch,
    role_path,
    write_principal,
)


@pytest.mark.parametrize(
    ("left", "is_taken_over", "reported_epoch", "problem"),
    [
        ([], False, 0, None),
        ([""], False, 0, None),  # as an application makes it that only connects
        (["-wal"], False, 0, r"missing or empty, and its .*orders\.db-wal is there.*put the file back next to it"),
        (["", "-shm"], False, 0, r"missing or empty, and its .*orders\.db-shm is there.*put the file back next to it"),
        ([], True, 0, "put the file or a backup back; to start with an empty"),
        ([], False, 4, "there is no database in it"),
    ],
)
def test_a_file_may_be_made_where_nothing_is_left_of_another(
    path: Path, left: list[str], *, is_taken_over: bool, reported_epoch: int, problem: str | None
) -> None:
    for suffix in left:
        path.with_name(f"orders.db{suffix}").touch()
    if is_taken_over:
        write_principal(path, PrincipalRecord(uuid.UUID(bytes=b"i" * 16), 4, "first", 1.0))

    with nullcontext() if problem is None else pytest.raises(StoreUnavailableError, match=problem):
        check_remains(path, reported_epoch=reported_epoch)

    assert may_make(path, reported_epoch=reported_epoch) == (not is_taken_over and not reported_epoch)


def test_a_file_that_is_there_is_for_whoever_opens_it(path: Path) -> None:
    path.write_text("something", encoding="utf-8")
    path.with_name("orders.db-wal").touch()
    write_principal(path, PrincipalRecord(uuid.UUID(bytes=b"i" * 16), 4, "first", 1.0))

    check_remains(path, reported_epoch=4)


def test_the_log_is_beside_the_file_to_which_a_name_leads(tmp_path: Path, path: Path) -> None:
    (tmp_path / "there").mkdir()
    path.symlink_to(tmp_path / "there" / "orders.db")
    (tmp_path / "there" / "orders.db-wal").touch()

    with pytest.raises(StoreUnavailableError, match="missing or empty"):
        check_remains(path)


REIGN = PrincipalRecord(uuid.UUID(bytes=b"i" * 16), 7, "first", 1_800_000_000.5)


def test_what_is_told_is_read_and_the_last_one_counts(tmp_path: Path, path: Path) -> None:
    """By whichever name, up to the highest epoch that a peer or a role command may have."""
    path.touch()
    (tmp_path / "link.db").symlink_to(path)
    for record in (PrincipalRecord(uuid.UUID(bytes=b"i" * 16), EPOCH_TOLD_MAX + 1, "second", 1.0), REIGN):
        write_principal(tmp_path / "link.db", record)
        assert record == read_principal(path)


TOLD = {"broker_instance": "69696969-6969-6969-6969-696969696969", "epoch": 1, "principal": "a", "since": 1}
WRONG: dict[str, list[object]] = {
    "broker_instance": ["no", 7],
    "epoch": [None, -1, 2**63 - 1, math.inf, 2.0, True, "7"],
    "principal": [5],
    "since": [-1, 1e300, math.nan, "1"],
}


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "[" * 100_000, "\xff", *[json.dumps(TOLD | {name: one}) for name in WRONG for one in WRONG[name]]],
)
def test_what_was_damaged_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "orders.db"
    role_path(path).write_text(text, encoding="latin-1")

    with pytest.raises(StoreUnavailableError, match="it does not hold what the principal wrote into it: remove it"):
        read_principal(path)


def test_the_epoch_that_is_told_is_the_last_one_and_none_when_it_was_damaged(path: Path) -> None:
    check_writable(path)
    nobody = recorded_epoch(path)
    write_principal(path, REIGN)
    told = recorded_epoch(path)
    role_path(path).write_text("{", encoding="utf-8")

    assert (0, 7, 0) == (nobody, told, recorded_epoch(path))
    assert not may_make(path)


@pytest.mark.parametrize("ask", [read_principal, recorded_epoch, check_writable])
def test_what_cannot_be_read_is_told(path: Path, ask: Callable[[Path], object]) -> None:
    role_path(path).mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory") as caught:
        ask(path)

    assert str(role_path(path)) == caught.value.path

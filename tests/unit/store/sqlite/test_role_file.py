"""What is told beside a database file about its principal is read as it was written, or not at all."""

from __future__ import annotations

from collections.abc import Callable
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

    assert "put the file back next to it" in caught.value.problem


def test_what_was_taken_over_and_is_gone_is_not_made_anew(path: Path) -> None:
    write_principal(path, PrincipalRecord(b"i" * 16, 4, "first", 1.0))

    with pytest.raises(StoreUnavailableError, match=r"put the file or a backup back; to start with an empty"):
        check_remains(path)

    assert not may_make(path)
    role_path(path).unlink()
    check_remains(path)


def test_what_this_instance_was_told_counts_as_well(path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="there is no database in it"):
        check_remains(path, reported_epoch=4)

    assert not may_make(path, reported_epoch=4)


def test_a_file_that_is_there_is_for_whoever_opens_it(path: Path) -> None:
    path.write_text("something", encoding="utf-8")
    path.with_name("orders.db-wal").touch()
    write_principal(path, PrincipalRecord(b"i" * 16, 4, "first", 1.0))

    check_remains(path, reported_epoch=4)


def test_the_log_is_beside_the_file_to_which_a_name_leads(tmp_path: Path, path: Path) -> None:
    (tmp_path / "there").mkdir()
    path.symlink_to(tmp_path / "there" / "orders.db")
    (tmp_path / "there" / "orders.db-wal").touch()

    with pytest.raises(StoreUnavailableError, match="missing or empty"):
        check_remains(path)


REIGN = PrincipalRecord(b"i" * 16, 7, "first", 1_800_000_000.5)


def test_what_is_told_is_read_and_the_last_one_counts(tmp_path: Path, path: Path) -> None:
    """By whichever name, up to the highest epoch that a peer or a role command may have."""
    path.touch()
    (tmp_path / "link.db").symlink_to(path)
    for record in (PrincipalRecord(b"i" * 16, EPOCH_TOLD_MAX + 1, "second", 1.0), REIGN):
        write_principal(tmp_path / "link.db", record)
        assert record == read_principal(path)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"broker_instance": "no", "epoch": 1, "principal": "a", "since": 1}',
        '{"broker_instance": "69696969-6969-6969-6969-696969696969", "epoch": null, "principal": "a", "since": 1}',
        *(
            f'{{"broker_instance": "69696969-6969-6969-6969-696969696969", "epoch": {epoch}, "principal": {name},'
            f' "since": {since}}}'
            for epoch, name, since in [
                (-1, '"a"', 1),
                (2**63 - 1, '"a"', 1),
                ("1e999", '"a"', 1),
                ("2.0", '"a"', 1),
                ("true", '"a"', 1),
                ('"7"', '"a"', 1),
                (1, 5, 1),
                (1, '"a"', -1),
                (1, '"a"', "1e300"),
                (1, '"a"', "NaN"),
                (1, '"a"', '"1"'),
            ]
        ),
        '{"broker_instance": 7, "epoch": 1, "principal": "a", "since": 1}',
        "[" * 100_000,
        "\xff",
    ],
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

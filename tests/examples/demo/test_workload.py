"""The demo's ledger: applications that note what they see, and the proof that can fail."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from examples.demo.ledger import Account, account_faults
from examples.demo.workload import connection, faults, note

FIRST, SECOND = UUID(int=1), UUID(int=2)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with connection(tmp_path / "notes.db") as db:
        yield db


def message(conversation: UUID, number: int) -> Any:
    return SimpleNamespace(dialog=SimpleNamespace(conversation_id=conversation), body=b'{"order": %d}' % number)


def seen(db: sqlite3.Connection, conversation: UUID, *numbers: int) -> None:
    with db:
        note(db, [message(conversation, number) for number in numbers])


def test_nothing_is_wrong_when_every_dialog_has_every_message_in_order(db: sqlite3.Connection) -> None:
    seen(db, FIRST, 0, 1)
    seen(db, SECOND, 0)
    seen(db, FIRST, 2)
    seen(db, SECOND, 1, 2)

    assert [] == faults(db, dialogs=2, messages=3)
    assert ["2 dialogs seen, 3 expected"] == faults(db, dialogs=3, messages=3)


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((0, 2), "1 lost, 0 doubled, or out of order"),
        ((0, 1, 1, 2), "0 lost, 1 doubled, or out of order"),
        ((0, 2, 1), "0 lost, 0 doubled, or out of order"),
        ((0, 1, 2, 3), "-1 lost, 0 doubled, or out of order"),
    ],
    ids=["lost", "doubled", "out of order", "one too many"],
)
def test_what_is_wrong_is_told_with_the_dialog(db: sqlite3.Connection, numbers: tuple[int, ...], told: str) -> None:
    seen(db, FIRST, *numbers)

    assert [f"dialog {FIRST.hex}: {told}"] == faults(db, dialogs=1, messages=3)


def test_a_dialog_that_two_databases_share_is_whole_in_one_of_them_only(db: sqlite3.Connection, tmp_path: Path) -> None:
    seen(db, FIRST, 0, 1)
    with connection(tmp_path / "other.db") as other:
        seen(other, SECOND, 0, 1)
        apart = faults(db, other, dialogs=2, messages=2)
        seen(other, FIRST, 0)

        assert [] == apart
        assert [f"dialog {FIRST.hex}: 0 lost, 1 doubled, or out of order"] == faults(db, other, dialogs=2, messages=2)


# --- ledgers of databases ---

GOOD = {"orders": Account(sent=5, acknowledged=5, arrived=3), "billing": Account(sent=3, acknowledged=3, arrived=5)}


def test_ledgers_that_fit_together_have_no_fault() -> None:
    assert [] == account_faults(GOOD)
    assert ["nothing was sent at all"] == account_faults({"orders": Account()})


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"arrived": 2}, "8 sent by all databases, 7 arrived at all of them"),
        ({"arrived": 4}, "8 sent by all databases, 9 arrived at all of them"),
        ({"acknowledged": 4}, "orders: 5 sent are not 4 acknowledged + 0 held + 0 failed"),
        ({"acknowledged": 4, "held": 1}, "orders: 1 are not acknowledged"),
        ({"acknowledged": 3, "failed": {"lifetime exceeded": 2}}, "orders: 2 failed: lifetime exceeded"),
        ({"unaccounted": 1}, "orders: 5 sent are not 5 acknowledged + 0 held + 0 failed"),
    ],
)
def test_a_doctored_ledger_is_found(change: dict[str, Any], fault: str) -> None:
    assert [fault] == account_faults(GOOD | {"orders": replace(GOOD["orders"], **change)})

"""Ledgers of files: told in status, in one line, and left out where a file cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.observe.database_stats import add_ledgers, ledger_sentence, ledger_values, read_ledger
from broker.store.sqlite.database import open_store
from broker.store.sqlite.inspect import LedgerBalance


def test_a_ledger_is_read_from_its_file(tmp_path: Path) -> None:
    open_store(tmp_path / "orders.db").close()

    assert LedgerBalance() == read_ledger(tmp_path / "orders.db")


def test_a_file_that_is_not_there_has_none(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "absent.db") is None


def test_ledgers_are_put_into_a_status() -> None:
    status = add_ledgers({"databases": {"a": {}, "b": {}}}, {"a": LedgerBalance(5, 2, 1, {"why": 2}), "b": None})

    ledger = {"sent": 5, "acknowledged": 2, "held": 1, "failed": {"why": 2}, "unaccounted": 0}
    assert {"databases": {"a": {"ledger": ledger}, "b": {"ledger": None}}} == status


@pytest.mark.parametrize(
    ("balance", "sentence"),
    [
        (LedgerBalance(), "0 sent = 0 acknowledged + 0 held + 0 failed"),
        (
            LedgerBalance(12_345, 12_340, 2, {"b": 1, "a": 2}),
            "12,345 sent = 12,340 acknowledged + 2 held + 3 failed (2 a, 1 b)",
        ),
        (LedgerBalance(3, 1, 1), "3 sent = 1 acknowledged + 1 held + 0 failed + 1 UNACCOUNTED"),
    ],
)
def test_one_line_says_whether_it_adds_up(balance: LedgerBalance, sentence: str) -> None:
    assert sentence == ledger_sentence(ledger_values(balance))

"""The proof of the demo: it holds when all ledgers fit together, and fails for every way in which they can not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from examples.demo.ledger import Account, account_faults, read_account
from examples.demo.topology import Daemon

GOOD = {"orders": Account(sent=5, acknowledged=5, arrived=3), "billing": Account(sent=3, acknowledged=3, arrived=5)}


class Told:
    """A daemon with prepared rows."""

    def __init__(self, ledger: list[tuple[str, str | None, int]], arrived: int | None) -> None:
        self._ledger = [{"entry": entry, "reason": reason, "messages": count} for entry, reason, count in ledger]
        self._arrived = arrived

    def query(self, statement: str, database: str | None = None) -> list[dict[str, Any]]:
        if "sys.dm_broker_ledger WHERE database_name = 'orders'" in statement:
            return self._ledger
        assert database == "orders"
        return [{"arrived": self._arrived}]


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


def test_an_account_is_what_the_daemon_tells() -> None:
    rows = [
        ("sent", None, 9),
        ("acknowledged", None, 6),
        ("held", None, 1),
        ("failed", "why", 2),
        ("unaccounted", None, 0),
    ]

    account = read_account(cast("Daemon", Told(rows, 4)), "orders")

    assert Account(9, 6, 1, 0, {"why": 2}, 4) == account
    assert 0 == read_account(cast("Daemon", Told([("sent", None, 0)], None)), "orders").arrived

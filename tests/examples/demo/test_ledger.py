"""The proof of the demo: it holds when all ledgers fit together, and fails for every way in which they can not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from examples.demo.ledger import Account, account_faults

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

"""What a failover with a frozen partner can have hidden from clocks."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import pair
from tests.chaos.cast import STOCK
from tests.chaos.faults.handover import FrozenPartner, IsolatedPartner


class Frozen:
    """As much of a fleet as these faults ask. Shape: `done` what was done to it, in order."""

    principal, mirror = STOCK

    def __init__(self) -> None:
        self.done: list[str] = []
        self.traffic = SimpleNamespace(carried=lambda _: 1)

    def freeze(self, name: str) -> None:
        self.done.append(f"freeze {name}")

    def thaw(self, name: str) -> None:
        self.done.append(f"thaw {name}")


def test_a_failover_hides_messages_only_while_a_partner_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrozenPartner, "SECONDS", (0.0, 0.01))
    monkeypatch.setattr(pair, "fail_over", lambda fleet: fleet.done.append("fail over"))
    fleet: Any = Frozen()
    fault = FrozenPartner(fleet, random.Random(1), STOCK)

    fault.start()
    between = list(fault.hidden)
    fault.stop()

    assert 1 == len(between)
    assert 2 == len(fault.hidden)
    since, until = fault.span
    (first, second), (third, fourth) = fault.hidden
    assert since <= first <= second <= third <= fourth <= until
    assert sorted(fleet.done) == sorted(
        ["fail over"] * 2 + [f"{what} {one}" for what in ("freeze", "thaw") for one in STOCK]
    )


def test_a_fault_that_hides_nothing_has_no_such_span() -> None:
    fleet: Any = Frozen()

    assert [] == IsolatedPartner(fleet, random.Random(1), STOCK).hidden

"""What an application of the day notices; the day itself is in tests/loopback."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from broker.bench.load.day_traffic import FAULTS_TOLD, Tally

ONE = UUID(int=1)


@pytest.fixture
def tally() -> Tally:
    return Tally()


def test_messages_in_their_order_are_no_fault(tally: Tally) -> None:
    for number in range(5):
        tally.note(ONE, number, number, time.monotonic_ns())

    assert (5, []) == (tally.received, tally.faults)


@pytest.mark.parametrize(
    ("number", "kind"), [(2, "doubled or out of order"), (4, "lost or out of order")], ids=["doubled", "lost"]
)
def test_a_message_that_is_not_the_next_one_is_a_fault(tally: Tally, number: int, kind: str) -> None:
    tally.note(ONE, number, 3, time.monotonic_ns())

    assert [f"dialog {ONE}: message {number} came, 3 had to: {kind}"] == tally.faults


def test_faults_are_kept_up_to_a_bound(tally: Tally) -> None:
    for _ in range(FAULTS_TOLD + 50):
        tally.note(ONE, 1, 0, time.monotonic_ns())

    assert FAULTS_TOLD == len(tally.faults)


def test_latencies_count_from_the_moment_that_was_due_and_begin_anew_when_told(tally: Tally) -> None:
    tally.note(ONE, 0, 0, time.monotonic_ns() - 2_000_000_000)

    first, second = tally.told(), tally.told()

    assert 2000 <= first["p50_ms"] < 60_000
    assert (1, 0.0, 1) == (first["received"], second["p50_ms"], second["received"])

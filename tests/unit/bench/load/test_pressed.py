"""A step out of what the generator tells; the pressing itself is in tests/loopback."""

from __future__ import annotations

from broker.bench.load.pressed import step_of

TOLD = {
    "messages": 1000.0,
    "taken": 900.0,
    "refused": 100.0,
    "arrived": 890.0,
    "in_time": 850.0,
    "p50_us": 30.0,
    "p99_us": 900.0,
    "late_us": 5.0,
    "seconds": 2.0,
}


def test_what_was_refused_or_has_not_come_counts_against_a_step() -> None:
    step = step_of(TOLD, 500.0, 0.25)

    assert (500.0, 0.85, False) == (step.offered_s, step.in_time, step.holds)
    assert (85.0, 10.0, 445.0, 25.0) == tuple(
        step.values[name] for name in ("in_time_pct", "refused_pct", "messages_s", "busy_pct")
    )


def test_a_step_in_which_nothing_was_due_does_not_hold() -> None:
    assert not step_of({**TOLD, "messages": 0.0, "in_time": 0.0}, 0.0, 0.0).holds

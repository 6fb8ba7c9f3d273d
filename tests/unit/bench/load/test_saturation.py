"""Rows of the steps and of the knee; the steps themselves are in tests/loopback."""

from __future__ import annotations

from broker.bench.load.knee import Knee, Step
from broker.bench.load.saturation import rows_of

STEPS = tuple(Step(load, in_time, {"offered_s": load, "p99_us": load / 10}) for load, in_time in ((100, 1), (200, 0.5)))


def test_each_step_has_a_row_and_the_knee_its_rate() -> None:
    *steps, knee = rows_of("a case", "gateway", Knee(STEPS[0], STEPS), yardstick="relay")

    assert [("steps, gateway", "100 a second"), ("steps, gateway", "200 a second")] == [
        (row.mode, row.subject) for row in steps
    ]
    assert [10.0, 20.0] == [row.figure for row in steps]
    assert ("knee", "gateway", "messages_s", 100.0) == (knee.mode, knee.subject, knee.headline, knee.figure)
    assert not knee.is_yardstick


def test_more_at_the_knee_is_better() -> None:
    assert not rows_of("a case", "gateway", Knee(STEPS[0], STEPS), yardstick="relay")[-1].is_less_better


def test_knee_of_the_yardstick_is_known_as_such() -> None:
    assert rows_of("a case", "relay", Knee(STEPS[0], STEPS), yardstick="relay")[-1].is_yardstick

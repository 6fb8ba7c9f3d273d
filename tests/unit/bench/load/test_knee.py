"""Where the knee of something is that is known to take so much."""

from __future__ import annotations

import pytest

from broker.bench.load.knee import SHARE, NoKneeError, Step, find_knee

CAPACITY = 1000.0


class Played:
    """Takes CAPACITY a second; of more than that it takes as much. Fails by itself as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[float] = []
        self._failures = failures

    def __call__(self, offered_s: float) -> Step:
        self.asked.append(offered_s)
        in_time = min(1.0, CAPACITY / offered_s)
        if self._failures:
            self._failures -= 1
            in_time = 0.5
        return Step(offered_s, in_time, {"number": float(len(self.asked))})


def test_knee_is_the_largest_load_that_held_and_is_found_within_a_twentieth() -> None:
    knee = find_knee(Played(), start=50, most=1e6)

    assert CAPACITY / 1.05 < knee.at.offered_s <= CAPACITY / SHARE
    assert knee.at.holds


def test_steps_are_told_in_their_order_each_load_once() -> None:
    knee = find_knee(Played(), start=300, most=1e6, refinements=2)

    loads = [step.offered_s for step in knee.steps]
    assert sorted(set(loads)) == loads
    assert [300, 600, 1200] == [load for load in loads if load in (300, 600, 1200)]
    assert 5 == len(loads)
    assert [load for load in loads if load <= knee.at.offered_s] == [
        step.offered_s for step in knee.steps if step.holds
    ]


def test_a_step_that_a_neighbour_made_fail_is_tried_again() -> None:
    played = Played(failures=2)

    knee = find_knee(played, start=800, most=1e6, refinements=0, attempts=3)

    assert ([800, 800, 800], 800) == (played.asked[:3], knee.at.offered_s)
    assert {"number": 3.0} == knee.at.values


@pytest.mark.parametrize(
    ("start", "most", "problem"),
    [
        (5000, 1e6, "of 5,000 messages a second only 20.0% arrive in time"),
        (50, 400, "400 messages a second still arrive"),
    ],
)
def test_what_has_no_knee_in_reach_is_told(start: float, most: float, problem: str) -> None:
    with pytest.raises(NoKneeError, match=problem):
        find_knee(Played(), start=start, most=most)

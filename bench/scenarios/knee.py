"""
The knee: the largest offered load at which all but a hundredth arrives in time.

Offered load is stepped up, twice as much each time, until a step fails; then the gap between the last that held and the
first that failed is halved, in proportion, a few times. A step holds when at least `SHARE` of everything that was
offered in it arrived within a limit of the moment at which it was *due*: what was refused, lost or sent late counts
against it, so nothing is left out because the generator had to wait (no coordinated omission). Neighbours on the
machine can only make a step fail that would hold, so one that fails is tried again.
"""

from collections.abc import Callable
from dataclasses import dataclass

from broker.errors import BrokerError

SHARE = 0.99
ATTEMPTS = 3  # at a step
REFINEMENTS = 4  # after which the knee is known within a twentieth
FACTOR = 2.0


class NoKneeError(BrokerError):
    """Even the smallest load was too much, or the largest too little."""


@dataclass(frozen=True, slots=True)
class Step:
    """
    One load that was offered for some time.

    Shape: `offered_s` messages a second; `in_time` part of them that arrived within the limit, 0 .. 1; `values` what
    else was measured, by name and unit.
    """

    offered_s: float
    in_time: float
    values: dict[str, float]

    @property
    def holds(self) -> bool:
        """Whether the knee is not below it."""
        return self.in_time >= SHARE


@dataclass(frozen=True, slots=True)
class Knee:
    """Shape: `at` the step with the largest load that held; `steps` the best attempt at each load, in their order."""

    at: Step
    steps: tuple[Step, ...]


def find_knee(
    measure: Callable[[float], Step],
    *,
    start: float,
    most: float,
    refinements: int = REFINEMENTS,
    attempts: int = ATTEMPTS,
) -> Knee:
    """
    Step the load up until it is too much, and close in on where it becomes so.

    Args:
        measure: Offers so many messages a second for some time.
        start: Messages a second of the first step.
        most: Messages a second that are not exceeded.
        refinements: How often the gap is halved.
        attempts: How often a step may fail.

    Raises:
        NoKneeError: the first step failed, or one at `most` held.
    """
    steps: dict[float, Step] = {}

    def holds(offered_s: float) -> bool:
        taken: list[Step] = []
        while len(taken) < attempts and not any(step.holds for step in taken):
            taken.append(measure(offered_s))
        steps[offered_s] = max(taken, key=lambda step: step.in_time)
        return steps[offered_s].holds

    low, high = 0.0, start
    while holds(high):
        if high >= most:
            raise NoKneeError(f"{high:,.0f} messages a second still arrive in time: the knee is above what is offered")
        low, high = high, min(most, high * FACTOR)
    if not low:
        worst = steps[high]
        raise NoKneeError(
            f"of {high:,.0f} messages a second only {worst.in_time:.1%} arrive in time: the machine is too busy"
        )
    for _ in range(refinements):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if holds(middle) else (low, middle)
    return Knee(steps[low], tuple(steps[offered_s] for offered_s in sorted(steps)))

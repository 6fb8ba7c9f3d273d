"""
When to ask each of two addresses again: 200 ms at first, doubling to 10 s, spread so that a fleet does not ask in step.

Time and chance are arguments. Whatever happens, one address is never asked twice within 200 ms: all the ways into
asking (a beginning, a change, an instant that is due) go through one instant for each address, which never lies nearer
than that to the last time it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Address = TypeVar("Address", bound=Hashable)
FIRST_SECONDS = 0.2  # two gateways' round trip across an ocean fits in
LAST_SECONDS = 10.0  # so long may a pair that has come back stay unnoticed where nothing else tells of it
SPREAD = 0.5  # of a wait, at most, is added by chance
LONGEST_STEP = LAST_SECONDS / (1.0 + SPREAD)
NEVER = float("-inf")


class ProbeSchedule(Generic[Address]):
    """
    The plan of whom to ask when. Changed by its methods only.

    Shape: `jitter` gives a number in [0, 1); `due` the next instant when somebody is to be asked, None while nobody is.
    """

    def __init__(self, addresses: Sequence[Address], jitter: Callable[[], float]) -> None:
        self._jitter = jitter
        self._asked_at: dict[Address, float] = dict.fromkeys(addresses, NEVER)
        self._step: dict[Address, float] = {}
        self._at: dict[Address, float] = {}

    @property
    def due(self) -> float | None:
        """Monotonic seconds."""
        return min(self._at.values(), default=None)

    def begin(self, now: float) -> None:
        """Ask all of them, as soon as it is not too soon."""
        for address, asked_at in self._asked_at.items():
            self._at[address] = max(now, asked_at + FIRST_SECONDS)
            self._step[address] = FIRST_SECONDS

    def hasten(self, now: float) -> None:
        """Something has changed: start the back-off again from its first wait."""
        for address, at in self._at.items():
            self._at[address] = min(at, now + self._wait(FIRST_SECONDS))
            self._step[address] = 2.0 * FIRST_SECONDS

    def stop(self) -> None:
        """Ask nobody any more."""
        self._at.clear()

    def take(self, now: float) -> tuple[Address, ...]:
        """Whom to ask now; they count as asked."""
        taken = tuple(address for address, at in self._at.items() if at <= now)
        for address in taken:
            step = self._step[address]
            self._asked_at[address] = now
            self._at[address] = now + self._wait(step)
            self._step[address] = min(2.0 * step, LONGEST_STEP)
        return taken

    def _wait(self, step: float) -> float:
        return step * (1.0 + SPREAD * self._jitter())

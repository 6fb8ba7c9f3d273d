"""Part of `broker.net.dialer`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from broker.net.dialer import BACKOFF_CAP, BACKOFF_FIRST, SPREAD


class DialQueue(IntEnum):
    """Where an address waits to be dialled, the better the higher."""

    INVENTED = 0  # no route names it, or a link serves it already
    NAMED = 1
    PROBED = 2  # a mirrored pair is asked there for its principal


@dataclass(slots=True)
class DialHistory:
    """
    What is remembered of one address; changed by `Peers` only.

    Shape: `failures` in a row; `suppressed_until` monotonic seconds; `problem` of the last failure, empty when none;
    `is_under_way` from when it is wanted until there is a link or a failure; `queue` it waits in meanwhile, then None;
    `principal` of the peer that answered there last, empty while none has or where peers do not prove who they are.
    """

    failures: int = 0
    suppressed_until: float = 0.0
    problem: str = ""
    is_under_way: bool = False
    queue: DialQueue | None = None
    principal: str = ""
    _doublings: int = 0

    def failed(self, problem: str, now: float, jitter: Callable[[], float] = random.random) -> float:
        """Note a failure; returns the seconds to wait before the next attempt. Shape: `jitter` gives 0 .. 1."""
        if now > self.suppressed_until + 2 * BACKOFF_CAP:  # an attempt itself may take some time
            self._doublings = 0
        wait = min(BACKOFF_CAP, BACKOFF_FIRST * 2.0**self._doublings) * (1.0 - SPREAD * jitter())
        self._doublings = min(self._doublings + 1, 16)
        self.failures += 1
        self.problem = problem
        self.suppressed_until = now + wait
        return wait

    def succeeded(self) -> None:
        """The address answered: nothing is held against it."""
        self.failures = self._doublings = 0
        self.suppressed_until = 0.0
        self.problem = ""

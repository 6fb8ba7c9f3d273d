"""How many file descriptors a process may have, changed while it runs (prlimit)."""

from __future__ import annotations

import resource
from itertools import count as counted
from pathlib import Path


class Descriptors:
    """The limit of one process. Shape: the soft limit alone is changed; what is open stays open."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._former = resource.prlimit(pid, resource.RLIMIT_NOFILE)

    @property
    def used(self) -> int:
        """How many it has open."""
        return len(self._numbers())

    @property
    def is_lowered(self) -> bool:
        """Whether it has another limit than in the beginning. Raises ProcessLookupError."""
        return resource.prlimit(self._pid, resource.RLIMIT_NOFILE) != self._former

    def limit(self, count: int) -> None:
        """Numbers below `count` alone from now on: whoever wants more gets EMFILE. Raises ProcessLookupError."""
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, (count, self._former[1]))

    def exhaust(self, *, spare: int = 0) -> None:
        """Leave it room for `spare` more than it has now."""
        taken = self._numbers()
        free = (number for number in counted() if number not in taken)
        self.limit(next(number for place, number in enumerate(free) if place == spare))

    def restore(self) -> None:
        """As it was."""
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, self._former)

    def _numbers(self) -> set[int]:
        return {int(entry.name) for entry in Path(f"/proc/{self._pid}/fd").iterdir()}

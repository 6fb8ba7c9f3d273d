"""What daemons have in their hands when nothing is under way: after hours no more than in the beginning."""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.chaos.fleet import Fleet

LEAST_LOOKS = 60  # a run of an hour and more; what fewer would say is chance
SHARE = 20  # looks, the first and the last ones, whose medians are compared
MORE_DESCRIPTORS = 64
MORE_BYTES = 128 << 20
PAGE = os.sysconf("SC_PAGE_SIZE")


class Possessions:
    """Of the daemons of a fleet at each look: descriptors, and bytes of resident memory."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._looks: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)

    def look(self) -> None:
        """When a phase is over; whoever cannot be asked is left out."""
        for name in self._fleet.names:
            with suppress(OSError):
                self.add(name, *_of(self._fleet.daemons[name].pid))

    def add(self, name: str, descriptors: int, resident_bytes: int) -> None:
        """What a daemon has."""
        self._looks[name].append((descriptors, resident_bytes))

    def grown(self) -> Iterator[str]:
        """Sentences on daemons that have a good deal more than in the beginning; none before LEAST_LOOKS."""
        for name, looks in self._looks.items():
            if len(looks) < LEAST_LOOKS:
                continue
            (descriptors, memory), (descriptors_now, memory_now) = _median(looks[:SHARE]), _median(looks[-SHARE:])
            if descriptors_now > descriptors + MORE_DESCRIPTORS:
                yield f"{name} has grown: {descriptors_now:g} descriptors, {descriptors:g} in the beginning"
            if memory_now > memory + MORE_BYTES:
                yield f"{name} has grown: {memory_now / 2**20:.0f} MiB, {memory / 2**20:.0f} in the beginning"


def _median(looks: list[tuple[int, int]]) -> tuple[float, float]:
    return statistics.median(one for one, _ in looks), statistics.median(one for _, one in looks)


def _of(pid: int) -> tuple[int, int]:
    """Descriptors and resident bytes of a process. Raises OSError: it has ended."""
    resident = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return len(list(Path(f"/proc/{pid}/fd").iterdir())), resident * PAGE

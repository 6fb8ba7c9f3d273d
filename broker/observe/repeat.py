"""
One line for the first of many identical errors, then one a minute with the number left out.

A peer that is down fails every attempt alike; ten thousand equal lines hide the one that differs. Two log events are
identical when level, event and every field that is no number are equal: numbers measure (an age, a count, a retry)
and differ each time. Only warnings and worse are held back, everything else passes.

The memory is bounded: at the bound the event not seen for the longest time is forgotten, and with it its count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from structlog import DropEvent

Event: TypeAlias = MutableMapping[str, Any]

INTERVAL = 60.0  # seconds between two lines about the same
KINDS_MAX = 1024  # different events remembered: more than an instance has peers and reasons, some 1 MB at most
_HELD_BACK = frozenset({"warning", "error", "critical"})


@dataclass(slots=True)
class _Seen:
    """What is known of one event; changed under the lock of its filter only."""

    told_at: float
    suppressed: int
    last: dict[str, Any]


class RepeatFilter:
    """
    A structlog processor; `level` has to be in the event before it, and the time of the event not yet.

    Called from the loop and from writer threads, hence the lock. `clock` gives monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float], *, interval: float = INTERVAL, kinds_max: int = KINDS_MAX) -> None:
        self._clock = clock
        self._interval = interval
        self._kinds_max = kinds_max
        self._seen: OrderedDict[object, _Seen] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        """
        Let the event pass, with `suppressed` when identical ones were left out before it.

        Raises:
            DropEvent: an identical one was told less than `interval` ago.
        """
        if event.get("level") not in _HELD_BACK:
            return event
        now = self._clock()
        key = _identity(event)
        with self._lock:
            seen = self._seen.get(key)
            if seen is None:
                self._seen[key] = _Seen(now, 0, {})
                if len(self._seen) > self._kinds_max:
                    self._seen.popitem(last=False)
                return event
            self._seen.move_to_end(key)
            if now - seen.told_at < self._interval:
                seen.suppressed += 1
                seen.last = {name: value for name, value in event.items() if name != "exc_info"}  # it would keep frames
                raise DropEvent
            if seen.suppressed:
                event["suppressed"] = seen.suppressed
            self._seen[key] = _Seen(now, 0, {})
            return event

    def take_untold(self, *, everything: bool = False) -> list[dict[str, Any]]:
        """
        Take out what was left out and has had no line for `interval`, each once with its count.

        For whoever tells it when no further identical event comes; `everything` for the end of the program.
        """
        now = self._clock()
        with self._lock:
            old = [key for key, seen in self._seen.items() if everything or now - seen.told_at >= self._interval]
            gone = [self._seen.pop(key) for key in old]
        return [{**seen.last, "suppressed": seen.suppressed} for seen in gone if seen.suppressed]


def _identity(event: Event) -> object:
    """What two identical events share; a field that cannot be compared counts by its text."""
    fields = (
        (name, value if isinstance(value, str) else repr(value))
        for name, value in event.items()
        if name != "exc_info" and (isinstance(value, bool) or not isinstance(value, int | float))
    )
    return frozenset(fields)

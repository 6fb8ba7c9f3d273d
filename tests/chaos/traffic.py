"""
What the daemons count: frames that they hand on, and to whom; messages sent again; duplicates that they drop.

They are asked now and then, so what one that is killed has counted since it was last asked is missing.
"""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING

from tests.chaos.configuration import OBSERVE_PORT

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

FRAMES = "broker_messages_forwarded_total"
RESENT, DUPLICATES = "broker_retransmits_total", "broker_duplicates_total"
COUNTED = (FRAMES, RESENT, DUPLICATES)
ANSWER_SECONDS = 1.0
_SAMPLE = re.compile(r'^(\w+?)(?:\{(?:.*?peer="([^"]*)")?.*\})? ([0-9.e+]+)$', re.MULTILINE)

Key = tuple[str, str, str]
"""Metric, host that told it, address of its peer."""


class Traffic:
    """Of a fleet. All figures are since `begin`, as far as `sample` knows."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._counts: Counter[Key] = Counter()
        self._last: dict[str, Counter[Key]] = {}

    def begin(self) -> None:
        """A phase begins."""
        self.sample()
        self._counts.clear()

    def sample(self) -> None:
        """Ask all of them."""
        for name in self._fleet.names:
            self.add(name, self._metrics(name))

    def add(self, name: str, metrics: str) -> None:
        """What a host has told, "" for nothing. A figure that is smaller than the last one has begun anew."""
        found: Counter[Key] = Counter()
        for metric, peer, value in _SAMPLE.findall(metrics):
            if metric in COUNTED:
                found[metric, name, peer] += int(float(value))
        if not metrics:
            return
        last = self._last.get(name, Counter())
        for key, value in found.items():
            self._counts[key] += value - last[key] if value >= last[key] else value
        self._last[name] = found

    @property
    def resent(self) -> int:
        """Messages that were sent again."""
        return self._sum(RESENT)

    @property
    def duplicates(self) -> int:
        """Frames that were stored already."""
        return self._sum(DUPLICATES)

    def carried(self, name: str) -> int:
        """Frames that a host handed on; of one with databases, those that were handed to it as well."""
        handed_on = sum(value for (metric, host, _), value in self._counts.items() if (metric, host) == (FRAMES, name))
        return handed_on + sum(self._counts[FRAMES, *way] for way in self._ways_to(name))

    def between(self, one: str, other: str) -> int:
        """Frames that one of two hosts handed to the other."""
        address = self._fleet.address
        return self._counts[FRAMES, one, address(one, other)] + self._counts[FRAMES, other, address(other, one)]

    def _ways_to(self, name: str) -> list[tuple[str, str]]:
        fleet = self._fleet
        return [] if name in fleet.gateways else [(one, fleet.address(one, name)) for one in fleet.gateways]

    def _sum(self, metric: str) -> int:
        return sum(value for (one, _, _), value in self._counts.items() if one == metric)

    def _metrics(self, name: str) -> str:
        host = self._fleet.network.hosts[name]
        url = f"http://{host.address}:{OBSERVE_PORT}/metrics"
        try:
            with host.inside(), urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

"""
What is seen of the daemons of a run from outside: what they count, and what the partners of a pair with one file say.

They are asked now and then, so what one that is killed has counted since it was last asked is missing. The application
of a pair with one file cannot tell who stored what it receives. That is seen at the partners: one that is a mirror
counts no message as delivered, no epoch is that of both, and no principal is followed while it lives.
"""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

from broker.errors import DaemonUnreachableError
from tests.chaos.configuration import OBSERVE_PORT, STOCK
from tests.chaos.history import Event, History, Orders, What

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

FRAMES = "broker_messages_forwarded_total"
RESENT, DUPLICATES = "broker_retransmits_total", "broker_duplicates_total"
COUNTED = (FRAMES, RESENT, DUPLICATES)
ANSWER_SECONDS = 2.0
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
            self.add(name, read_metrics(self._fleet, name))

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


def read_metrics(fleet: Fleet, name: str) -> str:
    """What a host says of itself, "" when it does not answer."""
    host = fleet.network.hosts[name]
    try:
        with (
            host.inside(),
            urllib.request.urlopen(f"http://{host.address}:{OBSERVE_PORT}/metrics", timeout=ANSWER_SECONDS) as answer,
        ):
            return str(answer.read().decode())
    except OSError:
        return ""


FOLLOWED = b"another daemon has taken it over"  # why it has stepped down, as its log tells
_DELIVERED = re.compile(r"^broker_messages_delivered_total(?:\{.*\})? ([0-9.e+]+)$", re.MULTILINE)

Reign = tuple[str, str, int]
"""What a partner is, since when, and the epoch, as it says."""


class Watch:
    """
    Shape: `wrong` sentences on epochs that both partners had, and on principals that were followed though they had the
    lock; what a mirror has delivered goes into the histories.

    Args:
        fleet: Whose pair it is.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.wrong: list[str] = []
        self._fleet = fleet
        self._owners: dict[int, str] = {}
        self._offsets: Counter[str] = Counter()  # bytes of each partner's log that are known
        self._mirrors: dict[str, tuple[Reign, int, int]] = {}  # its reign, its process, and what it had delivered

    def look(self) -> None:
        """Ask both."""
        for name in STOCK:
            reign, process = self._reign(name), self._process(name)
            delivered = self._delivered(name)
            if reign is None or delivered is None or (reign, process) != (self._reign(name), self._process(name)):
                continue  # it changes just now
            if reign[0] != "principal" and self._fleet.principal == name:
                continue  # it has stepped down, and may be storing what had come before
            self.note(name, reign, process, delivered)

    def read_logs(self) -> None:
        """Look whether a partner was followed while it had the lock; its epoch tells it so."""
        for name in STOCK:
            text = self._fleet.daemons[name].log.read_bytes()
            news = text[self._offsets[name] : text.rfind(b"\n") + 1]
            self._offsets[name] += len(news)
            if count := sum(FOLLOWED in line for line in news.splitlines()):
                self.wrong.append(f"{name} was followed {count} times though it had the lock")

    def note(self, name: str, reign: Reign, process: int, delivered: int) -> None:
        """What a partner is, and how many messages its process has delivered."""
        role, _, epoch = reign
        known = self._mirrors.pop(name, None)
        is_same = known is not None and known[:2] == (reign, process)
        if not is_same:
            self._tell(name, Event(What.ROLE, note=role))
        if role == "principal" and self._owners.setdefault(epoch, name) != name:
            self.wrong.append(f"two principals of epoch {epoch}: {self._owners[epoch]} and {name}")
        if role != "principal":
            before = known[2] if known is not None and is_same else delivered
            self._mirrors[name] = reign, process, before
            if delivered > before:
                self._tell(name, Event(What.FOUND, note=f"{delivered - before} messages, by its own count"))

    def _tell(self, name: str, event: Event) -> None:
        """Put something into the history of a partner in this phase."""
        path = self._fleet.histories / Orders.read(self._fleet.orders).phase / f"role-{name}.history"
        path.parent.mkdir(parents=True, exist_ok=True)
        history = History(path, f"role-{name}", f"stock at {name}")
        history.tell(event)
        history.close()

    def role(self, name: str) -> str:
        """What a partner says that it is, "" when it says nothing."""
        reign = self._reign(name)
        return "" if reign is None else reign[0]

    def begin(self) -> None:
        """A phase begins, whose histories have no roles yet."""
        self._mirrors.clear()
        self.look()

    def _reign(self, name: str) -> Reign | None:
        try:
            standing: dict[str, Any] = self._fleet.daemons[name].status()["mirroring"]["stock"]
        except DaemonUnreachableError:
            return None
        return standing["role"], str(standing["since"]), standing["epoch"]

    def _process(self, name: str) -> int:
        return self._fleet.daemons[name].pid

    def _delivered(self, name: str) -> int | None:
        metrics = read_metrics(self._fleet, name)
        return sum(int(float(value)) for value in _DELIVERED.findall(metrics)) if metrics else None

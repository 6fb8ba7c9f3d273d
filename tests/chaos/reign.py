"""
What the partners of a mirrored pair with one file say of themselves, at each look.

The application of such a pair cannot tell who stored what it receives. That is seen at the partners: one that is a
mirror counts no message as delivered, no epoch is that of both, and no principal is followed while it lives, for it has
the lock.
"""

from __future__ import annotations

import re
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

from broker.errors import DaemonUnreachableError
from tests.chaos.cast import STOCK
from tests.chaos.configuration import OBSERVE_PORT
from tests.chaos.history import Event, History, What
from tests.chaos.job import Orders

if TYPE_CHECKING:
    from tests.chaos.fleet import Fleet

ANSWER_SECONDS = 2.0
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

    def roles(self) -> dict[str, str]:
        """What each partner that runs says that it is."""
        found = {name: self._reign(name) for name in STOCK if self._fleet.daemons[name].is_running}
        return {name: reign[0] for name, reign in found.items() if reign is not None}

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
        host = self._fleet.network.hosts[name]
        url = f"http://{host.address}:{OBSERVE_PORT}/metrics"
        try:
            with host.inside(), urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                return sum(int(float(value)) for value in _DELIVERED.findall(answer.read().decode()))
        except OSError:
            return None

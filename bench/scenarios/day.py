"""
A day in an hour, or in as many minutes as are wanted: initiators, gateways and targets, two of each.

All connections are TLS with certificates on both sides, all instances keep a journal, and traffic follows the profile
of a day (`day_profile`). While it goes on certificates are replaced before they run out, a route expires and is
revived, another one is changed, journal files are ended and removed (`day_net`). Nothing is restarted. The applications
(`day_traffic`) notice what is lost, doubled or out of order; each row tells what an hour of the day brought, how long
messages took from the moment at which they were due, and how much memory the instances have.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.figures import Row
from bench.scenarios.day_net import HOURS, INITIATORS, TARGETS, DayNet
from bench.scenarios.day_traffic import receive_day, send_day
from bench.scenarios.timetable import Application
from broker.errors import BrokerError

MINUTES, FULL_MINUTES = 1.0, 60.0
MESSAGES_S = 300.0  # on average, of both initiators together
SETTLE_SECONDS = 120.0  # for what is under way behind the day
AHEAD_SECONDS = 0.5  # from the word to the beginning of the day
QUARTER = HOURS // 4

Tell = Callable[[str], None]


class DayFaultyError(BrokerError):
    """Something was lost, doubled or out of order."""


def measure(*, minutes: float, messages_s: float = MESSAGES_S, tell: Tell = lambda _: None) -> list[Row]:
    """
    A row of each hour, and what the whole day came to.

    Raises:
        DayFaultyError: something was lost, doubled or out of order, or a dialog failed; tells what.
        ApplicationError: an application ended.
    """
    seconds = 60 * minutes
    case = f"{messages_s:,.0f} messages a second on average, a day in {minutes:g} minutes"
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        net = stack.enter_context(DayNet(Path(name), seconds / HOURS))
        day = _Day(net, stack, case, total=int(seconds * messages_s / len(INITIATORS)))
        rows = list(day.hours(seconds / HOURS, tell))
        tell("what is under way")
        day.settle()
        return [*rows, *day.rows(rows)]


class _Day:
    """The applications, and what they tell. Shape: `total` messages of each initiator."""

    def __init__(self, net: DayNet, stack: ExitStack, case: str, *, total: int) -> None:
        self._net, self._case, self._total = net, case, total
        services = [f"//day/{target}" for target in TARGETS]
        self._near = [
            stack.enter_context(Application(send_day, net.path(name), f"//day/{name}", services, total))
            for name in INITIATORS
        ]
        self._far = [stack.enter_context(Application(receive_day, net.path(name))) for name in TARGETS]
        self._sent: list[dict[str, Any]] = []
        self._received: list[dict[str, Any]] = []

    def hours(self, hour_seconds: float, tell: Tell) -> Iterator[Row]:
        """Live through it; a row at the end of each hour."""
        for application in (*self._near, *self._far):
            application.ask("ready")
        begun_ns = time.monotonic_ns() + int(AHEAD_SECONDS * 1e9)
        for application in self._near:
            application.say(begun_ns, hour_seconds * HOURS)
        received, asked_at = 0, begun_ns * 1e-9
        for hour in range(HOURS):
            tell(f"{hour:02}:00")
            self._net.errand(hour)
            left = begun_ns * 1e-9 + (hour + 1) * hour_seconds - time.monotonic()
            time.sleep(max(0.0, left))
            self._ask()
            before, received = received, self._sum(self._received, "received")
            since, asked_at = asked_at, time.monotonic()
            values = {
                "messages_s": (received - before) / (asked_at - since),
                "p50_ms": max(told["p50_ms"] for told in self._received),
                "p99_ms": max(told["p99_ms"] for told in self._received),
            }
            values |= self._net.memory_mib() | self._net.journal_counts()
            yield Row("day", self._case, "hours", f"{hour:02}:00", "p99_ms", values)

    def settle(self) -> None:
        """Until every dialog has ended. Raises DayFaultyError."""
        deadline = time.monotonic() + SETTLE_SECONDS
        self._ask()
        while not all(told["is_over"] for told in self._sent) and not self._faults():
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
            self._ask()
        sent, received = self._sum(self._sent, "sent"), self._sum(self._received, "received")
        begun, ended = self._sum(self._sent, "begun"), self._sum(self._received, "ended")
        faults = self._faults()
        if (sent, begun) != (received, ended):
            faults.append(
                f"{sent:,} messages sent and {received:,} received, {begun:,} dialogs begun and {ended:,} ended"
            )
        if sent != self._total * len(INITIATORS):
            faults.append(f"{sent:,} of {self._total * len(INITIATORS):,} messages were sent")
        if faults:
            raise DayFaultyError("; ".join(faults))

    def rows(self, hours: list[Row]) -> Iterator[Row]:
        """What the whole day came to."""
        counts = {
            "messages, each received once and in order": self._sum(self._sent, "sent"),
            "answers, likewise": self._sum(self._sent, "received"),
            "dialogs, each ended by both sides": self._sum(self._sent, "ended"),
            "lost, doubled or out of order": len(self._faults()),
        }
        for name, count in (counts | self._net.counts()).items():
            yield Row("day", self._case, "the whole day", name, "value", {"value": float(count)})
        for name in self._net.memory_mib():
            early, late = (
                statistics.mean(row.values[name] for row in part)
                for part in (hours[QUARTER : 2 * QUARTER], hours[-QUARTER:])
            )
            values = {"value": late - early}
            yield Row("day", self._case, "MiB more in the last quarter than in the second", name, "value", values)

    def _ask(self) -> None:
        """Everybody's tally so far."""
        for application in (*self._near, *self._far):
            application.say("told")
        self._sent = [application.answer() for application in self._near]
        self._received = [application.answer() for application in self._far]

    def _faults(self) -> list[str]:
        return [fault for told in (*self._sent, *self._received) for fault in told["faults"]]

    @staticmethod
    def _sum(told: list[dict[str, Any]], name: str) -> int:
        return sum(one[name] for one in told)

"""What is logged of a pair that changes: each of a few changes, and one line a second of many; by a played clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from broker.net.mirrors import AT_ONCE, PAUSE_SECONDS, STATE_CHANGED, MirrorLog
from broker.routing.address import NetworkAddress
from broker.routing.mirrored import MirroredRoute
from broker.routing.route import MirroredPair

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
PAIR = MirroredPair("//S", UUID(int=1), NORTH, SOUTH)


class Clock:
    """A loop: it is `now`, and `wait` lets what is due happen."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls: list[tuple[float, Callable[[], None], Any]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, do: Callable[[], None]) -> Any:
        handle = SimpleNamespace(cancel=self.calls.clear)
        self.calls.append((self.now + seconds, do, handle))
        return handle

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for call in [call for call in self.calls if call[0] <= self.now + 1e-9]:
            self.calls.remove(call)
            call[1]()


class Watched:
    """A pair in use, its log, and the lines written."""

    def __init__(self, lines: list[Any]) -> None:
        self.clock = Clock()
        self.route = MirroredRoute(NORTH, SOUTH, lambda: 0.0)
        self.log = MirrorLog(PAIR, self.route, cast("asyncio.AbstractEventLoop", self.clock))
        self.lines = lines

    def flap(self, times: int) -> None:
        """So many changes, now."""
        for _ in range(times):
            if self.route.principal is None:
                self.route.use(self.clock.now)
                self.route.on_reply(NORTH, "principal", 5, self.clock.now)
            else:
                self.route.on_reply(NORTH, "mirror", 5, self.clock.now)
            self.log.look()
            self.log.look()

    def changes(self) -> list[int]:
        told = [line["changes"] for line in self.lines]
        self.lines.clear()
        return told


@pytest.fixture
def watched() -> Iterator[Watched]:
    with capture_logs() as lines:
        yield Watched(cast("list[Any]", lines))


def test_line_has_the_fields_of_the_event(watched: Watched) -> None:
    """And the number of the original's."""
    watched.flap(1)

    assert [
        {
            "event": "mirrored route state changed",
            "log_level": "info",
            "number": STATE_CHANGED,
            "state": 2,
            "state_desc": "PRINCIPAL_ONLY",
            "service": "//S",
            "broker_instance": str(UUID(int=1)),
            "principal": str(NORTH),
            "epoch": 5,
            "alarm": "",
            "changes": 1,
        }
    ] == watched.lines


def test_alarm_is_a_warning(watched: Watched) -> None:
    """A person has to look at it."""
    watched.flap(1)
    watched.route.on_reply(SOUTH, "principal", 4, watched.clock.now)
    watched.log.look()

    assert ["info", "warning"] == [line["log_level"] for line in watched.lines]


def test_few_changes_are_told_at_once_and_many_once_a_second(watched: Watched) -> None:
    """None is left out of the counts, and the summary has the state that holds then."""
    watched.flap(AT_ONCE + 999)
    assert [1] * AT_ONCE == watched.changes()

    watched.clock.wait(PAUSE_SECONDS / 2)
    watched.flap(1)
    assert [] == watched.changes()
    watched.clock.wait(PAUSE_SECONDS / 2)

    assert "NOT_OPERATIONAL" == watched.lines[-1]["state_desc"]
    assert [1000] == watched.changes()


def test_flapping_for_ever_is_one_line_a_second(watched: Watched) -> None:
    """After the handful at once."""
    for _ in range(6000):  # a minute, a change every 10 ms
        watched.flap(1)
        watched.clock.wait(0.01)

    told = watched.changes()
    assert AT_ONCE + 60 >= len(told)
    assert 6000 - 101 <= sum(told)


def test_quiet_pair_has_its_handful_again(watched: Watched) -> None:
    """After as many seconds."""
    watched.flap(AT_ONCE + 1)
    watched.clock.wait(PAUSE_SECONDS)
    watched.changes()

    watched.clock.wait(100 * PAUSE_SECONDS)
    watched.flap(AT_ONCE + 1)

    assert [1] * AT_ONCE == watched.changes()


def test_forgotten_pair_says_nothing_more(watched: Watched) -> None:
    """Nor one that never said a thing."""
    watched.log.close()
    watched.flap(AT_ONCE + 1)
    watched.changes()

    watched.log.close()
    watched.clock.wait(10.0)

    assert [] == watched.changes()

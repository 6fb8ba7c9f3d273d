"""The ways between gateways and their neighbours: each that has been used is used again after a fault."""

from __future__ import annotations

import time

from broker.demo.topology import TimedOutError
from broker.errors import DaemonUnreachableError
from tests.chaos.fleet import Fleet, wait_until

WHOLE_SECONDS = 120.0  # a way is opened by the next dialog that takes it
POLL_SECONDS = 0.5
ONLINE = "LOGGED_IN"

Way = tuple[str, str]
"""Gateway, neighbour."""


class Paths:
    """Of a fleet. Shape: `ever` the ways that have been online at some time when somebody looked."""

    def __init__(self, fleet: Fleet) -> None:
        self.ever: set[Way] = set()
        self._fleet = fleet

    def look(self) -> set[Way]:
        """The ways that are online, as the gateways tell; of one that does not answer none is."""
        found = set()
        for gateway in self._fleet.gateways:
            try:
                told = self._fleet.daemons[gateway].status()["connections"]
            except DaemonUnreachableError:
                continue
            found |= {(gateway, one["name"]) for one in told if one["state"] == ONLINE}
        self.ever |= found
        return found

    def wait_whole(self) -> None:
        """
        Wait, in the middle of traffic, until every way that was ever online has been so again, and every gateway has
        handed on a frame. The mirror is left out: who asks it what it is need not do so again.

        Raises:
            TimedOutError: not within WHOLE_SECONDS; names ways and gateways.
        """
        traffic, left = self._fleet.traffic, set(self.ever)
        traffic.sample()
        before = {name: traffic.carried(name) for name in self._fleet.gateways}
        due = time.monotonic()

        def idle() -> list[str]:
            return [name for name, count in before.items() if traffic.carried(name) <= count]

        def is_so() -> bool:
            nonlocal due, left
            if time.monotonic() < due:
                return False
            left -= self.look()
            left = {way for way in left if way[1] != self._fleet.mirror}
            traffic.sample()
            due = time.monotonic() + POLL_SECONDS
            return not left and not idle()

        try:
            wait_until(is_so, seconds=WHOLE_SECONDS, what="every way used again")
        except TimedOutError as error:
            ways = [f"{gateway} and {name}" for gateway, name in sorted(left)]
            told = [f"offline: {', '.join(ways)}"] if ways else []
            told += [f"handed on nothing: {', '.join(idle())}"] if idle() else []
            raise TimedOutError(f"{error}: {'; '.join(told)}") from None

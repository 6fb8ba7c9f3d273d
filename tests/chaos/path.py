"""The ways between gateways and their neighbours: all gateways are used, and whatever was is again after a fault."""

from contextlib import suppress

from broker.errors import DaemonUnreachableError
from examples.demo.topology import TimedOutError
from tests.chaos.fleet import Fleet, wait_until

WHOLE_SECONDS = 120.0  # a way is opened by the next dialog that takes it
POLL_SECONDS = 0.5
EMPTY_SECONDS = 30.0  # three times the time_to_live of a copy
OPEN_SECONDS = 2.0  # for those whose ways were broken off to come to another gateway
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

    def open(self) -> None:
        """
        See to it, in the middle of traffic, that every gateway has been used: nobody goes to another one while that to
        which he came first is connected (R3.5), so the ways of the initiators are broken off.

        Raises:
            TimedOutError: not within WHOLE_SECONDS; names gateways.
        """

        def unused() -> set[str]:
            return {*self._fleet.gateways} - {gateway for gateway, _ in self.ever}

        def is_so() -> bool:
            used = {gateway for gateway, _ in self.look()}
            for gateway in sorted(used) if unused() else ():
                self._break_off(gateway)
            return not unused()

        wait_until(
            is_so,
            seconds=WHOLE_SECONDS,
            what="every gateway used",
            every=OPEN_SECONDS,
            why=lambda: f"never: {', '.join(sorted(unused()))}",
        )

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

        def idle() -> list[str]:
            return [name for name, count in before.items() if traffic.carried(name) <= count]

        def is_so() -> bool:
            nonlocal left
            left -= self.look()
            left = {way for way in left if way[1] != self._fleet.mirror}
            traffic.sample()
            return not left and not idle()

        wait_until(
            is_so,
            seconds=WHOLE_SECONDS,
            what="every way used again",
            every=POLL_SECONDS,
            why=lambda: f"offline: {sorted(left)}; handed on nothing: {idle()}",
        )

    def wait_empty(self) -> None:
        """
        Wait until no gateway that answers holds a frame: a copy that waits for a next hop which has just come back
        outlives its dialog by its time_to_live, and would be left behind by a drain. In vain: the drain tells it.
        """

        def held(gateway: str) -> int:
            try:
                return int(self._fleet.daemons[gateway].status()["forwarding"]["held"])
            except DaemonUnreachableError:
                return 0

        with suppress(TimedOutError):
            wait_until(lambda: not any(map(held, self._fleet.gateways)), seconds=EMPTY_SECONDS, what="empty gateways")

    def _break_off(self, gateway: str) -> None:
        network = self._fleet.network
        for name in (host for home in self._fleet.initiators for host in home.hosts):
            network.reset(network.hosts[gateway], network.hosts[name])

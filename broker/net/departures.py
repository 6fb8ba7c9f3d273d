"""
Links whose peers are leaving: each is used until another leads on, then our direction of it is closed.

A peer that says GOAWAY takes frames until its deadline. Meanwhile what this instance sends there looks for another way:
the same address is dialled again, where another process of the peer or its successor may answer, and so is every other
address that leads on. A link is given up when one of them serves in its place, when none of them is to be expected any
more, or at the deadline; the peer then knows by the end of our direction that nothing more comes. Loop-only.

Source: docs/protocol.md, "GOAWAY".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from broker.net.addresses import Addresses
from broker.net.link import Link
from broker.routing.address import NetworkAddress

LEAVING_MAX = 60.0  # seconds that a peer which drains is heard out, whatever deadline it names
LEAST_SECONDS = 0.1  # for what is under way to ask for another way

GiveUp = Callable[[Link], None]


def has_parted(outlet: object) -> bool:
    """Whether what this outlet was given arrives, though it takes nothing any more: its peer left in good order."""
    return isinstance(outlet, Link) and outlet.is_in_order


@dataclass(slots=True)
class _Departure:
    """Shape: `until` the deadline, loop time; `hopes` addresses that may serve in place of the link, being dialled."""

    least_at: float
    until: float
    hopes: set[NetworkAddress] = field(default_factory=set)


class PeerDepartures:
    """
    Args:
        addresses: Tells which of them are being dialled.
        dial: Dials an address, unless that is under way.
        give_up: Told once of each link that is of no more use.
    """

    def __init__(self, addresses: Addresses, dial: Callable[[NetworkAddress], None], give_up: GiveUp) -> None:
        self._addresses = addresses
        self._dial = dial
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._departures: dict[Link, _Departure] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._departures)

    def begin(self, link: Link, seconds: float, addresses: Iterable[NetworkAddress]) -> None:
        """The peer of a link leaves in so many seconds; these addresses may serve in its place."""
        now = self._loop.time()
        departure = self._departures[link] = _Departure(now + min(seconds, LEAST_SECONDS), now + seconds)
        for address in addresses:
            departure.hopes.add(address)
            self._dial(address)
        self._look_at(departure.least_at)

    def postpone(self, link: Link, seconds: float) -> None:
        """The peer says it again: another deadline."""
        departure = self._departures.get(link)
        if departure is not None:
            departure.until = self._loop.time() + seconds

    def remaining(self, link: Link) -> float:
        """Seconds to the deadline of a link; 0 when it is not here."""
        departure = self._departures.get(link)
        return 0.0 if departure is None else max(0.0, departure.until - self._loop.time())

    def wanted(self, address: NetworkAddress) -> None:
        """Frames that may have lost their next hop ask for this one."""
        for departure in self._departures.values():
            departure.hopes.add(address)

    def forget(self, link: Link) -> None:
        """The link has ended."""
        self._departures.pop(link, None)

    def look(self) -> None:
        """Dialling has come to something, or time has passed: give up what is of no more use."""
        now = self._loop.time()
        for link, departure in list(self._departures.items()):
            is_hoping = any(
                (attempts := self._addresses.attempts.get(address)) is not None and attempts.is_under_way
                for address in departure.hopes
            )
            if now >= departure.until or (now >= departure.least_at and not is_hoping):
                self._give_up(link)
                self.forget(link)

    def close(self) -> None:
        """Nothing is awaited any more."""
        self._departures.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        """One timer for all: the last one that began is the last to have had its least time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self.look)

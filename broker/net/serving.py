"""
Links begin to serve addresses and cease to: outboxes get their links, and whoever watches an address is told.

Loop-only; used by `broker.net.peers` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.net.addresses import Addresses
from broker.net.link import Link
from broker.net.outlets import Outlets
from broker.net.watcher import Watcher
from broker.routing.address import NetworkAddress


class Serving:
    """
    Args:
        addresses: What is known of them.
        outlets: Gives outboxes their links.
        watcher_of: Who watches now.
    """

    def __init__(self, addresses: Addresses, outlets: Outlets, watcher_of: Callable[[], Watcher]) -> None:
        self._addresses = addresses
        self._servers = addresses.servers
        self._outlets = outlets
        self._watcher_of = watcher_of

    def begin(self, link: Link, dialled: NetworkAddress | None, addresses: Iterable[NetworkAddress] = ()) -> bool:
        """From now on the link serves what it was dialled for, and these addresses; whether anything depends on it."""
        new = [] if dialled is None else [dialled]
        new += [address for address in addresses if address != dialled]
        is_changed = self.is_missed(new)
        for address in new:
            self._servers.add(link, address, is_first=address == dialled)
            self.look(address)
        return is_changed

    def end(self, link: Link, dialled: NetworkAddress | None) -> bool:
        """The link serves nothing any more, nor `dialled`, for which it was opened; whether anything depends on it."""
        addresses = self._servers.remove(link)
        if dialled is not None and dialled not in addresses:
            addresses.append(dialled)
        for address in addresses:
            self.look(address, link.reason or "the peer is draining")
        return self.is_missed(addresses)

    def look(self, address: NetworkAddress, problem: str = "") -> None:
        """
        Who serves an address may be another one now, or nobody; what is for it has that link, or none.

        To whoever watches it one that leaves is as good as gone: a principal that drains is none any more.
        """
        self._outlets.fit(address)
        link = self._servers.staying(address)
        if link is not None:
            self._watcher_of().on_served(address, link)
        else:
            self._watcher_of().on_unserved(address, self._addresses.problem_of(address) or problem)

    def is_missed(self, addresses: Iterable[NetworkAddress]) -> bool:
        """Whether anything depends on the health of one of these that nobody serves for long."""
        return any(self._servers.staying(address) is None and self._matters(address) for address in addresses)

    def _matters(self, address: NetworkAddress) -> bool:
        return self._addresses.matters(address) or address in self._outlets.forwarder.outboxes

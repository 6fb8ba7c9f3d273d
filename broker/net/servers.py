"""
Which link serves which address: the one dialled for it first, then those whose peers announced it, the oldest first.

A peer may announce what it likes and many may announce the same, so nothing here costs more than in proportion to the
addresses of the one link that comes or goes. Loop-only; changed by `broker.net.peers` alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.net.link import Link
from broker.net.link_state import LinkState
from broker.routing.address import NetworkAddress


class Servers:
    """Who serves what."""

    def __init__(self) -> None:
        self._addresses: dict[Link, dict[NetworkAddress, None]] = {}
        self._links: dict[NetworkAddress, dict[Link, None]] = {}

    @property
    def addresses(self) -> Iterable[NetworkAddress]:
        """Every address that a link serves, or did until it began to end."""
        return self._links.keys()

    def addresses_of(self, link: Link) -> Iterable[NetworkAddress]:
        """What a link serves."""
        return self._addresses.get(link, ())

    def serving(self, address: NetworkAddress) -> Link | None:
        """The link that takes frames for this address now; one whose peer is leaving where there is no other."""
        leaving = None
        for link in self._links.get(address, ()):
            if link.state is LinkState.LOGGED_IN:
                if not link.is_leaving:
                    return link
                leaving = leaving or link
        return leaving

    def staying(self, address: NetworkAddress) -> Link | None:
        """The same, if its peer stays."""
        link = self.serving(address)
        return None if link is None or link.is_leaving else link

    def add(self, link: Link, address: NetworkAddress, *, is_first: bool = False) -> None:
        """From now on a link serves an address, before all others when it was dialled for it."""
        self._addresses.setdefault(link, {})[address] = None
        links = self._links.setdefault(address, {})
        if is_first and link not in links:
            self._links[address] = {link: None, **links}
        else:
            links[link] = None

    def expel(self, address: NetworkAddress, principal: str) -> None:
        """Links of peers that have proved to be another principal do not serve an address any more."""
        for link in list(self._links.get(address, ())):
            identity = link.transport.identity
            if identity is not None and identity.principal_name != principal:
                del self._links[address][link]
                del self._addresses[link][address]

    def remove(self, link: Link) -> list[NetworkAddress]:
        """A link serves nothing any more; what it did."""
        addresses = list(self._addresses.pop(link, ()))
        for address in addresses:
            links = self._links[address]
            del links[link]
            if not links:
                del self._links[address]  # nothing of what strangers announce may stay
        return addresses

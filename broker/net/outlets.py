"""Which link an outbox leaves by: the one that serves its address now, or that of the principal of its pair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.forwarding.forwarder import Forwarder
from broker.net.link import Link
from broker.net.servers import Servers
from broker.routing.address import NetworkAddress


class Outlets:
    """
    Gives outboxes their links. Loop-only.

    Args:
        servers: Who serves what.
        want: An address has frames and no link.
        on_room: Some outbox has another link; told in a later turn of the loop, as more may be about to change.

    Shape: `forwarder` whose outboxes they are, to be set before anything else.
    """

    forwarder: Forwarder

    def __init__(
        self, servers: Servers, *, want: Callable[[NetworkAddress], None], on_room: Callable[[], None]
    ) -> None:
        self._servers = servers
        self._want = want
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()

    @property
    def is_draining(self) -> bool:
        """Whether anything waits that a link may still take."""
        return any(outbox.held and outbox.outlet is not None for outbox in self.forwarder.every_outbox())

    def replacing(self, addresses: Iterable[NetworkAddress]) -> set[NetworkAddress]:
        """Where frames for these addresses may go once nobody serves them: there again, and what leads on as well."""
        others: set[NetworkAddress] = set()
        for address in addresses:
            if self._servers.staying(address) is None:
                boxes = list(self.forwarder.outboxes_to(address))
                others.update(*(outbox.alternatives for outbox in boxes), [address] if boxes else [])
        return {address for address in others if self._servers.staying(address) is None}

    def fit(self, address: NetworkAddress) -> None:
        """Give what is for an address the link that serves it now; dial when there is none and frames wait."""
        link = self._servers.serving(address)
        for outbox in list(self.forwarder.outboxes_to(address)):
            if outbox.outlet is not link:
                outbox.outlet = link
                outbox.drain(self._loop.time())
                self._loop.call_soon(self._on_room)
            if link is None and outbox.held:
                self._want(address)

    def drain(self, link: Link) -> None:
        """The link takes more: let what waits for it leave, address by address."""
        boxes = [
            outbox
            for address in list(self._servers.addresses_of(link))
            for outbox in self.forwarder.outboxes_to(address)
            if outbox.held and outbox.outlet is link
        ]
        first = link.sends % len(boxes) if boxes else 0  # or one that always has more would keep the others waiting
        now = self._loop.time()
        for outbox in boxes[first:] + boxes[:first]:
            outbox.drain(now)

"""
What waits takes another way: routes or health have changed, an address leads back here, a principal is another one.

This decides which queues are looked at and by which rule; `moving` does it, a slice at a time. What was sent by a
database here is never moved: its dialog sends it again. Loop-only; called by the forwarder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from broker.forwarding.deciding import Decider
from broker.forwarding.held import Held
from broker.forwarding.moving import Moves, RerouteReason
from broker.forwarding.outbox import Outbox
from broker.forwarding.way import ForwardingEntry
from broker.forwarding.ways import ForwardingTable
from broker.protocol.layout import HOP_COUNT_AT
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.route import MirroredPair


class Rerouting:
    """Starts moves; the caller goes on with them."""

    def __init__(self, decider: Decider, ways: ForwardingTable, moves: Moves) -> None:
        self._decider = decider
        self._ways = ways
        self._moves = moves

    def by_routes(self) -> None:
        """Routes have changed: all that waits for a next hop that nobody serves takes the way that holds now (R1.6)."""
        for outbox in [outbox for outbox in self._ways.every_outbox() if outbox.held]:
            self._moves.start(outbox, RerouteReason.ROUTES, self._by_routes)

    def by_health(self, has_failed: Callable[[NetworkAddress], bool]) -> None:
        """As `Forwarder.mend`."""
        health_of = self._decider.here.health_of
        for here, outbox in list(self._ways.outboxes.items()):
            if not outbox.held or outbox.outlet is not None:
                continue
            health = health_of(here)
            better = {
                address
                for address in outbox.alternatives
                if (found := health_of(address)) < health
                and (found is AddressHealth.CONNECTED or not has_failed(address))
            }
            if better:
                self._moves.start(outbox, RerouteReason.BETTER, partial(self._by_health, better))
            else:
                for address in outbox.alternatives:
                    self._ways.outbox(address).want_link()

    def from_ourselves(self, addresses: Iterable[NetworkAddress]) -> None:
        """These addresses lead to this very instance: what waits for them is routed anew (R3.9)."""
        for address in addresses:
            outbox = self._ways.outboxes.get(address)
            if outbox is not None:
                self._moves.start(outbox, RerouteReason.ITSELF, self._by_decision)

    def by_principals(self, changes: Mapping[MirroredPair, NetworkAddress | None]) -> None:
        """The principals of these pairs are elsewhere: a link takes what waits, or it is routed anew when we are it."""
        wanting: dict[NetworkAddress, Outbox] = {}  # whoever serves an address takes what is in all that lead there
        for pair, address in changes.items():
            outbox = self._ways.pairs.outboxes.get(pair)
            if outbox is None or address is None:
                continue
            if address in self._decider.here.own:
                self._moves.start(outbox, RerouteReason.ITSELF, self._by_decision)
            else:
                wanting[address] = outbox
        for outbox in wanting.values():
            outbox.want_link()

    def _by_decision(self, _: Outbox, held: Held) -> ForwardingEntry | None:
        return self._decider.way_now(held.frame)

    def _by_routes(self, outbox: Outbox, held: Held) -> ForwardingEntry | None:
        """The way of a frame from outside (what was sent here is sent again) when it is another one, and unserved."""
        if held.frame[HOP_COUNT_AT] == 0:
            return None
        way = self._decider.way_now(held.frame)  # if it stays, that tells its outbox the alternatives
        return None if way is held.way or outbox.outlet is not None else way

    def _by_health(self, better: AbstractSet[NetworkAddress], outbox: Outbox, held: Held) -> ForwardingEntry | None:
        """The same, if it leads to one of these addresses."""
        if outbox.outlet is not None:
            return None
        way = self._by_routes(outbox, held)
        return way if way is not None and isinstance(way.sink, Outbox) and way.sink.address in better else None

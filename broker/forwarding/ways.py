"""
Every way there is and where it leads: outboxes by address, databases here, drops.

A way is made when first asked for and stays until its outbox is retired, so that its count stays. Addresses that routes
name are as many as there are routes. Addresses that only a service name tells, by ADDRESS 'TRANSPORT', are invented by
peers, so there is a bound for those alone: past it a new one is refused, and those that nobody serves and nothing waits
for are forgotten. Loop-only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from broker.flow import Disposition
from broker.forwarding.outbox import Destination, Outbox, Ports
from broker.forwarding.pairs import AskPrincipal, MirroredOutboxes
from broker.forwarding.pool import Pool
from broker.forwarding.sink import DatabaseSink, Deliver, DropSink
from broker.forwarding.way import ForwardingEntry, Sink
from broker.protocol.layout import FrameKind
from broker.routing.address import TRANSPORT, NetworkAddress
from broker.routing.decide import Decision

OTHER_KIND = max(FrameKind) + 1  # dialog kinds of later versions are counted together: a peer may invent 237 of them
INVENTED_MAX = 4096  # outboxes for addresses that no route names
_TO_PRINCIPAL = frozenset({Disposition.FORWARDED, Disposition.PRINCIPAL_UNKNOWN})  # where a mirrored route may lead

WayKey = tuple[Sink, str, int]
"""Sink, route and kind."""


class ForwardingTable:
    """Shape: `outboxes` by address, `pairs` those of mirrored pairs; `by_key` all ways, frames as of the last tally."""

    def __init__(
        self,
        pool: Pool,
        ports: Ports,
        *,
        want: Callable[[NetworkAddress], None],
        deliver: Deliver,
        ask_principal: AskPrincipal = lambda _: None,
    ) -> None:
        self.outboxes: dict[NetworkAddress, Outbox] = {}
        self.pairs = MirroredOutboxes(self._new_outbox, want=want, ask=ask_principal)
        self.by_key: dict[WayKey, ForwardingEntry] = {}
        self._invented: set[NetworkAddress] = set()
        self._pool = pool
        self._ports = ports
        self._want = want
        self._deliver = deliver
        self._databases: dict[bytes, DatabaseSink] = {}
        self._drop_sinks: dict[Disposition, DropSink] = {}

    def of(self, decision: Decision, kind: int, address: NetworkAddress | None = None) -> ForwardingEntry:
        """The way that a decision leads to: on, by the best of its candidates or this one of them, or not."""
        route = decision.route
        pair = None if route is None or decision.disposition not in _TO_PRINCIPAL else route.pair
        if route is not None and pair is not None:  # known or not: what waits for the principal leaves when it is
            return self.to(self.pairs.outbox(pair), Disposition.FORWARDED, route.name, kind)
        if decision.disposition is Disposition.FORWARDED:
            address = address or decision.candidates[0].address
            outbox = self._outbox_on(address, is_invented=route is not None and route.address == TRANSPORT)
            if outbox is None:
                return self.drop(Disposition.POOL_LIMIT, kind)
            sink: Sink = outbox
        elif decision.disposition is Disposition.DELIVERED and decision.database is not None:
            sink = self._database(decision.database)
        else:
            return self.drop(decision.disposition, kind)
        return self.to(sink, decision.disposition, route.name if route else "", kind)

    def to(self, sink: Sink, disposition: Disposition, route: str, kind: int) -> ForwardingEntry:
        """The way by a route to a sink."""
        kind = min(kind, OTHER_KIND)
        way = self.by_key.get((sink, route, kind))
        if way is None:
            way = self.by_key[sink, route, kind] = ForwardingEntry(sink, disposition, kind=kind, route=route)
        return way

    def drop(self, disposition: Disposition, kind: int) -> ForwardingEntry:
        """The way of a drop."""
        sink = self._drop_sinks.get(disposition)
        if sink is None:
            sink = self._drop_sinks[disposition] = DropSink(disposition, self._ports.drop)
        return self.to(sink, disposition, "", kind)

    def outbox(self, address: NetworkAddress) -> Outbox:
        """The outbox of an address, made when first asked for."""
        outbox = self.outboxes.get(address)
        if outbox is None:
            outbox = self.outboxes[address] = self._new_outbox(address, partial(self._want, address))
        return outbox

    def every_outbox(self) -> Iterator[Outbox]:
        """All that may hold frames."""
        yield from self.outboxes.values()
        yield from self.pairs.outboxes.values()

    def outboxes_to(self, address: NetworkAddress) -> Iterator[Outbox]:
        """Those whose frames a link to this address takes."""
        outbox = self.outboxes.get(address)
        if outbox is not None:
            yield outbox
        yield from self.pairs.led_to(address)

    def is_invented(self, address: NetworkAddress) -> bool:
        """Whether no route has named this address so far."""
        return address in self._invented

    def idle(self) -> set[Outbox]:
        """Those to be retired, when there are too many: for invented addresses, served by nobody, without frames."""
        if len(self._invented) < INVENTED_MAX:
            return set()
        boxes = [self.outboxes[address] for address in self._invented]
        return {outbox for outbox in boxes if outbox.outlet is None and not outbox.held}

    def retire(self, idle: set[Outbox]) -> list[ForwardingEntry]:
        """Forget outboxes, and the ways that lead to them, which are returned; the kernel has counted up to now."""
        self.outboxes = {address: outbox for address, outbox in self.outboxes.items() if outbox not in idle}
        self._invented &= self.outboxes.keys()
        retired = [way for way in self.by_key.values() if way.sink in idle]
        self.by_key = {key: way for key, way in self.by_key.items() if way.sink not in idle}
        return retired

    def _outbox_on(self, address: NetworkAddress, *, is_invented: bool) -> Outbox | None:
        """The outbox of a next hop; None when there are too many whose addresses peers made up."""
        if not is_invented:
            self._invented.discard(address)
        elif address not in self.outboxes:
            if len(self._invented) >= INVENTED_MAX:
                return None
            self._invented.add(address)
        return self.outbox(address)

    def _database(self, database: bytes) -> DatabaseSink:
        sink = self._databases.get(database)
        if sink is None:
            sink = DatabaseSink(database, self._deliver, self._ports.drop, self._ports.ring)
            self._databases[database] = sink
        return sink

    def _new_outbox(self, address: Destination, want: Callable[[], None]) -> Outbox:
        return Outbox(address, pool=self._pool, want=want, ports=self._ports)

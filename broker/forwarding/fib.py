"""
What is on its way to mirrored pairs: one outbox each, which leads to the principal, and to nobody while none is known.

What waits stays where it is when the principal changes; only the link is another one. So its order is kept over any
number of switches, lifetimes and the bound of the pool hold all the while, and nothing waits for an address that was
the principal once. Loop-only; changed by the forwarder alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, Report, Sink
from broker.forwarding.held_frames import DialogAffinity, key_of
from broker.forwarding.outbox import DatabaseSink, Deliver, Destination, DropSink, Outbox, Ports, Want
from broker.forwarding.pool import Pool
from broker.protocol.layout import (
    CONVERSATION_AT,
    GUID_BYTES,
    HEADER_BYTES,
    NO_GUID,
    ROUTE_KEY_AT,
    TO_SERVICE_AT,
    Flag,
    FrameKind,
)
from broker.routing.address import TRANSPORT, NetworkAddress
from broker.routing.decide import (
    AddressHealth,
    Decision,
    HealthOf,
    Hosted,
    Principals,
    RoutingContext,
    RoutingFacts,
    decide,
)
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable

NewOutbox = Callable[[MirroredPair, Want], Outbox]
AskPrincipal = Callable[[MirroredPair], None]
"""Somebody has frames for a pair whose principal is not known; must not fail, and be quick: it may be said often."""


class MirroredOutboxes:
    """
    Shape: `outboxes` by pair, made when first asked for; `principals` where they lead, replaced whole by `lead`; `left`
    frames that left for earlier principals, by route and address, of each pair.
    """

    def __init__(self, new_outbox: NewOutbox, *, want: Callable[[NetworkAddress], None], ask: AskPrincipal) -> None:
        self.outboxes: dict[MirroredPair, Outbox] = {}
        self.principals: Principals = {}
        self.left: dict[MirroredPair, Counter[tuple[str, str]]] = {}
        self._at: dict[NetworkAddress, dict[MirroredPair, None]] = {}
        self._new_outbox = new_outbox
        self._want = want
        self._ask = ask

    def outbox(self, pair: MirroredPair) -> Outbox:
        """The outbox of a pair."""
        outbox = self.outboxes.get(pair)
        if outbox is None:
            outbox = self.outboxes[pair] = self._new_outbox(pair, partial(self._want_principal, pair))
        return outbox

    def led_to(self, address: NetworkAddress) -> Iterable[Outbox]:
        """The outboxes of those pairs whose principal is at this address."""
        pairs = self._at.get(address)
        return () if pairs is None else [self.outboxes[pair] for pair in pairs if pair in self.outboxes]

    def lead(self, changes: Mapping[MirroredPair, NetworkAddress | None], ways: Iterable[ForwardingEntry]) -> None:
        """
        From now on the principals of these pairs are here, or not known.

        Args:
            changes: By pair; each another one than before.
            ways: All there are, their frames counted up to now.
        """
        outboxes = {self.outboxes[pair]: pair for pair in changes if pair in self.outboxes}
        for way in ways:
            pair = outboxes.get(way.sink)  # type: ignore[call-overload]  # any sink may be asked for
            if pair is not None and pair in self.principals:
                self.left.setdefault(pair, Counter())[way.route, str(self.principals[pair])] += way.frames
                way.frames = 0
        principals = dict(self.principals)
        for pair, address in changes.items():
            before = principals.pop(pair, None)
            if before is not None:
                del self._at[before][pair]
                if not self._at[before]:
                    del self._at[before]
            if address is not None:
                principals[pair] = address
                self._at.setdefault(address, {})[pair] = None
        self.principals = principals
        for outbox in outboxes:
            outbox.outlet = None

    def idle(self) -> set[Outbox]:
        """Those that lead nowhere and hold nothing."""
        return {box for pair, box in self.outboxes.items() if not box.held and pair not in self.principals}

    def retire(self, idle: set[Outbox]) -> int:
        """Forget outboxes; the frames that had left through them for earlier principals."""
        gone = {pair for pair, outbox in self.outboxes.items() if outbox in idle}
        self.outboxes = {pair: outbox for pair, outbox in self.outboxes.items() if pair not in gone}
        return sum(self.left.pop(pair).total() for pair in gone & self.left.keys())

    def _want_principal(self, pair: MirroredPair) -> None:
        principal = self.principals.get(pair)
        if principal is None:
            self._ask(pair)
        else:
            self._want(principal)


# --- ways ---
# Every way there is and where it leads: outboxes by address, databases here, drops.
#
# A way is made when first asked for and stays until its outbox is retired, so that its count stays. Addresses that
# routes
# name are as many as there are routes. Addresses that only a service name tells, by ADDRESS 'TRANSPORT', are invented
# by
# peers, so there is a bound for those alone: past it a new one is refused, and those that nobody serves and nothing
# waits
# for are forgotten. Loop-only.


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


# --- deciding ---
# Which way a frame from outside takes: the routing decision, as the kernel asks for it and as what waits does.
#
# A decision is by routes and health as they are now. What the kernel may remember of it is a little less: a dialog
# that
# has frames waiting here for one of its candidates takes that one, until they have left or moved, so that it stays in
# order and a second copy is found where the first one is. Loop-only.


PASSED_MAX = 10_000  # flows remembered for plans of new routes; some 3 MB

Ask = Callable[[RoutingFacts], None]
"""A frame that arrived has no route and msdb's table says whom to ask for one (R2.4); must not fail."""

_FROM_TARGET = int(Flag.FROM_TARGET)


def want_better(decision: Decision, outbox: Callable[[NetworkAddress], Outbox]) -> None:
    """Where the best next hop is about to leave, ask for links to those not tried yet; it is used until then."""
    if decision.candidates and decision.candidates[0].health is AddressHealth.LEAVING:
        for candidate in decision.candidates:
            if candidate.health is AddressHealth.UNTRIED:
                outbox(candidate.address).want_link()


class Decider:
    """
    Shape: `here` what incoming frames are decided by, swapped whole; `passed` what passed or arrived lately, at most
    `PASSED_MAX`, the latest at the end; `ask` as `Ask`; `is_bound` whether the kernel has been told of a way that holds
    only while others of its dialog wait: it has to forget that now and then.
    """

    def __init__(
        self, ways: ForwardingTable, places: DialogAffinity, *, health_of: HealthOf, ask: Ask, report: Report
    ) -> None:
        self.here = RoutingContext(RouteTable(), Hosted(), health_of, is_forwarding=False)
        self.passed: dict[RoutingFacts, None] = {}
        self._ways = ways
        self._places = places
        self.ask = ask
        self.is_bound = False
        self._report = report

    def resolve(
        self,
        key: bytes,
        conversation: bytes,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - as `Resolve`
    ) -> tuple[ForwardingEntry, bool | None]:
        """As `careful.Resolve`: the way of a frame, behind those of its dialog that wait here."""
        try:
            way, decision = self._decide(key, conversation, kind, is_from_target)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
            self._report(None, error)
            return self._ways.drop(Disposition.ROUTE_INVALID, kind), False
        if decision.disposition is Disposition.ASKING_FOR_ROUTE:
            return way, None  # whoever asks has to hear that somebody still wants it: an answer of "none" wears off
        if len(decision.candidates) > 1 and self._places:
            queue = self._places.where(key_of(key, conversation, is_from_target=is_from_target))
            if isinstance(queue, Outbox) and queue is not way.sink:
                for candidate in decision.candidates:
                    if candidate.address == queue.address:
                        self.is_bound = True
                        return self._ways.of(decision, kind, candidate.address), True
        return way, decision.is_by_conversation

    def way_now(self, frame: bytes) -> ForwardingEntry:
        """By routes and health alone, wherever the rest of its dialog waits."""
        key_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
        conversation = frame[CONVERSATION_AT : CONVERSATION_AT + GUID_BYTES]
        return self._decide(frame[ROUTE_KEY_AT:key_end], conversation, frame[4], bool(frame[5] & _FROM_TARGET))[0]

    def _decide(
        self,
        key: bytes,
        conversation: bytes,
        kind: int,
        is_from_target: bool,  # noqa: FBT001 - as `Resolve`
    ) -> tuple[ForwardingEntry, Decision]:
        try:
            to_service = key[HEADER_BYTES - ROUTE_KEY_AT :].decode()
        except UnicodeDecodeError:
            return self._ways.drop(Disposition.MALFORMED, kind), Decision(Disposition.MALFORMED, 0)
        facts = RoutingFacts(to_service, key[:GUID_BYTES], conversation, is_from_target=is_from_target)
        decision = decide(facts, self.here)
        if decision.disposition is Disposition.ASKING_FOR_ROUTE:
            self.ask(facts)
        self._note(facts if decision.is_by_conversation else replace(facts, conversation_id=NO_GUID))
        way = self._ways.of(decision, kind)
        want_better(decision, self._ways.outbox)
        addresses = {candidate.address for candidate in decision.candidates}
        for address in addresses & self._ways.outboxes.keys() if len(addresses) > 1 else ():
            self._ways.outboxes[address].alternatives |= addresses - {address}
        return way, decision

    def _note(self, facts: RoutingFacts) -> None:
        """Remember what passes, the latest at the end."""
        self.passed.pop(facts, None)
        self.passed[facts] = None
        if len(self.passed) > PASSED_MAX:
            del self.passed[next(iter(self.passed))]

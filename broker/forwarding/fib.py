"""
The forwarding information base: where frames may be sent now, and how a frame that the kernels do not know gets there.

`ForwardingTable` holds every sink and every entry that leads to one. Both are made when first needed and stay until
the outbox is retired, so that counts stay. The addresses that routes name are as many as there are routes. Addresses
that only a service name contains (a route with ADDRESS 'TRANSPORT') are invented by peers, so these alone have a bound:
at it a new one is refused, and those without a link and without frames are forgotten.

Frames for a mirrored pair have a separate outbox, which leads to the principal, and nowhere while none is known.
Waiting frames stay there when the principal changes; only the link is another one. So their order is kept over any
number of switches, lifetimes and the bound of the pool hold at all times, and no frame waits for a former principal's
address.

`Resolver` makes the routing decision for a frame from outside, by routes and health as they are now. Only a dialog with
frames waiting here for one of several candidates keeps to that one until they have left or were rerouted, which is not
cached. So it stays in order, and a second copy is found where the first one is. Loop-only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.entry import ForwardingEntry, Report, Sink, conversation_of, route_key_of
from broker.forwarding.held_frames import FROM_TARGET, DialogAffinity, affinity_key
from broker.forwarding.outbox import DatabaseSink, Deliver, Destination, DropSink, Outbox, OutboxContext
from broker.forwarding.pool import Pool
from broker.protocol.layout import GUID_BYTES, HEADER_BYTES, NO_GUID, ROUTE_KEY_AT, FrameKind
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

INVENTED_MAX = 4096  # outboxes for addresses that no route names
PASSED_MAX = 10_000  # flows remembered for plans of new routes; some 3 MB
NAMED_MAX = 10_000  # dialogs remembered for what their next hops answer; some 3 MB
OTHER_KIND = max(FrameKind) + 1  # dialog kinds of later versions are counted together: a peer may invent 237 of them

_TO_PRINCIPAL = frozenset({Disposition.FORWARDED, Disposition.PRINCIPAL_UNKNOWN})  # decisions for a mirrored pair

AskForRoute = Callable[[RoutingFacts], bool]
"""
A frame has no route and msdb's table names a configuration service to ask for one (R2.4); must not fail. True when
another conversation's request is pending, so that this one is matched without asking.
"""
RequestLink = Callable[[NetworkAddress], None]
"""Frames wait for this address and no link serves it; must not fail, and may be called often."""
RequestPrincipal = Callable[[MirroredPair], None]
"""Frames wait for this pair and its principal is not known; must not fail, and may be called often."""
EntryKey = tuple[Sink, str, int]
"""Sink, route and kind."""
Choice = frozenset[NetworkAddress]
"""The candidates of one decision."""


class ForwardingTable:
    """All outboxes, databases and drops, and the entries that lead to them."""

    def __init__(
        self,
        pool: Pool,
        context: OutboxContext,
        *,
        request_link: RequestLink,
        request_principal: RequestPrincipal,
        deliver: Deliver,
    ) -> None:
        self.entries: dict[EntryKey, ForwardingEntry] = {}  # frames as of the last tally of the kernels
        self.outboxes: dict[NetworkAddress, Outbox] = {}
        self.pair_outboxes: dict[MirroredPair, Outbox] = {}
        self.principals: Principals = {}  # where they lead; replaced whole by `set_principals`
        self.sent_earlier: dict[MirroredPair, Counter[tuple[str, str]]] = {}  # frames to former principals, by route
        self._choices: dict[str | None, set[Choice]] = {}  # next hops that frames had a choice of, by service of routes
        self._pairs_at: dict[NetworkAddress, dict[MirroredPair, None]] = {}  # by the address of their principal
        self._invented: set[NetworkAddress] = set()
        self.databases: dict[bytes, DatabaseSink] = {}
        self._drop_sinks: dict[Disposition, DropSink] = {}
        self._pool = pool
        self._context = context
        self._request_link = request_link
        self._request_principal = request_principal
        self._deliver = deliver

    # --- entries ---

    def entry_for(self, decision: Decision, kind: int, address: NetworkAddress | None = None) -> ForwardingEntry:
        """The entry for a decision: to the best of its candidates, or to this one of them, to a database or a drop."""
        route = decision.route
        name = "" if route is None else route.name
        pair = None if route is None or decision.disposition not in _TO_PRINCIPAL else route.pair
        if pair is not None:  # also while the principal is unknown: waiting frames leave when it is known
            return self.entry_to(self.pair_outbox(pair), Disposition.FORWARDED, name, kind)
        if decision.disposition is Disposition.FORWARDED:
            address = address or decision.candidates[0].address
            outbox = self._bounded_outbox(address, is_invented=route is not None and route.address == TRANSPORT)
            if outbox is None:
                return self.drop_entry(Disposition.POOL_LIMIT, kind)
            sink: Sink = outbox
        elif decision.disposition is Disposition.DELIVERED and decision.database is not None:
            sink = self._database(decision.database)
        else:
            return self.drop_entry(decision.disposition, kind)
        return self.entry_to(sink, decision.disposition, name, kind)

    def entry_to(self, sink: Sink, disposition: Disposition, route: str, kind: int) -> ForwardingEntry:
        """The entry that leads by a route to a sink."""
        kind = min(kind, OTHER_KIND)
        entry = self.entries.get((sink, route, kind))
        if entry is None:
            entry = self.entries[sink, route, kind] = ForwardingEntry(sink, disposition, kind=kind, route=route)
            if isinstance(sink, Outbox):
                sink.entries.append(entry)
        return entry

    def drop_entry(self, disposition: Disposition, kind: int) -> ForwardingEntry:
        """The entry of frames that are dropped for this reason."""
        sink = self._drop_sinks.get(disposition)
        if sink is None:
            sink = self._drop_sinks[disposition] = DropSink(disposition, self._context.drop)
        return self.entry_to(sink, disposition, "", kind)

    # --- outboxes ---

    def outbox(self, address: NetworkAddress) -> Outbox:
        """The outbox of an address, made when first asked for."""
        outbox = self.outboxes.get(address)
        if outbox is None:
            outbox = self.outboxes[address] = self._new_outbox(address, partial(self._request_link, address))
        return outbox

    def pair_outbox(self, pair: MirroredPair) -> Outbox:
        """The outbox of a mirrored pair, made when first asked for."""
        outbox = self.pair_outboxes.get(pair)
        if outbox is None:
            request = partial(self._request_link_to_principal, pair)
            outbox = self.pair_outboxes[pair] = self._new_outbox(pair, request)
        return outbox

    def all_outboxes(self) -> Iterator[Outbox]:
        """Every outbox: those of addresses, then those of mirrored pairs."""
        yield from self.outboxes.values()
        yield from self.pair_outboxes.values()

    def outboxes_to(self, address: NetworkAddress) -> Iterator[Outbox]:
        """Those that a link to this address serves: its own, and those of pairs whose principal is there."""
        outbox = self.outboxes.get(address)
        if outbox is not None:
            yield outbox
        for pair in tuple(self._pairs_at.get(address, ())):
            if pair in self.pair_outboxes:
                yield self.pair_outboxes[pair]

    def is_invented(self, address: NetworkAddress) -> bool:
        """Whether no route has named this address so far."""
        return address in self._invented

    def set_principals(self, changes: Mapping[MirroredPair, NetworkAddress | None]) -> None:
        """The principals of these pairs are elsewhere now, or unknown; the kernels have counted their frames so far."""
        outboxes = {self.pair_outboxes[pair]: pair for pair in changes if pair in self.pair_outboxes}
        for outbox, pair in outboxes.items():
            for entry in outbox.entries if pair in self.principals else ():
                self.sent_earlier.setdefault(pair, Counter())[entry.route, str(self.principals[pair])] += entry.frames
                entry.frames = 0
        principals = dict(self.principals)
        for pair, address in changes.items():
            previous = principals.pop(pair, None)
            if previous is not None:
                del self._pairs_at[previous][pair]
                if not self._pairs_at[previous]:
                    del self._pairs_at[previous]
            if address is not None:
                principals[pair] = address
                self._pairs_at.setdefault(address, {})[pair] = None
        self.principals = principals
        for outbox in outboxes:
            outbox.outlet = None

    # --- choices ---

    def note_choice(self, decision: Decision) -> None:
        """The candidates of this decision are alternatives of each other, until its route's service is forgotten."""
        assert decision.route is not None
        choice = frozenset(candidate.address for candidate in decision.candidates)
        self._choices.setdefault(decision.route.remote_service_name, set()).add(choice)

    def forget_choices(self, services: AbstractSet[str] | None) -> None:
        """The routes of these services have changed; None: of any."""
        for service in list(self._choices) if services is None else services:
            self._choices.pop(service, None)

    def alternatives(self) -> dict[NetworkAddress, set[NetworkAddress]]:
        """Other next hops of some of the frames that came from outside for an address. Cost: the choices there are."""
        found: dict[NetworkAddress, set[NetworkAddress]] = {}
        for choice in set().union(*self._choices.values()):
            for address in choice:
                found.setdefault(address, set()).update(choice - {address})
        return found

    # --- what is no longer used ---

    def idle_invented(self) -> set[Outbox]:
        """The outboxes of invented addresses without link and frames, when there are too many."""
        if len(self._invented) < INVENTED_MAX:
            return set()
        outboxes = [self.outboxes[address] for address in self._invented]
        return {outbox for outbox in outboxes if outbox.outlet is None and not outbox.held}

    def idle_pairs(self) -> set[Outbox]:
        """The outboxes of pairs without principal and frames."""
        return {box for pair, box in self.pair_outboxes.items() if not box.held and pair not in self.principals}

    def retire(self, idle: set[Outbox]) -> tuple[list[ForwardingEntry], int]:
        """
        Forget outboxes and the entries that lead to them; the kernels have counted up to now.

        Returns:
            The entries, and how many frames had left through these outboxes.
        """
        pairs = {pair for pair, outbox in self.pair_outboxes.items() if outbox in idle}
        earlier = sum(self.sent_earlier.pop(pair).total() for pair in pairs & self.sent_earlier.keys())
        self.pair_outboxes = {pair: outbox for pair, outbox in self.pair_outboxes.items() if pair not in pairs}
        self.outboxes = {address: outbox for address, outbox in self.outboxes.items() if outbox not in idle}
        self._invented &= self.outboxes.keys()
        retired = [entry for outbox in idle for entry in outbox.entries]
        self.entries = {key: entry for key, entry in self.entries.items() if entry.sink not in idle}
        return retired, earlier + sum(entry.frames for entry in retired)

    def _bounded_outbox(self, address: NetworkAddress, *, is_invented: bool) -> Outbox | None:
        """The outbox of a next hop; None when there are too many whose addresses peers invented."""
        if not is_invented:
            self._invented.discard(address)
        elif address not in self.outboxes:
            if len(self._invented) >= INVENTED_MAX:
                return None
            self._invented.add(address)
        return self.outbox(address)

    def _database(self, database: bytes) -> DatabaseSink:
        sink = self.databases.get(database)
        if sink is None:
            sink = DatabaseSink(database, self._deliver, self._context.drop, self._context.ring)
            self.databases[database] = sink
        return sink

    def _new_outbox(self, address: Destination, request_link: Callable[[], None]) -> Outbox:
        return Outbox(address, pool=self._pool, request_link=request_link, context=self._context)

    def _request_link_to_principal(self, pair: MirroredPair) -> None:
        principal = self.principals.get(pair)
        if principal is None:
            self._request_principal(pair)
        else:
            self._request_link(principal)


class Resolver:
    """Decides which entry a frame from outside takes."""

    def __init__(
        self,
        table: ForwardingTable,
        affinity: DialogAffinity,
        *,
        health_of: HealthOf,
        ask_for_route: AskForRoute,
        report: Report,
    ) -> None:
        self.context = RoutingContext(RouteTable(), Hosted(), health_of, is_forwarding=False)  # replaced whole
        self.passed: OrderedDict[RoutingFacts, None] = OrderedDict()  # of the last `PASSED_MAX` decisions, latest last
        self._named: OrderedDict[tuple[bytes, NetworkAddress], bytes] = OrderedDict()  # see `named_at`
        self._table = table
        self._affinity = affinity
        self._ask_for_route = ask_for_route
        self._report = report

    def resolve(
        self, key: bytes, conversation: bytes, kind: int, is_from_target: bool
    ) -> tuple[ForwardingEntry, bool | None]:
        """As `slow_path.Resolve`: the entry of a frame, after those of its dialog that wait here."""
        try:
            entry, decision, is_asked = self._decide(key, conversation, kind, is_from_target)
        except Exception as error:  # noqa: BLE001 - a bug of ours: this frame is dropped, all others go on
            self._report(None, error)
            return self._table.drop_entry(Disposition.ROUTE_INVALID, kind), False
        is_asked |= decision.disposition is Disposition.ASKING_FOR_ROUTE
        if is_asked or entry.disposition is Disposition.POOL_LIMIT:
            return entry, None  # not cached: each frame renews the question, and the bound is not that of a route
        if len(decision.candidates) > 1 and self._affinity:
            outbox = self._affinity.outbox_of(affinity_key(key, conversation, is_from_target=is_from_target))
            if isinstance(outbox, Outbox) and outbox is not entry.sink:
                for candidate in decision.candidates:
                    if candidate.address == outbox.address:
                        self._record_named(key, conversation, candidate.address)
                        return self._table.entry_for(decision, kind, candidate.address), None
        return entry, decision.is_by_conversation

    def entry_now(self, frame: bytes) -> ForwardingEntry:
        """The entry of a held frame by routes and health alone, wherever the rest of its dialog waits."""
        return self._decide(route_key_of(frame), conversation_of(frame), frame[4], bool(frame[5] & FROM_TARGET))[0]

    def named_at(self, address: NetworkAddress, conversation: bytes) -> tuple[str, bytes] | None:
        """The service and broker instance that a dialog has named at this one of several next hops, the latest."""
        key = self._named.get((conversation, address))
        return None if key is None else (key[HEADER_BYTES - ROUTE_KEY_AT :].decode(), key[:GUID_BYTES])

    def _decide(
        self, key: bytes, conversation: bytes, kind: int, is_from_target: bool
    ) -> tuple[ForwardingEntry, Decision, bool]:
        try:
            to_service = key[HEADER_BYTES - ROUTE_KEY_AT :].decode()
        except UnicodeDecodeError:
            return self._table.drop_entry(Disposition.MALFORMED, kind), Decision(Disposition.MALFORMED, 0), False
        facts = RoutingFacts(to_service, key[:GUID_BYTES], conversation, is_from_target=is_from_target)
        decision = decide(facts, self.context)
        if decision.disposition is Disposition.ASKING_FOR_ROUTE and self._ask_for_route(facts):
            facts = replace(facts, is_asked=True)
            decision = decide(facts, self.context)
        self._record_passed(facts if decision.is_by_conversation else replace(facts, conversation_id=NO_GUID))
        if len(decision.candidates) > 1:
            self._table.note_choice(decision)
            request_better(decision, self._table)
            self._record_named(key, conversation, decision.candidates[0].address)
        return self._table.entry_for(decision, kind), decision, facts.is_asked

    def _record_named(self, key: bytes, conversation: bytes, address: NetworkAddress) -> None:
        if key[:GUID_BYTES] != NO_GUID:
            self._named[conversation, address] = key
            self._named.move_to_end((conversation, address))
            if len(self._named) > NAMED_MAX:
                self._named.popitem(last=False)

    def _record_passed(self, facts: RoutingFacts) -> None:
        self.passed[facts] = None
        self.passed.move_to_end(facts)
        if len(self.passed) > PASSED_MAX:
            self.passed.popitem(last=False)  # O(1); the first key of a dict is searched from its beginning


def request_better(decision: Decision, table: ForwardingTable) -> None:
    """While the best next hop is about to leave, request links to those that were not tried yet."""
    if decision.candidates and decision.candidates[0].health is AddressHealth.LEAVING:
        for candidate in decision.candidates:
            if candidate.health is AddressHealth.UNTRIED:
                table.outbox(candidate.address).request_link()

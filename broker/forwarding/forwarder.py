"""
The one pass of a frame through an instance: slab -> kernel -> ways -> sinks, one call stack without `await`.

The forwarder owns the slab, the kernel, the pool, the ways and the outboxes, and every counter of the pass. What
it decides by (`Surroundings`) is swapped whole; a swap, and every change of health, makes the kernel forget and raises
`generation`, by which dialogs know that their own way may be out of date. It never acknowledges, stores, reassembles,
decrypts or reorders, and forgets everything when it stops: the sender still has each message.

Counting: every frame that enters (`take`, `submit`) is counted once, as forwarded or delivered on its way, as dropped
under its disposition, or it is held now; `unaccounted` is the difference and is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial

from broker.flow import Disposition
from broker.forwarding.batch import Batch
from broker.forwarding.careful import CarefulKernel
from broker.forwarding.held import Held
from broker.forwarding.kernel import Kernel
from broker.forwarding.outbox import GATHER_BYTES, Outbox
from broker.forwarding.pool import Pool
from broker.forwarding.sink import DatabaseSink, Deliver, DropSink
from broker.forwarding.unfinished import Unfinished
from broker.forwarding.way import Buffer, Nobody, Origin, Sink, Way, WayOf
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health, HealthOf
from broker.routing.decide import Decision, Surroundings, decide
from broker.routing.facts import Facts, Hosted
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable
from broker.wire.layout import (
    CONVERSATION_AT,
    GUID_BYTES,
    HEADER_BYTES,
    HOP_COUNT_AT,
    MESSAGE_ID_AT,
    NO_GUID,
    ROUTE_KEY_AT,
    Kind,
)

READ_BYTES = 256 * 1024  # what one read may bring; larger reads cost latency, smaller ones system calls
OTHER_KIND = max(Kind) + 1  # dialog kinds of later versions are counted together: a peer may invent 237 of them
OWN_MAX = 1024  # addresses of this very instance that are remembered: with ADDRESS 'TRANSPORT' a peer may invent them
PASSED_MAX = 10_000  # flows remembered for plans of new routes; some 3 MB
OUTBOXES_MAX = 4096  # with ADDRESS 'TRANSPORT' a peer may invent addresses; past it a new one is refused


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Shape: `pool_bytes` the hard bound on what is held, `share_percent` of it for one next hop; `max_frame` bytes;
    `max_hops` 1 .. 255.
    """

    pool_bytes: int
    max_frame: int
    max_hops: int
    share_percent: int = 50


Want = Callable[[NetworkAddress], None]
Ask = Callable[[Facts], None]
"""A frame that arrived has no route and msdb's table says whom to ask for one (R2.4); must not fail."""
HoldBack = Callable[[Outbox, Origin], None]
"""This origin brought more for an outbox that is tight: read no more for a while from its feeders; must not fail."""


class Forwarder:
    """
    The pass and its counters. Loop-only.

    Shape: `slab` is where links read into, large enough for a frame of `max_frame` and one read behind it, `unfinished`
    bounds what they keep between two reads; `received`
    frames that entered, by kind up to `OTHER_KIND`; `dropped` by disposition; `generation` rises whenever a way may
    have changed; `want` asks for a link to an address, `ask` for a route, `hold_back` for a pause; `retired_frames`
    left through outboxes which are no more.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        deliver: Deliver,
        want: Want,
        health_of: HealthOf,
        ask: Ask = lambda _: None,
        kernel: type[CarefulKernel] = Kernel,
        hold_back: HoldBack = lambda *_: None,
    ) -> None:
        self.slab = bytearray(limits.max_frame + READ_BYTES)
        self.unfinished = Unfinished()
        self.pool = Pool(limits.pool_bytes, share_percent=limits.share_percent)
        self.received: Counter[int] = Counter()
        self.dropped: Counter[Disposition] = Counter()
        self.outboxes: dict[NetworkAddress, Outbox] = {}
        self.pairs: dict[MirroredPair, Outbox] = {}
        self.generation = 0
        self.retired_frames = 0
        self.ask = ask
        self._passed: dict[Facts, None] = {}
        self._ways: dict[tuple[Sink, str, int], Way] = {}
        self._here = Surroundings(RouteTable(), Hosted(), health_of, is_forwarding=False)
        self._deliver = deliver
        self._want = want
        self._hold_back = hold_back
        self._databases: dict[bytes, DatabaseSink] = {}
        self._drop_sinks: dict[Disposition, DropSink] = {}
        self._kernel = kernel(
            max_frame=limits.max_frame, max_hops=limits.max_hops, resolve=self._resolve, drop_way=self._drop_way
        )

    @property
    def kernel_name(self) -> str:
        """Which kernel walks: `compiled` or `python`."""
        return self._kernel.name

    # --- what it decides by ---

    @property
    def here(self) -> Surroundings:
        """What incoming frames are decided by: msdb's table and the rest."""
        return self._here

    def surround(self, *, table: RouteTable, hosted: Hosted, is_forwarding: bool) -> None:
        """Swap what incoming frames are decided by, msdb's table first; holds from the next frame on."""
        self._here = replace(self._here, table=table, msdb=table, hosted=hosted, is_forwarding=is_forwarding)
        for outbox in self.outboxes.values():
            outbox.alternatives.clear()
        self.changed()

    def rematch(self, now: float) -> None:
        """What came from outside and waits for a next hop that nobody serves takes the way that holds now (R1.6)."""
        for outbox in [outbox for outbox in self.every_outbox() if outbox.held]:
            if outbox.outlet is None:
                # What was sent here, and by which database's routes, is sent again by its dialog.
                self._reroute(outbox, now, self._other_way)
            else:
                for held in outbox.held:  # which stay, and may have other alternatives
                    self._kernel.way_of(held.frame)
        self._retire({outbox for outbox in self.pairs.values() if not outbox.held})

    def mend(self, now: float, has_failed: Callable[[NetworkAddress], bool]) -> None:
        """
        What came from outside and waits for a next hop that nobody serves takes a better one where there is one (R3.5).

        Better is one that is served, or one not tried yet while this one did not answer; so nothing goes to and fro
        between addresses that are all dead. Cost: O(1) for an outbox without a better alternative.

        Args:
            now: Monotonic seconds.
            has_failed: Whether the last attempt to reach an address failed.
        """
        for here, outbox in list(self.outboxes.items()):
            if not outbox.held or outbox.outlet is not None:
                continue
            health = self._here.health_of(here)
            better = {
                address
                for address in outbox.alternatives
                if (found := self._here.health_of(address)) < health
                and (found is Health.CONNECTED or not has_failed(address))
            }
            if better:
                self._reroute(outbox, now, partial(self._way_to, better))

    def found_self(self, addresses: AbstractSet[NetworkAddress], now: float) -> None:
        """These addresses lead to this very instance: what waits for them, and what comes, takes another way (R3.9)."""
        if len(self._here.own | addresses) > OWN_MAX:
            return
        self._here = replace(self._here, own=self._here.own | addresses)
        self.changed()
        for address in addresses & self.outboxes.keys():
            self._reroute(self.outboxes[address], now, self._way_now)

    def changed(self) -> None:
        """Health or tables have changed: every remembered way is asked for anew."""
        self._kernel.forget()
        self.generation += 1

    @property
    def passed(self) -> Iterable[Facts]:
        """What passed or arrived lately, at most `PASSED_MAX`: by route key, and by conversation where it has a say."""
        return self._passed

    # --- frames come in ---

    def take(self, slab: bytearray, end: int, now: float, origin: Origin) -> Batch:
        """Pass on the whole frames in `slab[:end]`; the batch tells how far that went and what is the link's own."""
        batch = self._kernel.walk(slab, end)
        self._flush(batch, now, origin, self._kernel.way_of)
        return batch

    def submit(self, frames: Iterable[tuple[Way, Buffer]], now: float, origin: Origin) -> None:
        """Send frames of a database here along the ways that `way_for` gave for them."""
        batch = Batch()
        ways: dict[bytes, Way] = {}
        for way, frame in frames:
            batch.gather(way.sink, frame)
            batch.count(way.kind, 1)
            way.frames += 1
            ways[_message_id(frame)] = way
        self._flush(batch, now, origin, lambda frame: ways[_message_id(frame)])

    def way_for(self, decision: Decision, kind: int) -> Way:
        """The way that a decision leads to: on, into a database here, to where a principal is awaited, or to a drop."""
        if decision.disposition is Disposition.FORWARDED:
            address = decision.candidates[0].address
            if len(self.outboxes) >= OUTBOXES_MAX and address not in self.outboxes:
                return self._drop_way(Disposition.POOL_LIMIT, kind)
            sink: Sink = self.outbox(address)
        elif decision.disposition is Disposition.PRINCIPAL_UNKNOWN and decision.route and decision.route.pair:
            sink = self._pair(decision.route.pair)
        elif decision.disposition is Disposition.DELIVERED and decision.database is not None:
            sink = self._databases.setdefault(decision.database, DatabaseSink(decision.database, self._deliver))
        else:
            return self._drop_way(decision.disposition, kind)
        return self._way(sink, decision.disposition, decision.route.name if decision.route else "", kind)

    def outbox(self, address: NetworkAddress) -> Outbox:
        """The outbox of an address, made when first asked for."""
        outbox = self.outboxes.get(address)
        if outbox is None:
            want = partial(self._want, address)
            outbox = Outbox(address, pool=self.pool, drop=self.drop, want=want, hold_back=self._hold_back)
            self.outboxes[address] = outbox
        return outbox

    def every_outbox(self) -> Iterator[Outbox]:
        """All that may hold frames."""
        yield from self.outboxes.values()
        yield from self.pairs.values()

    # --- what became of them ---

    def drop(self, frame: Buffer, disposition: Disposition, origin: Origin | None) -> None:
        """Count a frame that ends here and advise its origin."""
        self.dropped[disposition] += 1
        if origin is not None:
            origin.reject(frame, disposition)

    def expire(self, now: float) -> None:
        """Drop held frames whose lifetime has ended; never called in the middle of a pass."""
        for outbox in self.every_outbox():
            outbox.expire(now)
        if len(self.outboxes) >= OUTBOXES_MAX:
            # Make room for new addresses: forget those that nobody serves and nothing waits for.
            self._retire({outbox for outbox in self.outboxes.values() if outbox.outlet is None and not outbox.held})

    def abandon(self) -> None:
        """The instance stops: what is still held is dropped and counted; its senders have it."""
        for outbox in self.every_outbox():
            outbox.abandon()

    @property
    def ways(self) -> Mapping[tuple[Sink, str, int], Way]:
        """Every way by sink, route and kind, its frames counted up to now."""
        self._kernel.tally()
        return self._ways

    @property
    def forwarded(self) -> int:
        """Frames that left for a next hop since the start."""
        return self.retired_frames + sum(way.frames for way in self.ways.values() if isinstance(way.sink, Outbox))

    @property
    def delivered(self) -> int:
        """Frames handed to a database here since the start."""
        return sum(way.frames for way in self.ways.values() if isinstance(way.sink, DatabaseSink))

    @property
    def unaccounted(self) -> int:
        """Frames that came in and are neither forwarded nor delivered nor dropped nor held; 0 unless there is a bug."""
        return self.received.total() - self.forwarded - self.delivered - self.dropped.total() - self.pool.frames

    # --- the inside, in calling order ---

    def _flush(self, batch: Batch, now: float, origin: Origin, way_of: WayOf) -> None:
        for kind, frames in batch.received.items():
            kind = min(kind, OTHER_KIND)  # noqa: PLW2901
            self.received[kind] += frames
            origin.received[kind] += frames
        for sink in batch.touched:
            sink.flush(now, origin, way_of)

    def _pair(self, pair: MirroredPair) -> Outbox:
        """Where frames wait until the principal of a mirrored pair is known; nobody asks for it yet."""
        outbox = self.pairs.get(pair)
        if outbox is None:
            outbox = Outbox(pair, pool=self.pool, drop=self.drop, want=lambda: None, hold_back=self._hold_back)
            self.pairs[pair] = outbox
        return outbox

    def _reroute(self, outbox: Outbox, now: float, new_way: Callable[[Held], Way | None]) -> None:
        """The frames that wait in an outbox and have a new way take it."""
        batch, size = Batch(), 0
        for frame, way in outbox.surrender(now, new_way):
            way.frames += 1
            batch.gather(way.sink, frame)
            size += len(frame)
            if size >= GATHER_BYTES:  # what is between two outboxes is in no pool, so that is never much
                self._settle(batch, now)
                batch, size = Batch(), 0
        self._settle(batch, now)

    def _settle(self, batch: Batch, now: float) -> None:
        for sink in batch.touched:
            sink.flush(now, Nobody(), self._kernel.way_of)

    def _way_now(self, held: Held) -> Way:
        """By msdb's routes."""
        return self._kernel.way_of(held.frame)

    def _other_way(self, held: Held) -> Way | None:
        """That of a frame from outside, when it is another one now."""
        way = self._way_now(held) if held.frame[HOP_COUNT_AT] > 0 else held.way
        return None if way is held.way else way

    def _way_to(self, addresses: AbstractSet[NetworkAddress], held: Held) -> Way | None:
        """That of a frame from outside, when it leads to one of these addresses now."""
        way = self._other_way(held)
        return way if way is not None and isinstance(way.sink, Outbox) and way.sink.address in addresses else None

    def _retire(self, idle: set[Outbox]) -> None:
        """Forget outboxes, and the ways that lead to them."""
        if not idle:
            return
        self.outboxes = {address: outbox for address, outbox in self.outboxes.items() if outbox not in idle}
        self.pairs = {pair: outbox for pair, outbox in self.pairs.items() if outbox not in idle}
        self.retired_frames += sum(way.frames for way in self.ways.values() if way.sink in idle)
        self._ways = {key: way for key, way in self.ways.items() if way.sink not in idle}
        self.changed()

    def _resolve(self, key: bytes, conversation: bytes, kind: int, is_from_target: bool) -> tuple[Way, bool]:  # noqa: FBT001 - the kernel's callback has no names
        try:
            to_service = key[HEADER_BYTES - ROUTE_KEY_AT :].decode()
        except UnicodeDecodeError:
            return self._drop_way(Disposition.MALFORMED, kind), False
        facts = Facts(to_service, key[:GUID_BYTES], conversation, is_from_target=is_from_target)
        decision = decide(facts, self._here)
        if decision.disposition is Disposition.ASKING_FOR_ROUTE:
            self.ask(facts)
        self._note(facts if decision.is_by_conversation else replace(facts, conversation_id=NO_GUID))
        way = self.way_for(decision, kind)
        addresses = {candidate.address for candidate in decision.candidates}
        for address in addresses & self.outboxes.keys() if len(addresses) > 1 else ():
            self.outboxes[address].alternatives |= addresses - {address}
        return way, decision.is_by_conversation

    def _note(self, facts: Facts) -> None:
        """Remember what passes, the latest at the end."""
        self._passed.pop(facts, None)
        self._passed[facts] = None
        if len(self._passed) > PASSED_MAX:
            del self._passed[next(iter(self._passed))]

    def _drop_way(self, disposition: Disposition, kind: int) -> Way:
        sink = self._drop_sinks.get(disposition)
        if sink is None:
            sink = self._drop_sinks[disposition] = DropSink(disposition, self.drop)
        return self._way(sink, disposition, "", kind)

    def _way(self, sink: Sink, disposition: Disposition, route: str, kind: int) -> Way:
        kind = min(kind, OTHER_KIND)
        way = self._ways.get((sink, route, kind))
        if way is None:
            way = self._ways[sink, route, kind] = Way(sink, disposition, kind=kind, route=route)
        return way


def _message_id(frame: Buffer) -> bytes:
    return bytes(frame[MESSAGE_ID_AT:CONVERSATION_AT])

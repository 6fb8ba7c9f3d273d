"""
Frames that wait take another way, a slice in each turn of the loop.

A queue that moves is looked at from its front, each frame once. What comes meanwhile for a dialog that has frames in it
goes to its end (`Outbox.moving`), so a dialog keeps its order, and is looked at in turn. A slice is longer by what came
since the last one, so that a move ends whatever arrives. A frame for which the next queue has no room stays where it
is, and so does what stands behind it, until there is room. Loop-only; reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum
from functools import partial
from typing import TypeAlias

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, PassResult, Sink, WayOf, frame_bounds
from broker.forwarding.fib import Decider, ForwardingTable
from broker.forwarding.held_frames import DialogAffinity, Held, copy_key, place_key
from broker.forwarding.outbox import GATHER_BYTES, DropSink, Outbox
from broker.forwarding.outbox_queue import Pending
from broker.forwarding.pool import HELD_OVERHEAD, room_in
from broker.forwarding.ring import Ring
from broker.protocol.layout import HOP_COUNT_AT
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.route import MirroredPair

SLICE_FRAMES = 256  # looked at in one turn of the loop; some 15 us each

NewWay: TypeAlias = Callable[[Outbox, Held], ForwardingEntry | None]
"""Which way a frame that waits in this outbox takes now; None when it stays."""

Settle: TypeAlias = Callable[[PassResult, float, WayOf, list[float]], None]
"""Flush what a slice has gathered, which has waited since then."""


class RerouteReason(IntEnum):
    """Why a queue moves; the later ones look at everything that the earlier ones do."""

    BETTER = 1  # another address leads on
    ROUTES = 2  # routes have changed
    ITSELF = 3  # the address leads to this very instance


class Moves:
    """
    Which queues move, and how far that is.

    Shape: `under_way` why and whereto, by queue; a plain dict, because every pass asks whether there is anything in it.
    """

    def __init__(self, settle: Settle, ways: ForwardingTable, places: DialogAffinity, ring: Ring | None) -> None:
        self.under_way: dict[Outbox, tuple[RerouteReason, NewWay]] = {}
        self._lengths: dict[Outbox, int] = {}  # of what was yet to be looked at after the last slice
        self._settle = settle
        self._ways = ways
        self._places = places
        self._ring = ring

    def start(self, outbox: Outbox, reason: RerouteReason, new_way: NewWay) -> None:
        """All that waits there is to be looked at, from the front; anew, where that is under way."""
        running = self.under_way.get(outbox)
        self.under_way[outbox] = running if running is not None and running[0] > reason else (reason, new_way)
        outbox.moving = Pending(outbox.held)
        self._lengths[outbox] = len(outbox.moving)

    def step(self, now: float) -> bool:
        """One slice; whether there is more to do that needs no room first."""
        budget, is_more = SLICE_FRAMES, False
        for outbox, (_, new_way) in list(self.under_way.items()):
            pending = outbox.moving
            assert pending is not None
            most = budget + max(0, len(pending) - self._lengths[outbox])
            looked = self._look(outbox, pending, new_way, now, most)
            budget -= min(budget, looked)
            self._lengths[outbox] = len(pending)
            if pending.first() is None:
                outbox.moving = None
                del self.under_way[outbox], self._lengths[outbox]
            elif looked == most:
                is_more = True
        return is_more

    def divert(self, batch: PassResult, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """What came for a dialog that has frames in a queue that moves goes behind them. Cost: some 1 us a frame."""
        for sink in batch.touched:
            if isinstance(sink, DropSink):
                continue
            kept: list[Buffer] = []
            for run in sink.runs:
                at = 0
                for start, stop in frame_bounds(run):
                    frame = run[start:stop]
                    queue = self._places.where(place_key(frame)) if frame[HOP_COUNT_AT] else None
                    if queue is sink or not isinstance(queue, Outbox) or queue not in self.under_way:
                        continue
                    if at < start:
                        kept.append(run[at:start])
                    at = stop
                    self._put_behind(queue, frame, way_of(frame), now, origin)
                if at < len(run):
                    kept.append(run[at:])
            sink.runs[:] = kept

    def _put_behind(self, queue: Outbox, frame: Buffer, way: ForwardingEntry, now: float, origin: FrameOrigin) -> None:
        way.frames -= 1
        way = self._ways.to(queue, Disposition.FORWARDED, way.route, way.kind)
        way.frames += 1
        queue.take_behind(frame, way, now, origin)

    def _look(self, outbox: Outbox, pending: Pending, new_way: NewWay, now: float, most: int) -> int:
        """Look at so many frames at most; at how many."""
        gathered = _Gathered(self._settle, self._ring, now)
        looked = 0
        while looked < most and (held := pending.first()) is not None:
            way = new_way(outbox, held) if outbox.held.has(held) else None
            if way is not None and way.sink is outbox:
                outbox.held.replace(held, held._replace(way=way))
            elif way is not None:
                if not gathered.has_room(way.sink, held):
                    break
                frame = outbox.give_up(held, now)
                if frame is not None:
                    gathered.add(frame, way, held)
            pending.pop()
            looked += 1
        gathered.settle()
        return looked


class _Gathered:
    """What is between two queues: in no pool, so never much."""

    def __init__(self, settle: Settle, ring: Ring | None, now: float) -> None:
        self._settle = settle
        self._ring = ring
        self._now = now
        self._batch = PassResult()
        self._ways: dict[bytes, ForwardingEntry] = {}
        self._since: list[float] = []  # of those from outside
        self._cost = 0

    def has_room(self, sink: Sink, held: Held) -> bool:
        """Whether the next queue takes a frame, if need be when it has what was gathered so far."""
        if not isinstance(sink, Outbox) or sink.is_ready:
            return True
        cost = len(held.frame) + HELD_OVERHEAD
        if room_in(sink.share) < self._cost + cost:
            self.settle()
        return room_in(sink.share) >= cost

    def add(self, frame: Buffer, way: ForwardingEntry, held: Held) -> None:
        """A frame is on its way."""
        if self._ring is not None and held.arrival is not None:
            if not self._ways:
                self._ring.begin(self._now, None, is_from_here=True)
            self._ring.move(frame, way, held.arrival)
        if held.place is not None:
            self._since.append(held.since)
        way.frames += 1
        self._batch.gather(way.sink, frame)
        self._ways[copy_key(frame)] = way
        self._cost += len(frame) + HELD_OVERHEAD
        if self._cost >= GATHER_BYTES:
            self.settle()

    def settle(self) -> None:
        """All that is gathered is flushed."""
        batch, ways, since = self._batch, self._ways, self._since
        self._batch, self._ways, self._since, self._cost = PassResult(), {}, [], 0
        if batch.touched:
            self._settle(batch, self._now, lambda frame: ways[copy_key(frame)], since)


# --- rerouting ---
# What waits takes another way: routes or health have changed, an address leads back here, a principal is another one.
#
# This decides which queues are looked at and by which rule; `moving` does it, a slice at a time. What was sent by a
# database here is never moved: its dialog sends it again. Loop-only; called by the forwarder alone.


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

"""
Rerouting of frames that wait: routes or health have changed, an address leads back here, a principal is another one.

The `Rerouter` decides which outboxes are visited and by which rule, and visits them a slice in each iteration of the
loop. An outbox is visited from its front, each frame once. Frames that arrive during the reroute, for a dialog that has
frames in the outbox, are appended to it (`divert`) and visited later, so a dialog keeps its order. A slice is longer by
the number of frames that arrived since the last one, so a reroute ends whatever arrives. A frame for which the next
outbox has no room stays, and so do all frames after it, until there is room. Frames of a database here are never
rerouted by health or routes: its dialog sends them again. Loop-only; reads no clock; called by the forwarder alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TypeAlias

from broker.flow import Disposition
from broker.forwarding.entry import Buffer, EntryOf, ForwardingEntry, FrameOrigin, PassResult, Sink, frame_bounds
from broker.forwarding.fib import ForwardingTable, Resolver
from broker.forwarding.held_frames import DialogAffinity, Held, affinity_key_of, copy_key
from broker.forwarding.outbox import GATHER_BYTES, DropSink, Outbox
from broker.forwarding.outbox_queue import UnvisitedFrames
from broker.forwarding.pool import HELD_OVERHEAD, free_in
from broker.forwarding.ring import Ring
from broker.protocol.layout import HOP_COUNT_AT
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.route import MirroredPair

SLICE_FRAMES = 256  # visited in one iteration of the loop; some 15 us each

NewEntry: TypeAlias = Callable[[Outbox, Held], ForwardingEntry | None]
"""The entry that a frame which waits in this outbox takes now; None when it stays."""

FinishPass: TypeAlias = Callable[[PassResult, float, EntryOf, list[float]], None]
"""Flush what a slice has gathered; the frames have waited since these instants."""


class RerouteReason(IntEnum):
    """Why an outbox is rerouted; the later ones visit everything that the earlier ones do."""

    BETTER = 1  # another address leads on
    ROUTES = 2  # routes have changed
    ITSELF = 3  # the address leads to this instance


@dataclass(slots=True)
class Reroute:
    """One outbox that is being rerouted."""

    reason: RerouteReason
    new_entry: NewEntry
    left: int  # frames that were unvisited after the last slice


class Rerouter:
    """Starts reroutes and works on them; the caller calls `step` until none is under way."""

    def __init__(
        self,
        table: ForwardingTable,
        resolver: Resolver,
        affinity: DialogAffinity,
        ring: Ring | None,
        finish: FinishPass,
    ) -> None:
        self.under_way: dict[Outbox, Reroute] = {}  # a plain dict: every pass asks whether it is empty
        self._table = table
        self._resolver = resolver
        self._affinity = affinity
        self._ring = ring
        self._finish = finish

    # --- why ---

    def by_routes(self) -> None:
        """Reroute by changed routes: frames for a next hop without a link take the entry that holds now (R1.6)."""
        for outbox in [outbox for outbox in self._table.all_outboxes() if outbox.held]:
            self.start(outbox, RerouteReason.ROUTES, self._entry_by_routes)

    def by_health(self, has_failed: Callable[[NetworkAddress], bool]) -> None:
        """See `Forwarder.reroute_failed`."""
        health_of = self._resolver.context.health_of
        waiting = [(address, box) for address, box in self._table.outboxes.items() if box.held and box.outlet is None]
        alternatives = self._table.alternatives() if waiting else {}
        for address, outbox in waiting:
            health, others = health_of(address), alternatives.get(address, set())
            better = {
                other
                for other in others
                if (other_health := health_of(other)) < health
                and (other_health is AddressHealth.CONNECTED or not has_failed(other))
            }
            if better:
                self.start(outbox, RerouteReason.BETTER, partial(self._entry_by_health, better))
            else:
                for other in others:
                    self._table.outbox(other).request_link()

    def from_own_addresses(self, addresses: Iterable[NetworkAddress]) -> None:
        """Route frames that wait for these addresses again: the addresses lead to this instance (R3.9)."""
        for address in addresses:
            outbox = self._table.outboxes.get(address)
            if outbox is not None:
                self.start(outbox, RerouteReason.ITSELF, self._entry_by_decision)

    def by_principals(self, changes: Mapping[MirroredPair, NetworkAddress | None]) -> None:
        """Serve pairs whose principals moved: links send the waiting frames; frames for us are routed again."""
        unserved: dict[NetworkAddress, Outbox] = {}  # one request for each address: its link serves all its outboxes
        for pair, address in changes.items():
            outbox = self._table.pair_outboxes.get(pair)
            if outbox is None or address is None:
                continue
            if address in self._resolver.context.own:
                self.start(outbox, RerouteReason.ITSELF, self._entry_by_decision)
            else:
                unserved[address] = outbox
        for outbox in unserved.values():
            outbox.request_link()

    def start(self, outbox: Outbox, reason: RerouteReason, new_entry: NewEntry) -> None:
        """Visit all that waits there, from the front; again, where a reroute is under way."""
        running = self.under_way.get(outbox)
        if running is not None and running.reason > reason:
            reason, new_entry = running.reason, running.new_entry
        outbox.unvisited = UnvisitedFrames(outbox.held)
        self.under_way[outbox] = Reroute(reason, new_entry, len(outbox.unvisited))

    def _entry_by_decision(self, _: Outbox, held: Held) -> ForwardingEntry | None:
        return self._resolver.entry_now(held.frame)

    def _entry_by_routes(self, outbox: Outbox, held: Held) -> ForwardingEntry | None:
        """The entry of a frame from outside when it is another one, and no link serves the outbox."""
        if held.frame[HOP_COUNT_AT] == 0:
            return None
        entry = self._resolver.entry_now(held.frame)  # also when it stays: the choice is noted
        return None if entry is held.entry or outbox.outlet is not None else entry

    def _entry_by_health(
        self, better: AbstractSet[NetworkAddress], outbox: Outbox, held: Held
    ) -> ForwardingEntry | None:
        """The same, if it leads to one of these addresses."""
        if outbox.outlet is not None:
            return None
        entry = self._entry_by_routes(outbox, held)
        return entry if entry is not None and isinstance(entry.sink, Outbox) and entry.sink.address in better else None

    # --- how ---

    def step(self, now: float) -> bool:
        """Visit one slice; returns whether there is more to do that does not wait for room."""
        budget, is_more = SLICE_FRAMES, False
        for outbox, reroute in list(self.under_way.items()):
            unvisited = outbox.unvisited
            assert unvisited is not None
            most = budget + max(0, len(unvisited) - reroute.left)
            visited = self._visit(outbox, unvisited, reroute.new_entry, now, most)
            budget -= min(budget, visited)
            reroute.left = len(unvisited)
            if unvisited.first() is None:
                outbox.unvisited = None
                del self.under_way[outbox]
            elif visited == most:
                is_more = True
        return is_more

    def divert(self, batch: PassResult, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Append frames of dialogs that have frames in a rerouted outbox to it. Cost: some 1 us a frame."""
        for sink in batch.touched:
            if isinstance(sink, DropSink):
                continue
            kept: list[Buffer] = []
            for run in sink.runs:
                at = 0
                for start, stop in frame_bounds(run):
                    frame = run[start:stop]
                    outbox = self._affinity.outbox_of(affinity_key_of(frame)) if frame[HOP_COUNT_AT] else None
                    if outbox is sink or not isinstance(outbox, Outbox) or outbox not in self.under_way:
                        continue
                    if at < start:
                        kept.append(run[at:start])
                    at = stop
                    entry = entry_of(frame)
                    entry.frames -= 1
                    entry = self._table.entry_to(outbox, Disposition.FORWARDED, entry.route, entry.kind)
                    entry.frames += 1
                    outbox.append(frame, entry, now, origin)
                if at < len(run):
                    kept.append(run[at:])
            sink.runs[:] = kept

    def _visit(self, outbox: Outbox, unvisited: UnvisitedFrames, new_entry: NewEntry, now: float, most: int) -> int:
        """Visit at most so many frames; returns how many."""
        gathered = _Gathered(self._finish, self._ring, now)
        visited = 0
        while visited < most and (held := unvisited.first()) is not None:
            entry = new_entry(outbox, held) if outbox.held.has(held) else None
            if entry is not None and entry.sink is outbox:
                outbox.held.replace(held, held._replace(entry=entry))
            elif entry is not None:
                if not gathered.has_room(entry.sink, held):
                    break
                frame = outbox.take_out(held, now)
                if frame is not None:
                    gathered.add(frame, entry, held)
            unvisited.pop()
            visited += 1
        gathered.flush()
        return visited


class _Gathered:
    """Frames between two outboxes: charged to no pool, so never many."""

    def __init__(self, finish: FinishPass, ring: Ring | None, now: float) -> None:
        self._finish = finish
        self._ring = ring
        self._now = now
        self._reset()

    def _reset(self) -> None:
        self._batch = PassResult()
        self._entries: dict[bytes, ForwardingEntry] = {}
        self._since: list[float] = []  # of those from outside
        self._cost = 0

    def has_room(self, sink: Sink, held: Held) -> bool:
        """Whether the next outbox has room for a frame, if need be after it got what was gathered so far."""
        if not isinstance(sink, Outbox) or sink.is_ready:
            return True
        cost = len(held.frame) + HELD_OVERHEAD
        if free_in(sink.share) < self._cost + cost:
            self.flush()
        return free_in(sink.share) >= cost

    def add(self, frame: Buffer, entry: ForwardingEntry, held: Held) -> None:
        """A frame has left its outbox."""
        if self._ring is not None and held.arrival is not None:
            if not self._entries:
                self._ring.begin(self._now, None, is_from_here=True)
            self._ring.move(frame, entry, held.arrival)
        if held.placement is not None:
            self._since.append(held.since)
        entry.frames += 1
        self._batch.gather(entry.sink, frame)
        self._entries[copy_key(frame)] = entry
        self._cost += len(frame) + HELD_OVERHEAD
        if self._cost >= GATHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Flush all that was gathered."""
        batch, entries, since = self._batch, self._entries, self._since
        self._reset()
        if batch.touched:
            self._finish(batch, self._now, lambda frame: entries[copy_key(frame)], since)

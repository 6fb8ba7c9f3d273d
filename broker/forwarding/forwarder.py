"""
The one pass of a frame through an instance: slab -> kernel -> ways -> sinks, one call stack without `await`.

The forwarder owns the slab, the kernel, the pool, the ways and the outboxes, and every counter of the pass. What
it decides by (`Surroundings`) is swapped whole; a swap, and every change of health, makes the kernel forget and raises
`generation`, by which dialogs know that their own way may be out of date. It never acknowledges, stores, reassembles,
decrypts or reorders, and forgets everything when it stops: the sender still has each message.

Counting: every frame that enters (`take`, `submit`) is counted once, as forwarded or delivered on its way, as dropped
under its disposition, or it is held now; `unaccounted` is the difference and is 0.

A pass always ends: what a failing port concerns is held or dropped, and all else goes on. What takes long is done in
slices, one in each turn of the loop (`work`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.entry import (
    UNTOLD,
    Buffer,
    ForwardingEntry,
    FrameOrigin,
    Outlet,
    PassResult,
    QueuedById,
    Report,
    Sink,
    UnknownOrigin,
    WayOf,
    surface,
)
from broker.forwarding.fib import OTHER_KIND, Ask, AskPrincipal, Decider, ForwardingTable, WayKey
from broker.forwarding.held_frames import DialogAffinity, message_id
from broker.forwarding.kernel import Kernel
from broker.forwarding.kernels import Kernels
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox import Again, DatabaseSink, Deliver, DropSink, HoldBack, Outbox, Ports
from broker.forwarding.pool import Limits, PartialFrames, forget_feeders
from broker.forwarding.reroute import Moves, Rerouting
from broker.forwarding.ring import Ring
from broker.forwarding.slow_path import Resolve, SlowPath
from broker.protocol.layout import HEAD_MAX_BYTES, HOP_COUNT_AT
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision, HealthOf, Hosted, RoutingContext, RoutingFacts
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable
from broker.security.grants import OPEN, Profile

# --- settling ---
# The end of a pass: each sink takes what was gathered for it, whatever becomes of the others.
#
# A batch comes from a read, from a database here, or from a queue whose frames take another way. A sink that fails
# holds
# or drops its own frames. Loop-only; reads no clock.


class Settling:
    """
    Args:
        hold_back: Hears who brought what has to wait.
        report: Hears of what failed, when all sinks have had their turn.
        hop: Counts how long frames were here.
    """

    def __init__(self, hold_back: HoldBack, report: Report, hop: HopTimes) -> None:
        self._hold_back = hold_back
        self._report = report
        self._hop = hop
        self._nobody = UnknownOrigin()
        self._touched: list[Sink] = []  # by the batch under way

    def settle(self, batch: PassResult, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """Each sink takes its frames."""
        self._touched = batch.touched
        failed: list[tuple[Outlet | None, Exception]] = []
        for sink in batch.touched:
            try:
                sink.flush(now, origin, way_of)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                failed.append((sink.outlet if isinstance(sink, Outbox) else None, error))
                try:
                    sink.recover(now, origin, way_of)
                except Exception as bug:  # noqa: BLE001 - likewise
                    sink.runs.clear()  # a part of the slab, which others write into next
                    failed.append((None, bug))
        self._touched = []
        for outlet, why in failed:
            self._report(outlet, why)

    def settle_again(self, batch: PassResult, now: float, way_of: WayOf, since: Sequence[float]) -> None:
        """
        The sinks take what has waited; what leaves now is counted with its time.

        Args:
            batch: Frames that have left a queue.
            now: Monotonic seconds.
            way_of: The way that each takes now.
            since: When each frame from outside began to wait, in the order of leaving.
        """
        pending = self._hop.pending
        self.settle(batch, now, self._nobody, way_of)
        others = pending - self._hop.pending  # wait again, or are dropped; they are the last ones, mostly
        self._hop.pending = pending
        for begun, frames in Counter(since[: max(0, len(since) - others)]).items():
            self._hop.observe(now - begun, frames)

    def tell_who_waits(self, outbox: Outbox, origin: FrameOrigin) -> None:
        """Who brought what has to wait, and whether it brought something for others that do not."""
        is_shared = any(sink is not outbox and not isinstance(sink, DropSink) for sink in self._touched)
        self._hold_back(outbox, origin, is_shared)


OWN_MAX = 1024  # addresses of this very instance that are remembered: with ADDRESS 'TRANSPORT' a peer may invent them
EXPIRE_FRAMES = 1024  # looked at and dropped in one turn of the loop; some 4 us each


class Forwarder:
    """
    The pass and its counters. Loop-only.

    Shape: `slab` is where links read into, large enough for a frame of `max_frame` and one read behind it, `view` the
    same for them to slice; `limits` that hold; `unfinished` bounds what they keep between two reads; `received` frames
    that entered, by kind up to `OTHER_KIND`; `dropped` by disposition, in `last_dropped` the instant and the head of
    the last; `generation` rises whenever a way may have changed; `retired_frames` left through outboxes that are no
    more; `ring`, if any, takes what is followed.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        deliver: Deliver,
        want: Callable[[NetworkAddress], None],
        health_of: HealthOf,
        ask: Ask = lambda _: None,
        ask_principal: AskPrincipal = lambda _: None,
        kernel: type[SlowPath] = Kernel,
        hold_back: HoldBack = lambda *_: None,
        again: Again = lambda: None,
        report: Report = surface,
        ring: Ring | None = None,
    ) -> None:
        self.limits = limits
        self.slab = bytearray(limits.slab_bytes)
        self.view = memoryview(self.slab)
        self.unfinished, self.hop = PartialFrames(), HopTimes()
        self.pool = limits.make_pool()
        self.received: Counter[int] = Counter()
        self.dropped: Counter[Disposition] = Counter()
        self.last_dropped: dict[Disposition, tuple[float, bytes]] = {}
        self.generation = self.retired_frames = 0
        self._now = 0.0  # of the pass or the work under way
        self.ring = ring
        self._again = again
        self._report = report
        self._places = DialogAffinity()
        self._settling = Settling(hold_back, report, self.hop)
        ports = Ports(
            drop=self.drop,
            hold_back=self._settling.tell_who_waits,
            unfinished=self._drain_later,
            report=report,
            ring=ring,
            places=self._places,
            hop=self.hop,
        )
        self._ways = ForwardingTable(self.pool, ports, want=want, ask_principal=ask_principal, deliver=deliver)
        self._decider = Decider(self._ways, self._places, health_of=health_of, ask=ask, report=report)
        self._moves = Moves(self._settling.settle_again, self._ways, self._places, ring)
        self._rerouting = Rerouting(self._decider, self._ways, self._moves)
        self._undrained: dict[Outbox, None] = {}
        self._is_expiring = self._is_rematched = False  # what `work` has to go on with, and to end
        self._kernel = kernel
        self._kernels = Kernels(self._make_kernel, self._decider.resolve, self._ways.drop)

    def limit(self, limits: Limits) -> None:
        """
        These bounds hold from the next frame on; what is held stays, and the slab never shrinks.

        Never called in the middle of a pass. Kernels are made anew, so they also follow what the ring samples now.
        """
        self.limits = limits
        limits.bound(self.pool)
        if limits.slab_bytes > len(self.slab):
            self.slab = bytearray(limits.slab_bytes)
            self.view = memoryview(self.slab)
        self._kernels.remake()

    @property
    def kernel_name(self) -> str:
        """Which kernel walks: `compiled` or `python`."""
        return self._kernels.name

    @property
    def outboxes(self) -> Mapping[NetworkAddress, Outbox]:
        """The outbox of every address that something was sent to."""
        return self._ways.outboxes

    @property
    def pairs(self) -> Mapping[MirroredPair, Outbox]:
        """The outbox of every mirrored pair that something was sent to."""
        return self._ways.pairs.outboxes

    @property
    def left(self) -> Mapping[MirroredPair, Counter[tuple[str, str]]]:
        """Frames that left for principals of earlier, by route and address, of each pair."""
        return self._ways.pairs.left

    def outbox(self, address: NetworkAddress) -> Outbox:
        """The outbox of an address, made when first asked for."""
        return self._ways.outbox(address)

    def outboxes_to(self, address: NetworkAddress) -> Iterator[Outbox]:
        """Those whose frames a link to this address takes: its own, and of pairs whose principal is there."""
        return self._ways.outboxes_to(address)

    def is_invented(self, address: NetworkAddress) -> bool:
        """Whether no route has named this address so far."""
        return self._ways.is_invented(address)

    def every_outbox(self) -> Iterator[Outbox]:
        """All that may hold frames."""
        return self._ways.every_outbox()

    # --- what it decides by ---

    @property
    def here(self) -> RoutingContext:
        """What incoming frames are decided by: msdb's table and the rest."""
        return self._decider.here

    def surround(self, *, table: RouteTable, hosted: Hosted, is_forwarding: bool) -> None:
        """Swap what incoming frames are decided by, msdb's table first; holds from the next frame on."""
        self._decider.here = replace(self.here, table=table, msdb=table, hosted=hosted, is_forwarding=is_forwarding)
        for outbox in self.outboxes.values():
            outbox.alternatives.clear()
        self.changed()

    def rematch(self, now: float) -> None:
        """What came from outside and waits for a next hop that nobody serves takes the way that holds now (R1.6)."""
        self._rerouting.by_routes()
        self._is_rematched = True
        self.work(now)

    def mend(self, now: float, has_failed: Callable[[NetworkAddress], bool]) -> None:
        """
        What came from outside and waits for a next hop that nobody serves takes a better one where there is one (R3.5).

        Better is one that is served, or one not tried yet while this one did not answer; so nothing goes to and fro
        between addresses that are all dead. While none is better, a link is wanted to every one of them, because those
        that wait all wait for one. Cost: O(1) for an outbox without a better alternative.

        Args:
            now: Monotonic seconds.
            has_failed: Whether the last attempt to reach an address failed.
        """
        self._rerouting.by_health(has_failed)
        self.work(now)

    def found_self(self, addresses: AbstractSet[NetworkAddress], now: float, *lost: NetworkAddress) -> None:
        """These addresses lead to this very instance: what is for them takes another way (R3.9); `lost` ones do not."""
        own = self.here.own - set(lost) | addresses
        if len(own) > OWN_MAX:
            return
        self._decider.here = replace(self.here, own=own)
        self.changed()
        self._rerouting.from_ourselves(addresses)
        self.work(now)

    def lead(self, changes: Mapping[MirroredPair, NetworkAddress | None], now: float) -> None:
        """The principals of these pairs are here from now on, or unknown: what is for them follows, or waits (R6.3)."""
        self._kernels.tally()
        self._ways.pairs.lead(changes, self._ways.by_key.values())
        self._decider.here = replace(self.here, principals=self._ways.pairs.principals)
        self.changed()
        self._rerouting.by_principals(changes)
        self.work(now)

    def changed(self) -> None:
        """Health or tables have changed: every remembered way is asked for anew."""
        self._kernels.forget()
        self.generation += 1

    def ask(self, facts: RoutingFacts) -> None:
        """Ask for a route with these facts."""
        self._decider.ask(facts)

    @property
    def passed(self) -> Iterable[RoutingFacts]:
        """What passed or arrived lately, at most `PASSED_MAX`: by route key, and by conversation where it has a say."""
        return self._decider.passed

    # --- frames come in ---

    def take(self, slab: bytearray, end: int, now: float, origin: FrameOrigin, profile: Profile = OPEN) -> PassResult:
        """Pass on the whole frames in `slab[:end]`; the batch tells how far that went and what is the link's own."""
        kernel = self._kernels.of(profile)
        if self.ring is not None:
            self.ring.begin(now, origin, is_from_here=False)
        try:
            batch = kernel.walk(slab, end)
            self._flush(batch, now, origin, kernel.way_of)
        except Exception:
            for way in self._ways.by_key.values():
                way.sink.runs.clear()  # what was gathered is a part of the slab, and nobody comes to flush it
            raise
        return batch

    def submit(
        self,
        frames: Iterable[tuple[ForwardingEntry, Buffer]],
        now: float,
        origin: FrameOrigin,
        queued: QueuedById = UNTOLD,
    ) -> None:
        """Send frames of a database here along the ways that `way_for` gave for them; `queued` as `Arrival` has it."""
        batch, pending = PassResult(), self.hop.pending
        ways: dict[bytes, ForwardingEntry] = {}
        if self.ring is not None:
            self.ring.begin(now, origin, is_from_here=True, queued=queued)
        for way, frame in frames:
            if self.ring is not None:
                self.ring.enter(frame, 0, way, frame[HOP_COUNT_AT])
            batch.gather(way.sink, frame)
            batch.count(way.kind, 1)
            way.frames += 1
            ways[message_id(frame)] = way
        self._flush(batch, now, origin, lambda frame: ways[message_id(frame)])
        self.hop.pending = pending  # they begin here

    def way_for(self, decision: Decision, kind: int) -> ForwardingEntry:
        """The way that a decision leads to: on, into a database here, to where a principal is awaited, or to a drop."""
        return self._ways.of(decision, kind)

    # --- what became of them ---

    def drop(self, frame: Buffer, disposition: Disposition, origin: FrameOrigin | None) -> None:
        """Count a frame that ends here and advise its origin."""
        self.dropped[disposition] += 1
        self.last_dropped[disposition] = self._now, bytes(frame[:HEAD_MAX_BYTES])
        if origin is not None:
            self.hop.pending -= 1
            try:
                origin.reject(frame, disposition)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the message's failure
                self._report(None, error)

    def expire(self, now: float) -> None:
        """Now and then, once a second or more often: begin to drop held frames whose lifetime has ended, and sweep."""
        self._is_expiring = True
        self.work(now)
        self._unbind()
        for outbox in self.every_outbox():
            forget_feeders(outbox.share, now)
        forget_feeders(self.pool, now)
        self._retire(self._ways.idle())

    def work(self, now: float) -> None:
        """What is left to do, one slice of it; never called in the middle of a pass."""
        self._now = now
        if self._is_expiring:
            left = EXPIRE_FRAMES
            for outbox in self.every_outbox():
                left -= outbox.expire(now, left)
            self._is_expiring = left <= 0
        undrained, self._undrained = self._undrained, {}
        for outbox in undrained:
            outbox.drain(now)
        was_moving = bool(self._moves.under_way)
        if self._moves.step(now) or self._is_expiring:
            self._again()
        if was_moving and not self._moves.under_way:
            self._unbind()
        if self._is_rematched and not self._moves.under_way:
            self._is_rematched = False
            self._retire(self._ways.pairs.idle())

    def abandon(self, now: float) -> None:
        """The instance stops: what is still held is dropped and counted; its senders have it."""
        for outbox in self.every_outbox():
            outbox.abandon(now)

    @property
    def ways(self) -> Mapping[WayKey, ForwardingEntry]:
        """Every way by sink, route and kind, its frames counted up to now."""
        self._kernels.tally()
        return self._ways.by_key

    @property
    def forwarded(self) -> int:
        """Frames that left for a next hop since the start."""
        earlier = sum(counts.total() for counts in self.left.values())
        now = sum(way.frames for way in self.ways.values() if isinstance(way.sink, Outbox))
        return self.retired_frames + earlier + now

    @property
    def delivered(self) -> int:
        """Frames handed to a database here since the start."""
        return sum(way.frames for way in self.ways.values() if isinstance(way.sink, DatabaseSink))

    @property
    def unaccounted(self) -> int:
        """Frames that came in and are neither forwarded nor delivered nor dropped nor held; 0 unless there is a bug."""
        return self.received.total() - self.forwarded - self.delivered - self.dropped.total() - self.pool.frames

    # --- the inside, in calling order ---

    def _make_kernel(self, resolve: Resolve) -> SlowPath:
        frame, hops = self.limits.max_frame, self.limits.max_hops
        return self._kernel(max_frame=frame, max_hops=hops, resolve=resolve, drop_way=self._ways.drop, ring=self.ring)

    def _flush(self, batch: PassResult, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
        """The frames leave, and are counted then: a lone one is not to wait for that."""
        self._now = now
        try:
            if self._moves.under_way:
                self._moves.divert(batch, now, origin, way_of)
            self._settling.settle(batch, now, origin, way_of)
        finally:
            for kind, frames in batch.received.items():
                self.hop.pending += frames
                kind = min(kind, OTHER_KIND)  # noqa: PLW2901
                self.received[kind] += frames
                origin.received[kind] += frames

    def _drain_later(self, outbox: Outbox) -> None:
        self._undrained[outbox] = None
        self._again()

    def _unbind(self) -> None:
        """Frames that others of their dialog waited for may take the best way again."""
        if self._decider.is_bound:
            self._decider.is_bound = False
            self._kernels.forget()

    def _retire(self, idle: set[Outbox]) -> None:
        """Forget outboxes, and the ways that lead to them."""
        if not idle:
            return
        self._kernels.tally()
        retired = self._ways.retire(idle)
        self.retired_frames += sum(way.frames for way in retired) + self._ways.pairs.retire(idle)
        if self.ring is not None:
            self.ring.retire(retired)
        self.changed()

"""
One pass of frames through an instance: slab, kernel, entries, sinks, in one call stack without `await`.

The forwarder owns the slab, the kernels, the pool, the forwarding table and all counters of the pass. The basis of its
decisions (`RoutingContext`) is replaced whole. Then the kernels forget what the change can reach, and nothing else: the
services whose routes or principals are others, the frames that have a choice when health has changed, and everything
when the change may concern any frame. So what is cached is always what would be decided now (R1.6). Unless only routes
of some services have changed, `generation` rises, by which dialogs know that their own decisions may be out of date.
The forwarder never acknowledges, stores, reassembles, decrypts or reorders, and forgets everything when it stops: the
sender still has each message.

Counting: every frame that enters (`forward`, `submit`) is counted once, as forwarded or delivered under its entry, as
dropped under its disposition, or it is held now; `unaccounted` is the difference and is 0.

A pass always ends: frames that concern a failing port are held or dropped, and all others go on. Long work is done in
slices, one in each iteration of the loop (`work`). Loop-only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding.entry import (
    NOT_QUEUED,
    Buffer,
    EntryOf,
    ForwardingEntry,
    FrameOrigin,
    Outlet,
    PassResult,
    QueuedById,
    Report,
    Sink,
    UnknownOrigin,
    message_id,
    raise_error,
)
from broker.forwarding.fib import (
    OTHER_KIND,
    AskForRoute,
    EntryKey,
    ForwardingTable,
    RequestLink,
    RequestPrincipal,
    Resolver,
)
from broker.forwarding.held_frames import DialogAffinity
from broker.forwarding.kernel import Kernel
from broker.forwarding.kernels import Kernels
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox import Deliver, DropSink, Outbox, OutboxContext
from broker.forwarding.pool import Limits, PartialFrames, Pool, forget_feeders
from broker.forwarding.reroute import Rerouter
from broker.forwarding.ring import Ring
from broker.forwarding.slow_path import Resolve, SlowPath
from broker.protocol.frame import Rejected
from broker.protocol.layout import HEAD_MAX_BYTES, HOP_COUNT_AT
from broker.routing.address import NetworkAddress
from broker.routing.decide import HealthOf, Hosted, RoutingContext, RoutingFacts, affected
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable
from broker.security.grants import OPEN, Profile

OWN_MAX = 1024  # addresses of this instance that are remembered: with ADDRESS 'TRANSPORT' a peer may invent them
EXPIRE_FRAMES = 1024  # visited and dropped in one iteration of the loop; some 4 us each
REFUSALS = frozenset({Disposition.INSTANCE_NOT_HERE.number, Disposition.DATABASE_IS_MIRROR.number})
REFUSALS_MAX = 1024  # broker instances whose refusals are remembered; some 300 KB
REFUSAL_SECONDS = 60.0  # for so long: a database may move to where it was not
REFUSAL_PAUSE = 0.2  # between two that are remembered: each has all decisions on its service made again

OnWaiting = Callable[[Outbox, FrameOrigin, bool], None]
"""Frames of this origin have to wait, and, if True, others of the batch do not: it may be paused; must not fail."""
ScheduleWork = Callable[[], None]
"""Call `work` in a later iteration of the loop, once for many such calls; must not fail."""


def never_pending(_facts: RoutingFacts) -> bool:
    """Ask for no route: the callback of a forwarder without databases."""
    return False


def ignore(*_: object) -> None:
    """Do nothing: the callback of a forwarder without dialogs, links or mirrored routes."""


class Forwarder:
    """The pass, its state and its counters."""

    def __init__(
        self,
        limits: Limits,
        *,
        deliver: Deliver,
        request_link: RequestLink,
        health_of: HealthOf,
        ask_for_route: AskForRoute = never_pending,
        request_principal: RequestPrincipal = ignore,
        kernel: type[SlowPath] = Kernel,
        on_waiting: OnWaiting = ignore,
        schedule_work: ScheduleWork = ignore,
        report: Report = raise_error,
        ring: Ring | None = None,
    ) -> None:
        self.limits = limits
        self.slab = bytearray(limits.slab_bytes)  # links read into it: a frame of `max_frame` and one read after it
        self.view = memoryview(self.slab)  # the same for links to slice
        self.pool = Pool(limits.pool_bytes)
        self.pool.limit(limits)
        self.unfinished = PartialFrames()  # bounds what links keep between two reads
        self.hop = HopTimes()
        self.ring = ring  # records the frames that are followed, if any are
        self.received: Counter[int] = Counter()  # frames that entered, by kind up to `OTHER_KIND`
        self.dropped: Counter[Disposition] = Counter()
        self.last_dropped: dict[Disposition, tuple[float, bytes]] = {}  # instant and head of the last frame
        self.retired_frames = 0  # left through outboxes that were retired
        self.generation = 0  # rises whenever a decision may have changed, but for routes: see `set_routing`
        self.ask_for_route = ask_for_route
        affinity = DialogAffinity()
        context = OutboxContext(
            drop=self.drop,
            report_waiting=self._report_waiting,
            continue_later=self._drain_later,
            report=report,
            affinity=affinity,
            hop=self.hop,
            ring=ring,
        )
        self.table = ForwardingTable(
            self.pool, context, request_link=request_link, request_principal=request_principal, deliver=deliver
        )
        self._resolver = Resolver(self.table, affinity, health_of=health_of, ask_for_route=ask_for_route, report=report)
        self._rerouter = Rerouter(self.table, self._resolver, affinity, ring, self._finish_reroute)
        self._kernel = kernel
        self._kernels = Kernels(self._make_kernel, self._resolver.resolve, self.table.drop_entry)
        self._on_waiting = on_waiting
        self._schedule_work = schedule_work
        self._report = report
        self._now = 0.0  # of the pass or the work under way
        self._touched: list[Sink] = []  # by the batch that is being flushed
        self._unknown_origin = UnknownOrigin()
        self._undrained: dict[Outbox, None] = {}
        self._refused_at = -math.inf  # when the last refusal was remembered
        self._is_expiring = self._has_new_routes = False  # `work` has to go on with that, and to end it

    # --- frames enter ---

    def forward(
        self, slab: bytearray, end: int, now: float, origin: FrameOrigin, profile: Profile = OPEN
    ) -> PassResult:
        """Pass on the whole frames in `slab[:end]`; the result says how far that went and what is for the link."""
        kernel = self._kernels.of(profile)
        if self.ring is not None:
            self.ring.begin(now, origin, is_from_here=False)
        try:
            batch = kernel.walk(slab, end)
            self._finish_pass(batch, now, origin, kernel.entry_of)
        except Exception:
            for entry in self.table.entries.values():
                entry.sink.runs.clear()  # they are parts of the slab, and are no longer flushed
            raise
        return batch

    def submit(
        self,
        frames: Iterable[tuple[ForwardingEntry, Buffer]],
        now: float,
        origin: FrameOrigin,
        queued: QueuedById = NOT_QUEUED,
    ) -> None:
        """Send frames of a database here under entries of `table.entry_for`; `queued` as in `PassOrigin`."""
        batch, pending = PassResult(), self.hop.pending
        entries: dict[bytes, ForwardingEntry] = {}
        if self.ring is not None:
            self.ring.begin(now, origin, is_from_here=True, queued=queued)
        for entry, frame in frames:
            if self.ring is not None:
                self.ring.enter(frame, 0, entry, frame[HOP_COUNT_AT])
            batch.gather(entry.sink, frame)
            batch.count(entry.kind, 1)
            entry.frames += 1
            entries[message_id(frame)] = entry
        self._finish_pass(batch, now, origin, lambda frame: entries[message_id(frame)])
        self.hop.pending = pending  # they begin here

    def _finish_pass(self, batch: PassResult, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Flush the sinks, then count: a lone frame is not to wait for that."""
        self._now = now
        try:
            if self._rerouter.under_way:
                self._rerouter.divert(batch, now, origin, entry_of)
            self._flush(batch, now, origin, entry_of)
        finally:
            for kind, frames in batch.received.items():
                self.hop.pending += frames
                kind = min(kind, OTHER_KIND)  # noqa: PLW2901
                self.received[kind] += frames
                origin.received[kind] += frames

    def _flush(self, batch: PassResult, now: float, origin: FrameOrigin, entry_of: EntryOf) -> None:
        """Flush each sink, whatever becomes of the others; failures are reported at the end."""
        self._touched = batch.touched
        failed: list[tuple[Outlet | None, Exception]] = []
        for sink in batch.touched:
            try:
                sink.flush(now, origin, entry_of)
            except Exception as error:  # noqa: BLE001 - a bug of ours: the other sinks get their frames
                failed.append((sink.outlet if isinstance(sink, Outbox) else None, error))
                try:
                    sink.recover(now, origin, entry_of)
                except Exception as bug:  # noqa: BLE001 - likewise
                    sink.runs.clear()  # parts of the slab, which is written to next
                    failed.append((None, bug))
        self._touched = []
        for outlet, failure in failed:
            self._report(outlet, failure)

    def _finish_reroute(self, batch: PassResult, now: float, entry_of: EntryOf, since: Sequence[float]) -> None:
        """
        Flush frames that were taken out of outboxes; those that leave now are counted with the time they waited.

        Args:
            batch: The frames.
            now: Monotonic seconds.
            entry_of: The entry that each takes now.
            since: When each frame from outside began to wait, in the order of leaving.
        """
        pending = self.hop.pending
        self._flush(batch, now, self._unknown_origin, entry_of)
        others = pending - self.hop.pending  # wait again, or were dropped; they are the last ones, mostly
        self.hop.pending = pending
        for begun, frames in Counter(since[: max(0, len(since) - others)]).items():
            self.hop.observe(now - begun, frames)

    def drop(self, frame: Buffer, disposition: Disposition, origin: FrameOrigin | None) -> None:
        """Count a frame that is dropped and advise its origin."""
        self.dropped[disposition] += 1
        self.last_dropped[disposition] = self._now, bytes(frame[:HEAD_MAX_BYTES])
        if origin is not None:
            self.hop.pending -= 1
            try:
                origin.reject(frame, disposition)
            except Exception as error:  # noqa: BLE001 - a bug of ours: the batch goes on
                self._report(None, error)

    def _report_waiting(self, outbox: Outbox, origin: FrameOrigin) -> None:
        is_shared = any(sink is not outbox and not isinstance(sink, DropSink) for sink in self._touched)
        self._on_waiting(outbox, origin, is_shared)

    def would_accept(self, frame: Buffer, profile: Profile) -> bool:
        """Whether a frame like this one, of which the header is enough, would be delivered or forwarded now."""
        return not isinstance(self._kernels.of(profile).entry_of(frame).sink, DropSink)

    # --- what it decides by ---

    @property
    def routing_context(self) -> RoutingContext:
        """The basis of decisions on frames from outside: msdb's routes and the rest."""
        return self._resolver.context

    @property
    def passed(self) -> Iterable[RoutingFacts]:
        """The facts of the last `PASSED_MAX` decisions: by route key, and by conversation where that has a say."""
        return self._resolver.passed

    def set_routing(self, *, table: RouteTable, hosted: Hosted, is_forwarding: bool) -> AbstractSet[str] | None:
        """
        Replace msdb's routes and the hosted services; holds from the next frame on.

        Returns:
            The services whose frames may be routed otherwise now; None when it may be any, and `generation` has risen.
        """
        before = self.routing_context
        self._resolver.context = replace(before, table=table, msdb=table, hosted=hosted, is_forwarding=is_forwarding)
        is_same = (hosted, is_forwarding) == (before.hosted, before.is_forwarding)
        services = affected(table, before.table) if is_same else None
        self.table.forget_choices(services)
        if services is None:
            self.forget_decisions()
        elif services:
            self._kernels.forget_services({service.encode() for service in services})
        return services

    def forget_decisions(self) -> None:
        """Every cached decision is made again."""
        self._kernels.forget()
        self.generation += 1

    def on_health_changed(self) -> None:
        """Other addresses are reached now: frames that have a choice of next hops are decided again."""
        self._kernels.forget_services(None)
        self.generation += 1

    def reroute_waiting(self, now: float) -> None:
        """Frames from outside that wait for a next hop without a link take the route that holds now (R1.6)."""
        self._rerouter.by_routes()
        self._has_new_routes = True
        self.work(now)

    def reroute_failed(self, now: float, has_failed: Callable[[NetworkAddress], bool]) -> None:
        """
        Frames from outside that wait for a next hop without a link take a better one where there is one (R3.5).

        Better is one that has a link, or one not tried yet when this one did not answer; so nothing moves back and
        forth between addresses that are all dead. While none is better, a link to every one of them is requested. Cost:
        O(1) for an outbox without a better alternative.

        Args:
            now: Monotonic seconds.
            has_failed: Whether the last attempt to reach an address failed.
        """
        self._rerouter.by_health(has_failed)
        self.work(now)

    def on_rejected(self, rejected: Rejected, addresses: Iterable[NetworkAddress], now: float) -> None:
        """The next hop at these addresses did not accept a frame: see `note_refusal`."""
        for address in addresses if rejected.code in REFUSALS else ():
            named = self._resolver.named_at(address, rejected.conversation)
            if named is not None:
                self.note_refusal(*named, address, now)

    def note_refusal(self, service: str, broker_instance: bytes, address: NetworkAddress, now: float) -> None:
        """
        A next hop does not have the broker instance that a frame named: prefer others for such frames for a minute.

        Where routes by name lead to several targets, one of them has the dialog, and the hash may lead to another.
        """
        if now - self._refused_at < REFUSAL_PAUSE:
            return
        self._refused_at = now
        refusals = dict(self.routing_context.refusals)
        refusals[service, broker_instance] = {**refusals.pop((service, broker_instance), {}), address: now}
        if len(refusals) > REFUSALS_MAX:
            del refusals[next(iter(refusals))]
        self._resolver.context = replace(self.routing_context, refusals=refusals)
        self._kernels.forget_services({service.encode()})

    def _forget_refusals(self, now: float) -> None:
        """Forget the old ones; what is cached stays, as it was not refused."""
        refusals = {
            named: kept
            for named, refused in self.routing_context.refusals.items()
            if (kept := {address: at for address, at in refused.items() if now - at < REFUSAL_SECONDS})
        }
        if refusals != self.routing_context.refusals:
            self._resolver.context = replace(self.routing_context, refusals=refusals)

    def add_own_addresses(self, addresses: AbstractSet[NetworkAddress], now: float, *lost: NetworkAddress) -> None:
        """Note that these addresses lead to this instance: their frames are routed again (R3.9); `lost` ones do not."""
        own = self.routing_context.own - set(lost) | addresses
        if len(own) > OWN_MAX:
            return
        self._resolver.context = replace(self.routing_context, own=own)
        self.forget_decisions()
        self._rerouter.from_own_addresses(addresses)
        self.work(now)

    def set_principals(self, changes: Mapping[MirroredPair, NetworkAddress | None], now: float) -> None:
        """The principals of these pairs are at other addresses now, or unknown: their frames follow, or wait (R6.3)."""
        self._kernels.forget_services({pair.remote_service_name.encode() for pair in changes})  # counts these up to now
        self.table.set_principals(changes)
        self._resolver.context = replace(self.routing_context, principals=self.table.principals)
        self.generation += 1
        self._rerouter.by_principals(changes)
        self.work(now)

    def limit(self, limits: Limits) -> None:
        """
        Replace the bounds; what is held stays, and the slab never shrinks.

        Never called in the middle of a pass. Kernels are made again, so they also follow what the ring samples now.
        """
        self.limits = limits
        self.pool.limit(limits)
        if limits.slab_bytes > len(self.slab):
            self.slab = bytearray(limits.slab_bytes)
            self.view = memoryview(self.slab)
        self._kernels.remake()

    # --- work between passes ---

    def expire(self, now: float) -> None:
        """Once a second or more often: begin to drop frames whose lifetime has ended, and forget what is unused."""
        self._forget_refusals(now)
        self._is_expiring = True
        self.work(now)
        for outbox in self.table.all_outboxes():
            forget_feeders(outbox.share, now)
        forget_feeders(self.pool, now)
        self._retire(self.table.idle_invented())

    def work(self, now: float) -> None:
        """Do a slice of what is left to do; never called in the middle of a pass."""
        self._now = now
        if self._is_expiring:
            left = EXPIRE_FRAMES
            for outbox in self.table.all_outboxes():
                left -= outbox.expire(now, left)
            self._is_expiring = left <= 0
        undrained, self._undrained = self._undrained, {}
        for outbox in undrained:
            outbox.drain(now)
        if self._rerouter.step(now) or self._is_expiring:
            self._schedule_work()
        if self._has_new_routes and not self._rerouter.under_way:
            self._has_new_routes = False
            self._retire(self.table.idle_pairs())

    def drop_all(self, now: float) -> None:
        """The instance stops: drop and count what is still held; its senders have it."""
        for outbox in self.table.all_outboxes():
            outbox.drop_all(now)

    def _drain_later(self, outbox: Outbox) -> None:
        self._undrained[outbox] = None
        self._schedule_work()

    def _retire(self, idle: set[Outbox]) -> None:
        """Forget outboxes, and the entries that lead to them."""
        if not idle:
            return
        self._kernels.tally()
        retired, frames = self.table.retire(idle)
        self.retired_frames += frames
        if self.ring is not None:
            self.ring.retire(retired)
        self.forget_decisions()

    # --- counts ---

    @property
    def kernel_name(self) -> str:
        """Which kernel is used: `compiled` or `python`."""
        return self._kernel.name

    @property
    def entries(self) -> Mapping[EntryKey, ForwardingEntry]:
        """Every entry by sink, route and kind, its frames counted up to now."""
        self._kernels.tally()
        return self.table.entries

    @property
    def forwarded(self) -> int:
        """Frames that left for a next hop since the start. Cost: every route in use; see `passed_on`."""
        earlier = sum(counts.total() for counts in self.table.sent_earlier.values())
        now = sum(entry.frames for entry in self.entries.values() if isinstance(entry.sink, Outbox))
        return self.retired_frames + earlier + now

    @property
    def delivered(self) -> int:
        """Frames delivered to a database here since the start."""
        return sum(sink.delivered for sink in self.table.databases.values())

    @property
    def passed_on(self) -> int:
        """Frames that entered and are neither delivered nor dropped nor held; `forwarded`, unless there is a bug."""
        return self.received.total() - self.delivered - self.dropped.total() - self.pool.frames

    @property
    def unaccounted(self) -> int:
        """Frames that were passed on and not counted as forwarded; 0 unless there is a bug. Cost: as `forwarded`."""
        return self.passed_on - self.forwarded

    def _make_kernel(self, resolve: Resolve) -> SlowPath:
        frame, hops, drop = self.limits.max_frame, self.limits.max_hops, self.table.drop_entry
        return self._kernel(max_frame=frame, max_hops=hops, resolve=resolve, drop_way=drop, ring=self.ring)

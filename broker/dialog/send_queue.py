"""
The dialogs of one database that have something to send: which one is next, what is in memory, when to look again.

`Sender` is one such dialog. Four collections hold it, each for one question: `FairQueue` (which one sends next),
`LoadBudget` (whose messages are in memory, within one bound for all dialogs), `TimerHeap` (which one is due, with one
loop timer for all) and `AckHorizon` (is a late acknowledgement lost, or still queued after others). None of them sends
or knows routes; `dialog.transmitter` moves senders between them. Loop-only.

Sources: Service Broker documentation, "Conversation Priorities"; Shreedhar and Varghese, "Efficient Fair Queuing Using
Deficit Round-Robin", 1995; RFC 8985 and RFC 9040.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from broker.conversation.frames import Contact, Place, Run
from broker.conversation.outbound import Outbound
from broker.conversation.window import NEVER
from broker.forwarding.latency import bucket
from broker.forwarding.outbox import Destination
from broker.protocol.layout import NO_GUID, show_guid
from broker.store.port import LoadedFragments, LoadRequest

QUANTUM_BYTES = 64 * 1024  # one fragment of the default size
FRAME_COST = 1024  # bytes that a frame counts at least: a small one takes as much work
GUARD_TURNS = 8  # an eighth of the bytes, shared by all lower priorities, costs the highest little
LOADED_MAX_BYTES = 64 * 1024 * 1024  # bodies in memory, all dialogs together
LOAD_BYTES = 1024 * 1024  # bodies loaded for one dialog at a time: a batch of the writer thread stays short
LOADS_MAX = 1000  # dialogs that one batch loads for, likewise: what is found and what has arrived waits for its end
ENVELOPE_MAX = 64 * 1024  # what fragment 0 may have besides its payload; names have 512 bytes at most
EARLY_SECONDS = 0.002  # by which a timer of uvloop may ring before its time, and would be set again and again
SILENCE = 1.0  # seconds without any acknowledgement from a service after which its queue counts as stuck
SERVICES_MAX = 10_000  # in `AckHorizon`; for any other service a time-out counts as a loss
TRIPS_MAX = 20_000  # some thousand next hops; with ADDRESS 'TRANSPORT' services may name any number of them
MICROSECONDS = -1
"""In `RoundTripCounts`, in place of a bucket: the sum of the times in whole microseconds."""

RoundTripCounts: TypeAlias = Counter[tuple[Destination | None, int]]
"""How long acknowledgements took, by next hop and bucket of a histogram."""


@dataclass(slots=True, eq=False)
class Sender:
    """A dialog with something to send or unacknowledged; changed by the transmitter and this module only."""

    endpoint_id: int
    contact: Contact
    outbound: Outbound
    stored: Place  # acknowledged with every frame
    priority: int = 5  # 1 .. 10
    credit: int = 0  # bytes it may send in this round, below 0 when it has sent more than its share
    charged_bytes: int = 0  # of `LoadBudget.loaded_bytes`
    is_loading: bool = False
    has_more: bool = True  # in the store, after what is loaded; a time-out may set it while a load is under way
    is_queued: bool = False
    timer_at: float = NEVER
    outlet: object = None  # the link that was given its frames in flight
    next_hop: Destination | None = None  # the address of `outlet`, None inside this instance
    acked_at: float = -NEVER  # when one of its round trips was measured last
    last_rejection: str = ""  # who did not take a frame, and why; empty once that frame is sent again
    rejected_at: float = 0.0  # when
    not_stored: str = ""  # why the far side stores nothing of it for now; empty while it does
    not_stored_at: float = 0.0  # when it said so
    seal_error: str = ""  # why its frames cannot be sealed
    blocked_since: float = NEVER  # since when nothing of it gets through, for whatever reason; NEVER while it does

    @property
    def decision_key(self) -> tuple[int, str]:
        """Under which its routing decision is cached."""
        return self.endpoint_id, self.contact.far_service

    @property
    def destination(self) -> str:
        """The far service, with its broker instance where one is named, and the address that leads there."""
        instance = self.contact.far_broker_instance
        named = "" if instance == NO_GUID else f", broker instance {show_guid(instance)}"
        by = "" if self.next_hop is None else f", sent to {self.next_hop}"
        return f"{self.contact.far_service}{named}{by}"

    @property
    def is_unloaded(self) -> bool:
        """Whether its fragments were evicted until they are due to be sent again."""
        return not self.outbound.loaded and self.outbound.resend_at != NEVER

    def resend_due_at(self, horizon: AckHorizon) -> float:
        """Until when a missing acknowledgement may only be queued, at most the longest back-off."""
        sent_at, cap = self.outbound.sent_at, self.outbound.round_trip.backoff.cap
        return min(horizon.due_at(self.contact.far_service, sent_at, self.acked_at), sent_at + cap)

    def on_acknowledged(
        self, place: Place, now: float, held: tuple[Run, ...], trips: RoundTripCounts, horizon: AckHorizon
    ) -> int:
        """Apply an acknowledgement and record the round trip that it shows; returns how many messages are done."""
        trip = self.outbound.round_trip
        trip.latest = None
        done = self.outbound.acknowledge(place, now, held)
        if done:
            self.not_stored = ""
        if trip.latest is not None:
            count_round_trip(trips, self.next_hop, trip.latest)
            horizon.record(self.contact.far_service, now - trip.latest, now)
            self.acked_at = now
        return done


class FairQueue:
    """
    The senders that may have something to send, each at most once.

    A higher priority is served first. Within one priority, dialogs get QUANTUM_BYTES each by deficit round-robin; one
    that sends more, because its last fragment did not fit, has that much less in its next rounds. So a dialog with huge
    messages delays one with small messages by its quantum, not by a whole message. One of every GUARD_TURNS calls of
    `pop` serves the priority that was passed over for longest, so the lowest also makes progress, however much the
    highest has to send.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Sender]] = {}  # by priority; none is empty
        self._served: dict[int, int] = {}  # turn in which a priority was last served, or began to wait
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, sender: Sender) -> None:
        """Queue a sender, unless it is queued already."""
        if sender.is_queued:
            return
        sender.is_queued = True
        queue = self._queues.get(sender.priority)
        if queue is None:
            queue = self._queues[sender.priority] = deque()
            self._served[sender.priority] = self._turn
        queue.append(sender)

    def pop(self) -> Sender:
        """Remove the next sender; it may send until its credit is used up."""
        self._turn += 1
        is_guard_turn = not self._turn % GUARD_TURNS
        priority = min(self._queues, key=self._served.__getitem__) if is_guard_turn else max(self._queues)
        self._served[priority] = self._turn
        queue = self._queues[priority]
        while True:
            sender = queue.popleft()
            sender.credit = min(0, sender.credit) + QUANTUM_BYTES
            if sender.credit > 0:
                break
            queue.append(sender)
        sender.is_queued = False
        if not queue:
            del self._queues[priority]
        return sender


class LoadBudget:
    """
    How much of the transmission queue is in memory: what windows ask for, never more than LOADED_MAX_BYTES.

    The bound holds for all dialogs together, whatever the size of their messages, because fragments are loaded. Dialogs
    that cannot send, or wait for a far side that is silent, are evicted when others need the memory.
    """

    def __init__(self, senders: Mapping[int, Sender], fragment_size: int, *, waiting: Container[int]) -> None:
        self.loaded_bytes = 0  # the sum of what all senders are charged for
        self._senders = senders  # the transmitter's own, like `waiting`: those without a path
        self._waiting = waiting
        self._fragment_size = fragment_size
        self._fragment_bytes = fragment_size + ENVELOPE_MAX
        # Senders with room in the window and no load under way, in order.
        self._needs_loading: OrderedDict[int, None] = OrderedDict()

    def __bool__(self) -> bool:
        """Whether a sender waits to be loaded."""
        return bool(self._needs_loading)

    @property
    def max_bytes(self) -> int:
        """How much more may be loaded; with nothing loaded one fragment always fits."""
        return max(0 if self.loaded_bytes else self._fragment_bytes, LOADED_MAX_BYTES - self.loaded_bytes)

    def check(self, sender: Sender) -> None:
        """Note a sender whose window has room for more than is loaded."""
        if sender.has_more and self.request(sender) is not None:
            self._needs_loading[sender.endpoint_id] = None

    def request(self, sender: Sender) -> LoadRequest | None:
        """What to load for a sender; None when its window has no room, or it is being loaded, or waits to be resent."""
        frames, size = sender.outbound.room
        has_room = frames and (size >= self._fragment_size or not sender.outbound.loaded)
        if not has_room or sender.is_loading or sender.is_unloaded:
            return None
        return LoadRequest(sender.endpoint_id, sender.outbound.load_from, frames, min(size, LOAD_BYTES))

    def requests(self) -> list[LoadRequest]:
        """What to load in the next batch, for those that have waited longest; evicts others when memory is short."""
        if self._needs_loading and self.max_bytes < self._fragment_bytes:
            self._evict_idle()
        if not self.max_bytes:
            return []
        requests: list[LoadRequest] = []
        while self._needs_loading and len(requests) < LOADS_MAX:
            endpoint_id, _ = self._needs_loading.popitem(last=False)
            sender = self._senders[endpoint_id]
            if sender.is_unloaded:
                continue
            sender.is_loading = True
            frames, size = sender.outbound.room
            requests.append(LoadRequest(endpoint_id, sender.outbound.load_from, max(1, frames), min(size, LOAD_BYTES)))
        return requests

    def on_loaded(self, sender: Sender, loaded: LoadedFragments) -> bool:
        """Add loaded fragments; False when they no longer follow, because a time-out unloaded those before them."""
        sender.is_loading = False
        if loaded.request.place != sender.outbound.load_from:
            return False
        for fragment in loaded.fragments:
            sender.outbound.offer(fragment)
        self.charge(sender)
        sender.has_more = not loaded.is_all
        return True

    def requeue(self, requests: Iterable[LoadRequest]) -> None:
        """Request these again: the store failed, or there was no memory."""
        for request in requests:
            sender = self._senders.get(request.endpoint_id)
            if sender is not None:
                sender.is_loading = False
                self._needs_loading[request.endpoint_id] = None

    def charge(self, sender: Sender) -> None:
        """Count what is loaded for a sender now."""
        self.loaded_bytes += sender.outbound.loaded_bytes - sender.charged_bytes
        sender.charged_bytes = sender.outbound.loaded_bytes

    def time_out(self, sender: Sender) -> None:
        """No acknowledgement arrived in time: load again from the first unacknowledged fragment."""
        sender.outbound.time_out()
        sender.has_more = True
        self.charge(sender)

    def forget(self, sender: Sender) -> None:
        """Give back what the sender was charged for."""
        self.loaded_bytes -= sender.charged_bytes
        sender.charged_bytes = 0
        self._needs_loading.pop(sender.endpoint_id, None)

    def _evict_idle(self) -> None:
        """Unload dialogs that have no path or receive no answer, if one that needs loading has nothing loaded."""
        if all(self._senders[endpoint_id].outbound.loaded for endpoint_id in self._needs_loading):
            return
        for sender in self._senders.values():
            outbound = sender.outbound
            if not outbound.loaded:
                continue
            if not outbound.in_flight and sender.endpoint_id in self._waiting:
                outbound.unload()
            elif outbound.round_trip.attempts:
                outbound.unload_until_resend()
            else:
                continue
            sender.has_more = True
            self.charge(sender)


class TimerHeap:
    """
    One timer of the loop for all senders: `on_timer` is called with the time that was set and the endpoint_id.

    A sender has one timer, at its `timer_at`; setting it earlier leaves an entry that fires without effect.
    """

    def __init__(self, on_timer: Callable[[float, int], None]) -> None:
        self._on_timer = on_timer
        self._loop = asyncio.get_running_loop()
        self._entries: list[tuple[float, int]] = []
        self._timer: asyncio.Handle | None = None
        self._timer_at = NEVER  # kept here: uvloop's handle of a call that is due at once has no time

    @property
    def next_at(self) -> float:
        """When the next one fires; NEVER when none will."""
        return self._entries[0][0] if self._entries else NEVER

    def set(self, sender: Sender, at: float) -> None:
        """Fire for this sender no later than `at`."""
        if at < sender.timer_at:
            sender.timer_at = at
            heapq.heappush(self._entries, (at, sender.endpoint_id))
            self._set_loop_timer()

    def close(self) -> None:
        """Cancel the timer of the loop: no timer fires after that."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_loop_timer(self) -> None:
        if self.next_at < self._timer_at:
            self.close()
            self._timer_at = self.next_at
            self._timer = self._loop.call_at(self._timer_at + EARLY_SECONDS, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, NEVER
        now = self._loop.time()
        while self.next_at <= now:
            self._on_timer(*heapq.heappop(self._entries))
        self._set_loop_timer()


class AckHorizon:
    """
    By far service: the latest send time of an acknowledged frame, and when that acknowledgement arrived.

    A service stores what dialogs send to it in about the order in which it was sent. While acknowledgements arrive, all
    of frames sent before those of a dialog, that dialog is in a queue, at the far side or here, where acknowledgements
    wait to be stored as well. Sending again would only make the queue longer for all: with 100,000 open dialogs each
    frame was sent four times. So a time-out waits until something that was sent later has been acknowledged, or until
    nothing has been for SILENCE. A dialog that is alone there has its own time-out only.
    """

    def __init__(self) -> None:
        self._by_service: dict[str, tuple[float, float]] = {}

    def record(self, service: str, sent_at: float, now: float) -> None:
        """A frame that was sent once only was acknowledged: otherwise it is unknown which copy it was."""
        latest, _ = self._by_service.pop(service, (-NEVER, now))
        self._by_service[service] = (max(latest, sent_at), now)
        if len(self._by_service) > SERVICES_MAX:
            del self._by_service[next(iter(self._by_service))]  # the one whose last acknowledgement is the oldest

    def due_at(self, service: str, sent_at: float, acked_at: float) -> float:
        """
        Until when a dialog waits besides its own time-out; -NEVER when that alone decides.

        Args:
            service: The far service.
            sent_at: When the dialog sent what is not acknowledged.
            acked_at: When something of it was last acknowledged: that is not a sign of others in the queue.
        """
        latest, moved_at = self._by_service.get(service, (NEVER, -NEVER))
        return moved_at + SILENCE if latest < sent_at and moved_at > max(sent_at, acked_at) else -NEVER


def count_round_trip(trips: RoundTripCounts, next_hop: Destination | None, seconds: float) -> None:
    """Count a frame that was sent to this hop once and acknowledged; above TRIPS_MAX it is counted under None."""
    if len(trips) >= TRIPS_MAX and (next_hop, MICROSECONDS) not in trips:
        next_hop = None
    trips[next_hop, bucket(seconds)] += 1
    trips[next_hop, MICROSECONDS] += int(seconds * 1e6)

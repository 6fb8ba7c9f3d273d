"""
How far the acknowledgements of a service have got: who sent later than that waits for its turn, not for what is lost.

What dialogs send to a service is stored there in about the order in which it was sent. While acknowledgements come in,
and all of them are of frames that were sent before those of a dialog, that dialog stands in a line, at the far side or
here, where answers wait to be stored as well. To send again would only make the line longer, for all of them: with
100,000 open dialogs each frame was sent four times. So a time-out waits until something that was sent later has been
acknowledged, or until nothing at all has been for a while. Who is alone there has its own time-out and no other.

Source: RFC 8985, which concludes so within one connection; RFC 9040, what connections to one place share.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from broker.conversation.frames import Contact, Place
from broker.conversation.outbound import Held, Outbound
from broker.conversation.window import NEVER
from broker.forwarding.latency import bucket
from broker.forwarding.outbox import Destination
from broker.store.port import LoadedFragments, LoadRequest

SILENCE = 1.0  # seconds without any acknowledgement of the service after which it does not move
SERVICES_MAX = 10_000  # remembered; of another one nothing is known until it is heard of again


class Frontier:
    """By far service: when what was acknowledged had been sent, at the latest, and when that was heard. Loop-only."""

    def __init__(self) -> None:
        self._by_service: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._by_service)

    def note(self, service: str, sent_at: float, now: float) -> None:
        """A frame that was sent once only was acknowledged: of another one nobody knows which copy it was."""
        furthest, _ = self._by_service.pop(service, (-NEVER, now))
        self._by_service[service] = (max(furthest, sent_at), now)
        if len(self._by_service) > SERVICES_MAX:
            del self._by_service[next(iter(self._by_service))]  # who was not heard of for longest

    def turn_at(self, service: str, sent_at: float, heard_at: float) -> float:
        """
        Until when a dialog waits, beside its own time-out; -NEVER when that alone decides.

        Args:
            service: The far one.
            sent_at: When it sent what is not acknowledged.
            heard_at: When it was acknowledged something last: that is no sign of others in the line.
        """
        furthest, moved_at = self._by_service.get(service, (NEVER, -NEVER))
        return moved_at + SILENCE if furthest < sent_at and moved_at > max(sent_at, heard_at) else -NEVER


# --- trips ---
# How long acknowledgements took, by next hop: counts that can be added up, as other counters of a database can.
#
# Pure. One entry for each next hop and each bound of a histogram that was met.


MICROSECONDS = -1
"""In place of a bucket: the sum of the times, in whole microseconds."""
ENTRIES_MAX = 20_000  # some thousand next hops; with ADDRESS 'TRANSPORT' services may name any number of them

Trips: TypeAlias = Counter[tuple[Destination | None, int]]


def note_trip(trips: Trips, next_hop: Destination | None, seconds: float) -> None:
    """A frame sent there once was acknowledged after so long; past the bound it is noted under None."""
    if len(trips) >= ENTRIES_MAX and (next_hop, MICROSECONDS) not in trips:
        next_hop = None
    trips[next_hop, bucket(seconds)] += 1
    trips[next_hop, MICROSECONDS] += int(seconds * 1e6)


# --- sender ---
# A dialog with something to send, as the transmitter and its helpers know it.


@dataclass(slots=True, eq=False)
class Sender:
    """
    A dialog with something to send or unacknowledged; changed by the transmitter and its helpers only.

    Shape: `stored` what every frame acknowledges; `priority` 1 .. 10; `credit` bytes it may send in its turn, below 0
    when it has sent more than its share; `charged` bytes of it that count as loaded; `outlet` the link to which its
    frames in flight were given; `armed_at` when its alarm rings; `heard_at` when a round trip of it was measured last;
    `advice` what the next hop said of the last frame it refused; `hindrance` why its frames cannot be sealed, empty
    while they can; `next_hop` the address of `outlet`, None in this very instance.
    """

    endpoint_id: int
    contact: Contact
    outbound: Outbound
    stored: Place
    priority: int = 5
    credit: int = 0
    charged: int = 0
    is_loading: bool = False
    has_more: bool = True
    is_queued: bool = False
    armed_at: float = NEVER
    outlet: object = None
    heard_at: float = -NEVER
    advice: str = ""
    hindrance: str = ""
    next_hop: Destination | None = None

    @property
    def is_resting(self) -> bool:
        """Whether its fragments were unloaded for the sake of others until they are sent again."""
        return not self.outbound.loaded and self.outbound.resend_at != NEVER

    def turn_at(self, frontier: Frontier) -> float:
        """Until when it only stands in a line, as `Frontier` has it, though no longer than the longest wait."""
        sent_at, cap = self.outbound.sent_at, self.outbound.round_trip.backoff.cap
        return min(frontier.turn_at(self.contact.far_service, sent_at, self.heard_at), sent_at + cap)

    def acknowledge(
        self, place: Place, now: float, held_there: tuple[Held, ...], trips: Trips, frontier: Frontier
    ) -> int:
        """As `Outbound.acknowledge`; how long the answer took is noted under the next hop, and how far that got."""
        trip = self.outbound.round_trip
        trip.latest = None
        done = self.outbound.acknowledge(place, now, held_there)
        if trip.latest is not None:
            note_trip(trips, self.next_hop, trip.latest)
            frontier.note(self.contact.far_service, now - trip.latest, now)
            self.heard_at = now
        return done


# --- alarm ---
# One timer of the loop for as many instants as there are dialogs.


class Alarms:
    """
    When senders are looked at again. Loop-only.

    A sender has one alarm, at its `armed_at`; setting it earlier leaves an entry behind that rings in vain. `ring` is
    called with the instant that was set and the endpoint_id.
    """

    def __init__(self, ring: Callable[[float, int], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._entries: list[tuple[float, int]] = []
        self._timer: asyncio.Handle | None = None
        self._timer_at = NEVER  # kept here: uvloop's handle of a call that is due at once does not tell

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_at(self) -> float:
        """When the next one rings; NEVER when none will."""
        return self._entries[0][0] if self._entries else NEVER

    def set(self, sender: Sender, at: float) -> None:
        """Look at the sender at this instant at the latest."""
        if at < sender.armed_at:
            sender.armed_at = at
            heapq.heappush(self._entries, (at, sender.endpoint_id))
            self._set_timer()

    def close(self) -> None:
        """Nothing rings any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self.next_at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self.next_at
            self._timer = self._loop.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, NEVER
        now = self._loop.time()
        while self.next_at <= now:
            self._ring(*heapq.heappop(self._entries))
        self._set_timer()


# --- loading ---
# What of the transmission queue is in memory: as much as windows ask for, and never more than LOADED_MAX_BYTES.
#
# The bound holds for all dialogs of a database together, whatever the size of their messages, as fragments are
# loaded.
# Who cannot send, or waits for the answer of a far side that has been silent, makes room when others need it.


LOADED_MAX_BYTES = 64 * 1024 * 1024  # bodies in memory, all dialogs together
LOAD_BYTES = 1024 * 1024  # bodies loaded for one dialog at a time: a turn of the writer thread stays short
TURN_WANTS = 1000  # dialogs that one turn loads for, likewise: what is found and what has come waits for its end
ENVELOPE_MAX = 64 * 1024  # what fragment 0 may have beside its payload; names have 512 bytes at most


class Loading:
    """
    Who wants what loaded. Loop-only.

    Shape: `loaded_bytes` the sum of what all senders are charged for; `senders` the transmitter's own; `waits`
    tells whether one has no way to send.
    """

    def __init__(self, senders: Mapping[int, Sender], fragment_size: int, *, waits: Callable[[int], bool]) -> None:
        self.loaded_bytes = 0
        self._senders = senders
        self._fragment_bytes = fragment_size + ENVELOPE_MAX
        self._fragment_size = fragment_size
        self._waits = waits
        self._hungry: dict[int, None] = {}  # senders whose window asks for more and that are not loading, in order

    def __bool__(self) -> bool:
        """Whether anybody wants anything."""
        return bool(self._hungry)

    @property
    def max_bytes(self) -> int:
        """How much more may be loaded, all dialogs together; one fragment always fits where there is none."""
        return max(0 if self.loaded_bytes else self._fragment_bytes, LOADED_MAX_BYTES - self.loaded_bytes)

    def look(self, sender: Sender) -> None:
        """See whether a sender wants more loaded."""
        if sender.has_more and not sender.is_loading and not sender.is_resting:
            frames, size = sender.outbound.room
            if frames and (size >= self._fragment_size or not sender.outbound.loaded):
                self._hungry[sender.endpoint_id] = None

    def wants(self) -> list[LoadRequest]:
        """What to load in the next turn, for those who have waited longest; none while there is no room."""
        if self._hungry and self.max_bytes < self._fragment_bytes:
            self._relieve()
        if not self.max_bytes:
            return []
        wants: list[LoadRequest] = []
        looked_at: list[int] = []
        for endpoint_id in self._hungry:
            if len(wants) == TURN_WANTS:
                break
            looked_at.append(endpoint_id)
            sender = self._senders[endpoint_id]
            if sender.is_resting:
                continue
            sender.is_loading = True
            frames, size = sender.outbound.room
            wants.append(LoadRequest(endpoint_id, sender.outbound.load_from, max(1, frames), min(size, LOAD_BYTES)))
        for endpoint_id in looked_at:
            del self._hungry[endpoint_id]
        return wants

    def loaded(self, sender: Sender, loaded: LoadedFragments) -> bool:
        """What was asked for has come; False when it belongs behind something that was unloaded meanwhile."""
        sender.is_loading = False
        if loaded.request.place != sender.outbound.load_from:
            return False
        for fragment in loaded.fragments:
            sender.outbound.offer(fragment)
        self.charge(sender)
        sender.has_more = not loaded.is_all
        return True

    def unwanted(self, want: LoadRequest) -> None:
        """The store failed, or there was no room: what was asked for has to be asked for again."""
        sender = self._senders.get(want.endpoint_id)
        if sender is not None:
            sender.is_loading = False
            self._hungry[want.endpoint_id] = None

    def charge(self, sender: Sender) -> None:
        """Count what is loaded for a sender now."""
        size = sender.outbound.loaded_bytes
        self.loaded_bytes += size - sender.charged
        sender.charged = size

    def time_out(self, sender: Sender) -> None:
        """No acknowledgement came in time: its fragments are loaded again from the first unacknowledged one."""
        sender.outbound.time_out()
        sender.has_more = True
        self.charge(sender)

    def forget(self, sender: Sender) -> None:
        """The sender is no more."""
        self.loaded_bytes -= sender.charged
        sender.charged = 0
        self._hungry.pop(sender.endpoint_id, None)

    def clear(self) -> None:
        """Nobody wants anything."""
        self._hungry.clear()

    def _relieve(self) -> None:
        """Who has no way to send, or hears nothing, must not keep those from loading who have nothing at all."""
        if all(self._senders[endpoint_id].outbound.loaded for endpoint_id in self._hungry):
            return
        for sender in self._senders.values():
            outbound = sender.outbound
            if not outbound.loaded:
                continue
            if not outbound.in_flight and self._waits(sender.endpoint_id):
                outbound.unload()
            elif outbound.round_trip.attempts:
                outbound.rest()
            else:
                continue
            sender.has_more = True
            self.charge(sender)


# --- turns ---
# Who sends next: the higher priority first, and dialogs of one priority in turn, each as many bytes as the others.
#
# Within a priority a turn is QUANTUM_BYTES; who sends more, because its last fragment did not fit, has the less in
# its
# next turns (surplus round robin, a form of deficit round robin: Shreedhar and Varghese, "Efficient Fair Queuing
# Using
# Deficit Round-Robin", 1995). So a dialog with huge messages delays one with small ones by its turn, not by its
# message.
#
# Starvation guard: of every GUARD_TURNS turns one goes to the priority that was passed over for longest, so the
# lowest
# moves as well, however much the highest has to send.
#
# Source: Service Broker documentation, "Conversation Priorities".


QUANTUM_BYTES = 64 * 1024  # one fragment of the default size
FRAME_COST = 1024  # bytes that a frame counts at least: a small one takes as much work
GUARD_TURNS = 8  # an eighth of the bytes, shared by all lower priorities, costs the highest little


class Turns:
    """The senders that may have something to send, each at most once. Loop-only."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[Sender]] = {}  # by priority; none is empty
        self._served: dict[int, int] = {}  # turn in which a priority was last served, or began to wait
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, sender: Sender) -> None:
        """It may have something to send."""
        if sender.is_queued:
            return
        sender.is_queued = True
        queue = self._queues.get(sender.priority)
        if queue is None:
            queue = self._queues[sender.priority] = deque()
            self._served[sender.priority] = self._turn
        queue.append(sender)

    def take(self) -> Sender:
        """Whose turn it is; it may send until its credit is used up."""
        self._turn += 1
        priority = self._next_priority()
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

    def _next_priority(self) -> int:
        if self._turn % GUARD_TURNS:
            return max(self._queues)
        return min(self._queues, key=self._served.__getitem__)

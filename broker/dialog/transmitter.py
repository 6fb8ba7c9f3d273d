"""
The sending half of a database at work: which dialog sends now, along which way, and when again.

Dialogs take turns in bursts. One sends only while its next hop takes frames at once, so frames of conversations do not
fill the forwarding pool; until then its messages stay in the transmission queue, which is where they are safe. What is
loaded into memory is bounded for all dialogs together. When the link that carried frames in flight is gone, they are
sent again at once; when no acknowledgement comes, after a time that doubles.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from broker.dialog.contact import Contact, Fragment, Travel, message_frame
from broker.dialog.conversation import NEVER, Backoff, Outbound, Outgoing
from broker.dialog.detour import detour
from broker.dialog.sending import Found, Want
from broker.flow import Disposition
from broker.forwarding.forwarder import Ask, Forwarder
from broker.forwarding.outbox import Outbox
from broker.forwarding.way import Buffer, Way
from broker.routing.decide import Decision, decide
from broker.routing.table import RouteTable
from broker.wire.frame import Rejected
from broker.wire.layout import CONVERSATION_AT, SEQUENCE_AT, Kind

LOADED_MAX_BYTES = 64 * 1024 * 1024  # bodies in memory, all dialogs together; a single larger message is loaded alone
LOAD_BYTES = 1024 * 1024  # bodies loaded for one dialog at a time
BURST_FRAMES = 64  # of one dialog before the next one's turn
PUMP_BYTES = 256 * 1024  # handed to the forwarder at once, and one dialog's burst
REMATCH_SECONDS = 10.0  # after which a delayed conversation is matched again without any change of routes
RETRY_AFTER_MIN = 0.1  # seconds; a next hop cannot ask for more resends than this
DECISIONS_MAX = 100_000  # remembered routing decisions, one a dialog


@dataclass(frozen=True, slots=True)
class DialogSettings:
    """Shape: `window` frames in flight for each dialog; `fragment_size` bytes of body in one frame."""

    backoff: Backoff
    travel: Travel
    window: int
    fragment_size: int


@dataclass(slots=True)
class Sender:
    """
    A dialog with something to send or unacknowledged; changed by the transmitter only.

    Shape: `load_from` the next sequence number to load; `stored` what every frame acknowledges; `outlet` the link to
    which its frames in flight were given; `armed_at` when its timer fires; `advice` what the next hop said of the last
    frame it refused.
    """

    endpoint_id: int
    contact: Contact
    outbound: Outbound
    load_from: int
    stored: tuple[int, int]
    is_loading: bool = False
    has_more: bool = True
    is_queued: bool = False
    armed_at: float = NEVER
    outlet: object = None
    advice: str = ""


class Transmitter:
    """
    The senders of one database. Loop-only.

    Shape: `table` the routes of this database; `sent`, `resent`, `acknowledged` messages by service since the start,
    `resent_to` by address of the next hop;
    `received` frames by kind that the forwarder received from here.
    """

    def __init__(
        self, settings: DialogSettings, forwarder: Forwarder, wake: Callable[[], None], *, ask: Ask = lambda _: None
    ) -> None:
        self.table = RouteTable()
        self.senders: dict[int, Sender] = {}
        self.sent: Counter[str] = Counter()
        self.resent: Counter[str] = Counter()
        self.resent_to: Counter[str] = Counter()
        self.acknowledged: Counter[str] = Counter()
        self.received: Counter[int] = Counter()
        self._settings = settings
        self._forwarder = forwarder
        self._wake = wake
        self._ask = ask
        self._loop = asyncio.get_running_loop()
        self._by_conversation: dict[tuple[bytes, bool], Sender] = {}
        self._runnable: deque[Sender] = deque()
        self._waiting: set[int] = set()  # senders that have something to send and no way to
        self._hungry: dict[int, None] = {}  # senders whose window asks for more and that are not loading, in order
        self._loaded_bytes = 0
        self._timers: list[tuple[float, int]] = []
        self._timer: asyncio.Handle | None = None
        self._timer_at = NEVER  # kept here: uvloop's handle of a call that is due at once does not tell
        self._decisions: dict[int, Decision] = {}
        self._generation = -1
        self._is_pump_due = False
        self._message_ids = (os.urandom(8), count(int.from_bytes(os.urandom(4), "big")))

    # --- what the writer thread found ---

    def found(self, found: Found) -> None:
        """A dialog has new messages."""
        sender = self.senders.get(found.endpoint_id)
        if sender is None:
            outbound = Outbound(self._settings.backoff, self._settings.window)
            sender = Sender(found.endpoint_id, found.contact, outbound, found.first_sequence, found.stored)
            self.senders[found.endpoint_id] = sender
            self._by_conversation[found.contact.conversation_id, found.contact.is_initiator] = sender
        sender.has_more = True
        self._run(sender)

    @property
    def load_max_bytes(self) -> int:
        """How much more may be loaded, all dialogs together."""
        return max(0, LOADED_MAX_BYTES - self._loaded_bytes)

    def wants(self) -> list[Want]:
        """What to load in the next turn, none while there is no room."""
        wants: list[Want] = []
        if self._hungry and not self.load_max_bytes:
            self._unload_waiting()
        if not self.load_max_bytes:
            return wants
        hungry, self._hungry = self._hungry, {}
        for endpoint_id in hungry:
            sender = self.senders[endpoint_id]
            sender.is_loading = True
            room = max(1, self._settings.window - len(sender.outbound.messages))
            wants.append(Want(endpoint_id, sender.load_from, room, LOAD_BYTES))
        return wants

    def loaded(self, want: Want, messages: list[Outgoing]) -> None:
        """What was asked for has come; a dialog for which nothing came and nothing is in flight is done."""
        sender = self.senders.get(want.endpoint_id)
        if sender is None:
            return
        sender.is_loading = False
        if want.sequence != sender.load_from:  # unloaded meanwhile: what goes before this has to be loaded again
            self._run(sender)
            return
        for message in messages:
            sender.outbound.offer(message)
            self._loaded_bytes += len(message.body)
            sender.load_from = message.sequence + 1
        if not messages and not sender.outbound.messages:
            self._forget(sender)
        else:
            sender.has_more = bool(messages)
            self._run(sender)

    def unwanted(self, wants: list[Want]) -> None:
        """The store failed, or there was no room: what was asked for has to be asked for again."""
        for want in wants:
            sender = self.senders.get(want.endpoint_id)
            if sender is not None:
                sender.is_loading = False
                self._hungry[want.endpoint_id] = None

    # --- what the far side said ---

    def acknowledge(self, endpoint_id: int, place: tuple[int, int]) -> None:
        """Everything before `place` is stored at the far side."""
        sender = self.senders.get(endpoint_id)
        if sender is None:
            return
        before = sender.outbound.loaded_bytes
        done = sender.outbound.acknowledge(*place, self._loop.time())
        self._loaded_bytes += sender.outbound.loaded_bytes - before
        self.acknowledged[sender.contact.service_name] += done
        sender.load_from = max(sender.load_from, place[0])
        sender.advice = ""
        if sender.outbound.messages or sender.has_more or sender.is_loading:
            self._arm(sender)
            self._run(sender)
        else:
            self._forget(sender)

    def bind(self, endpoint_id: int, contact: Contact) -> None:
        """The far side's broker instance is known now: later frames name it (R5.1)."""
        self._decisions.pop(endpoint_id, None)
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            sender.contact = contact

    def stored(self, endpoint_id: int, place: tuple[int, int]) -> None:
        """What is stored here, to be acknowledged with every frame from now on."""
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            sender.stored = place

    def finish(self, endpoint_id: int) -> None:
        """The dialog has nothing to send any more."""
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            self._forget(sender)

    def advise(self, rejected: Rejected) -> None:
        """The next hop could not take a frame: remember why, and try earlier when it says so."""
        for is_initiator in (True, False):
            sender = self._by_conversation.get((rejected.conversation, is_initiator))
            if sender is not None:
                sender.advice = f"{rejected.reason} ({rejected.code})"
                if rejected.retry_after_ms and sender.outbound.in_flight:
                    at = self._loop.time() + max(RETRY_AFTER_MIN, rejected.retry_after_ms / 1000)
                    sender.outbound.resend_at = min(sender.outbound.resend_at, at)
                    self._arm(sender)

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Origin of the pass: a frame of ours was dropped in this very instance."""
        conversation = bytes(frame[CONVERSATION_AT:SEQUENCE_AT])
        self.advise(Rejected(conversation=conversation, code=disposition.number, reason=disposition.value))

    # --- ways ---

    def way(self, endpoint_id: int, contact: Contact, kind: Kind) -> tuple[Way, Decision]:
        """The way that frames of this kind take now."""
        if self._generation != self._forwarder.generation or len(self._decisions) > DECISIONS_MAX:
            self._generation = self._forwarder.generation
            self._decisions.clear()
        decision = self._decisions.get(endpoint_id)
        if decision is None:
            decision = self._decisions[endpoint_id] = self.decide(contact)
            if decision.disposition is Disposition.ASKING_FOR_ROUTE:
                self._ask(contact.facts())
        return self._forwarder.way_for(decision, kind), decision

    def decide(self, contact: Contact) -> Decision:
        """The routing decision for what this side sends: by this database's own table (R1.1)."""
        return decide(contact.facts(), replace(self._forwarder.here, table=self.table))

    def on_paths(self) -> None:
        """Links, routes or services have changed: everybody who sends looks for a way again."""
        for sender in self.senders.values():
            self._run(sender)

    def on_room(self) -> None:
        """Some link takes frames again: those who waited try again."""
        for endpoint_id in self._waiting:
            sender = self.senders.get(endpoint_id)
            if sender is not None:
                self._run(sender)
        self._waiting.clear()

    # --- the pump ---

    def _run(self, sender: Sender) -> None:
        if not sender.is_queued:
            sender.is_queued = True
            self._runnable.append(sender)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        frames: list[tuple[Way, Buffer]] = []
        size = 0
        now = self._loop.time()
        while self._runnable and size < PUMP_BYTES:
            sender = self._runnable.popleft()
            sender.is_queued = False
            if self.senders.get(sender.endpoint_id) is sender:
                size += self._burst(sender, frames, now)
        if frames:
            self._forwarder.submit(frames, now, self)
        if self._runnable:
            self._run(self._runnable[0])
        if self._hungry:
            self._wake()

    def _burst(self, sender: Sender, frames: list[tuple[Way, Buffer]], now: float) -> int:
        """One dialog's turn; bytes added to `frames`."""
        way = self._open_way(sender)
        if way is None:
            self._waiting.add(sender.endpoint_id)
            return 0
        self._waiting.discard(sender.endpoint_id)
        outbound = sender.outbound
        size = 0
        for _ in range(BURST_FRAMES):
            if not outbound.has_unsent or size >= PUMP_BYTES:
                break
            message, fragment, is_resend = outbound.take(now)
            body, flags = message.fragment(fragment)
            piece = Fragment((message.sequence, fragment), flags, body, sender.stored)
            frame = message_frame(sender.contact, self._settings.travel, self.message_id(), piece)
            frames.append((way, frame))
            size += len(frame)
            if fragment + 1 == message.fragments:
                (self.resent if is_resend else self.sent)[sender.contact.service_name] += 1
                self.resent_to[str(way.sink.address) if isinstance(way.sink, Outbox) else ""] += is_resend
        self._arm(sender)
        if outbound.has_unsent:
            self._run(sender)
        elif sender.has_more and not sender.is_loading and len(outbound.messages) < self._settings.window:
            self._hungry[sender.endpoint_id] = None
        return size

    def _open_way(self, sender: Sender) -> Way | None:
        """The way of a sender when it leads on now; else a link is asked for, and it waits."""
        way, decision = self.way(sender.endpoint_id, sender.contact, Kind.MESSAGE)
        outlet: object = way.sink
        if isinstance(way.sink, Outbox):
            outlet = way.sink.outlet
            if not way.sink.is_ready:
                way.sink.want_link()
                return None
        elif decision.disposition is not Disposition.DELIVERED:
            self._arm(sender, self._loop.time() + REMATCH_SECONDS)
            return None
        if outlet is not sender.outlet:
            if sender.outbound.in_flight:
                sender.outbound.rewind()
            sender.outlet = outlet
        return way

    def message_id(self) -> bytes:
        """An id for one transmission: eight bytes of this process, eight of a counter."""
        prefix, numbers = self._message_ids
        return prefix + next(numbers).to_bytes(8, "big")

    # --- time ---

    def _arm(self, sender: Sender, when: float | None = None) -> None:
        """See that the sender is looked at when its acknowledgement is overdue, or at `when`."""
        at = sender.outbound.resend_at if when is None else when
        if at < sender.armed_at:
            sender.armed_at = at
            heapq.heappush(self._timers, (at, sender.endpoint_id))
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timers and self._timers[0][0] < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self._timers[0][0]
            self._timer = self._loop.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, NEVER
        now = self._loop.time()
        while self._timers and self._timers[0][0] <= now:
            at, endpoint_id = heapq.heappop(self._timers)
            sender = self.senders.get(endpoint_id)
            if sender is None or at != sender.armed_at:  # armed again, for an earlier time
                continue
            sender.armed_at = NEVER
            if sender.outbound.resend_at <= now:
                self._unload(sender)
                sender.outbound.time_out()
                if endpoint_id in self._decisions:
                    self._decisions[endpoint_id] = detour(self._decisions[endpoint_id], self._forwarder.outbox)
                self._run(sender)
            elif endpoint_id in self._waiting:
                self._decisions.pop(endpoint_id, None)
                self._run(sender)
            else:
                self._arm(sender)
        self._set_timer()

    def _unload_waiting(self) -> None:
        """Who cannot send must not keep others from loading."""
        for endpoint_id in self._waiting:
            sender = self.senders.get(endpoint_id)
            if sender is not None and not sender.outbound.in_flight:
                self._unload(sender)

    def _unload(self, sender: Sender) -> None:
        """Keep no message of this dialog in memory; they are loaded again from the first unacknowledged one."""
        self._loaded_bytes -= sender.outbound.loaded_bytes
        sender.outbound.unload()
        sender.load_from = sender.outbound.acknowledged_sequence
        sender.has_more = True

    def close(self) -> None:
        """Nothing more is sent."""
        if self._timer is not None:
            self._timer.cancel()
        self.senders.clear()
        self._hungry.clear()

    def _forget(self, sender: Sender) -> None:
        self._loaded_bytes -= sender.outbound.loaded_bytes
        self.senders.pop(sender.endpoint_id, None)
        self._by_conversation.pop((sender.contact.conversation_id, sender.contact.is_initiator), None)
        self._waiting.discard(sender.endpoint_id)
        self._hungry.pop(sender.endpoint_id, None)

"""
The sending half of a database at work: which dialog sends now, along which way, and when again.

Dialogs take turns (`turns`). One sends only while its next hop takes frames at once, so frames of conversations do not
fill the forwarding pool; until then its messages stay in the transmission queue, which is where they are safe. What is
loaded into memory is bounded for all dialogs together (`loading`). When the link that carried frames in flight is gone,
they are sent again at once; what is missing among things that arrived, a little later; when no acknowledgement comes,
after a time that doubles (`broker.conversation.outbound`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

from broker.conversation.frames import Contact, Fragment, Place, Seal
from broker.conversation.outbound import Held, Outbound
from broker.conversation.window import NEVER, RoundTrip, Window
from broker.dialog.alarm import Alarms
from broker.dialog.detour import FINAL, detour
from broker.dialog.framing import Framing
from broker.dialog.frontier import Frontier
from broker.dialog.loading import LOADED_MAX_BYTES, Loading
from broker.dialog.sender import Sender
from broker.dialog.setting import DialogSettings
from broker.dialog.status import Trouble, transmission_status
from broker.dialog.telling import Telling
from broker.dialog.trips import Trips
from broker.dialog.turns import FRAME_COST, Turns
from broker.dialog.witness import Witness
from broker.flow import Disposition
from broker.forwarding.deciding import Ask, want_better
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Destination, Outbox
from broker.forwarding.way import Buffer, Way, rejected
from broker.routing.decide import Decision, decide
from broker.routing.table import RouteTable
from broker.security.key_packet import Mode
from broker.security.session import CannotSealError, Credentials, Secured
from broker.store.sending import Found, Loaded, Want
from broker.wire.frame import Fault, Rejected
from broker.wire.layout import CONVERSATION_AT, KIND_AT, PLACE_END, SEQUENCE_AT, Flag, Kind

PUMP_BYTES = 256 * 1024  # handed to the forwarder at once: the loop does other things in between
REMATCH_SECONDS = 10.0  # after which a delayed conversation is matched again without any change of routes
DECISIONS_MAX = 100_000  # remembered routing decisions, one a dialog
CLOCK_JUMP = 1.0  # seconds by which the wall clock has to move for instants to be told anew
_LAST = int(Flag.LAST_FRAGMENT)
_BEGINNING = bytes(PLACE_END - SEQUENCE_AT)  # the first fragment of the first message
_NEVER = Secured(None)


class Transmitter:
    """
    The senders of one database. Loop-only.

    Shape: `database` its name, to be set; `table` its routes; `sent`, `resent`, `acknowledged` messages by service
    since the start, `resent_to` by address of the next hop; `received` frames by kind that the forwarder received from
    here; `faults` of dialogs that cannot be sent as they have to be, by endpoint_id, until they are taken. Ports, to be
    set by those who know: `trouble_of` an address, what was `asked` about a service, whether what a link was given
    arrives, though it leads on no more: it `has_parted`, whether this side `is_confirmed` as the principal, so that it
    may send. `is_resting` at the end.
    """

    def __init__(
        self,
        settings: DialogSettings,
        forwarder: Forwarder,
        wake: Callable[[], None],
        *,
        ask: Ask = lambda _: None,
        on_told: Callable[[int, Place], None] = lambda *_: None,
        credentials: Credentials | None = None,
    ) -> None:
        self.table = RouteTable()
        self.senders: dict[int, Sender] = {}
        self.forwarder = forwarder
        self.framing = Framing(settings.travel, credentials or Credentials())
        self.faults: dict[int, Fault] = {}
        self.database = ""
        self.sent: Counter[str] = Counter()
        self.resent, self.resent_to = Counter[str](), Counter[str]()
        self.round_trips: Trips = Counter()
        self.acknowledged, self.received = Counter[str](), Counter[int]()
        self.trouble_of: Callable[[Destination], Trouble] = lambda _: Trouble()
        self.asked: Callable[[str], str] = lambda _: "about to be asked"
        self.has_parted: Callable[[object], bool] = lambda _: False
        self.is_confirmed: Callable[[], bool] = lambda: True
        self.is_resting = False
        self.settings = settings
        self._wake = wake
        self._ask = ask
        self._on_told = on_told
        self._loop = asyncio.get_running_loop()
        self._by_conversation: dict[tuple[bytes, bool], Sender] = {}
        self._turns = Turns()
        self._waiting: dict[int, None] = {}  # senders that have something to send and no way to, in order
        self._loading = Loading(self.senders, settings.fragment_size, waits=self._waiting.__contains__)
        self._alarms = Alarms(self._on_alarm)
        self._frontier = Frontier()
        self._telling = Telling(self.senders, self.status)
        self._witness = Witness(forwarder.ring)
        self._decisions: dict[int, Decision] = {}
        self._generation = -1
        self._is_pump_due = False
        self._wall_offset = 0.0

    # --- what the writer thread found ---

    def found(self, found: Found) -> None:
        """A dialog has new messages."""
        sender = self.senders.get(found.endpoint_id)
        if sender is None:
            window = Window(self.settings.window, self.settings.window_bytes)
            outbound = Outbound(RoundTrip(self.settings.backoff), window, (found.first_sequence, 0))
            sender = Sender(found.endpoint_id, found.contact, outbound, found.stored, found.priority)
            self.senders[found.endpoint_id] = sender
            self._by_conversation[found.contact.conversation_id, found.contact.is_initiator] = sender
            self._telling.watch(sender, found.status, self._loop.time())
        sender.has_more = True
        self._run(sender)

    @property
    def load_max_bytes(self) -> int:
        """How much more may be loaded, all dialogs together."""
        return self._loading.max_bytes

    def wants(self) -> list[Want]:
        """What to load in the next turn, none while there is no room."""
        return self._loading.wants()

    def loaded(self, loaded: Loaded) -> None:
        """What was asked for has come; a dialog for which nothing came and nothing is in flight is done."""
        sender = self.senders.get(loaded.want.endpoint_id)
        if sender is None:
            return
        if self._loading.loaded(sender, loaded) and not sender.outbound.loaded and not sender.has_more:
            self._forget(sender)
        else:
            self._run(sender)

    def unwanted(self, wants: list[Want]) -> None:
        """The store failed, or there was no room: what was asked for has to be asked for again."""
        for want in wants:
            self._loading.unwanted(want)

    # --- what the far side said ---

    def acknowledge(self, endpoint_id: int, place: Place, held_there: tuple[Held, ...] = ()) -> None:
        """Everything before `place` is stored at the far side, and it holds `held_there` out of order."""
        sender = self.senders.get(endpoint_id)
        if sender is None:
            return
        outbound, now = sender.outbound, self._loop.time()
        self._witness.acknowledge(endpoint_id, place, now=now, wall=time.time())
        done = sender.acknowledge(place, now, held_there, self.round_trips, self._frontier)
        self.acknowledged[sender.contact.service_name] += done
        self._loading.charge(sender)
        sender.advice = ""
        if outbound.loaded or sender.has_more or sender.is_loading:
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

    def stored(self, endpoint_id: int, place: Place) -> None:
        """What is stored here, to be acknowledged with every frame from now on."""
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            sender.stored = place

    def finish(self, endpoint_id: int) -> None:
        """The dialog has nothing to send any more."""
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            self._forget(sender)

    def advise(self, rejected: Rejected, link: object) -> None:
        """A link that was given frames of a dialog did not take one: remember why, and send it early if told so."""
        for is_initiator in (True, False):
            sender = self._by_conversation.get((rejected.conversation, is_initiator))
            if sender is not None and link in (sender.outlet, self):
                sender.advice = f"{rejected.reason.strip() or 'no reason given'} ({rejected.code})"
                if rejected.retry_after_ms and rejected.code not in FINAL:
                    place = (rejected.sequence, rejected.fragment)
                    sender.outbound.refuse(place, self._loop.time(), rejected.retry_after_ms / 1000)
                    self._arm(sender)

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """Origin of the pass: a frame of ours was dropped in this very instance."""
        self.advise(rejected(frame, disposition), self)

    def sealed_later(self, frame: Buffer) -> Secured:
        """
        How the initiator of a dialog within this instance would seal it, for the target, by the frame that begins it.

        By its binding that is its principal, or the secret of an anonymous dialog. Any other frame says neither.
        """
        sender = None
        if frame[KIND_AT] == Kind.MESSAGE and frame[SEQUENCE_AT:PLACE_END] == _BEGINNING:
            sender = self._by_conversation.get((bytes(frame[CONVERSATION_AT:SEQUENCE_AT]), True))
        secured = None if sender is None else sender.contact.secured
        if secured is None or secured.mode is None:
            return _NEVER
        if secured.mode is Mode.ANONYMOUS:
            return Secured(None, secret=secured.secret)
        return Secured(None, self.framing.credentials.principal or "")

    # --- what is told ---

    @property
    def wall_offset(self) -> float:
        """UTC seconds since 1970 less the seconds of the loop; the same until the wall clock jumps."""
        offset = time.time() - self._loop.time()
        if abs(offset - self._wall_offset) > CLOCK_JUMP:
            self._wall_offset = offset
        return self._wall_offset

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes loaded for all dialogs, and the bound."""
        return self._loading.loaded_bytes, LOADED_MAX_BYTES

    def status(self, sender: Sender) -> str:
        """What the messages of a dialog wait for."""
        decision = self._decisions.get(sender.endpoint_id) if self._generation == self.forwarder.generation else None
        return transmission_status(sender, decision or self.decide(sender.contact), self)

    def statuses(self) -> dict[int, str | None]:
        """Transmission statuses to write into the file in the next turn, by endpoint_id; None removes one."""
        return self._telling.statuses(self._loop.time())

    def untold(self, statuses: dict[int, str | None]) -> None:
        """The store failed: these were not written."""
        self._telling.untold(statuses)

    # --- ways ---

    def way(self, endpoint_id: int, contact: Contact, kind: Kind) -> tuple[Way, Decision]:
        """The way that frames of this kind take now."""
        if self._generation != self.forwarder.generation or len(self._decisions) > DECISIONS_MAX:
            self._generation = self.forwarder.generation
            self._decisions.clear()
        decision = self._decisions.get(endpoint_id)
        if decision is None:
            decision = self._decisions[endpoint_id] = self.decide(contact)
            want_better(decision, self.forwarder.outbox)
            if decision.disposition is Disposition.ASKING_FOR_ROUTE:
                self._ask(contact.facts())
        return self.forwarder.way_for(decision, kind), decision

    def decide(self, contact: Contact) -> Decision:
        """The routing decision for what this side sends: by this database's own table (R1.1)."""
        return decide(contact.facts(), self.forwarder.here.with_table(self.table))

    def on_paths(self) -> None:
        """Links, routes or services have changed: everybody who sends looks for a way again."""
        for sender in self.senders.values():
            self._run(sender)

    def on_room(self) -> None:
        """Some link takes frames again: those who waited try again, in the order in which they began to wait."""
        for endpoint_id in self._waiting:
            sender = self.senders.get(endpoint_id)
            if sender is not None:
                self._run(sender)
        self._waiting.clear()

    # --- the pump ---

    def _run(self, sender: Sender) -> None:
        self._turns.add(sender)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._is_pump_due = False
        if self.is_resting or not self.is_confirmed():
            return
        frames: list[tuple[Way, Buffer]] = []
        size = 0
        now = self._loop.time()
        while self._turns and size < PUMP_BYTES:
            sender = self._turns.take()
            if self.senders.get(sender.endpoint_id) is sender:
                size += self._burst(sender, frames, now)
        if frames:
            self.forwarder.submit(frames, now, self, self._witness.take())
        if self._turns:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)
        if self._loading:
            self._wake()

    def _burst(self, sender: Sender, frames: list[tuple[Way, Buffer]], now: float) -> int:
        """One dialog's turn; bytes added to `frames`."""
        way, seal = self._open_way(sender)
        if way is None:
            self._waiting[sender.endpoint_id] = None
            return 0
        self._waiting.pop(sender.endpoint_id, None)
        outbound, contact, stored, framing = sender.outbound, sender.contact, sender.stored, self.framing
        is_followed = self._witness.follows(contact.conversation_id)
        size = sent = resent = 0
        while sender.credit > 0 and outbound.has_unsent:
            fragment, is_resend = outbound.take(now)
            piece = Fragment(fragment.place, fragment.flags, framing.body(fragment), stored)
            frame = framing.message(contact, piece, seal if seal is None or not is_resend else seal.again)
            frames.append((way, frame))
            if is_followed or fragment.trace_parent:
                self._witness.send(sender.endpoint_id, frame, fragment, is_resend=is_resend)
            length = len(frame)
            size += length
            sender.credit -= max(length, FRAME_COST)
            if fragment.flags & _LAST:
                sent += not is_resend
                resent += is_resend
        if sent:
            self.sent[contact.service_name] += sent
        if resent:
            self.resent[contact.service_name] += resent
            self.resent_to[str(way.sink.address) if isinstance(way.sink, Outbox) else ""] += resent
        if size and sender.stored != (0, 0):
            self._on_told(sender.endpoint_id, sender.stored)
        self._arm(sender)
        if outbound.has_unsent:
            self._run(sender)
        else:
            self._loading.look(sender)
        return size

    def _open_way(self, sender: Sender) -> tuple[Way | None, Seal | None]:
        """The way of a sender when it leads on now, and how it seals there; else a link is asked for, and it waits."""
        sender.hindrance = ""
        way, decision = self.way(sender.endpoint_id, sender.contact, Kind.MESSAGE)
        outlet: object = way.sink
        if isinstance(way.sink, Outbox):
            outlet = way.sink.outlet
            fault = self.framing.final(sender.contact)
            if fault is not None:
                self.faults[sender.endpoint_id] = fault
                self._wake()
                return None, None
            if not way.sink.is_ready:
                way.sink.want_link()
                return None, None
        elif decision.disposition is not Disposition.DELIVERED:
            self._arm(sender, self._loop.time() + REMATCH_SECONDS)
            return None, None
        try:
            seal = self.framing.seal(sender.contact, way, with_packet=False)
        except CannotSealError as error:
            sender.hindrance = str(error)
            self._arm(sender, self._loop.time() + REMATCH_SECONDS)
            return None, None
        if outlet is not sender.outlet:
            if sender.outbound.resend_at != NEVER and not self.has_parted(sender.outlet):
                sender.outbound.rewind()
            sender.outlet, sender.next_hop = outlet, getattr(way.sink, "address", None)
        return way, seal

    # --- time ---

    def _arm(self, sender: Sender, when: float | None = None) -> None:
        """See that the sender is looked at when its acknowledgement is overdue, or at `when`."""
        at = sender.outbound.alarm_at if when is None else when
        if at < sender.armed_at:
            self._alarms.set(sender, at)

    def _on_alarm(self, at: float, endpoint_id: int) -> None:
        sender = self.senders.get(endpoint_id)
        if sender is None or at != sender.armed_at:  # armed again, for an earlier time
            return
        sender.armed_at = NEVER
        outbound, now = sender.outbound, self._loop.time()
        turn_at = sender.turn_at(self._frontier) if outbound.resend_at <= now else NEVER
        if turn_at <= now:
            self._loading.time_out(sender)
            if endpoint_id in self._decisions:
                self._decisions[endpoint_id] = detour(self._decisions[endpoint_id], self.forwarder.outbox)
            self._run(sender)
        elif outbound.look_at <= now:
            outbound.look(now)
            self._arm(sender)
            self._run(sender)
        elif turn_at < NEVER:
            self._arm(sender, min(turn_at, outbound.look_at))
        elif endpoint_id in self._waiting:
            self._decisions.pop(endpoint_id, None)
            self._run(sender)
        else:
            self._arm(sender)

    def close(self) -> None:
        """Nothing more is sent."""
        self._alarms.close()
        self.senders.clear()
        self._loading.clear()

    def _forget(self, sender: Sender) -> None:
        self._loading.forget(sender)
        self._witness.forget(sender.endpoint_id)
        self.senders.pop(sender.endpoint_id, None)
        self._by_conversation.pop((sender.contact.conversation_id, sender.contact.is_initiator), None)
        self._waiting.pop(sender.endpoint_id, None)
        self._telling.forget(sender.endpoint_id)
        if self._loading:  # there may be room now
            self._wake()

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
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as dataclasses_replace
from itertools import count

from msgspec import structs
from msgspec.structs import replace

from broker.conversation.frames import Contact, Fragment, Place, Seal, Travel, ack_frame, fault_frame, message_frame
from broker.conversation.outbound import Held, Outbound, Outgoing
from broker.conversation.window import FIRST_FRAMES, NEVER, Backoff, RoundTrip, Window
from broker.dialog.journal_hooks import Witness
from broker.dialog.send_queue import FRAME_COST, LOADED_MAX_BYTES, Alarms, Frontier, Loading, Sender, Trips, Turns
from broker.dialog.status import StatusWriter, Trouble, transmission_status
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, rejected
from broker.forwarding.fib import Ask, want_better
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import DatabaseSink, Destination, Outbox
from broker.protocol.frame import Fault, Rejected, decode_envelope, encode_envelope
from broker.protocol.layout import CONVERSATION_AT, KIND_AT, PLACE_END, SEQUENCE_AT, Flag, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Decision, decide
from broker.routing.table import RouteTable
from broker.security.seal import Mode
from broker.security.session import CannotSealError, DialogCredentials, Sealer, Secured
from broker.store.port import KeyEvidence, LoadedFragments, LoadRequest, PendingDialog, Run
from broker.store.sqlite.outbound import left

# --- detour ---
# Other ways than the best one, for frames that got no answer along it, or that will get none.
#
# A next hop can be connected and lead nowhere: a gateway that has lost its own next hop, or one of several targets
# that
# is not the one a dialog is bound to. Only the lack of an acknowledgement shows it, and only at the sender.


FINAL = frozenset(  # why the next hop refused a frame that it will refuse again, whatever it says of retrying
    disposition.number
    for disposition in (
        Disposition.MALFORMED,
        Disposition.HOPS_EXHAUSTED,
        Disposition.FORWARDING_DISABLED,
        Disposition.ROUTE_INVALID,
        Disposition.FRAME_TOO_LARGE,
    )
)


def alternatives(decision: Decision) -> list[Decision]:
    """
    The decision once for each address that is not suppressed, each in front once; the order goes round.

    Shape: at least one; the first is the decision itself.
    """
    usable = [candidate for candidate in decision.candidates if candidate.health is not AddressHealth.SUPPRESSED]
    rest = [candidate for candidate in decision.candidates if candidate.health is AddressHealth.SUPPRESSED]
    turned = [(*usable[start:], *usable[:start], *rest) for start in range(1, len(usable))]
    return [decision, *(replace(decision, candidates=those, route=those[0].route) for those in turned)]


def detour(decision: Decision, outbox: Callable[[NetworkAddress], Outbox]) -> Decision:
    """
    The decision with the next address that is as good as the best one in front; the same when there is none.

    Asked again and again, each of those has its turn. For an address that was not tried a link is asked for, and not
    waited for: when nobody answers there, finding out takes longer than the next resend.
    """
    for candidate in decision.candidates:
        if candidate.health is AddressHealth.UNTRIED:
            outbox(candidate.address).want_link()
    for other in alternatives(decision)[1:]:
        if other.candidates[0].health is decision.candidates[0].health:
            return other
    return decision


# --- framing ---
# The frames that one database sends, each with an id of its own, sealed where they leave the instance.
#
# Whether a frame is sealed is decided by how its side is secured and by its way: what a database of this very
# instance
# takes stays in the process, and is never sealed. Loop-only.


SEALERS_MAX = 16_384  # dialogs whose keys are kept, some 50 MB; one above it makes a new key with its next frame
NO_BINDING, NO_CERTIFICATE = -9727, -9731  # the original's numbers


class Framing:
    """
    Makes frames.

    Shape: `credentials` of the database, and the `travel` of each frame; may be changed by anybody, each part as a
    whole.
    """

    def __init__(self, travel: Travel, credentials: DialogCredentials) -> None:
        self.credentials = credentials
        self.travel = travel
        self._message_ids = (os.urandom(8), count(int.from_bytes(os.urandom(4), "big")))
        self._sealers: OrderedDict[tuple[bytes, bool], Sealer] = OrderedDict()

    def message_id(self) -> bytes:
        """An id for one transmission: eight bytes of this process, eight of a counter."""
        prefix, numbers = self._message_ids
        return prefix + next(numbers).to_bytes(8, "big")

    def message(self, contact: Contact, fragment: Fragment, seal: Seal | None) -> bytes:
        """One fragment of a message, sealed as `seal` gave it. Raises CannotSealError: not behind `seal`."""
        return message_frame(contact, self.travel, self.message_id(), fragment, seal)

    def body(self, fragment: Outgoing) -> bytes:
        """The body of a fragment as it goes out now: what is left of a lifetime shrinks while a message waits."""
        if not fragment.lifetime:
            return fragment.body
        envelope, payload = decode_envelope(fragment.body)
        now = max(time.time(), fragment.enqueued_at)
        return encode_envelope(structs.replace(envelope, lifetime=left(fragment.lifetime, now))) + payload

    def ack(
        self,
        contact: Contact,
        way: ForwardingEntry,
        stored: Place,
        held: tuple[Run, ...] = (),
        *,
        is_urgent: bool = True,
    ) -> bytes | None:
        """An acknowledgement; None when it cannot be sealed: what is not acknowledged comes again."""
        try:
            seal = self.seal(contact, way, with_packet=is_urgent)
        except CannotSealError:
            return None
        return ack_frame(contact, self.travel, self.message_id(), stored, held, seal=seal)

    def fault(self, contact: Contact, way: ForwardingEntry, fault: Fault) -> bytes | None:
        """An error; None when it cannot be sealed: the far side would not believe it."""
        try:
            seal = self.seal(contact, way, with_packet=True)
        except CannotSealError:
            return None
        return fault_frame(contact, self.travel, self.message_id(), fault, seal)

    def seal(self, contact: Contact, way: ForwardingEntry, *, with_packet: bool) -> Seal | None:
        """
        How frames of this side are sealed on this way, now; None when they are not.

        Raises:
            CannotSealError: they have to be, and something is missing.
        """
        secured = contact.secured
        if secured is None or isinstance(way.sink, DatabaseSink):
            return None
        if secured.mode is None and not contact.is_initiator:  # it began inside; who has moved away will seal
            return None
        name = (contact.conversation_id, contact.is_initiator)
        sealer = self._sealers.get(name)
        if sealer is None or sealer.secured != secured:
            sealer = self._sealers[name] = Sealer(secured, contact.direction(), self.credentials, os.urandom)
            if len(self._sealers) > SEALERS_MAX:
                self._sealers.popitem(last=False)
        else:
            self._sealers.move_to_end(name)
        now = time.time()
        sealer.check(now)
        return Seal(sealer, now, with_packet)

    def heard(self, conversation_id: bytes, heard: KeyEvidence, *, is_initiator: bool) -> None:
        """A sealed frame came to this side, and was believed."""
        sealer = self._sealers.get((conversation_id, is_initiator))
        if sealer is not None:
            sealer.heard(*heard)

    def final(self, contact: Contact) -> Fault | None:
        """Why this side can never leave this instance, however long it waits; None when it can, or may some day."""
        secured = contact.secured
        if secured is None or not contact.is_initiator:
            return None
        if secured.mode is None:
            text = (
                "dialog security is not available for this conversation because there is no remote service binding for"
                f" the target service: CREATE REMOTE SERVICE BINDING name TO SERVICE '{contact.far_service}' WITH USER"
                " = [principal], or begin the dialog with encryption off"
            )
            return Fault(NO_BINDING, text)
        if secured.mode is Mode.FULL and self.credentials.own is None:
            text = (
                "dialog security is unavailable for this conversation because this database has no certificate: give it"
                " one (certificate, private_key), or make the remote service binding ANONYMOUS = ON"
            )
            return Fault(NO_CERTIFICATE, text)
        return None


# --- resetting ---
# Other settings for the dialogs of a database that is at work. Loop-only.


def reset(transmitter: Transmitter, settings: DialogTuning) -> None:
    """
    Dialogs behave so from now on, those under way as well: what is in flight stays, what is sent next obeys.

    How messages are cut stays as it is: those that wait are cut already.
    """
    transmitter.settings = dataclasses_replace(settings, fragment_size=transmitter.settings.fragment_size)
    transmitter.framing.travel = settings.travel
    for sender in transmitter.senders.values():
        outbound = sender.outbound
        outbound.round_trip.backoff = settings.backoff
        outbound.window.bound(settings.window, settings.window_bytes)
    transmitter.on_room()  # a wider window may have room for more


# --- setting ---
# How the dialogs of a database behave, as the configuration says.


@dataclass(frozen=True, slots=True)
class DialogTuning:
    """
    Shape: `window` frames and `window_bytes` of bodies in flight for each dialog at most; `fragment_size` bytes of
    payload in one frame.
    """

    backoff: Backoff
    travel: Travel
    window: int
    fragment_size: int
    window_bytes: int = 8 * 1024 * 1024

    @property
    def first_frames(self) -> int:
        """How much of a dialog is loaded when it begins to wait: as `Outbound.room` has it."""
        return min(self.window, 2 * FIRST_FRAMES)


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
        settings: DialogTuning,
        forwarder: Forwarder,
        wake: Callable[[], None],
        *,
        ask: Ask = lambda _: None,
        on_told: Callable[[int, Place], None] = lambda *_: None,
        credentials: DialogCredentials | None = None,
    ) -> None:
        self.table = RouteTable()
        self.senders: dict[int, Sender] = {}
        self.forwarder = forwarder
        self.framing = Framing(settings.travel, credentials or DialogCredentials())
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
        self._telling = StatusWriter(self.senders, self.status)
        self._witness = Witness(forwarder.ring)
        self._decisions: dict[int, Decision] = {}
        self._generation = -1
        self._is_pump_due = False
        self._wall_offset = 0.0

    # --- what the writer thread found ---

    def found(self, found: PendingDialog) -> None:
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

    def wants(self) -> list[LoadRequest]:
        """What to load in the next turn, none while there is no room."""
        return self._loading.wants()

    def loaded(self, loaded: LoadedFragments) -> None:
        """What was asked for has come; a dialog for which nothing came and nothing is in flight is done."""
        sender = self.senders.get(loaded.request.endpoint_id)
        if sender is None:
            return
        if self._loading.loaded(sender, loaded) and not sender.outbound.loaded and not sender.has_more:
            self._forget(sender)
        else:
            self._run(sender)

    def unwanted(self, wants: list[LoadRequest]) -> None:
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
        if frame[KIND_AT] == FrameKind.MESSAGE and frame[SEQUENCE_AT:PLACE_END] == _BEGINNING:
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

    def way(self, endpoint_id: int, contact: Contact, kind: FrameKind) -> tuple[ForwardingEntry, Decision]:
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
        frames: list[tuple[ForwardingEntry, Buffer]] = []
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

    def _burst(self, sender: Sender, frames: list[tuple[ForwardingEntry, Buffer]], now: float) -> int:
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

    def _open_way(self, sender: Sender) -> tuple[ForwardingEntry | None, Seal | None]:
        """The way of a sender when it leads on now, and how it seals there; else a link is asked for, and it waits."""
        sender.hindrance = ""
        way, decision = self.way(sender.endpoint_id, sender.contact, FrameKind.MESSAGE)
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

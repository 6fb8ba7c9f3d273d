"""
The sending half of one database: which dialog sends now, along which path, and when again.

Dialogs with unsent messages are scheduled by priority (`FairQueue`). A dialog sends only while its next hop accepts
frames, so messages wait in the transmission queue, where they are durable, not in the forwarding pool. Frames are sent
again when the link that carried them is gone (at once), when later ones were acknowledged (a little later), or when no
acknowledgement arrives (after a time that doubles, on the next equally good path). Windows and timers are in
`conversation.outbound`; this module drives them. Frames that leave the instance are sealed here. Loop-only.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import count, islice

from msgspec.structs import replace

from broker.conversation.frames import (
    NO_NOTE,
    AckNote,
    Contact,
    Fragment,
    Place,
    Run,
    Seal,
    Travel,
    ack_frame,
    fault_frame,
    message_frame,
)
from broker.conversation.outbound import Outbound, Outgoing
from broker.conversation.window import FIRST_BYTES, FIRST_FRAMES, NEVER, Backoff, RoundTrip, Window
from broker.dialog.journal_hooks import SenderJournal
from broker.dialog.send_queue import FRAME_COST, AckHorizon, FairQueue, LoadBudget, RoundTripCounts, Sender, TimerHeap
from broker.dialog.status import (
    ACK_DROPPED_HERE,
    DROPPED_HERE,
    NOT_SEALED,
    REFUSED,
    DialogContext,
    StatusWriter,
    TransmissionStatus,
)
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, ForwardingEntry, conversation_of
from broker.forwarding.fib import AskForRoute, request_better
from broker.forwarding.forwarder import REFUSALS, Forwarder
from broker.forwarding.outbox import DatabaseSink, Outbox
from broker.protocol.frame import Fault, Rejected, decode_envelope, encode_envelope
from broker.protocol.layout import CONVERSATION_AT, FLAGS_AT, KIND_AT, PLACE_END, SEQUENCE_AT, Flag, FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Decision, affected, decide
from broker.routing.table import RouteTable
from broker.security.secured import Mode, Secured
from broker.security.session import CannotSealError, DialogCredentials, Sealer
from broker.store.port import KeyEvidence, LoadedFragments, LoadRequest, PendingDialog
from broker.store.sqlite.outbound import left

PUMP_BYTES = 256 * 1024  # passed to the forwarder in one iteration of the loop, so that others run in between
REMATCH_SECONDS = 10.0  # after which a delayed dialog is matched again without any change of routes
DECISIONS_MAX = 100_000  # cached routing decisions, one a dialog
SEALERS_MAX = 16_384  # dialogs whose keys are kept, some 50 MB; one above it makes a new key with its next frame
BLOCKED_MAX = 1_000  # dialogs that are counted for one snapshot: some milliseconds
RETRY_MIN = 0.1  # seconds until a frame is sent again that a next hop would accept now
NO_BINDING, NO_CERTIFICATE = -9727, -9731  # the original's numbers
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

_COPY_WAITED = ", where an earlier copy waited for a connection onward"
_LAST = int(Flag.LAST_FRAGMENT)  # an enum's operators are slow
_BEGINNING = bytes(PLACE_END - SEQUENCE_AT)  # the first fragment of the first message
_NEVER = Secured(None)


@dataclasses.dataclass(frozen=True, slots=True)
class DialogTuning:
    """How the dialogs of a database behave, as the configuration says."""

    backoff: Backoff
    travel: Travel
    window: int  # frames in flight for each dialog at most
    fragment_size: int  # bytes of payload in one frame
    window_bytes: int = 8 * 1024 * 1024


class Transmitter:
    """
    The dialogs of one database that send.

    Args:
        database: Its name.
        tuning: How dialogs behave; see `apply`.
        forwarder: Accepts the frames.
        context: State of links and paths, from the instance.
        wake_writer: Called when there is something to load or to store.
        ask_for_route: Called when a dialog has no route, and its table says which peer to ask for one (R2.4).
        on_acks_carried: Called when a message was sent that acknowledges everything before this place.
        request_status: Returns the status of the request for a route to a service, as the end of a sentence.
        credentials: The certificates and keys that frames are sealed with.
    """

    def __init__(
        self,
        database: str,
        tuning: DialogTuning,
        forwarder: Forwarder,
        context: DialogContext,
        *,
        wake_writer: Callable[[], None],
        ask_for_route: AskForRoute,
        on_acks_carried: Callable[[int, Place], None],
        request_status: Callable[[str], str],
        credentials: DialogCredentials,
    ) -> None:
        self.database = database
        self.tuning = tuning
        self.table = RouteTable()  # its own routes
        self.senders: dict[int, Sender] = {}  # by endpoint_id
        self.frames = FrameBuilder(tuning.travel, credentials)
        self.faults: dict[int, Fault] = {}  # of dialogs that can never be sent, for the next batch
        self.is_quiesced = False
        self.is_role_confirmed: Callable[[], bool] | None = None  # where the database may have another principal
        self.sent, self.resent, self.acknowledged = Counter[str](), Counter[str](), Counter[str]()  # by service
        self.resent_to = Counter[str]()  # by address of the next hop
        self.round_trips: RoundTripCounts = Counter()
        self.received = Counter[int]()  # as an origin of the forwarder: frames it received from here, by kind
        self._forwarder = forwarder
        self._left_cleanly = context.left_cleanly
        self._wake_writer = wake_writer
        self._ask_for_route = ask_for_route
        self._on_acks_carried = on_acks_carried
        self._loop = asyncio.get_running_loop()
        self._by_conversation: dict[tuple[bytes, bool], Sender] = {}
        self._queue = FairQueue()
        self._waiting: dict[int, None] = {}  # senders with no path, in order
        self._overdue: dict[int, None] = {}  # senders whose messages are late, refused or not stored
        self.budget = LoadBudget(self.senders, tuning.fragment_size, waiting=self._waiting)
        self._timers = TimerHeap(self._on_timer)
        self._horizon = AckHorizon()
        self._status = TransmissionStatus(forwarder, self.budget, self._loop.time, context.problem_of, request_status)
        self.statuses = StatusWriter(self.senders, self.status_of)
        self._journal = SenderJournal(forwarder.ring)
        self._decisions: dict[tuple[int, str], Decision] = {}  # by endpoint_id and far service, of this generation
        self._generation = -1
        self._is_pump_due = False

    def apply(self, tuning: DialogTuning) -> None:
        """
        Dialogs behave so from now on, those under way as well: what is in flight stays, what is sent next obeys.

        How messages are cut stays as it is: those that wait are cut already.
        """
        self.tuning = dataclasses.replace(tuning, fragment_size=self.tuning.fragment_size)
        self.frames.travel = tuning.travel
        for sender in self.senders.values():
            sender.outbound.round_trip.backoff = tuning.backoff
            sender.outbound.window.bound(tuning.window, tuning.window_bytes)
        self.on_capacity()  # a wider window may have room for more

    def close(self) -> None:
        """Send nothing more."""
        self._timers.close()
        for sender in self.senders.values():
            self.budget.forget(sender)
        self.senders.clear()

    # --- what the writer found and loaded ---

    def on_found(self, found: PendingDialog) -> None:
        """A dialog has new messages."""
        sender = self.senders.get(found.endpoint_id)
        if sender is None:
            window = Window(self.tuning.window, self.tuning.window_bytes)
            outbound = Outbound(RoundTrip(self.tuning.backoff), window, (found.first_sequence, 0))
            sender = Sender(found.endpoint_id, found.contact, outbound, found.stored, found.priority)
            self.senders[found.endpoint_id] = sender
            self._by_conversation[found.contact.conversation_id, found.contact.is_initiator] = sender
            self.statuses.watch(sender, found.status, self._loop.time())
        sender.has_more = True
        self._schedule(sender)

    def keep(self, pending: AbstractSet[int]) -> None:
        """Forget all dialogs but these: applications have ended them."""
        for endpoint_id in self.senders.keys() - pending:
            self.finish(endpoint_id)

    def request_for(self, found: PendingDialog) -> LoadRequest | None:
        """
        What to load of a dialog that was found; None when it has no room, or is being loaded.

        For the writer thread. If the loop changes the dialog at the same time, the fragments loaded do not follow any
        longer, and are loaded again.
        """
        sender = self.senders.get(found.endpoint_id)
        if sender is None:
            frames = min(self.tuning.window, 2 * FIRST_FRAMES)  # as `Outbound.room` has it
            return LoadRequest(found.endpoint_id, (found.first_sequence, 0), frames, FIRST_BYTES)
        return self.budget.request(sender)

    def on_loaded(self, loaded: LoadedFragments) -> None:
        """Send what was loaded; a dialog for which nothing was loaded and nothing is in flight is done."""
        sender = self.senders.get(loaded.request.endpoint_id)
        if sender is None:
            return
        if self.budget.on_loaded(sender, loaded) and not sender.outbound.loaded and not sender.has_more:
            self.finish(sender.endpoint_id)
        else:
            self._schedule(sender)

    # --- what the far side and the next hop answer ---

    def on_acknowledged(self, endpoint_id: int, place: Place, held: tuple[Run, ...] = ()) -> None:
        """The far side has stored everything before `place`, and `held` out of order."""
        sender = self.senders.get(endpoint_id)
        if sender is None:
            return
        now, before = self._loop.time(), sender.outbound.acknowledged
        self._journal.on_acknowledged(endpoint_id, place, now=now, wall=time.time())
        done = sender.on_acknowledged(place, now, held, self.round_trips, self._horizon)
        self.acknowledged[sender.contact.service_name] += done
        self.budget.charge(sender)
        sender.last_rejection = ""
        if sender.outbound.acknowledged > before:
            self._overdue.pop(endpoint_id, None)
            sender.blocked_since = NEVER
        if sender.outbound.loaded or sender.has_more or sender.is_loading:
            self._arm(sender)
            self._schedule(sender)
        else:
            self.finish(endpoint_id)

    def on_said(self, endpoint_id: int, said: AckNote) -> None:
        """The far side says why it does not store what it was sent, or acknowledges without such words."""
        sender = self.senders.get(endpoint_id)
        if sender is None:
            return
        if said.code:
            sender.not_stored = f"{said.reason.strip() or 'no reason given'} ({said.code})"
            sender.not_stored_at = self._loop.time()
            self._note_overdue(sender, sender.not_stored_at)
        elif sender.not_stored:
            sender.not_stored = ""
            self._overdue.pop(endpoint_id, None)
            sender.outbound.rewind()
            self._schedule(sender)

    def bind(self, endpoint_id: int, contact: Contact) -> None:
        """The far side's broker instance is known now: later frames name it (R5.1)."""
        self._decisions.pop((endpoint_id, contact.far_service), None)
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            sender.contact = contact

    def on_stored(self, endpoint_id: int, place: Place) -> None:
        """Acknowledge everything before `place` with every frame from now on."""
        sender = self.senders.get(endpoint_id)
        if sender is not None:
            sender.stored = place

    def finish(self, endpoint_id: int) -> None:
        """Forget a dialog that has nothing left to send."""
        sender = self.senders.pop(endpoint_id, None)
        if sender is None:
            return
        self.budget.forget(sender)
        self._journal.forget(endpoint_id)
        self._by_conversation.pop((sender.contact.conversation_id, sender.contact.is_initiator), None)
        self._waiting.pop(endpoint_id, None)
        self._overdue.pop(endpoint_id, None)
        self.statuses.forget(endpoint_id)
        if self.budget:  # memory was freed
            self._wake_writer()

    def on_rejected(self, rejected: Rejected, link: object, peer: str) -> None:
        """
        A next hop that was given a frame refused it: remember why, and send it again early if it says so.

        Without a number (`code` 0) the next hop would accept now what it refused before. `peer` names it for people.
        """
        for is_initiator in (True, False):
            sender = self._by_conversation.get((rejected.conversation, is_initiator))
            if sender is not None and link is sender.outlet:
                place, now = (rejected.sequence, rejected.fragment), self._loop.time()
                if not rejected.code and rejected.retry_after_ms:
                    sender.last_rejection = ""
                    sender.outbound.bring_forward(place, now + max(RETRY_MIN, rejected.retry_after_ms / 1000))
                    self._arm(sender)
                    continue
                reason = rejected.reason.strip() or "no reason given"
                held = _COPY_WAITED if rejected.code == Disposition.ALREADY_HELD.number else ""
                sender.last_rejection = f"{REFUSED}{reason} ({rejected.code}), answered by {peer}{held}"
                sender.rejected_at = now
                self._note_overdue(sender, now)
                self._hasten_status(sender)
                if rejected.code in REFUSALS:
                    self._leave_path(sender, now)
                if rejected.retry_after_ms and rejected.code not in FINAL:
                    sender.outbound.refuse(place, now, rejected.retry_after_ms / 1000)
                    self._arm(sender)

    def _leave_path(self, sender: Sender, now: float) -> None:
        """The next hop does not have the broker instance that the dialog names: another one may lead to it."""
        facts, next_hop = sender.contact.facts(), sender.next_hop
        has_choice = len(self.decide(sender.contact).candidates) > 1
        if has_choice and not facts.is_open and isinstance(next_hop, NetworkAddress):
            self._forwarder.note_refusal(facts.to_service, facts.to_broker_instance, next_hop, now)
            self._decisions.pop(sender.decision_key, None)
            self._schedule(sender)

    def reject(self, frame: Buffer, disposition: Disposition) -> None:
        """As an origin of the forwarder: a frame of this database was dropped within this instance."""
        is_initiator = not frame[FLAGS_AT] & Flag.FROM_TARGET
        sender = self._by_conversation.get((conversation_of(frame), is_initiator))
        if sender is not None:
            what = ACK_DROPPED_HERE if frame[KIND_AT] == FrameKind.ACK else DROPPED_HERE
            sender.last_rejection = f"{what}{disposition} ({disposition.number})"
            sender.rejected_at = self._loop.time()
            self._note_overdue(sender, sender.rejected_at)
            self._hasten_status(sender)

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
        return Secured(None, self.frames.credentials.principal or "")

    # --- statuses ---

    def is_sending(self, conversation: bytes, *, is_initiator: bool) -> bool:
        """Whether a side here has messages that are not acknowledged."""
        return (conversation, is_initiator) in self._by_conversation

    def status_of(self, sender: Sender) -> str:
        """Return the status of a dialog: a sentence that says why its messages wait."""
        decision = self._decisions.get(sender.decision_key) if self._generation == self._forwarder.generation else None
        return self._status.render(sender, decision or self.decide(sender.contact))

    def _hasten_status(self, sender: Sender) -> None:
        if self.statuses.hasten(sender.endpoint_id, self._loop.time()):
            self._wake_writer()

    def _note_overdue(self, sender: Sender, now: float) -> None:
        """What this dialog has sent is not acknowledged in time, or was refused; until something is acknowledged."""
        sent_at = sender.outbound.sent_at
        sender.blocked_since = min(sender.blocked_since, now if sent_at == -NEVER else sent_at)
        self._overdue.setdefault(sender.endpoint_id)

    def blocked(self) -> dict[str, tuple[int, float]]:
        """
        The dialogs whose messages do not get through, of `BLOCKED_MAX` of each kind: how many they are, and since when
        the first of them waits (monotonic seconds).

        They are grouped by the address of a next hop that accepts nothing, and otherwise by the far service with the
        disposition, with what is missing to seal them, or with the last reason that is known where the next hop
        accepts them and none is acknowledged.
        """
        found: dict[str, tuple[int, float]] = {}
        for endpoint_id in islice(self._waiting, BLOCKED_MAX):
            sender = self.senders[endpoint_id]
            decision = self._decisions.get(sender.decision_key)
            if decision is None:
                continue  # paths have changed: it is about to be decided again
            is_forwarded = decision.disposition is Disposition.FORWARDED
            where = f"{sender.contact.far_service}: {decision.disposition}"
            where = str(decision.candidates[0].address) if is_forwarded else where
            where = f"{sender.contact.far_service}: {NOT_SEALED}{sender.seal_error}" if sender.seal_error else where
            dialogs, since = found.get(where, (0, NEVER))
            found[where] = dialogs + 1, min(since, sender.blocked_since)
        reasons: dict[str, str] = {}
        for endpoint_id in islice(self._overdue, BLOCKED_MAX):
            if endpoint_id in self._waiting:
                continue
            sender = self.senders[endpoint_id]
            where = sender.destination
            dialogs, since = found.get(where, (0, NEVER))
            found[where] = dialogs + 1, min(since, sender.blocked_since)
            reasons[where] = sender.not_stored or sender.last_rejection or reasons.get(where, "not acknowledged")
        return {f"{where}: {reasons[where]}" if where in reasons else where: one for where, one in found.items()}

    # --- paths ---

    def path_for(self, endpoint_id: int, contact: Contact, kind: FrameKind) -> tuple[ForwardingEntry, Decision]:
        """The path that frames of this kind take now."""
        if self._generation != self._forwarder.generation or len(self._decisions) > DECISIONS_MAX:
            self._generation = self._forwarder.generation
            self._decisions.clear()
        key = endpoint_id, contact.far_service
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = self.decide(contact)
            request_better(decision, self._forwarder.table)
            if decision.disposition is Disposition.ASKING_FOR_ROUTE and self._ask_for_route(contact.facts()):
                decision = self._decisions[key] = self.decide(contact, is_asked=True)
        return self._forwarder.table.entry_for(decision, kind), decision

    def decide(self, contact: Contact, *, is_asked: bool = False) -> Decision:
        """The routing decision for what this side sends: by this database's own table (R1.1)."""
        facts = contact.facts()
        if is_asked:
            facts = replace(facts, is_asked=True)
        return decide(facts, self._forwarder.routing_context.with_table(self.table))

    def on_routes(self, table: RouteTable, elsewhere: AbstractSet[str] | None) -> None:
        """
        Routes have changed, or one has expired: the senders to the services concerned look for a path again.

        Args:
            table: The routes of this database.
            elsewhere: The services for which msdb's routes have changed, as `Forwarder.set_routing` returns them.
        """
        own, self.table = affected(table, self.table), table
        if own is None or elsewhere is None:
            self._decisions.clear()
            self.on_paths_changed()
        elif services := own | elsewhere:
            for key in [key for key in self._decisions if key[1] in services]:
                del self._decisions[key]
            for sender in self.senders.values():
                if sender.contact.far_service in services:
                    self._schedule(sender)

    def on_paths_changed(self) -> None:
        """Links, routes or services have changed: all senders look for a path again."""
        for sender in self.senders.values():
            self._schedule(sender)

    def on_capacity(self) -> None:
        """Some link accepts frames again: senders that waited try again, in the order in which they began to wait."""
        for endpoint_id in self._waiting:
            sender = self.senders.get(endpoint_id)
            if sender is not None:
                self._schedule(sender)
        self._waiting.clear()

    def retry(self, endpoint_id: int | None = None) -> int:
        """Send what is not acknowledged again now: of one dialog or of all; how many dialogs that are."""
        chosen = [one for one in self.senders.values() if endpoint_id in (None, one.endpoint_id)]
        for sender in chosen:
            self._decisions.pop(sender.decision_key, None)
            sender.outbound.rewind()
            self._schedule(sender)
        return len(chosen)

    # --- sending ---

    @property
    def may_send(self) -> bool:
        """Whether this instance is known to be the principal of the database."""
        return self.is_role_confirmed is None or self.is_role_confirmed()

    def _schedule(self, sender: Sender) -> None:
        self._queue.add(sender)
        if not self._is_pump_due:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Serve senders in the order of the queue, PUMP_BYTES in one iteration of the loop."""
        self._is_pump_due = False
        if self.is_quiesced or not self.may_send:
            return
        frames: list[tuple[ForwardingEntry, Buffer]] = []
        size = 0
        now = self._loop.time()
        while self._queue and size < PUMP_BYTES:
            sender = self._queue.pop()
            if self.senders.get(sender.endpoint_id) is sender:
                size += self._send_burst(sender, frames, now)
        if frames:
            self._forwarder.submit(frames, now, self, self._journal.pop_queued())
        if self._queue:
            self._is_pump_due = True
            self._loop.call_soon(self._pump)
        if self.budget:
            self._wake_writer()

    def _send_burst(self, sender: Sender, frames: list[tuple[ForwardingEntry, Buffer]], now: float) -> int:
        """One dialog's turn; returns the bytes added to `frames`."""
        entry, seal = self._open_path(sender)
        if entry is None:
            self._waiting[sender.endpoint_id] = None
            sender.blocked_since = min(sender.blocked_since, now)
            return 0
        self._waiting.pop(sender.endpoint_id, None)
        outbound, contact, stored, builder = sender.outbound, sender.contact, sender.stored, self.frames
        is_followed = self._journal.follows(contact.conversation_id)
        size = sent = resent = 0
        while sender.credit > 0 and outbound.has_unsent:
            fragment, is_resend = outbound.pop(now)
            piece = Fragment(fragment.place, fragment.flags, builder.body(fragment), stored)
            frame = builder.message(contact, piece, seal if seal is None or not is_resend else seal.again)
            frames.append((entry, frame))
            if is_resend:
                sender.last_rejection = ""
            if is_followed or fragment.trace_parent:
                self._journal.on_sent(sender.endpoint_id, frame, fragment, is_resend=is_resend)
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
            self.resent_to[str(entry.sink.address) if isinstance(entry.sink, Outbox) else ""] += resent
        if size:
            self._on_acks_carried(sender.endpoint_id, stored)
        self._arm(sender)
        if outbound.has_unsent:
            self._schedule(sender)
        else:
            self.budget.check(sender)
        return size

    def _open_path(self, sender: Sender) -> tuple[ForwardingEntry | None, Seal | None]:
        """Return the path and the seal of a sender if the path accepts frames now; request a link otherwise."""
        sender.seal_error = ""
        entry, decision = self.path_for(sender.endpoint_id, sender.contact, FrameKind.MESSAGE)
        outlet: object = entry.sink
        if isinstance(entry.sink, Outbox):
            outlet = entry.sink.outlet
            fault = self.frames.why_unsendable(sender.contact)
            if fault is not None:
                self.faults[sender.endpoint_id] = fault
                self._wake_writer()
                return None, None
            if not entry.sink.is_ready:
                entry.sink.request_link()
                if outlet is None:  # a lack of room comes and goes
                    self._hasten_status(sender)
                return None, None
        elif decision.disposition is not Disposition.DELIVERED:
            self._arm(sender, self._loop.time() + REMATCH_SECONDS)
            self._hasten_status(sender)
            return None, None
        try:
            seal = self.frames.seal(sender.contact, entry, with_packet=False)
        except CannotSealError as error:
            sender.seal_error = str(error)
            self._arm(sender, self._loop.time() + REMATCH_SECONDS)
            return None, None
        if outlet is not sender.outlet:
            arrives = self._left_cleanly(sender.outlet) and sender.outbound.is_on_its_way
            if sender.outbound.resend_at != NEVER and not arrives:
                sender.outbound.rewind()
            sender.outlet, sender.next_hop = outlet, getattr(entry.sink, "address", None)
        return entry, seal

    def _arm(self, sender: Sender, at: float = NEVER) -> None:
        """Look at the sender again at `at`, or when its acknowledgement is overdue."""
        self._timers.set(sender, sender.outbound.timer_at if at == NEVER else at)

    def _on_timer(self, at: float, endpoint_id: int) -> None:
        sender = self.senders.get(endpoint_id)
        if sender is None or at != sender.timer_at:  # set again, to an earlier time
            return
        sender.timer_at = NEVER
        outbound, now = sender.outbound, self._loop.time()
        resend_due_at = sender.resend_due_at(self._horizon) if outbound.resend_at <= now else NEVER
        if resend_due_at <= now:
            self._note_overdue(sender, now)
            self.budget.time_out(sender)
            decision = self._decisions.get(sender.decision_key)
            if decision is not None:
                self._decisions[sender.decision_key] = next_path(decision, self._forwarder.table.outbox)
            self._schedule(sender)
        elif outbound.loss_check_at <= now:
            outbound.detect_losses(now)
            self._arm(sender)
            self._schedule(sender)
        elif resend_due_at < NEVER:
            self._arm(sender, min(resend_due_at, outbound.loss_check_at))
        elif endpoint_id in self._waiting:
            self._decisions.pop(sender.decision_key, None)
            self._schedule(sender)
        else:
            self._arm(sender)


class FrameBuilder:
    """
    Makes the frames that one database sends, each with its own id, sealed where they leave the instance.

    Whether a frame is sealed depends on how its side is secured and on its path: what a database of this instance
    receives stays in the process, and is never sealed.
    """

    def __init__(self, travel: Travel, credentials: DialogCredentials) -> None:
        self.credentials = credentials  # of the database; changed in place
        self.travel = travel
        self._message_ids = (os.urandom(8), count(int.from_bytes(os.urandom(4), "big")))
        self._sealers: OrderedDict[tuple[bytes, bool], Sealer] = OrderedDict()

    def message_id(self) -> bytes:
        """An id for one transmission: eight bytes of this process, eight of a counter."""
        prefix, numbers = self._message_ids
        return prefix + next(numbers).to_bytes(8, "big")

    def message(self, contact: Contact, fragment: Fragment, seal: Seal | None) -> bytes:
        """One fragment of a message, sealed as `seal` has returned."""
        return message_frame(contact, self.travel, self.message_id(), fragment, seal)

    def body(self, fragment: Outgoing) -> bytes:
        """The body of a fragment as it is sent now: what remains of a lifetime shrinks while a message waits."""
        if not fragment.lifetime:
            return fragment.body
        envelope, payload = decode_envelope(fragment.body)
        now = max(time.time(), fragment.enqueued_at)
        return encode_envelope(replace(envelope, lifetime=left(fragment.lifetime, now))) + payload

    def ack(
        self,
        contact: Contact,
        entry: ForwardingEntry,
        stored: Place,
        held: tuple[Run, ...] = (),
        *,
        is_urgent: bool = True,
        note: AckNote = NO_NOTE,
    ) -> bytes | None:
        """An acknowledgement; None when it cannot be sealed: what is not acknowledged is sent again."""
        try:
            seal = self.seal(contact, entry, with_packet=is_urgent)
        except CannotSealError:
            return None
        return ack_frame(contact, self.travel, self.message_id(), stored, held, note=note, seal=seal)

    def fault(self, contact: Contact, entry: ForwardingEntry, fault: Fault) -> bytes | None:
        """An error; None when it cannot be sealed: the far side would not accept it."""
        try:
            seal = self.seal(contact, entry, with_packet=True)
        except CannotSealError:
            return None
        return fault_frame(contact, self.travel, self.message_id(), fault, seal)

    def seal(self, contact: Contact, entry: ForwardingEntry, *, with_packet: bool) -> Seal | None:
        """
        How frames of this side are sealed on this path, now; None when they are not.

        Raises:
            CannotSealError: they have to be, and something is missing.
        """
        secured = contact.secured
        if secured is None or isinstance(entry.sink, DatabaseSink):
            return None
        if secured.mode is None and not contact.is_initiator:  # it began inside; a far side that has moved will seal
            return None
        key = (contact.conversation_id, contact.is_initiator)
        sealer = self._sealers.get(key)
        if sealer is None or sealer.secured != secured:
            sealer = self._sealers[key] = Sealer(secured, contact.direction(), self.credentials, os.urandom)
            if len(self._sealers) > SEALERS_MAX:
                self._sealers.popitem(last=False)
        else:
            self._sealers.move_to_end(key)
        now = time.time()
        sealer.check(now)
        return Seal(sealer, now, with_packet)

    def on_key_evidence(self, conversation_id: bytes, evidence: KeyEvidence, *, is_initiator: bool) -> None:
        """An authentic sealed frame arrived for this side."""
        sealer = self._sealers.get((conversation_id, is_initiator))
        if sealer is not None:
            sealer.heard(*evidence)

    def why_unsendable(self, contact: Contact) -> Fault | None:
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


def path_alternatives(decision: Decision) -> list[Decision]:
    """The decision itself, then one for each other address that is not suppressed, with that address in front."""
    usable = [candidate for candidate in decision.candidates if candidate.health is not AddressHealth.SUPPRESSED]
    suppressed = [candidate for candidate in decision.candidates if candidate.health is AddressHealth.SUPPRESSED]
    rotated = [(*usable[start:], *usable[:start], *suppressed) for start in range(1, len(usable))]
    return [decision, *(replace(decision, candidates=those, route=those[0].route) for those in rotated)]


def next_path(decision: Decision, outbox: Callable[[NetworkAddress], Outbox]) -> Decision:
    """
    The decision with the next address that is as good as the best one in front; the same when there is none.

    A next hop can be connected and lead nowhere: a gateway that has lost its own next hop, or one of several targets
    that is not the one a dialog is bound to. Only the lack of an acknowledgement shows it, and only at the sender.
    Called again and again, this goes through all such addresses. For one that was not tried a link is requested, and
    not waited for: when no peer answers there, finding out takes longer than the next resend.
    """
    for candidate in decision.candidates:
        if candidate.health is AddressHealth.UNTRIED:
            outbox(candidate.address).request_link()
    for other in path_alternatives(decision)[1:]:
        if other.candidates[0].health is decision.candidates[0].health:
            return other
    return decision

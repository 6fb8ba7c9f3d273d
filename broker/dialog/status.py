"""
Why a dialog waits: the sentence that the store keeps, and that people read in the view.

It is never empty: it says what is waited for, from which peer, and what happens next and when. While messages are
simply on their way it begins with ON_ITS_WAY, and `transmission_status` is blank, as in the original. Instants are of
the wall clock, so that a sentence stays true until something happens. A dialog that waits for a second, or that its
path keeps, has its sentence in the store; after that changes are written. Nothing here sends or decides. Loop-only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

from broker.conversation.frames import Place
from broker.conversation.state import ON_ITS_WAY
from broker.conversation.window import NEVER
from broker.dialog.send_queue import LOADED_MAX_BYTES, LoadBudget, Sender
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Destination
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision

# Before the disposition and its number, at the end of a status: of a frame that did not arrive.
REFUSED = "refused by the next hop: "
DROPPED_HERE = "dropped in this instance: "
NOT_STORED = "not stored by the far side: "
NOT_SEALED = "cannot be sealed: "
ACK_DROPPED_HERE = "its acknowledgements are dropped in this instance: "
NEXT_ATTEMPT = ", next attempt "  # after why there is no connection
SEE_WHY = "; broker why says whether that is over"  # at the end of a status, after what failed last
MOVING = f"{ON_ITS_WAY}acknowledgements come in"
WRITE_SECONDS = 1.0  # between two checks of a dialog
STATUSES_MAX = 256  # checked for one batch: a few milliseconds
CLOCK_JUMP = 1.0  # seconds by which the wall clock has to move for instants to be written again


class PathProblem(NamedTuple):
    """Why an address is not reached, or the principal of a pair not known; `problem` empty while nothing is known."""

    problem: str = ""
    retry_at: float = NEVER  # monotonic seconds


@dataclass(frozen=True, slots=True)
class DialogContext:
    """Functions of the instance that a database calls, about links and paths."""

    problem_of: Callable[[Destination], PathProblem]
    left_cleanly: Callable[[object], bool]  # whether what a link was given arrives, though it is closed


@dataclass(slots=True)
class TransmissionStatus:
    """Renders what the messages of a dialog wait for."""

    forwarder: Forwarder
    budget: LoadBudget
    clock: Callable[[], float]  # of the loop
    problem_of: Callable[[Destination], PathProblem]
    request_status: Callable[[str], str]  # of the request for a route to a service, as the end of a sentence
    _wall_offset: float = 0.0

    @property
    def wall_offset(self) -> float:
        """UTC seconds since 1970 less the seconds of the loop; the same until the wall clock jumps."""
        offset = time.time() - self.clock()
        if abs(offset - self._wall_offset) > CLOCK_JUMP:
            self._wall_offset = offset
        return self._wall_offset

    def render(self, sender: Sender, decision: Decision) -> str:
        """The sentence; `decision` is the one by which the dialog is sent now."""
        outbound = sender.outbound
        status = self._path_problem(sender, decision)
        is_on_its_way = status is None
        if status is None and outbound.resend_at != NEVER:
            goal = "the service in this instance"
            if decision.disposition is not Disposition.DELIVERED:
                goal = str(decision.candidates[0].address)
            count = outbound.in_flight
            under_way = f", {count} fragment{'s' if count > 1 else ''} under way" if count else ""
            status = f"sent to {goal} and not acknowledged yet{under_way}: sent again {self._at(outbound.timer_at)}"
            status += ", window full" if outbound.is_window_full else ""
        elif status is None:
            status, used = "queued for sending", self.budget.loaded_bytes
            if not outbound.loaded and used * 2 > LOADED_MAX_BYTES:
                is_on_its_way = False
                status = f"waiting for memory: {used} of at most {LOADED_MAX_BYTES} bytes are loaded for other dialogs"
        attempt = outbound.round_trip.attempts + 1
        if sender.last_rejection:
            status += f"; attempt {attempt}, {self._at(sender.rejected_at)}, {sender.last_rejection}"
        elif sender.not_stored:
            status += f"; attempt {attempt}, {self._at(sender.not_stored_at)}, {NOT_STORED}{sender.not_stored}"
        elif attempt > 1:
            status += f", attempt {attempt}"
        elif is_on_its_way:
            return f"{ON_ITS_WAY}{status}"
        has_failed = sender.last_rejection or sender.not_stored or NEXT_ATTEMPT in status
        return f"{status}{SEE_WHY}" if has_failed else status

    def _path_problem(self, sender: Sender, decision: Decision) -> str | None:
        """Return why a frame with this decision cannot be sent now, as a sentence; None when it can."""
        disposition, route = decision.disposition, decision.route
        number = disposition.number
        if disposition is Disposition.DELIVERED:
            return None
        if sender.seal_error:
            return f"delayed, {NOT_SEALED}{sender.seal_error}; tried again {self._at(sender.timer_at)}"
        if disposition is Disposition.FORWARDED:
            return self._connection_problem(decision)
        if disposition is Disposition.PRINCIPAL_UNKNOWN and route is not None and route.pair is not None:
            reason = unknown_principal(self.problem_of(route.pair), self.wall_offset)
            return f"delayed, {disposition} ({number}): {reason}"
        if disposition is Disposition.ASKING_FOR_ROUTE and route is not None:
            request = self.request_status(sender.contact.far_service)
            return f"delayed, {disposition} ({number}) by {route.name} to {route.address_text}: {request}"
        what = f"delayed, {disposition} ({number})"
        if disposition is Disposition.NO_ROUTE:
            what = f"no route to {sender.contact.far_service!r} ({number})"
        again = f"{self._at(sender.timer_at)}, or " if sender.timer_at != NEVER else ""
        return f"{what}: matched again {again}when routes or services change"

    def _connection_problem(self, decision: Decision) -> str | None:
        address = decision.candidates[0].address
        pair = None if decision.route is None else decision.route.pair
        outboxes, pairs = self.forwarder.table.outboxes, self.forwarder.table.pair_outboxes
        outbox = outboxes.get(address) if pair is None else pairs.get(pair)
        if outbox is None or outbox.outlet is None:
            problem = self.problem_of(address)
            when = f"{NEXT_ATTEMPT}{self._at(problem.retry_at)}" if problem.retry_at != NEVER else ""
            return connecting(address, problem, when)
        return None if outbox.is_ready else f"waiting for room on the connection to {address}"

    def _at(self, instant: float) -> str:
        return _at(instant, self.wall_offset)


class StatusWriter:
    """
    Decides which statuses are written into the store, and when: at most once in WRITE_SECONDS for each dialog.

    A dialog that made progress since the last check has a sentence that does not change with every frame. When it has
    nothing left to send, its sentence is removed.
    """

    def __init__(self, senders: Mapping[int, Sender], status_of: Callable[[Sender], str]) -> None:
        self._senders = senders
        self._status_of = status_of
        # When to check, and what was acknowledged before; in order.
        self._due: OrderedDict[int, tuple[float, Place]] = OrderedDict()
        self._written: dict[int, str | None] = {}  # what the store says, None when that is not known
        self._removed: dict[int, None] = {}  # dialogs whose sentence is to be removed

    def watch(self, sender: Sender, written: str | None, now: float) -> None:
        """Begin to check a dialog; `written` is what the store says of it."""
        endpoint_id = sender.endpoint_id
        if endpoint_id in self._removed:
            del self._removed[endpoint_id]
            self._written[endpoint_id] = None
        elif written is not None:
            self._written[endpoint_id] = written
        self._due[endpoint_id] = (now + WRITE_SECONDS, sender.outbound.acknowledged)

    def hasten(self, endpoint_id: int, now: float) -> bool:
        """Check a dialog with the next batch, because something keeps it; False while more than STATUSES_MAX wait."""
        if endpoint_id not in self._due or len(self._due) > STATUSES_MAX:
            return False
        self._due[endpoint_id] = (now, self._senders[endpoint_id].outbound.acknowledged)
        self._due.move_to_end(endpoint_id, last=False)
        return True

    def forget(self, endpoint_id: int) -> None:
        """Stop checking a dialog that has nothing left to send, and remove its sentence with the next batch."""
        self._due.pop(endpoint_id, None)
        if endpoint_id in self._written:
            del self._written[endpoint_id]
            self._removed[endpoint_id] = None

    def due(self, now: float) -> dict[int, str | None]:
        """What to write with the next batch, by endpoint_id; None removes what is there."""
        statuses: dict[int, str | None] = dict.fromkeys(self._removed)
        self._removed.clear()
        for endpoint_id, (due, acknowledged) in list(islice(self._due.items(), STATUSES_MAX)):
            if due > now:
                break
            sender = self._senders[endpoint_id]
            has_moved = sender.outbound.acknowledged != acknowledged
            del self._due[endpoint_id]
            self._due[endpoint_id] = (now + WRITE_SECONDS, sender.outbound.acknowledged)
            status = MOVING if has_moved else self._status_of(sender)
            if self._written.get(endpoint_id) != status:
                self._written[endpoint_id] = statuses[endpoint_id] = status
        return statuses

    def mark_unwritten(self, statuses: Mapping[int, str | None]) -> None:
        """The store failed: what it says of these dialogs is not known."""
        for endpoint_id in statuses:
            if endpoint_id in self._due:
                self._written[endpoint_id] = None
            else:
                self._removed[endpoint_id] = None


def connecting(address: NetworkAddress, problem: PathProblem, when: str = "") -> str:
    """Return a sentence: a frame waits for a connection, why there is none, and `when` the next attempt is made."""
    reason = f": {problem.problem}{when}" if problem.problem else ""
    return f"waiting for a connection to {address}{reason}"


def unknown_principal(problem: PathProblem, wall_offset: float) -> str:
    """Return the problem of a pair where neither partner is the principal, and when the partners are asked again."""
    if not problem.problem:
        return "both partners are about to be asked"
    again = "" if problem.retry_at == NEVER else f"; asked again {_at(problem.retry_at, wall_offset)}"
    return problem.problem + again


def _at(instant: float, wall_offset: float) -> str:
    return f"at {datetime.fromtimestamp(instant + wall_offset, UTC):%Y-%m-%d %H:%M:%S} UTC"

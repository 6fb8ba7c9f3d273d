"""
Why a dialog waits, as the sentence a person reads: `transmission_status`, in the view and in the file.

Never empty. The original leaves its status blank both for "not tried yet" and for "sent, not acknowledged", and its
users cannot tell one from the other; here each says what is waited for, from whom, and what happens next and when. The
instants are of the wall clock, so that a sentence stays true until something happens. Loop-only; decides nothing and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, Protocol

from broker.conversation.frames import Place
from broker.conversation.window import NEVER
from broker.dialog.send_queue import Sender
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Destination, Outbox
from broker.routing.address import NetworkAddress
from broker.routing.decide import Decision

REFUSED = "refused by the next hop: "  # stands before the disposition and its number, at the end of a status


class Trouble(NamedTuple):
    """
    Why an address is not reached, or the principal of a pair not known.

    Shape: `problem` empty while nothing is known; `retry_at` monotonic seconds.
    """

    problem: str = ""
    retry_at: float = NEVER


class StatusContext(Protocol):
    """
    What the sentence is made of, beside the sender itself.

    Shape: `wall_offset` what to add to monotonic seconds to have UTC seconds since 1970.
    """

    @property
    def forwarder(self) -> Forwarder:
        """The pass."""

    @property
    def wall_offset(self) -> float:
        """Wall clock less loop clock."""

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes loaded for all dialogs, and the bound."""

    def trouble_of(self, destination: Destination, /) -> Trouble:
        """What keeps a connection to this address from coming about, or what this pair says of its principal."""

    def asked(self, service_name: str, /) -> str:
        """What is known of the request for a route to this service, as the end of a sentence."""


def transmission_status(sender: Sender, decision: Decision, here: StatusContext) -> str:
    """What the messages of a dialog wait for; `decision` is the one by which it is sent now."""
    problem = _path_problem(sender, decision, here)
    outbound = sender.outbound
    if problem is None and outbound.resend_at != NEVER:
        count = outbound.in_flight
        under_way = "" if not count else f", {count} fragment{'s' if count > 1 else ''} under way"
        again = _at(outbound.alarm_at, here.wall_offset)
        status = f"sent to {_goal(decision)} and not acknowledged yet{under_way}: sent again {again}"
        status += ", window full" if outbound.is_window_full else ""
    elif problem is None:
        status = _waiting_for_turn(sender, here)
    else:
        status = problem
    if outbound.round_trip.attempts:
        status += f", attempt {outbound.round_trip.attempts + 1}"
    return f"{status}; {REFUSED}{sender.advice}" if sender.advice else status


def connecting(address: NetworkAddress, trouble: Trouble, when: str = "") -> str:
    """That something waits for a connection, and why there is none; `when` the next attempt is made."""
    if not trouble.problem:
        return f"waiting for a connection to {address}"
    return f"waiting for a connection to {address}: {trouble.problem}{when}"


def unknown_principal(trouble: Trouble, wall_offset: float) -> str:
    """What the partners of a pair say of which none is the principal, and when they are asked again."""
    if not trouble.problem:
        return "both partners are about to be asked"
    again = "" if trouble.retry_at == NEVER else f"; asked again {_at(trouble.retry_at, wall_offset)}"
    return trouble.problem + again


def _goal(decision: Decision) -> str:
    if decision.disposition is Disposition.DELIVERED:
        return "the service in this instance"
    return str(decision.candidates[0].address)


def _path_problem(sender: Sender, decision: Decision, here: StatusContext) -> str | None:
    """What keeps a frame with this decision from leaving now; None when nothing does."""
    disposition = decision.disposition
    if disposition is Disposition.DELIVERED:
        return None
    if sender.hindrance:
        again = _at(sender.armed_at, here.wall_offset)
        return f"delayed, cannot be sealed: {sender.hindrance}; tried again {again}"
    if disposition is Disposition.FORWARDED:
        return _connection_problem(decision, here)
    number = disposition.number
    if disposition is Disposition.PRINCIPAL_UNKNOWN and decision.route is not None and decision.route.pair is not None:
        pair = decision.route.pair
        return f"delayed, {disposition} ({number}): {unknown_principal(here.trouble_of(pair), here.wall_offset)}"
    if disposition is Disposition.ASKING_FOR_ROUTE and decision.route is not None:
        whom = f"by {decision.route.name} to {decision.route.address_text}"
        return f"delayed, {disposition} ({number}) {whom}: {here.asked(sender.contact.far_service)}"
    what = f"delayed, {disposition} ({number})"
    if disposition is Disposition.NO_ROUTE:
        what = f"no route to {sender.contact.far_service!r} ({number})"
    again = f"{_at(sender.armed_at, here.wall_offset)}, or " if sender.armed_at != NEVER else ""
    return f"{what}: matched again {again}when routes or services change"


def _connection_problem(decision: Decision, here: StatusContext) -> str | None:
    address = decision.candidates[0].address
    pair = None if decision.route is None else decision.route.pair
    forwarder = here.forwarder
    outbox: Outbox | None = forwarder.outboxes.get(address) if pair is None else forwarder.pairs.get(pair)
    if outbox is None or outbox.outlet is None:
        trouble = here.trouble_of(address)
        when = f", next attempt {_at(trouble.retry_at, here.wall_offset)}" if trouble.retry_at != NEVER else ""
        return connecting(address, trouble, when)
    return None if outbox.is_ready else f"waiting for room on the connection to {address}"


def _waiting_for_turn(sender: Sender, here: StatusContext) -> str:
    used, bound = here.memory
    if not sender.outbound.loaded and used * 2 > bound:
        return f"waiting for memory: {used} of at most {bound} bytes are loaded for other dialogs"
    return "waiting for its turn"


def _at(instant: float, wall_offset: float) -> str:
    return f"at {datetime.fromtimestamp(instant + wall_offset, UTC):%Y-%m-%d %H:%M:%S} UTC"


# --- telling ---
# Which transmission statuses are written into the file of a database, and when.
#
# A dialog that waits for a second has its sentence there; after that changes are written, at most once a second each
# and
# STATUSES_MAX in one turn of the writer. One that was acknowledged something since the last look has a sentence that
# does
# not change with every frame. When nothing waits any more the sentence is removed.


TELL_SECONDS = 1.0  # between two looks at a dialog
STATUSES_MAX = 256  # looked at in one turn: a few milliseconds
MOVING = "being sent: acknowledgements come in"


class StatusWriter:
    """What the file says of each dialog. Loop-only."""

    def __init__(self, senders: Mapping[int, Sender], status: Callable[[Sender], str]) -> None:
        self._senders = senders
        self._status = status
        self._due: dict[int, tuple[float, Place]] = {}  # when to look, and what was acknowledged then; in order
        self._told: dict[int, str | None] = {}  # what the file says, None when that is not known
        self._over: dict[int, None] = {}  # those of which it says something, and shall not any more

    def watch(self, sender: Sender, told: str | None, now: float) -> None:
        """A dialog has something to send; `told` what the file says of it."""
        endpoint_id = sender.endpoint_id
        if endpoint_id in self._over:
            del self._over[endpoint_id]
            self._told[endpoint_id] = None
        elif told is not None:
            self._told[endpoint_id] = told
        self._due[endpoint_id] = (now + TELL_SECONDS, sender.outbound.acknowledged)

    def forget(self, endpoint_id: int) -> None:
        """The dialog has nothing to send any more."""
        self._due.pop(endpoint_id, None)
        if endpoint_id in self._told:
            del self._told[endpoint_id]
            self._over[endpoint_id] = None

    def statuses(self, now: float) -> dict[int, str | None]:
        """What to write in the next turn, by endpoint_id; None removes what is there."""
        statuses: dict[int, str | None] = dict.fromkeys(self._over)
        self._over.clear()
        for endpoint_id, (due, acknowledged) in list(islice(self._due.items(), STATUSES_MAX)):
            if due > now:
                break
            sender = self._senders[endpoint_id]
            has_moved = sender.outbound.acknowledged != acknowledged
            del self._due[endpoint_id]
            self._due[endpoint_id] = (now + TELL_SECONDS, sender.outbound.acknowledged)
            status = MOVING if has_moved else self._status(sender)
            if self._told.get(endpoint_id) != status:
                self._told[endpoint_id] = statuses[endpoint_id] = status
        return statuses

    def untold(self, statuses: Mapping[int, str | None]) -> None:
        """The store failed: nobody knows what the file says of these."""
        for endpoint_id in statuses:
            if endpoint_id in self._due:
                self._told[endpoint_id] = None
            else:
                self._over[endpoint_id] = None

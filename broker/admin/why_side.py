"""
What is found about one side of a conversation: about what it sends, and about what has come for it.

Pure functions of facts; nothing here reads a file or a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from broker.admin.explain_message import ExplainAnswer
from broker.admin.why import Severity, SideShown, WhyFinding
from broker.admin.why_remedy import remedy_of, remedy_of_error, remedy_of_unreached
from broker.dialog.status import REFUSED
from broker.flow import Disposition
from broker.routing.explain import Outcome

_DEAD_END = frozenset({Outcome.DROPPED, Outcome.DELAYED, Outcome.HELD})
_ENDED = "DI"
LIFETIME_OVER = -8489  # number of the Error message that says so


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a finding is made. Shape: `now` UTC seconds since 1970."""

    instance: str
    database: str
    now: float

    def found(self, cause: str, severity: Severity, symptom: str, *chain: str) -> WhyFinding:
        """A finding made here; `chain` is why, what next, and what to do if there is anything."""
        why, then, remedy = (*chain, "")[:3]
        return WhyFinding(self.instance, self.database, cause, severity, symptom, why, then, remedy)


def side_findings(side: SideShown, way: ExplainAnswer | None, spot: Spot) -> Iterator[WhyFinding]:
    """What is to be said about one side; at least one finding."""
    if side.state == "ER":
        yield _failed(side, spot)
        return
    if side.held:
        yield _sending(side, way, spot)
    elif way is not None and side.receive_sequence and not side.is_initiator and _is_dead_end(way):
        yield _no_way_back(side, way, spot)
    elif side.send_sequence:
        yield spot.found(
            "acknowledged",
            Severity.FINE,
            f"everything that {side.service_name} sent is acknowledged: {messages(side.send_sequence)}",
            f"a database of {side.far_service} has stored it, and puts it into the queue there",
            f"the application of {side.far_service} receives it, or has done so",
        )
    elif side.is_initiator:
        yield spot.found(
            "nothing sent",
            Severity.FINE,
            f"{side.service_name} has begun the dialog and sent nothing",
            "the far side hears of a dialog with its first message",
            f"nothing happens before a SEND is committed; the dialog expires at {when(side.lifetime)}",
        )
    yield from inbound_findings(side, spot)


# --- sending --------------------------------------------------------------------------------------------------------


def _sending(side: SideShown, way: ExplainAnswer | None, spot: Spot) -> WhyFinding:
    symptom = (
        f"{messages(side.held)} from {side.service_name} to {side.far_service} {_wait(side.held)} in {spot.database},"
        f" since {when(side.held_since)}: not acknowledged from number {side.held_from} on{_ending(side)}"
    )
    give_up = f"it is kept until it is acknowledged, or the lifetime of the dialog ends at {when(side.lifetime)}"
    status = side.transmission_status
    if way is not None and _is_dead_end(way):
        told = way.explanation
        table = told.passes[-1].table
        remedy = remedy_of(told.disposition, instance=spot.instance, service=side.far_service, table=table)
        again = f"matched again when routes or services change; {give_up}"
        return spot.found(told.disposition, Severity.TROUBLE, symptom, f"{told.sentence}; {status}", again, remedy)
    problem = _problem(way)
    if problem is not None:
        address, what = problem
        why = f"the next hop {address} is not reached: {what}; {status}"
        return spot.found(
            "next hop not reached",
            Severity.TROUBLE,
            symptom,
            why,
            f"it is tried again and again; {give_up}",
            remedy_of_unreached(address, what),
        )
    refused = _refused(status)
    if refused is not None:
        hop = "the next hop" if way is None or way.explanation.next_hop is None else way.explanation.next_hop
        remedy = remedy_of(refused, instance=hop, service=side.far_service)
        what = "has copies of them that wait there" if refused == Disposition.ALREADY_HELD else "takes none"
        return spot.found(refused, Severity.TROUBLE, symptom, f"{hop} {what}: {status}", give_up, remedy)
    return spot.found(
        "not acknowledged",
        Severity.WAITING,
        symptom,
        status,
        f"sent again until the far side acknowledges; {give_up}",
        "nothing, unless it lasts: then ask the instances on the way",
    )


def _ending(side: SideShown) -> str:
    """What the Error message says that this side has ended with, while it is not acknowledged."""
    if side.sent_error_code is None:
        return ""
    told = f": {side.sent_error_text}" if side.sent_error_text else ""
    return f"; the last of them ends the dialog with error {side.sent_error_code}{told}"


def _no_way_back(side: SideShown, way: ExplainAnswer, spot: Spot) -> WhyFinding:
    told = way.explanation
    table = told.passes[-1].table
    return spot.found(
        "no way back",
        Severity.TROUBLE,
        f"{side.service_name} has received, and its acknowledgements find no way to {side.far_service}",
        told.sentence,
        "the sender does not learn that its messages arrived, and sends them again until the dialog's lifetime ends",
        remedy_of(told.disposition, instance=spot.instance, service=side.far_service, table=table),
    )


def _is_dead_end(way: ExplainAnswer) -> bool:
    told = way.explanation
    return told.outcome in _DEAD_END


def _problem(way: ExplainAnswer | None) -> tuple[str, str] | None:
    """The address that would be used and what is known against it; None when nothing is."""
    if way is None:
        return None
    for candidate in way.explanation.passes[-1].candidates[:1]:
        if candidate.problem:
            return candidate.address, candidate.problem
    return None


def _refused(status: str) -> str | None:
    """The disposition that the next hop told."""
    _, found, rest = status.partition(REFUSED)
    return rest.rpartition(" (")[0].partition(": ")[0] or None if found else None


# --- what has come ----------------------------------------------------------------------------------------------


def inbound_findings(side: SideShown, spot: Spot) -> Iterator[WhyFinding]:
    """About what waits for the application of this side."""
    if side.poison is not None:
        yield _poisoned(side, spot)
    elif side.ready:
        yield _unread(side, spot)
    if side.early_fragments:
        yield spot.found(
            "out of order",
            Severity.WAITING,
            f"{side.early_fragments} fragments for {side.service_name} came before their turn",
            f"message {side.receive_sequence} has not come whole yet, so nothing behind it can be delivered",
            "the sender is told what is missing and sends it again",
            "nothing, unless it lasts: then ask at the sender",
        )
    if side.state == _ENDED and not side.held:
        yield spot.found(
            "far side ended",
            Severity.TROUBLE if not side.ready else Severity.WAITING,
            f"{side.far_service} has ended the dialog, {side.service_name} has not",
            "nothing can be sent any more; this side stays until its application ends it too",
            f"it is closed half an hour after its lifetime ends at {when(side.lifetime)}, if nothing is unread",
            f"the application of {side.service_name} should RECEIVE the EndDialog message and END CONVERSATION",
        )


def _failed(side: SideShown, spot: Spot) -> WhyFinding:
    number = "" if side.error_code is None else f" with {side.error_code}"
    told = f": {side.error_text}" if side.error_text else ""
    is_read = side.error_code is None and not side.error_text
    received = "its Error message has been received, and is not kept"
    why = received if is_read else f"the Error message in its queue says so{told}"
    return spot.found(
        {None: "error", LIFETIME_OVER: "lifetime over"}.get(side.error_code, f"error {side.error_code}"),
        Severity.TROUBLE,
        f"the dialog of {side.service_name} with {side.far_service} has failed{number}",
        why,
        (
            "nothing of it is sent any more; what was not acknowledged is counted as failed in the ledger; this side is"
            f" closed half an hour after its lifetime ends at {when(side.lifetime)}, and stays while anything is unread"
        ),
        remedy_of_error(side.error_code, service=side.far_service),
    )


def _poisoned(side: SideShown, spot: Spot) -> WhyFinding:
    poison = side.poison
    assert poison is not None
    count = "once" if poison.failures == 1 else f"{poison.failures} times in a row"
    times = f"{count}, last at {when(poison.last_failure_time)}"
    why = f"message {poison.message_sequence_number} made its reader fail {times}: {poison.error}"
    if poison.quarantine_time is None:
        return spot.found(
            "tried again",
            Severity.WAITING,
            f"{messages(side.ready)} for {side.service_name} {_wait(side.ready)} in the queue {side.queue_name}",
            why,
            "it rests and is tried again; after the last attempt the dialog goes into quarantine",
            "correct the reader",
        )
    handle = side.conversation_handle
    return spot.found(
        "in quarantine",
        Severity.TROUBLE,
        f"the dialog is in quarantine since {when(poison.quarantine_time)}, with {messages(side.quarantined)}",
        why,
        "nobody receives its messages; other dialogs go on",
        (
            f"correct the reader, then broker quarantine resume -d {spot.database} {handle}; or broker quarantine skip,"
            " discard or answer"
        ),
    )


def _unread(side: SideShown, spot: Spot) -> WhyFinding:
    what = f"{messages(side.ready)} for {side.service_name} {_wait(side.ready)} in the queue {side.queue_name}"
    symptom = f"{what} of {spot.database}, since {when(side.ready_since)}"
    if not side.is_receive_enabled:
        return spot.found(
            "queue off",
            Severity.TROUBLE,
            symptom,
            f"the queue {side.queue_name} is OFF: its messages are kept, and RECEIVE is refused",
            "nothing until the queue is turned on",
            f"ALTER QUEUE [{side.queue_name}] WITH STATUS = ON in {spot.database}, when its reader is mended",
        )
    if side.is_taken:
        return spot.found(
            "being read",
            Severity.WAITING,
            symptom,
            "a reader has the conversation group, or the group rests after a failure",
            "the reader commits, or fails and its messages are tried again",
            "nothing, unless it lasts: then see what the reader does",
        )
    readers = side.readers
    why = "no reader runs on this queue" if not readers else f"{readers} reader processes have not come to it yet"
    return spot.found(
        "waiting for RECEIVE",
        Severity.TROUBLE if not readers else Severity.WAITING,
        symptom,
        f"it has arrived, and nobody has received it: {why}",
        "it stays in the queue until an application receives it, whatever its lifetime",
        f"start the application that receives from {side.queue_name}: broker run MODULE:APP, or broker.receive",
    )


# --- words ------------------------------------------------------------------------------------------------------


def messages(count: int) -> str:
    """A number of messages."""
    return "1 message" if count == 1 else f"{count:,} messages"


def when(at: datetime | None) -> str:
    """An instant, whole seconds."""
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"

"""
Why a conversation or a message does not go on: `broker why`, as one instance answers it.

`look` searches the files and the frames that wait, so it is for a thread. `answer_why` adds the routing decision and
makes findings of both: a finding is a chain of causes in plain words, what happens next, and what to do. The instance
may be one that runs, or the files of a configuration. The findings of all instances along the path make the trace
(`broker.admin.trace`); JSON and the terminal show the same values.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import tomllib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta, structs

from broker.advice import create_route, near_name, render_name, render_text, to_run
from broker.client.transaction import check_schema
from broker.config.units import counted
from broker.conversation.frames import Contact
from broker.conversation.state import ON_ITS_WAY
from broker.dialog.status import DROPPED_HERE, NOT_SEALED, NOT_STORED, REFUSED
from broker.errors import MAY_NOT_CONNECT, StoreUnavailableError
from broker.flow import Disposition
from broker.observe.drops import DropSnapshot, remedy_of_drop
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, answer
from broker.observe.health import failure_of_store
from broker.observe.message_catalogue import (
    TakenRoute,
    WaitingDialog,
    queue_on,
    remedy_of,
    remedy_of_error,
    remedy_of_unreached,
)
from broker.observe.query import FILE_GONE, shown_value
from broker.observe.status import struct_from
from broker.observe.status_rendering import show_guid
from broker.observe.views import FORWARDED_MESSAGES, Row
from broker.routing.decide import UNKNOWN_HERE
from broker.routing.explain import Explanation, Outcome, RouteFate
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.lookup import Closed, ConversationFacts, ConversationSide, Poison, find_conversation
from broker.store.sqlite.metadata import bindings, queues_off
from broker.store.sqlite.session_keys import UNSEALABLE
from broker.store.sqlite.transaction import open_watch, sentence
from broker.store.sqlite.write_lock import LockWait

Guid = Annotated[str, Meta(description="Upper case, as the views show it.")]


class Severity(IntEnum):
    """Weight of a finding in the trace: of the weightiest the one that is farthest along the path is the cause."""

    FINE = 0
    WAITING = 1  # it continues without intervention
    TROUBLE = 2  # it is blocked, at least until something else changes


class WhyRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The id that is asked about."""

    id: Annotated[
        UUID, Meta(description="A conversation_handle, a conversation_id, or the message_id of a held frame.")
    ]


class WhyFinding(msgspec.Struct, frozen=True):
    """One chain of causes: the symptom, why, what happens next, what to do."""

    instance: str
    database: Annotated[str | None, Meta(description="Null when it is about what passes through.")]
    cause: Annotated[str, Meta(description="A stable word: see docs/how-to/find-a-message.md.")]
    severity: Severity
    symptom: str
    why: str
    next: str
    remedy: Annotated[str, Meta(description="Empty when there is nothing to do.")]

    @property
    def where(self) -> str:
        """The instance, and the database if there is one."""
        return self.instance if self.database is None else f"{self.instance}, database {self.database}"


class PoisonShown(msgspec.Struct, frozen=True):
    """Why a reader fails on the next message."""

    message_sequence_number: int
    failures: int
    last_failure_time: datetime
    quarantine_time: Annotated[datetime | None, Meta(description="Null while it is tried again.")]
    error: str


class SideShown(msgspec.Struct, frozen=True):
    """One side of the conversation that lives in a database here."""

    database: str
    conversation_handle: Guid
    is_initiator: bool
    state: str
    service_name: str
    far_service: str
    far_broker_instance: Guid | None
    lifetime: Annotated[datetime | None, Meta(description="UTC instant; null beyond the year 9999.")]
    create_date: datetime | None
    dialog_timer: datetime | None
    send_sequence: int
    acknowledged_sequence: int
    receive_sequence: int
    held: Annotated[int, Meta(description="Messages sent and not acknowledged.")]
    held_from: Annotated[int | None, Meta(description="Number of the first of them.")]
    held_since: datetime | None
    transmission_status: Annotated[str, Meta(description="Never empty.")]
    queue_name: Annotated[str | None, Meta(description="Null when the service was dropped.")]
    is_receive_enabled: bool
    ready: Annotated[int, Meta(description="Messages that wait for RECEIVE.")]
    ready_since: datetime | None
    quarantined: int
    early_fragments: int
    is_taken: Annotated[bool, Meta(description="A reader has its conversation group now, or the group rests.")]
    readers: Annotated[int, Meta(description="Reader processes that live on its queue.")]
    error_code: Annotated[int | None, Meta(description="Of an Error message that has not been received yet.")]
    error_text: str
    poison: PoisonShown | None
    security: Annotated[str, Meta(description="Sealed to whom, or why not, in one sentence.")] = ""
    principal: Annotated[str | None, Meta(description="Which it proves to be; null where it proves none.")] = None
    sent_error_code: Annotated[int | None, Meta(description="Of its own Error message, not acknowledged yet.")] = None
    sent_error_text: str = ""
    unconfirmed: Annotated[int, Meta(description="Messages that wait for the initiator to name this database.")] = 0


class ClosedShown(msgspec.Struct, frozen=True):
    """A side that is over."""

    database: str
    is_initiator: bool
    receive_sequence: int
    close_time: datetime | None
    expire_time: Annotated[datetime | None, Meta(description="When even this is forgotten.")]
    conversation_handle: Annotated[Guid | None, Meta(description="Null when an older release closed it.")] = None


class HeldShown(msgspec.Struct, frozen=True):
    """Frames that wait here for one next hop."""

    is_initiator: bool
    to_service_name: str
    to_broker_instance: Guid | None
    from_service_name: str
    from_broker_instance: Guid | None
    adjacent_broker_address: str
    why_held: str
    frames: int
    longest_ms: int
    message_sequence_number: Annotated[int, Meta(description="The lowest of them.")]


class QueueOff(msgspec.Struct, frozen=True):
    """A service here whose queue is off, so that it stores nothing."""

    database: str
    service_name: str
    queue_name: str


class WhyAnswer(msgspec.Struct, frozen=True):
    """Knowledge of one instance about a conversation or message. An id that it does not know is not an error."""

    instance: str
    broker_instance: Annotated[str | None, Meta(description="Null when it has never run.")]
    addresses: list[str]
    is_running: Annotated[bool, Meta(description="False: read from the files of a configuration.")]
    id: str
    conversation_id: Annotated[Guid | None, Meta(description="Null when the id is not known here.")]
    sides: list[SideShown]
    closed: list[ClosedShown]
    held: list[HeldShown]
    dropped: Annotated[dict[str, int], Meta(description="All frames dropped here since the start, by reason.")]
    ways: Annotated[list[ExplainAnswer], Meta(description="Where its messages go from here, and why.")]
    findings: list[WhyFinding]
    looked_in: Annotated[list[str], Meta(description="Where the id was searched, and where it could not be.")]
    drops: Annotated[
        list[WhyFinding],
        Meta(description="Of each reason the last drop here, where it was recent and may befall this dialog."),
    ] = []

    queues_off: list[QueueOff] = []

    @property
    def is_known(self) -> bool:
        """True if a side, open or closed, or a held frame was found."""
        return bool(self.sides or self.closed or self.held)


# --- findings about one side of a conversation: pure functions of facts ---


_DEAD_END = frozenset({Outcome.DROPPED, Outcome.DELAYED, Outcome.HELD})
_ENDED = "DI"
DROP_SECONDS = 120.0  # after which a drop is history: a copy arrives at least each minute, as dialog.resend_cap says
_USUAL = frozenset(  # drops of a dialog that goes on
    {Disposition.DUPLICATE, Disposition.ALREADY_HELD, Disposition.OUT_OF_SEQUENCE, Disposition.SHUTDOWN}
    | {Disposition.CONVERSATION_ENDED, Disposition.UNKNOWN_CONVERSATION}
    | {Disposition.QUEUE_DISABLED}  # while it is, `queues_off` has it
)
_OF_ALL = frozenset({Disposition.POOL_LIMIT, Disposition.STORE_BUSY, Disposition.STORE_FAILED})  # whatever the dialog
_OF_PARTNERS = frozenset({Disposition.SECURITY_UNRESOLVED})  # whatever the dialog between the two databases
_UNKNOWN_THERE = UNKNOWN_HERE | {Disposition.SERVICE_NOT_FOUND}
_SENT_TO = re.compile(r"sent to (tcp://\S+) ")  # as `broker.dialog.status` words it
LOOP = "loop"
WRITE_LOCK = "write lock held"
IMPORTS_LOST = "imports lost"
OVER = "over"
REPLACED = "database replaced"
NO_WAY_BACK = "no way back"
RECEIVED = "received"
UNREAD = frozenset({"waiting for RECEIVE", "being read", "tried again", "in quarantine"})  # of what has arrived
ERROR_RECEIVED, _LIFETIME = "error", "lifetime over"
LIFETIME_OVER, NO_BINDING, _FAR_SIDE_GONE = -8489, -9727, -8462  # numbers of the Error messages that say so


class CauseText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sentences about a cause, with gaps."""

    severity: str
    symptom: str
    why: str
    next: str
    remedy: str = ""


@cache
def cause_texts() -> Mapping[str, CauseText]:
    """The texts of `causes.toml`, by cause."""
    path = Path(__file__).with_name("causes.toml")
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), dict[str, CauseText])


@dataclass(frozen=True, slots=True)
class Spot:
    """
    Place of a finding.

    Attributes:
        database: None for what passes through.
        config_option: Names the configuration of the instance in commands, after a blank; empty where it has none.
    """

    instance: str
    database: str | None
    config_option: str = ""

    def found(
        self,
        text: str,
        about: SideShown | HeldShown | None = None,
        count: int = 0,
        *,
        cause: str = "",
        severity: Severity | None = None,
        **given: object,
    ) -> WhyFinding:
        """
        Make a finding with one of the `cause_texts`.

        Args:
            text: The name of the text.
            about: Fills gaps with its fields.
            count: Of messages.
            cause: Where it is not the name of the text.
            severity: Where it is not that of the text.
            given: Fills other gaps.
        """
        number = {"count": counted(count, "message"), "wait": "waits" if count == 1 else "wait"}
        place = {"instance": self.instance, "database": self.database, "config_option": self.config_option}
        values = ({} if about is None else structs.asdict(about)) | place | number | given
        instants = {name for name, one in values.items() if name == "lifetime" or isinstance(one, datetime)}
        shown = {name: when(one) if name in instants else one for name, one in values.items()}
        words = cause_texts()[text]
        sentences = (one.format_map(shown) for one in (words.symptom, words.why, words.next, words.remedy))
        severity = Severity[words.severity] if severity is None else severity
        return WhyFinding(self.instance, self.database, cause or text, severity, *sentences)


def side_findings(
    side: SideShown, way: ExplainAnswer | None, spot: Spot, *, bound: Collection[str] = ()
) -> Iterator[WhyFinding]:
    """Yield the findings about one side; at least one. `bound`: the services that have a remote service binding now."""
    near = near_name(side.far_service, bound) if side.far_service not in bound else ""
    if side.state == "ER":
        failed = _failed(side, spot, is_over=side.far_service in bound and side.error_code == NO_BINDING)
        if near and side.error_code == NO_BINDING:
            meant = f"is the name right? {side.database} has a binding for {near}: if that is meant,"
            remedy = f"{meant} {begin_again(side, spot)} with it. Otherwise, {failed.remedy}"
            failed = structs.replace(failed, remedy=remedy)
        if side.error_code == LIFETIME_OVER and way is not None and _is_dead_end(way):  # another dialog would fail, too
            _, why, remedy = dead_end(way, WaitingDialog(f"{receive_error(side, spot)};"))
            why = f"{failed.why}, and another dialog would wait as well: {why}"
            failed = structs.replace(failed, why=why, remedy=joined(remedy, f"Then {begin_again(side, spot)}"))
        yield failed
        return
    if side.held:
        yield _sending(side, way, spot, [near] if near else [])
    elif way is not None and side.receive_sequence and not side.is_initiator and _is_dead_end(way):
        _, why, remedy = dead_end(way, waiting_dialog(side, spot.instance))
        yield spot.found(NO_WAY_BACK, side, why=why, remedy=remedy)
    elif side.send_sequence:
        yield spot.found("acknowledged", side, side.send_sequence)
    elif side.is_initiator:
        yield spot.found("nothing sent", side)
    inbound = list(inbound_findings(side, spot))
    yield from inbound
    if side.receive_sequence and not (inbound or side.held or side.send_sequence or side.is_initiator):
        yield spot.found(RECEIVED, side, side.receive_sequence)


# --- sending --------------------------------------------------------------------------------------------------------


def _sending(side: SideShown, way: ExplainAnswer | None, spot: Spot, near: Sequence[str]) -> WhyFinding:
    cause, why, remedy, again = _obstacle(side, way, spot, near)
    return spot.found(
        "not acknowledged",
        side,
        side.held,
        cause=cause,
        severity=Severity.TROUBLE if cause else Severity.WAITING,
        why=why,
        remedy=remedy,
        again=f"{again}; " if again else "",
        ending=_ending(side),
    )


def _obstacle(side: SideShown, way: ExplainAnswer | None, spot: Spot, near: Sequence[str]) -> tuple[str, str, str, str]:
    """
    Return cause, why, remedy, and what is done again for messages that wait; no cause if nothing is wrong.

    Services with a similar name are `near`.
    """
    status, dialog = side.transmission_status, replace(waiting_dialog(side, spot.instance), near=near)
    if way is not None and _is_dead_end(way):
        cause, why, remedy = dead_end(way, dialog)
        if UNSEALABLE in side.security and way.explanation.disposition in UNKNOWN_HERE:
            remedy = _remedy_of_unsealable(side, replace(dialog, near=way.explanation.near_names), spot)
        _, is_told, then = status.partition(f"({way.explanation.number}): ")  # by the decision, in its own words
        why = why.partition("; matched again")[0] if is_told else why
        return cause, f"{why}; {then if is_told else status}", remedy, "matched again when routes or services change"
    if NOT_SEALED in status:
        what = "that certificate" if " peers" in status else "what is missing"
        where = f"databases.{side.database}.{'peers' if ' peers' in status else 'certificate'}"
        put = f"put {what} into {where}, as broker partner import FILE does"
        remedy = f"at {spot.instance}, {put}: files are read again"
        return Disposition.SECURITY_UNRESOLVED, status, remedy, ""
    route = None if way is None else taken_route(way)
    by = "" if route is None else f"by route {route.name}, "
    if way is not None and (problem := next_hop_problem(way.explanation)):
        address, what = problem
        why = f"{by}the next hop {address} is not reached: {status if what in status else f'{what}; {status}'}"
        remedy = remedy_of_unreached(address, what, route, spot.instance)
        return "next hop not reached", why, remedy, "it is tried again and again"
    if (refused := _refused(status)) is not None:
        hop = "the next hop" if way is None or way.explanation.next_hop is None else way.explanation.next_hop
        if DROPPED_HERE in status:
            hop, route = spot.instance, None
        elif (sent := sent_to(status)) and sent != hop:  # the next copy takes another way
            hop, route, by = sent, None, ""
        may_be_wrong = refused == Disposition.NOT_PERMITTED or (refused in _UNKNOWN_THERE and not dialog.is_known)
        remedy = remedy_of(
            refused,
            instance=hop,
            service=side.far_service,
            reason=status,
            dialog=dialog,
            route=route if may_be_wrong else None,
            wanted=side.far_broker_instance or "",
        )
        what = "had copies of them that waited there" if refused == Disposition.ALREADY_HELD else "took none"
        return refused, f"{by}{hop} {what}: {status}", remedy, ""
    if NOT_STORED in status:
        there = f"the instance of {side.far_service}"
        remedy = remedy_of(Disposition.QUEUE_DISABLED, instance=there, service=side.far_service)
        return Disposition.QUEUE_DISABLED, status, remedy, ""
    remedy = "nothing, unless it lasts: then ask the instances along the path"
    return "", status, remedy, "sent again until the far side acknowledges"


def waiting_dialog(side: SideShown, instance: str) -> WaitingDialog:
    """The dialog of a side of this instance that sends."""
    statement = f"END CONVERSATION '{side.conversation_handle}' WITH CLEANUP;"
    end = to_run(statement, database=side.database, instance=instance, is_scripted=False)
    is_known = not side.is_initiator or bool(side.acknowledged_sequence or side.receive_sequence)
    return WaitingDialog(end, is_known, principal=side.principal or "PRINCIPAL")


def _remedy_of_unsealable(side: SideShown, dialog: WaitingDialog, spot: Spot) -> str:
    """The remedy for a dialog that is to be sealed, where a route alone would end it with -9727."""
    service, text = render_name(side.far_service), render_text(side.far_service)
    binding = f"CREATE REMOTE SERVICE BINDING {service} TO SERVICE {text} WITH USER = [PRINCIPAL];"
    both = to_run(f"{create_route(side.far_service)} {binding}", database=side.database, instance=spot.instance)
    return (
        f"{dialog.question}import the partner file of the organization that has the service (broker partner import"
        f" FILE): a sealed dialog needs a remote service binding as well as a route. Without a file, {both} PRINCIPAL"
        f" is that of the certificate of its database. This dialog began without a binding: {dialog.again}"
    )


# --- dead ends: also of the instances along the path ---


def dead_end(way: ExplainAnswer, dialog: WaitingDialog, before: Sequence[ExplainAnswer] = ()) -> tuple[str, str, str]:
    """
    Return the cause, why, and the remedy for messages that an instance does not lead on.

    Args:
        way: The decision of the instance.
        dialog: The dialog of the messages.
        before: The decisions of the instances before it.
    """
    decision, dialog = way.explanation, replace(dialog, near=way.explanation.near_names or dialog.near)
    route = taken_route(before[-1]) if before else None
    is_back = way.broker_instance is not None and way.broker_instance in {hop.broker_instance for hop in before}
    if len(decision.passes) > 1:  # a route of the instance leads to itself
        first = decision.passes[0]
        route, is_back = TakenRoute(first.candidates[0].route, way.instance, first.table), True
    is_misspelt = bool(dialog.near) and not dialog.is_known
    if is_back and route is not None:
        why = f"route {route.name} of {route.instance} leads back to {way.instance}: {decision.sentence}"
        question = dialog.question if is_misspelt else ""
        return LOOP, why, question + remedy_of_loop(route, decision.to_service)
    remedy = _remedy_of_replaced(way, dialog, before) or remedy_of(
        decision.disposition,
        instance=way.instance,
        service=decision.to_service,
        table=decision.passes[-1].table,
        reason=decision.sentence,
        dialog=dialog,
        route=None if is_misspelt else route,
        wanted=decision.to_broker_instance or "",
    )
    return decision.disposition, decision.sentence, remedy


def remedy_of_loop(route: TakenRoute, service: str) -> str:
    """The remedy for a route that leads back to an instance where messages have been."""
    return f"{route.led_elsewhere()} with the address of the instance that has {service}, or of one that leads there"


def _remedy_of_replaced(way: ExplainAnswer, dialog: WaitingDialog, before: Sequence[ExplainAnswer]) -> str:
    """The remedy where a route or the dialog names a broker instance that another one has replaced; otherwise ""."""
    decision, wanted = way.explanation, way.explanation.to_broker_instance
    if wanted is None or decision.disposition not in UNKNOWN_HERE:
        return ""
    if decision.other_instances:
        now = decision.other_instances[0]
        named = [route for hop in before if (route := taken_route(hop)) and _instance_of(hop) == wanted]
        steps = [*(route.altered(f"BROKER_INSTANCE = '{now}'") for route in named), dialog.again]
        what = f"{decision.to_service} at {way.instance} is broker instance {now} now, and the messages name {wanted}"
        return f"{what}: {' Then '.join(steps)}"
    table, others = decision.passes[-1], routes_of_service(way)
    if not others:
        return ""
    again = to_run(create_route(decision.to_service, wanted), database=table.table, instance=way.instance)
    lost = f" Only if it does not come back, {dialog.again}: what it has not acknowledged is lost"
    return (
        f"no route leads to broker instance {wanted}, which the messages are for, and they wait until one does: {again}"
        f"{'' if decision.is_from_target else lost}"
    )


def taken_route(way: ExplainAnswer) -> TakenRoute | None:
    """The route by which messages leave an instance; None where none has a name."""
    decision = way.explanation
    return TakenRoute(decision.route, way.instance, decision.passes[-1].table) if decision.route else None


def instance_of_several(way: ExplainAnswer, *, is_reached: bool) -> str | None:
    """
    The broker instance that the taken route names, if it is one of several broker instances of the service.

    Args:
        way: The decision of the instance.
        is_reached: Whether the next hop is; if all of them share one that is not reached, taking one out does not help.
    """
    seen = {route.broker_instance if is_reached else route.address for route in routes_of_service(way)}
    return _instance_of(way) if len(seen) > 1 else None


def routes_of_service(way: ExplainAnswer) -> list[RouteFate]:
    """The routes that an instance considered and that name the service and a broker instance."""
    steps = (step for step in way.explanation.passes[-1].steps if step.step in {1, 3})
    return [route for step in steps for route in step.routes]


def other_candidates(way: ExplainAnswer) -> set[str]:
    """The addresses that an instance could have chosen as well as the next hop."""
    return {one.address for one in way.explanation.passes[-1].candidates} - {way.explanation.next_hop}


def _instance_of(way: ExplainAnswer) -> str | None:
    """The broker instance that the taken route names."""
    decision = way.explanation
    routes = (route for tried in decision.passes[-1].classes for route in tried.routes)
    return next((route.broker_instance for route in routes if route.name == decision.route), None)


def _ending(side: SideShown) -> str:
    """Return the error that this side has ended with, while its Error message is not acknowledged; "" otherwise."""
    if side.sent_error_code is None:
        return ""
    told = f": {side.sent_error_text}" if side.sent_error_text else ""
    return f"; the last of them ends the dialog with error {side.sent_error_code}{told}"


def _is_dead_end(way: ExplainAnswer) -> bool:
    return way.explanation.outcome in _DEAD_END


def next_hop_problem(decision: Explanation) -> tuple[str, str] | None:
    """The address that would be used and what is known against it; None when nothing is."""
    for candidate in decision.passes[-1].candidates[:1]:
        if candidate.problem:
            return candidate.address, candidate.problem
    return None


def is_cut_off(decision: Explanation) -> bool:
    """Whether nothing gets to the next hop, but for want of a permission there: that is judged where it is missing."""
    _, problem = next_hop_problem(decision) or ("", "")
    return bool(problem) and not (problem.startswith("FATAL") and MAY_NOT_CONNECT in problem)


def sent_to(status: str) -> str:
    """The next hop that has the last copy of what a transmission status is about; empty where it names none."""
    found = _SENT_TO.match(status)
    return found[1] if found else ""


def _refused(status: str) -> str | None:
    """Return the disposition by which the next hop, or this instance, dropped a frame; None when neither did."""
    _, found, rest = status.partition(DROPPED_HERE if DROPPED_HERE in status else REFUSED)
    return rest.partition(": ")[0].partition(" (")[0] or None if found else None


# --- received messages ----------------------------------------------------------------------------------------------


def inbound_findings(side: SideShown, spot: Spot) -> Iterator[WhyFinding]:
    """Yield findings about messages that wait for the application of this side."""
    if side.poison is not None:
        yield _poisoned(side, side.poison, spot)
    elif side.ready:
        yield _unread(side, spot)
    if side.unconfirmed:
        yield spot.found("not confirmed", side, side.unconfirmed)
    if side.early_fragments:
        yield spot.found("out of order", side)
    if side.state == _ENDED and not side.held and not side.quarantined:  # else that is why it is not read
        severity = Severity.WAITING if side.ready else Severity.TROUBLE
        receive = f"the application of {side.service_name} should RECEIVE the EndDialog message and END CONVERSATION"
        remedy = receive if side.ready else _left_to_end(side, spot)
        yield spot.found("far side ended", side, severity=severity, remedy=remedy)


def part_of(answer: WhyAnswer, database: str, *, has_arrived: bool) -> WhyAnswer:
    """
    The part of an answer about what has arrived in a database, or about what is sent there.

    All of it where that is nothing but a failure.
    """
    spot = Spot(answer.instance, database)
    sides = (side for side in answer.sides if side.database == database)
    causes = {one.cause for side in sides if side.state != "ER" for one in inbound_findings(side, spot)}
    if not causes:
        return answer
    if not has_arrived:
        sent = [one for one in answer.findings if one.database != database or one.cause not in causes]
        return structs.replace(answer, findings=sent or answer.findings)
    found = [one for one in answer.findings if one.database == database and one.cause in {*causes, WRITE_LOCK}]
    here = [side for side in answer.sides if side.database == database]
    return structs.replace(answer, findings=found or answer.findings, sides=here, held=[], ways=[], drops=[])


def _failed(side: SideShown, spot: Spot, *, is_over: bool) -> WhyFinding:
    told = f": {side.error_text}" if side.error_text else ""
    is_read = side.error_code is None and not side.error_text
    by = f", and here is at {side.far_service}" if side.error_code == _FAR_SIDE_GONE else ""
    received = "it has failed, and its Error message was received, or never stored because its service had been dropped"
    return spot.found(
        "error",
        side,
        cause=cause_of_failure(side),
        number="" if side.error_code is None else f" with {side.error_code}",
        why=received if is_read else f"the Error message in its queue says so{by}{told}",
        remedy=begin_again(side, spot) if is_over else remedy_of_failed(side, spot),
    )


def cause_of_failure(side: SideShown) -> str:
    """The word for the error with which a dialog has failed."""
    return {None: ERROR_RECEIVED, LIFETIME_OVER: _LIFETIME}.get(side.error_code, f"error {side.error_code}")


def is_failure(finding: WhyFinding) -> bool:
    """Whether it is about a dialog that has failed."""
    return finding.cause == _LIFETIME or finding.cause.startswith(ERROR_RECEIVED)


def remedy_of_failed(side: SideShown, spot: Spot, target: str = "", database: str = "DATABASE") -> str:
    """The remedy for a dialog that has failed; `target` and `database` are the far ones, where they are known."""
    here = to_run("", database=side.database, instance=spot.instance).rstrip()
    code, service, text = side.error_code, side.far_service, side.error_text
    if code is None and not text:
        return _left_to_end(side, spot)
    end = receive_error(side, spot)
    return remedy_of_error(code, service=service, text=text, here=here, target=target, database=database, end=end)


def receive_error(side: SideShown, spot: Spot) -> str:
    """How a side that has failed is ended, its Error message received, where no application does it."""
    if side.queue_name is None:
        return _left_to_end(side, spot)
    database, queue, handle = shlex.quote(side.database), shlex.quote(side.queue_name), side.conversation_handle
    others = " (which also receives and prints its other messages)" if side.ready > 1 else ""
    return (
        f"receive the Error message and end the dialog, by the application of {side.service_name} or{others}"
        f" at {spot.instance}, broker receive -d {database} --queue {queue} --conversation {handle} --end"
    )


def begin_again(side: SideShown, spot: Spot) -> str:
    """The remedy for a dialog that has failed, and whose cause is over."""
    return f"{receive_error(side, spot)}; then begin another dialog"


def _left_to_end(side: SideShown, spot: Spot) -> str:
    """The remedy for a side whose application has received all, and has not ended its dialog."""
    statement = f"END CONVERSATION '{side.conversation_handle}';"
    end = to_run(statement, database=side.database, instance=spot.instance, is_scripted=False)
    return f"END CONVERSATION is left to do: by the application of {side.service_name}, or {end}"


def far_side_gone(side: SideShown, spot: Spot, there: str) -> WhyFinding:
    """The finding about a side whose dialog is not known at the far instance `there`, though it was."""
    if side.held:
        lost = f"{counted(side.held, 'message')} of it will not arrive: "
        fails = "the dialog fails by itself (-8462), mostly within a minute."
        again = f"Then {begin_again(side, spot)}, and send again what was not processed"
        return spot.found("far side gone", side, there=there, remedy=f"{lost}{fails} {again}")
    severity = Severity.WAITING if side.ready else Severity.TROUBLE  # what is unread would be lost
    first = (
        f"first, the application of {side.service_name} should RECEIVE the messages in its queue; then, "
        if side.ready
        else ""
    )
    return spot.found("far side gone", side, severity=severity, there=there, remedy=first + _left_to_end(side, spot))


def _poisoned(side: SideShown, poison: PoisonShown, spot: Spot) -> WhyFinding:
    is_over = poison.quarantine_time is not None
    return spot.found(
        "in quarantine" if is_over else "tried again",
        side,
        side.quarantined if is_over else side.ready,
        number=poison.message_sequence_number,
        times="once" if poison.failures == 1 else f"{poison.failures} times in a row",
        last=poison.last_failure_time,
        error=poison.error,
        since=poison.quarantine_time,
        quoted=shlex.quote(side.database),
    )


def _unread(side: SideShown, spot: Spot) -> WhyFinding:
    wait = "waits" if side.ready == 1 else "wait"
    what = f"{counted(side.ready, 'message')} for {side.service_name} {wait} in the queue"
    symptom = f"{what} {side.queue_name} of {spot.database}, since {when(side.ready_since)}"
    if not side.is_receive_enabled:
        return queue_off_finding(spot, str(side.queue_name), symptom)
    if side.is_taken:
        return spot.found("being read", side, symptom=symptom)
    if not side.readers:
        return spot.found("waiting for RECEIVE", side, symptom=symptom, readers="no reader runs on this queue")
    readers = f"{side.readers} reader processes have not come to it yet"
    return spot.found("waiting for RECEIVE", side, severity=Severity.WAITING, symptom=symptom, readers=readers)


def queue_off_finding(spot: Spot, queue: str, symptom: str) -> WhyFinding:
    """The finding about messages for a queue that is off."""
    turn_on = queue_on(spot.database or "", queue, instance=spot.instance)
    return spot.found("queue off", symptom=symptom, queue=queue, turn_on=turn_on)


def _locked(spot: Spot, wait: LockWait) -> WhyFinding:
    return spot.found(WRITE_LOCK, who=wait.holder or "another process", seconds=wait.seconds)


# --- words ------------------------------------------------------------------------------------------------------


def joined(remedy: str, more: str) -> str:
    """A remedy with another sentence; one that ends with a statement ends with its semicolon."""
    return f"{remedy}{'' if remedy.endswith(';') else '.'} {more}"


def when(at: datetime | None) -> str:
    """An instant, whole seconds."""
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


# --- the facts of one instance ---

_HIDDEN = "its text is shown to admins"


@dataclass(slots=True)
class WhyFacts:
    """
    The facts found about an id.

    Attributes:
        found: Facts by database, with its broker instance.
        held: Rows of frames, by column.
        looked_in: The places that were searched, and those that could not be.
        bound: The services that have a remote service binding, by database.
    """

    conversation_id: bytes | None = None
    found: dict[str, tuple[bytes, ConversationFacts]] = field(default_factory=dict)
    held: list[Mapping[str, Any]] = field(default_factory=list)
    looked_in: list[str] = field(default_factory=list)
    queues_off: list[QueueOff] = field(default_factory=list)
    bound: dict[str, list[str]] = field(default_factory=dict)


def look(
    guid: UUID,
    paths: Mapping[str, Path],
    forwarded: Iterable[Row] | None,
    now: float,
    *,
    mirrors: Iterable[str] = (),
) -> WhyFacts:
    """
    Search everywhere here. Blocking.

    Args:
        guid: A conversation_handle, a conversation_id, or the message_id of a frame that waits here.
        paths: The files of the user databases.
        forwarded: Rows of `sys.dm_broker_forwarded_messages`; None where nothing runs.
        now: UTC seconds since 1970.
        mirrors: Databases whose files another instance has.
    """
    told = WhyFacts()
    rows = (
        None
        if forwarded is None
        else [dict(zip(FORWARDED_MESSAGES.columns, map(shown_value, row), strict=True)) for row in forwarded]
    )
    name = show_guid(guid.bytes)
    named = [row for row in rows or () if name in {row["message_id"], row["conversation_id"]}]
    wanted = UUID(str(named[0]["conversation_id"])).bytes if named else guid.bytes
    for database, path in paths.items():
        _look_into(told, database, path, wanted, now)
    told.looked_in += [f"not in database {name}: this database is a mirror here; ask its partner" for name in mirrors]
    if named:
        told.conversation_id = wanted
    if rows is None:
        told.looked_in.append("no frames under way: no daemon runs that could hold some")
    else:
        told.looked_in.append(f"{len(rows)} frames that wait here for a next hop")
        shown = None if told.conversation_id is None else show_guid(told.conversation_id)
        told.held = [row for row in rows if row["conversation_id"] == shown]
    return told


def _look_into(told: WhyFacts, database: str, path: Path, guid: bytes, now: float) -> None:
    if not path.is_file():
        told.looked_in.append(f"not in database {database}: {path}: {FILE_GONE}")
        return
    try:
        with closing(open_watch(path)) as db:
            check_schema(db)  # the meaning of another release's tables is not known here
            instance, found = broker_instance(db), find_conversation(db, told.conversation_id or guid, now)
            told.bound[database] = [one.remote_service_name for one in bindings(db).values()]
            told.queues_off += [QueueOff(database, service, queue) for service, queue in queues_off(db)]
    except (sqlite3.Error, StoreUnavailableError) as error:
        problem = error.problem if isinstance(error, StoreUnavailableError) else sentence(error)
        told.looked_in.append(f"not in database {database}: its file cannot be read: {problem}")
        return
    told.looked_in.append(f"database {database}")
    if found.sides or found.closed:
        told.found[database] = instance, found
        ids = [side.conversation_id for side in found.sides] + [one.conversation_id for one in found.closed]
        told.conversation_id = ids[0]


def answer_why(
    place: InstanceView,
    guid: UUID,
    facts: WhyFacts,
    *,
    dropped: Mapping[str, int],
    is_running: bool,
    now: float,
    shows_texts: bool = True,
    lock_waits: Mapping[str, LockWait] | None = None,
    drops: Iterable[tuple[DropSnapshot, float]] = (),
    lost_imports: Iterable[str] = (),
    store_problems: Mapping[str, str] | None = None,
    replaced: Mapping[str, str] | None = None,
) -> WhyAnswer:
    """
    Make the answer: the facts, with the findings that follow from them.

    Args:
        place: The instance.
        guid: The id that was asked about.
        facts: The facts that were found.
        dropped: Frames dropped here since the start, by reason.
        is_running: False when only files were read.
        now: UTC seconds since 1970.
        shows_texts: Whether texts of applications are shown: of the errors that end dialogs, and of failed readers.
        lock_waits: Long waits for the write transactions of others that go on, by database.
        drops: The last drop of each reason, with its age in seconds.
        lost_imports: New databases that lack what partner files had brought; the trace says where that matters.
        store_problems: Why databases store nothing, by database.
        replaced: Sentences about the lost databases in whose place new ones were made; likewise for the trace.
    """
    sides: list[SideShown] = []
    closed: list[ClosedShown] = []
    ways: list[ExplainAnswer] = []
    findings: list[WhyFinding] = []
    for database, (instance, found) in facts.found.items():
        spot = Spot(place.name, database, place.config_option)
        for one in found.sides:
            side = side_shown(database, one)
            side = side if shows_texts else _without_texts(side)
            way = _way_of_side(place, database, instance, one)
            sides.append(side)
            ways += [] if way is None else [way]
            findings += side_findings(side, way, spot, bound=facts.bound.get(database, ()))
            if side.held and not is_running:
                findings.append(spot.found("daemon down", side, side.held))
        closed += [_closed_shown(database, one) for one in found.closed]
        findings += [_over(spot, one) for one in found.closed]
    storing = [_locked(Spot(place.name, name), wait) for name, wait in (lock_waits or {}).items()]
    for name, problem in (store_problems or {}).items():
        what, remedy = failure_of_store(problem)
        storing.append(Spot(place.name, name).found(Disposition.STORE_FAILED, problem=what, remedy=remedy))
    concerned = facts.found.keys() | {way.explanation.database for way in ways}
    findings += [one for one in storing if one.database in concerned or not facts.found]
    findings += [Spot(place.name, name, place.config_option).found(IMPORTS_LOST) for name in lost_imports]
    for name, problem in (replaced or {}).items():
        findings.append(Spot(place.name, name, place.config_option).found(REPLACED, problem=problem))
    held = list(_held_shown(facts.held))
    held_ways = [_way_of_frames(place, facts, one) for one in _directions(held)]
    findings += [_held_finding(place.name, one, held_ways) for one in held]
    ways += [] if sides else held_ways
    arrived = {side.database for side in sides if not side.is_initiator}
    return WhyAnswer(
        instance=place.name,
        broker_instance=None if place.broker_instance is None else str(UUID(bytes=place.broker_instance)),
        addresses=sorted(map(str, place.surroundings.own)),
        is_running=is_running,
        id=show_guid(guid.bytes),
        conversation_id=None if facts.conversation_id is None else show_guid(facts.conversation_id),
        sides=sides,
        closed=closed,
        held=held,
        dropped=dict(dropped),
        ways=ways,
        findings=findings,
        looked_in=facts.looked_in,
        queues_off=facts.queues_off,
        drops=list(_drop_findings(place, facts.conversation_id or guid.bytes, drops, now, arrived)),
    )


def _drop_findings(
    place: InstanceView,
    conversation: bytes,
    drops: Iterable[tuple[DropSnapshot, float]],
    now: float,
    arrived: Container[str],
) -> Iterator[WhyFinding]:
    """Yield recent drops of this conversation, or likely for it, which the routing decision does not show."""
    for drop, age in sorted(drops, key=lambda one: one[0].database is not None):  # the farthest along the path last
        fields, reason = drop.fields, drop.disposition
        is_own = fields.conversation_id == UUID(bytes=conversation)
        if age > DROP_SECONDS or reason in _USUAL or not (is_own or reason in _OF_ALL | _OF_PARTNERS):
            continue
        if drop.is_past and drop.database in arrived:
            continue  # that database has the dialog now
        service, at = fields.to_service_name or "", when(_instant(now - age))
        what = "a copy was" if is_own else f"{counted(drop.frames, 'frame')} of any dialog, the last one"
        why = f"{what} dropped here at {at}: {reason} ({reason.number})" + (f": {drop.reason}" if drop.reason else "")
        remedy = remedy_of_drop(drop, place.name).removeprefix(f"{drop.reason}: ")
        why = f"what prevented it here has changed since; before that, {why}" if drop.is_past else why
        symptom = f"{fields.from_service_name} {'did' if drop.is_past else 'does'} not get through to {service}"
        symptom = symptom if is_own else f"frames {'were' if drop.is_past else 'are'} dropped at {place.name}"
        then = "unless its dialog has been ended, it is sent again: when the cause is removed, the next copy arrives"
        yield WhyFinding(place.name, drop.database, reason.value, Severity.WAITING, symptom, why, then, remedy)


# --- ways -----------------------------------------------------------------------------------------------------------


def _way_of_side(place: InstanceView, database: str, instance: bytes, side: ConversationSide) -> ExplainAnswer | None:
    """Route messages of this side; None for a database that the instance does not have at work now."""
    if database not in place.homes or place.homes[database].broker_instance != instance:
        return None
    far = side.far_broker_instance
    contact = Contact(side.conversation_id, side.is_initiator, side.service_name, instance, side.far_service)
    contact = contact if far is None else contact.bound_to(far)
    return answer(place, ExplainRequest(conversation=UUID(bytes=side.conversation_id), database=database), contact)


def _directions(held: Iterable[HeldShown]) -> Iterator[tuple[str, str | None, bool]]:
    """Service, broker instance and whether the target sent it: as the frames go, and back."""
    ways: dict[tuple[str, str | None, bool], None] = {}
    for one in held:
        ways[one.to_service_name, one.to_broker_instance, not one.is_initiator] = None
        ways[one.from_service_name, one.from_broker_instance, one.is_initiator] = None
    return iter(ways)


def _way_of_frames(place: InstanceView, told: WhyFacts, direction: tuple[str, str | None, bool]) -> ExplainAnswer:
    service, instance, from_target = direction
    assert told.conversation_id is not None, "frames were found"
    request = ExplainRequest(
        service,
        None if instance is None else UUID(instance),
        UUID(bytes=told.conversation_id),
        incoming=True,
        from_target=from_target,
    )
    return answer(place, request)


# --- facts ----------------------------------------------------------------------------------------------------------


def side_shown(database: str, side: ConversationSide) -> SideShown:
    """Convert a side into the form of the answer."""
    return struct_from(
        SideShown,
        side,
        side.inbound,
        database=database,
        conversation_handle=show_guid(side.conversation_handle),
        far_broker_instance=None if side.far_broker_instance is None else show_guid(side.far_broker_instance),
        lifetime=_instant(side.lifetime),
        create_date=_instant(side.create_date),
        dialog_timer=_instant(side.dialog_timer),
        held_since=_instant(side.held_since),
        transmission_status=_status(side),
        ready_since=_instant(side.inbound.ready_since),
        poison=None if side.inbound.poison is None else _poison_shown(side.inbound.poison),
    )


def _without_texts(side: SideShown) -> SideShown:
    """Return the side as callers below admin see it: numbers of errors, and no text of an application."""
    poison = side.poison and structs.replace(side.poison, error=_HIDDEN)
    return structs.replace(side, error_text="", sent_error_text="", poison=poison)


def _status(side: ConversationSide) -> str:
    if side.transmission_status:
        return side.transmission_status
    return (
        f"{ON_ITS_WAY}not tried yet"
        if side.held
        else f"nothing waits: {counted(side.acknowledged_sequence, 'message')} acknowledged"
    )


def _poison_shown(poison: Poison) -> PoisonShown:
    last = datetime.fromtimestamp(poison.last_failure_time, UTC)
    put = _instant(poison.quarantine_time)
    return PoisonShown(poison.message_sequence_number, poison.failures, last, put, poison.error)


def _closed_shown(database: str, one: Closed) -> ClosedShown:
    handle = None if one.conversation_handle is None else show_guid(one.conversation_handle)
    times = (_instant(one.close_time), _instant(one.expire_time))
    return ClosedShown(database, one.is_initiator, one.receive_sequence, *times, handle)


def _over(spot: Spot, one: Closed) -> WhyFinding:
    which = "initiator's" if one.is_initiator else "target's"
    closed, forgotten = when(_instant(one.close_time)), when(_instant(one.expire_time))
    conversation = show_guid(one.conversation_id)
    given: dict[str, Any] = {"which": which, "closed": closed, "forgotten": forgotten, "conversation": conversation}
    return spot.found(OVER, None, one.receive_sequence, **given)


def _held_shown(rows: Iterable[Mapping[str, Any]]) -> Iterator[HeldShown]:
    """One for each direction and next hop."""
    groups: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((bool(row["is_initiator"]), row["adjacent_broker_address"]), []).append(row)
    for (is_initiator, address), some in groups.items():
        first = some[0]
        yield HeldShown(
            is_initiator=is_initiator,
            to_service_name=first["to_service_name"],
            to_broker_instance=first["to_broker_instance"],
            from_service_name=first["from_service_name"],
            from_broker_instance=first["from_broker_instance"],
            adjacent_broker_address=address,
            why_held=first["why_held"],
            frames=len(some),
            longest_ms=max(row["held_ms"] for row in some),
            message_sequence_number=min(row["message_sequence_number"] for row in some),
        )


def _held_finding(instance: str, held: HeldShown, ways: Sequence[ExplainAnswer]) -> WhyFinding:
    frames = "1 frame" if held.frames == 1 else f"{held.frames:,} frames"
    address, spot, seconds = held.adjacent_broker_address, Spot(instance, None), held.longest_ms / 1000
    going = (way for way in ways if way.explanation.is_from_target != held.is_initiator)
    hops = {hop: way for way in going if (hop := way.explanation.next_hop)}
    if hops and address not in hops:
        remedy = "nothing, routes lead elsewhere now: when the time of these is over, the next copy goes there"
        severity = Severity.WAITING
    else:
        _, _, problem = held.why_held.rpartition("; ")[0].partition(f"{address}: ")
        route = taken_route(hops[address]) if address in hops else None
        remedy, severity = remedy_of_unreached(address, problem, route, instance), None
    return spot.found("held", held, held.frames, severity=severity, frames=frames, seconds=seconds, remedy=remedy)


def _instant(at: float | None) -> datetime | None:
    """An instant; None also beyond what a calendar holds."""
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None

"""
Why one side of a dialog does not go on: each cause as a finding, from facts alone.

A finding is a chain of causes in plain words, what happens next, and what to do; the texts are in `causes.toml`. The
routing decisions of this instance and of those along the path (`dead_end`) are findings, too.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, structs

from broker.advice import create_route, near_name, render_name, render_text, to_run
from broker.config.units import counted
from broker.dialog.status import DROPPED_HERE, NOT_SEALED, NOT_STORED, REFUSED
from broker.errors import MAY_NOT_CONNECT
from broker.flow import Disposition
from broker.observe.explain import ExplainAnswer
from broker.observe.message_catalogue import (
    BEGIN,
    TakenRoute,
    WaitingDialog,
    queue_on,
    remedy_of,
    remedy_of_error,
    remedy_of_unreached,
)
from broker.routing.decide import UNKNOWN_HERE
from broker.routing.explain import Explanation, Outcome, RouteFate
from broker.store.sqlite.session_keys import UNSEALABLE

Guid = Annotated[str, Meta(description="Upper case, as the views show it.")]


class Severity(IntEnum):
    """Weight of a finding in the trace: of the weightiest the one that is farthest along the path is the cause."""

    FINE = 0
    WAITING = 1  # it continues without intervention
    TROUBLE = 2  # it is blocked, at least until something else changes


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


# --- findings about one side of a conversation: pure functions of facts ---


_DEAD_END = frozenset({Outcome.DROPPED, Outcome.DELAYED, Outcome.HELD})
_ENDED = "DI"
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
LIFETIME_OVER, NO_BINDING, NO_PERMISSION, _FAR_SIDE_GONE = -8489, -9727, -8494, -8462  # of Error messages


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
            _, why, remedy = dead_end(way, replace(waiting_dialog(side, spot), end="end this one, as below,"))
            why = f"{failed.why}, and another dialog would wait as well: {why}"
            failed = structs.replace(failed, why=why, remedy=joined(remedy, f"Then {begin_again(side, spot)}"))
        yield failed
        return
    if side.held:
        yield _sending(side, way, spot, [near] if near else [])
    elif way is not None and side.receive_sequence and not side.is_initiator and _is_dead_end(way):
        _, why, remedy = dead_end(way, waiting_dialog(side, spot))
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
    status, dialog = side.transmission_status, replace(waiting_dialog(side, spot), near=near)
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
            is_forwarding=True,
        )
        what = "had copies of them that waited there" if refused == Disposition.ALREADY_HELD else "took none"
        return refused, f"{by}{hop} {what}: {status}", remedy, ""
    if NOT_STORED in status:
        there = f"the instance of {side.far_service}"
        remedy = remedy_of(Disposition.QUEUE_DISABLED, instance=there, service=side.far_service)
        return Disposition.QUEUE_DISABLED, status, remedy, ""
    remedy = "nothing, unless it lasts: then ask the instances along the path"
    return "", status, remedy, "sent again until the far side acknowledges"


def waiting_dialog(side: SideShown, spot: Spot) -> WaitingDialog:
    """The dialog of a side that sends."""
    statement = f"END CONVERSATION '{side.conversation_handle}' WITH CLEANUP;"
    end = to_run(statement, database=side.database, instance=spot.instance, is_scripted=False)
    if side.ready:
        read = f"at {spot.instance}, {_receive(side, spot)}"
        end = f"first receive its unread messages, which END removes ({read}); then {end}"
    is_known = not side.is_initiator or bool(side.acknowledged_sequence or side.receive_sequence)
    return WaitingDialog(end, is_known, principal=side.principal or "PRINCIPAL", begin=_begin(side))


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
    is_of_others = decision.disposition in UNKNOWN_HERE and bool(before) and _is_last_resort(before[-1])
    remedy = _remedy_of_replaced(way, dialog, before) or remedy_of(
        decision.disposition,
        instance=way.instance,
        service=decision.to_service,
        table=decision.passes[-1].table,
        reason=decision.sentence,
        dialog=dialog,
        route=None if is_misspelt or is_of_others else route,
        wanted=decision.to_broker_instance or "",
        is_forwarding=way.is_forwarding,
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
        return joined(f"{what}: {' Then '.join(steps)}", "Send again what was not processed.")
    table, others = decision.passes[-1], routes_of_service(way)
    if not others:
        return ""
    again = to_run(create_route(decision.to_service, wanted), database=table.table, instance=way.instance)
    lost = f" Or, only if it does not come back, {dialog.again}: what it has not acknowledged is lost"
    return (
        f"no route leads to broker instance {wanted}, which the messages are for, and they wait until one does. Make it"
        f" with its former WEIGHT, if it had one, and at each gateway that lacks it: {again}"
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
    return None if (route := _taken(way)) is None else route.broker_instance


def _is_last_resort(way: ExplainAnswer) -> bool:
    """Whether the taken route names no service: another address would lead all others astray."""
    return (route := _taken(way)) is not None and route.remote_service_name is None


def _taken(way: ExplainAnswer) -> RouteFate | None:
    decision = way.explanation
    routes = (route for tried in decision.passes[-1].classes for route in tried.routes)
    return next((route for route in routes if route.name == decision.route), None)


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
    if code == LIFETIME_OVER and side.acknowledged_sequence >= side.send_sequence:
        return f"nothing has to be sent again: what {side.service_name} sent is acknowledged; {end}"
    return remedy_of_error(code, service=service, text=text, here=here, target=target, database=database, end=end)


def receive_error(side: SideShown, spot: Spot) -> str:
    """How a side that has failed is ended, its Error message received, where no application does it."""
    if side.queue_name is None:
        return _left_to_end(side, spot)
    others = " (which also receives and prints its other messages)" if side.ready > 1 else ""
    return (
        f"receive the Error message and end the dialog, by the application of {side.service_name} or{others}"
        f" at {spot.instance}, {_receive(side, spot)} --end;"
    )


def _receive(side: SideShown, spot: Spot) -> str:
    """The command that receives what a side has not read."""
    database, queue = shlex.quote(side.database), shlex.quote(str(side.queue_name))
    where = f"{spot.config_option} -d {database} --queue {queue}"
    return f"broker receive{where} --conversation {side.conversation_handle}"


def begin_again(side: SideShown, spot: Spot) -> str:
    """The remedy for a dialog that has failed, and whose cause is over."""
    return f"{receive_error(side, spot)} Then {_begin(side)}"


def _begin(side: SideShown) -> str:
    return BEGIN if side.is_initiator else f"have {side.far_service} begin another dialog"


def _left_to_end(side: SideShown, spot: Spot) -> str:
    """The remedy for a side whose application has received all, and has not ended its dialog."""
    statement = f"END CONVERSATION '{side.conversation_handle}';"
    end = to_run(statement, database=side.database, instance=spot.instance, is_scripted=False)
    return f"END CONVERSATION is left to do: by the application of {side.service_name}, or {end}"


def far_side_gone(side: SideShown, spot: Spot, there: str, remedy: str = "") -> WhyFinding:
    """A side whose dialog is not known at the far instance `there`, though it was; `remedy` where not just its end."""
    if side.held:
        lost = f"{counted(side.held, 'message')} of it will not arrive: "
        fails = "the dialog fails by itself (-8462), mostly within a minute."
        again = f"Then {begin_again(side, spot)}, and send again what was not processed"
        return spot.found("far side gone", side, there=there, remedy=f"{lost}{fails} {again}")
    severity, left = Severity.TROUBLE, _left_to_end(side, spot)
    if side.ready:  # what is unread would be lost
        first = f"first, the application of {side.service_name} should RECEIVE the messages in its queue; then, "
        severity, left = Severity.WAITING, first + left
    return spot.found("far side gone", side, severity=severity, there=there, remedy=remedy or left)


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


# --- words ------------------------------------------------------------------------------------------------------


def joined(remedy: str, more: str) -> str:
    """A remedy with another sentence; one that ends with a statement ends with its semicolon."""
    return f"{remedy}{'' if remedy.endswith((';', '.')) else '.'} {more}"


def when(at: datetime | None) -> str:
    """An instant, whole seconds."""
    return "an unknown time" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"

"""
Why a conversation or a message does not go on: `broker why`, as one instance answers it.

`look` searches the files and the frames that wait, so it is for a thread. `answer_why` adds the routing decision and
makes findings of both: a finding is a chain of causes in plain words, what happens next, and what to do. The instance
may be one that runs, or the files of a configuration. The findings of all instances along the path make the trace
(`broker.admin.trace`); JSON and the terminal show the same values.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
from msgspec import Meta, structs

from broker.client.transaction import check_schema
from broker.config.units import counted
from broker.conversation.frames import Contact
from broker.conversation.state import ON_ITS_WAY
from broker.dialog.status import SEE_WHY
from broker.errors import StoreUnavailableError
from broker.flow import Disposition
from broker.observe.causes import (
    IMPORTS_LOST,
    OVER,
    REPLACED,
    WRITE_LOCK,
    Guid,
    HeldShown,
    PoisonShown,
    Severity,
    SideShown,
    Spot,
    WhyFinding,
    inbound_findings,
    side_findings,
    taken_route,
    when,
)
from broker.observe.drops import DropSnapshot, remedy_of_drop
from broker.observe.explain import ExplainAnswer, ExplainRequest, InstanceView, answer
from broker.observe.health import failure_of_store
from broker.observe.message_catalogue import remedy_of_unreached
from broker.observe.query import FILE_GONE, shown_value
from broker.observe.status import struct_from
from broker.observe.views import FORWARDED_MESSAGES, Row
from broker.protocol.layout import show_guid
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.lookup import Closed, ConversationFacts, ConversationSide, find_conversation
from broker.store.sqlite.metadata import bindings, queues_off
from broker.store.sqlite.quarantine import Failure
from broker.store.sqlite.transaction import open_watch, sentence
from broker.store.sqlite.write_lock import LockWait


class WhyRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The id that is asked about."""

    id: Annotated[
        UUID, Meta(description="A conversation_handle, a conversation_id, or the message_id of a held frame.")
    ]


class ClosedShown(msgspec.Struct, frozen=True):
    """A side that is over."""

    database: str
    is_initiator: bool
    receive_sequence: int
    close_time: datetime | None
    expire_time: Annotated[datetime | None, Meta(description="When even this is forgotten.")]
    conversation_handle: Annotated[Guid | None, Meta(description="Null when an older release closed it.")] = None


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
    config_option: Annotated[
        str, Meta(description="Names its configuration in commands, after a blank; empty where it has none.")
    ] = ""

    def spot(self, database: str | None) -> Spot:
        """A database of the instance, as findings name it."""
        return Spot(self.instance, database, self.config_option)

    @property
    def is_known(self) -> bool:
        """True if a side, open or closed, or a held frame was found."""
        return bool(self.sides or self.closed or self.held)


DROP_SECONDS = 120.0  # after which a drop is history: a copy arrives at least each minute, as dialog.resend_cap says
_USUAL = frozenset(  # drops of a dialog that goes on
    {Disposition.DUPLICATE, Disposition.ALREADY_HELD, Disposition.OUT_OF_SEQUENCE, Disposition.SHUTDOWN}
    | {Disposition.CONVERSATION_ENDED, Disposition.UNKNOWN_CONVERSATION}
    | {Disposition.QUEUE_DISABLED}  # while it is, `queues_off` has it
)
_OF_ALL = frozenset({Disposition.POOL_LIMIT, Disposition.STORE_BUSY, Disposition.STORE_FAILED})  # whatever the dialog
_OF_PARTNERS = frozenset({Disposition.SECURITY_UNRESOLVED})  # whatever the dialog between the two databases

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
    at = partial(Spot, place.name, config_option=place.config_option)
    for database, (instance, found) in facts.found.items():
        spot = at(database)
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
    storing = [
        at(name).found(WRITE_LOCK, who=wait.holder or "another process", seconds=wait.seconds)
        for name, wait in (lock_waits or {}).items()
    ]
    for name, problem in (store_problems or {}).items():
        what, remedy = failure_of_store(problem)
        storing.append(at(name).found(Disposition.STORE_FAILED, problem=what, remedy=remedy))
    concerned = facts.found.keys() | {way.explanation.database for way in ways}
    findings += [one for one in storing if one.database in concerned or not facts.found]
    findings += [at(name).found(IMPORTS_LOST) for name in lost_imports]
    findings += [at(name).found(REPLACED, problem=problem) for name, problem in (replaced or {}).items()]
    held = list(_held_shown(facts.held))
    held_ways = [_way_of_frames(place, facts, one) for one in _directions(held)]
    findings += [_held_finding(place.name, one, held_ways) for one in held]
    ways += [] if sides else held_ways
    arrived = {side.database for side in sides if not side.is_initiator}
    return WhyAnswer(
        instance=place.name,
        broker_instance=None if place.broker_instance is None else show_guid(place.broker_instance),
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
        config_option=place.config_option,
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
        if drop.is_past and (not is_own or drop.database in arrived):
            continue  # it concerned others, or that database has the dialog now
        service, at = fields.to_service_name or "", when(_instant(now - age))
        what = "a copy was" if is_own else f"{counted(drop.frames, 'frame')} of any dialog, the last one"
        why = f"{what} dropped here at {at}: {reason} ({reason.number})" + (f": {drop.reason}" if drop.reason else "")
        remedy = remedy_of_drop(structs.replace(drop, others=()), place.name).removeprefix(f"{drop.reason}: ")
        why = f"what prevented it here has changed since; before that, {why}" if drop.is_past else why
        symptom = f"{fields.from_service_name} {'did' if drop.is_past else 'does'} not get through to {service}"
        symptom = symptom if is_own else f"frames {'were' if drop.is_past else 'are'} dropped at {place.name}"
        then = "unless its dialog has been ended, it is sent again: when the cause is removed, the next copy arrives"
        yield WhyFinding(place.name, drop.database, reason.value, Severity.WAITING, symptom, why, then, remedy)


def part_of(answer: WhyAnswer, database: str, *, has_arrived: bool) -> WhyAnswer:
    """
    The part of an answer about what has arrived in a database, or about what is sent there.

    All of it where that is nothing but a failure.
    """
    spot = answer.spot(database)
    here = [side for side in answer.sides if side.database == database]
    causes = {one.cause for side in here if side.state != "ER" for one in inbound_findings(side, spot)}
    if not causes:
        return answer
    if not has_arrived:
        sent = [one for one in answer.findings if one.database != database or one.cause not in causes]
        return structs.replace(answer, findings=sent or answer.findings)
    found = [one for one in answer.findings if one.database == database and one.cause in {*causes, WRITE_LOCK}]
    return structs.replace(answer, findings=found or answer.findings, sides=here, held=[], ways=[], drops=[])


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
        return side.transmission_status.removesuffix(SEE_WHY)
    return (
        f"{ON_ITS_WAY}not tried yet"
        if side.held
        else f"nothing waits: {counted(side.acknowledged_sequence, 'message')} acknowledged"
    )


def _poison_shown(poison: Failure) -> PoisonShown:
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

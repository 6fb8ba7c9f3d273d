"""
What one instance knows of a conversation or message: an instance that runs, or the files of a configuration.

`look` reads files, so it is for a thread; `answer_why` makes sentences of what was read and of the routing decision.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import structs

from broker.admin.explain_message import ExplainAnswer, ExplainRequest
from broker.admin.explaining import InstanceView, answer
from broker.admin.why import ClosedShown, HeldShown, PoisonShown, Severity, SideShown, WhyAnswer, WhyFinding
from broker.admin.why_side import Spot, messages, side_findings, when
from broker.application.transaction import check_schema
from broker.conversation.frames import Contact
from broker.errors import StoreUnavailableError
from broker.observe.query import shown_value
from broker.observe.status import show_guid
from broker.observe.view import MEMORY_VIEWS, UNTRIED, Row
from broker.store.database import broker_instance, open_watch
from broker.store.fault import sentence
from broker.store.whereabouts import Closed, ConversationFacts, Poison, Whereabouts, find_whereabouts

FORWARDED = "sys.dm_broker_forwarded_messages"
_HIDDEN = "its text is shown to admins"


@dataclass(slots=True)
class WhyFacts:
    """
    What was found.

    Shape: `found` by database, with its broker instance; `held` rows of frames by column; `looked_in` what was
    searched, and what could not be.
    """

    conversation_id: bytes | None = None
    found: dict[str, tuple[bytes, ConversationFacts]] = field(default_factory=dict)
    held: list[Mapping[str, Any]] = field(default_factory=list)
    looked_in: list[str] = field(default_factory=list)


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
        else [dict(zip(MEMORY_VIEWS[FORWARDED], map(shown_value, row), strict=True)) for row in forwarded]
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
        told.looked_in.append(f"not in database {database}: it has no file yet")
        return
    try:
        with closing(open_watch(path)) as db:
            check_schema(db)  # what the tables of another release mean is not known here
            instance, found = broker_instance(db), find_whereabouts(db, told.conversation_id or guid, now)
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
    told: WhyFacts,
    *,
    dropped: Mapping[str, int],
    is_running: bool,
    now: float,
    shows_texts: bool = True,
) -> WhyAnswer:
    """
    What was found, with what follows from it.

    Args:
        place: The instance.
        guid: What was asked about.
        told: What was found.
        dropped: Frames dropped here since the start, by reason.
        is_running: False when only files were read.
        now: UTC seconds since 1970.
        shows_texts: Whether texts of applications are shown: of the errors that end dialogs, and of failed readers.
    """
    sides: list[SideShown] = []
    closed: list[ClosedShown] = []
    ways: list[ExplainAnswer] = []
    findings: list[WhyFinding] = []
    for database, (instance, found) in told.found.items():
        spot = Spot(place.name, database, now)
        for one in found.sides:
            side = side_shown(database, one)
            side = side if shows_texts else _without_texts(side)
            way = _way_of_side(place, database, instance, one)
            sides.append(side)
            ways += [] if way is None else [way]
            findings += side_findings(side, way, spot)
        closed += [_closed_shown(database, one) for one in found.closed]
        findings += [_over(spot, one) for one in found.closed]
    held = list(_held_shown(told.held))
    findings += [_held_finding(place.name, one) for one in held]
    if not sides:
        ways += [_way_of_frames(place, told, one) for one in _directions(held)]
    return WhyAnswer(
        instance=place.name,
        broker_instance=None if place.broker_instance is None else str(UUID(bytes=place.broker_instance)),
        addresses=sorted(map(str, place.surroundings.own)),
        is_running=is_running,
        id=show_guid(guid.bytes),
        conversation_id=None if told.conversation_id is None else show_guid(told.conversation_id),
        sides=sides,
        closed=closed,
        held=held,
        dropped=dict(dropped),
        ways=ways,
        findings=findings,
        looked_in=told.looked_in,
    )


# --- ways -----------------------------------------------------------------------------------------------------------


def _way_of_side(place: InstanceView, database: str, instance: bytes, side: Whereabouts) -> ExplainAnswer | None:
    """Where messages of this side go; None for a database that the instance does not have at work now."""
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


def side_shown(database: str, side: Whereabouts) -> SideShown:
    """A side as it is told."""
    inbound = side.inbound
    return SideShown(
        database=database,
        conversation_handle=show_guid(side.conversation_handle),
        is_initiator=side.is_initiator,
        state=side.state,
        service_name=side.service_name,
        far_service=side.far_service,
        far_broker_instance=None if side.far_broker_instance is None else show_guid(side.far_broker_instance),
        lifetime=_instant(side.lifetime),
        create_date=_instant(side.create_date),
        dialog_timer=_instant(side.dialog_timer),
        send_sequence=side.send_sequence,
        acknowledged_sequence=side.acknowledged_sequence,
        receive_sequence=side.receive_sequence,
        held=side.held,
        held_from=side.held_from,
        held_since=_instant(side.held_since),
        transmission_status=_status(side),
        queue_name=inbound.queue_name,
        is_receive_enabled=inbound.is_receive_enabled,
        ready=inbound.ready,
        ready_since=_instant(inbound.ready_since),
        quarantined=inbound.quarantined,
        early_fragments=inbound.early_fragments,
        is_taken=inbound.is_taken,
        readers=inbound.readers,
        error_code=inbound.error_code,
        error_text=inbound.error_text,
        poison=None if inbound.poison is None else _poison_shown(inbound.poison),
        security=side.security,
        sent_error_code=side.sent_error_code,
        sent_error_text=side.sent_error_text,
    )


def _without_texts(side: SideShown) -> SideShown:
    """The side as callers below admin see it: numbers of errors, and nothing that an application wrote."""
    poison = side.poison and structs.replace(side.poison, error=_HIDDEN)
    return structs.replace(side, error_text="", sent_error_text="", poison=poison)


def _status(side: Whereabouts) -> str:
    if side.transmission_status:
        return side.transmission_status
    return UNTRIED if side.held else f"nothing waits: {messages(side.acknowledged_sequence)} acknowledged"


def _poison_shown(poison: Poison) -> PoisonShown:
    last = datetime.fromtimestamp(poison.last_failure_time, UTC)
    put = _instant(poison.quarantine_time)
    return PoisonShown(poison.message_sequence_number, poison.failures, last, put, poison.error)


def _closed_shown(database: str, one: Closed) -> ClosedShown:
    handle = None if one.conversation_handle is None else show_guid(one.conversation_handle)
    times = (_instant(one.close_time), _instant(one.expire_time))
    return ClosedShown(database, one.is_initiator, one.receive_sequence, *times, handle)


def _over(spot: Spot, one: Closed) -> WhyFinding:
    side = "initiator's" if one.is_initiator else "target's"
    closed, forgotten = when(_instant(one.close_time)), when(_instant(one.expire_time))
    return spot.found(
        "over",
        Severity.FINE,
        f"the {side} side is closed since {closed}, after {messages(one.receive_sequence)} came",
        "its application has ended the dialog, with an error or without, or its lifetime was over: that is not kept",
        f"what still comes is acknowledged and thrown away; even this is forgotten at {forgotten}",
    )


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


def _held_finding(instance: str, held: HeldShown) -> WhyFinding:
    frames, verb = ("1 frame", "waits") if held.frames == 1 else (f"{held.frames:,} frames", "wait")
    return WhyFinding(
        instance=instance,
        database=None,
        cause="held",
        severity=Severity.TROUBLE,
        symptom=f"{frames} to {held.to_service_name} {verb} at {instance}, up to {held.longest_ms / 1000:.1f} s so far",
        why=held.why_held,
        next="they leave when the next hop takes them; when their time is over the sender sends them again",
        remedy=f"make {held.adjacent_broker_address} reachable: start the instance there, or correct the route",
    )


def _instant(at: float | None) -> datetime | None:
    """An instant; None also beyond what a calendar holds."""
    try:
        return None if at is None else datetime.fromtimestamp(at, UTC)
    except (OverflowError, ValueError, OSError):
        return None

"""
Frames that were dropped: of each reason the last one, whether its cause is over, and what to do.

A sender sends again what was dropped until it is acknowledged, so each remedy is about the next copy: routes, services
and permissions may have changed since.
"""

from __future__ import annotations

import shlex
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from broker.advice import near_name, run_at
from broker.catalog.catalog import MSDB, CatalogRows
from broker.catalog.handlers import grants_of
from broker.flow import Disposition
from broker.forwarding.entry import Buffer, conversation_of, route_key_of
from broker.observe.instance import Running
from broker.observe.message_catalogue import (
    PROVE,
    TakenRoute,
    WaitingDialog,
    remedy_of,
    remedy_of_unreached,
    statement_of,
)
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import (
    FLAGS_AT,
    GUID_BYTES,
    HEADER,
    HEADER_BYTES,
    HOP_COUNT_AT,
    KIND_AT,
    MIN_DIALOG_FRAME,
    NO_GUID,
    ROUTE_KEY_AT,
    Flag,
    FrameKind,
    show_guid,
)
from broker.routing.decide import UNKNOWN_HERE, RoutingFacts, decide
from broker.routing.explain import how_to_permit
from broker.security.grants import Grants, PermissionState, refused_sender, render_rule
from broker.security.principal import PrincipalError, who_is
from broker.security.session import SIGNER_UNKNOWN

DROPPED_SECONDS = 90.0  # for which a drop is a finding: another copy comes within 64 s, by default
REFUSALS_SHOWN = 4  # besides the last
NAMES_COMPARED = 200  # of services, with the name of a frame that was dropped

DEFINITIONS_CHANGED = (
    "nothing now: what caused it here has changed since, and the next copy shows whether that is over; broker dialogs"
    " retry at the sender sends it at once"
)


# --- what is read from a running instance ---


class FrameFields(Struct, frozen=True):
    """Header fields of a frame, by column of the views; all None for a frame that is not known."""

    conversation_id: uuid.UUID | None = None
    is_initiator: bool | None = None
    to_service_name: str | None = None
    to_broker_instance: uuid.UUID | None = None
    from_service_name: str | None = None
    from_broker_instance: uuid.UUID | None = None
    message_sequence_number: int | None = None
    message_fragment_number: int | None = None
    hops_remaining: int | None = None
    time_to_live: int | None = None
    message_id: uuid.UUID | None = None

    @property
    def conversation(self) -> str:
        """The conversation id as commands take it; the word for it where it is not known."""
        return "ID" if self.conversation_id is None else show_guid(self.conversation_id)

    @property
    def wanted(self) -> str:
        """The broker instance that the message names; empty if none."""
        return "" if self.to_broker_instance is None else show_guid(self.to_broker_instance)


def frame_fields(frame: Buffer) -> FrameFields:
    """
    Return the header fields of a frame, as received; also of one that is malformed after its length.

    The time to live is in whole seconds, as the original's; less than a second still counts as one.
    """
    (_, _, flags, hop_count, hop_limit, time_to_live, _, message_id, conversation_id, sequence, fragment, *rest) = (
        HEADER.unpack_from(frame)
    )
    _, _, _, from_length, _, from_instance, to_instance, to_length = rest
    names_at = HEADER_BYTES + to_length
    return FrameFields(
        uuid.UUID(bytes=conversation_id),
        not flags & Flag.FROM_TARGET,
        bytes(frame[HEADER_BYTES:names_at]).decode(errors="replace"),
        None if to_instance == NO_GUID else uuid.UUID(bytes=to_instance),
        bytes(frame[names_at : names_at + from_length]).decode(errors="replace"),
        None if from_instance == NO_GUID else uuid.UUID(bytes=from_instance),
        sequence,
        fragment,
        max(0, hop_limit - hop_count),
        -(-time_to_live // 1000),
        uuid.UUID(bytes=message_id),
    )


class DropSnapshot(Struct, frozen=True):
    """
    Frames that ended here for one reason, and the last of them.

    Attributes:
        database: None for what passed through.
        is_past: Routes, permissions or services here have changed so that the last of them would go on.
        leads_nowhere: Whether no route here leads on from the last of those that passed through, permitted or not.
        sender: The database here that has just sent it; empty for frames of other instances.
        is_back: Whether a database here has sent it to another instance, and it has come back.
        other_instance: A broker instance here that has its service, where it names one that is not here.
        unreached: The next hop for which it waited, and why that is not reached now; empty where it is.
        near: Services that are known here, with a name like that of its service, which is not.
        would_end: The reason for which its next copy would be dropped here, where that is another one now.
        is_forwarding: Whether this instance passes messages on.
        target: The database here that has its service, and may lack a GRANT for its sender as well.
        lacking: The statement for that GRANT, where a binding there says who the sender is.
        peers: The paths and patterns of the certificates that its database knows.
        others: Why other services or peers were refused a moment ago and still are, if it was for want of a permission.
    """

    disposition: Disposition
    database: str | None
    frames: int
    last_at: float | None
    sample: bytes | Header | None
    reason: str
    is_past: bool = False
    leads_nowhere: bool = False
    sender: str = ""
    is_back: bool = False
    other_instance: str = ""
    unreached: tuple[str, str] | None = None
    near: tuple[str, ...] = ()
    would_end: Disposition | None = None
    is_forwarding: bool = False
    target: str = ""
    lacking: str = ""
    peers: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def fields(self) -> FrameFields:
        """The header fields of the last frame; safe in any thread."""
        frame = encode_dialog(self.sample, b"") if isinstance(self.sample, Header) else self.sample or b""
        return frame_fields(frame) if len(frame) >= MIN_DIALOG_FRAME else FrameFields()


def dropped_by_reason(instance: Running) -> Counter[Disposition]:
    """Count undelivered frames by disposition, in the forwarder or in a database, departed databases included."""
    dropped = instance.forwarder.dropped + instance.past.dropped
    for endpoint in instance.endpoints.values():
        dropped.update(endpoint.dropped)
    return dropped


def read_drops(instance: Running, now: float) -> Iterator[DropSnapshot]:
    """In the order of the reasons; of each the databases last."""
    elsewhere = dropped_by_reason(instance)
    for endpoint in instance.endpoints.values():
        elsewhere.subtract(endpoint.dropped)
    for disposition in Disposition:
        for name, endpoint in instance.endpoints.items():
            if frames := endpoint.dropped[disposition]:
                at, sample, reason = endpoint.last_dropped.get(disposition, (None, None, ""))
                drop = DropSnapshot(disposition, name, frames, at, sample, reason)
                settings = instance.settings.databases.get(name)  # msdb has none
                peers = () if settings is None else settings.peers
                yield replace(drop, is_past=_is_past(instance, drop), peers=peers)
        if frames := elsewhere[disposition]:
            last_at, frame = instance.forwarder.last_dropped.get(disposition, (None, None))
            refusal, others = _refusals(instance, now) if disposition is Disposition.NOT_PERMITTED else ("", ())
            drop = DropSnapshot(disposition, None, frames, last_at, frame, refusal, others=others)
            yield replace(drop, **{"is_past": _is_past(instance, drop)} | _ahead(instance, frame, disposition))


def _refusals(instance: Running, now: float) -> tuple[str, tuple[str, ...]]:
    """Why the last frame was refused for want of a permission; and others that still would be, newest first."""
    permissions = instance.peers.permissions
    last, *before = [*reversed(permissions.refusals.items()), (("", ""), (0.0, ""))]
    others = (
        reason
        for (_, service), (at, reason) in before
        if at > now - DROPPED_SECONDS and not _may_send(permissions.grants, reason, service)
    )
    return last[1][1], tuple(islice(others, REFUSALS_SHOWN))


def _is_past(instance: Running, drop: DropSnapshot) -> bool:
    """Whether definitions or certificates of a database, or permissions of peers, would no longer have this drop."""
    to_service, catalog = drop.fields.to_service_name or "", instance.catalog
    rows = CatalogRows() if drop.database is None else catalog.databases[drop.database].rows
    if drop.disposition is Disposition.NOT_PERMITTED:
        grants = instance.peers.permissions.grants
        grants = grants if drop.database is None else grants_of(instance.settings, rows.permissions, drop.database)
        return (drop.last_at or 0.0) < catalog.permitted_at and _may_send(grants, drop.reason, to_service)
    if drop.disposition is Disposition.UNKNOWN_CONVERSATION and isinstance(drop.sample, Header):
        return drop.sample.kind == FrameKind.ACK  # it may have come before the dialog has begun here
    _, _, signer = drop.reason.partition(SIGNER_UNKNOWN)
    if signer and drop.database is not None:
        peers = instance.endpoints[drop.database].transmitter.frames.credentials.peers
        return peers.by_fingerprint(bytes.fromhex(signer)) is not None
    service = rows.services.get(to_service)
    if service is None or drop.disposition not in {Disposition.SERVICE_NOT_FOUND, Disposition.QUEUE_DISABLED}:
        return False
    return all(queue.is_receive_enabled for queue in rows.queues.values() if queue.queue_id == service.queue_id)


def _may_send(grants: Grants, reason: str, service: str) -> bool:
    """Whether the principal that lacked a permission has it now, or the DENY that refused it is gone."""
    denied = (one for one in grants.rules if one.state is PermissionState.DENY)
    if any(render_rule(one.state, one.permission, one.securable, one.principal.text) in reason for one in denied):
        return False
    try:
        return not (who := refused_sender(reason)) or grants.send(who_is(who), service).is_permitted
    except PrincipalError:
        return True


def _ahead(instance: Running, frame: bytes | None, dropped: Disposition) -> dict[str, Any]:
    """Fields about where a dropped frame comes from, and where routes would lead it, were it permitted."""
    if frame is None or len(frame) < MIN_DIALOG_FRAME:
        return {}
    origin = frame_fields(frame).from_broker_instance
    homes = (name for name, one in instance.endpoints.items() if uuid.UUID(bytes=one.broker_instance) == origin)
    sender, is_sent = next(homes, ""), not frame[HOP_COUNT_AT]
    key, is_from_target = route_key_of(frame), bool(frame[FLAGS_AT] & Flag.FROM_TARGET)
    service, here = key[HEADER_BYTES - ROUTE_KEY_AT :].decode(errors="replace"), instance.forwarder.routing_context
    home = instance.endpoints.get(sender) if is_sent else None
    table, database = (here.table, None) if home is None else (home.transmitter.table, home.broker_instance)
    facts = RoutingFacts(service, key[:GUID_BYTES], conversation_of(frame), is_from_target, database)
    decision = decide(facts, here.with_table(table))
    disposition = decision.disposition
    goes_on = disposition not in UNKNOWN_HERE and disposition is not Disposition.ASKING_FOR_ROUTE
    led: dict[str, Any] = {"is_past": goes_on} if dropped in UNKNOWN_HERE else {}
    if dropped is Disposition.EXPIRED_HERE and not decision.candidates:
        led = {"is_past": disposition is not Disposition.ASKING_FOR_ROUTE}  # its route is gone, or leads here now
    elif dropped is Disposition.EXPIRED_HERE:
        hop = decision.candidates[0].address
        outbox = instance.forwarder.table.outboxes.get(hop)
        led = {
            "unreached": (str(hop), instance.peers.table.problem_of(hop)),
            "is_past": outbox is not None and outbox.is_ready,
        }
    if is_sent:
        if home is not None and frame[KIND_AT] == FrameKind.MESSAGE:
            dialog = conversation_of(frame)
            is_sending = home.transmitter.is_sending(dialog, is_initiator=not is_from_target)
            led["is_past"] = led.get("is_past", False) or not is_sending
        return {"sender": sender, **led}
    databases = here.hosted.databases_with.get(service, ()) if disposition is Disposition.INSTANCE_NOT_HERE else ()
    is_known = service in here.hosted.databases_with or any(here.table.all_routes(service))
    last_at = {one: at for one, (at, _) in instance.forwarder.last_dropped.items()}
    if dropped is Disposition.NOT_PERMITTED and disposition in UNKNOWN_HERE:
        if last_at.get(disposition, 0.0) < last_at[dropped]:  # later, the drop for that reason says it
            led["would_end"] = disposition
    elif dropped is Disposition.NOT_PERMITTED and not is_from_target:
        led["target"], led["lacking"] = _target(instance, service, frame_fields(frame).from_service_name)
    if dropped in {Disposition.NOT_PERMITTED, *UNKNOWN_HERE} and not is_known:
        named = chain(filter(None, here.table.services()), here.hosted.databases_with)
        led["near"] = tuple(filter(None, [near_name(service, islice(named, NAMES_COMPARED))]))
    return {
        "leads_nowhere": disposition in UNKNOWN_HERE,
        "is_back": bool(sender),
        "is_forwarding": here.is_forwarding,
        "other_instance": show_guid(databases[0]) if databases else "",
        **led,
    }


def _target(instance: Running, service: str, sender: str | None) -> tuple[str, str]:
    """
    A database that has a service, and wants a GRANT for its sender; and that GRANT, if it is known to be missing.

    Who the sender is shows in the remote service binding of its service. Both are empty if nothing is missing.
    """
    for name in instance.endpoints:
        rows = instance.catalog.databases[name].rows
        grants = grants_of(instance.settings, rows.permissions, name)
        if service in rows.services and grants.is_default_deny:
            bound = [one.remote_principal for one in rows.bindings.values() if one.remote_service_name == sender]
            with suppress(PrincipalError):  # a pattern
                rulings = [grants.send(who_is(one), service) for one in bound[:1]]
                if rulings:
                    return ("", "") if rulings[0].is_permitted else (name, how_to_permit(rulings[0], name))
            return name, ""
    return "", ""


# --- remedies ---


def remedy_of_drop(drop: DropSnapshot, instance: str) -> str:
    """Return the remedy for what was dropped last for a reason, unless definitions have changed since."""
    remedy, others = _remedy_of_last(drop, instance), statement_of(*drop.others, where=instance)
    if not others:
        return remedy
    if remedy == DEFINITIONS_CHANGED:
        return f"that is over for {drop.fields.to_service_name}, and others are refused: {others}"
    others = others.replace(PROVE, "") if PROVE in remedy else others
    return f"{remedy}{'' if remedy[-1] in '.;)' else '.'} Then, as others were refused as well, {others}"


def _remedy_of_last(drop: DropSnapshot, instance: str) -> str:
    if drop.is_past and drop.would_end is None and not drop.lacking:
        return DEFINITIONS_CHANGED
    fields = drop.fields
    service = fields.to_service_name or "SERVICE"
    if drop.is_back and drop.leads_nowhere:
        return (
            f"{instance} has sent it, and a route leads it back: broker explain --to {shlex.quote(service)} --through"
            " shows the way; correct the address of its last route"
        )
    if drop.unreached is not None:
        hop, problem = drop.unreached
        if problem:
            return f"{hop} is not reached: {remedy_of_unreached(hop, problem)}"
        return f"make {hop}, its next hop, accept messages: broker status there shows what is wrong with it"
    if drop.other_instance:
        return (
            f"{service} is broker instance {drop.other_instance} here, and the messages name"
            f" {fields.wanted}:"
            f" broker why {fields.conversation} at their sender says what to do"
        )
    return _with_target(drop, instance, _remedy_of_end(drop, instance, service))


def _with_target(drop: DropSnapshot, instance: str, remedy: str) -> str:
    """The remedy, with the GRANT that the database of the service may lack as well: without it the dialog fails."""
    if drop.lacking:
        over = "that is over, but the dialog fails without another GRANT: " if drop.is_past else ""
        lacking = run_at(instance, drop.lacking)
        return f"{over}{lacking}" if over else f"{lacking} And {remedy}"
    lacks = f"where the database {drop.target} lacks a GRANT for it, too, its dialog fails without that one"
    why = f"broker why {drop.fields.conversation} at its sender, with --admin for {instance}"
    first = f"first, {why}: {lacks}. Then, " if drop.target else ""
    return first + remedy


def _remedy_of_end(drop: DropSnapshot, instance: str, service: str) -> str:
    """The remedy for what ends such frames here now."""
    there, database = "" if drop.sender else " there", drop.database or drop.sender or MSDB
    ends = drop.would_end if drop.is_past and drop.would_end is not None else drop.disposition
    over = "" if ends is drop.disposition else f"that is over, but the next copy would be dropped ({ends}): "
    return over + remedy_of(
        ends,
        instance=instance,
        service=service,
        table=database,
        database=database,
        reason="" if over else drop.reason,
        dialog=WaitingDialog(
            f"end the dialog at its sender (broker why {drop.fields.conversation}{there} says how)",
            is_known=ends is Disposition.NOT_PERMITTED and not drop.leads_nowhere,
            near=drop.near,
        ),
        route=TakenRoute() if drop.leads_nowhere and not drop.near else None,
        wanted=drop.fields.wanted,
        is_forwarding=drop.is_forwarding,
        sender=drop.fields.from_service_name or "the sender",
        peers=drop.peers,
    )

"""
An instance at one moment, as plain typed values: the one source of status, views, metrics, events and health.

`read_snapshot` copies counters and states on the loop and changes nothing there. What is asked for is named by
`SnapshotSection`, so that a view of mirrored routes does not copy every frame; one that was not asked for is empty.
Each section is as of one moment. A scrape reads many of them, so `read_snapshot_in_steps` yields to the loop every
`STEP_SECONDS`: a thousand connections take 12 ms, and traffic does not wait for them.

Instants are seconds of the loop's clock; `Snapshot.utc` converts them. Sentences for people, such as why a frame waits,
are made here, once. Figures from the files of databases are in `broker.observe.database_stats`.
"""

from __future__ import annotations

import asyncio
import heapq
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from broker.catalog.unscripted import lost_imports
from broker.config.consistency import loopback_told
from broker.config.settings import EndpointSettings
from broker.dialog.endpoint import Endpoint
from broker.dialog.status import PathProblem, connecting, unknown_principal
from broker.errors import StoreUnavailableError
from broker.files import room_problem
from broker.flow import Disposition
from broker.forwarding.held_frames import Held, Piece
from broker.forwarding.outbox import Outbox
from broker.net.certificates import SOON, plain_text_told
from broker.net.handshake import names_nobody
from broker.net.link import Link
from broker.net.quotas import host_of
from broker.net.tls import Identity
from broker.observe.drops import DropSnapshot, dropped_by_reason, read_drops
from broker.observe.instance import Running
from broker.observe.status import (
    AddressStatus,
    BlockedStatus,
    CertificateStatus,
    ConnectionStatus,
    DatabaseStatus,
    DrainStatus,
    ForwardingStatus,
    JournalStatus,
    MirrorStatus,
    NextHopStatus,
    PartnerStatus,
    ReloadStatus,
    ScriptStatus,
    ServiceCounts,
    TaskStatus,
    TransportStatus,
    TransportWarning,
    WarningKind,
    WriteLockStatus,
    struct_from,
)
from broker.protocol.layout import FrameKind, show_guid
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from broker.routing.mirrored import AddressState, OwnRoleStatus
from broker.routing.route import MirroredPair
from broker.routing.table import RouteTable
from broker.store.sqlite.file_identity import replaced_at
from broker.store.sqlite.write_lock import WriteWaits

STEP_SECONDS = 0.002  # of the loop for a snapshot, after which others have their iteration
STEP_VALUES = 50  # copied between two readings of the clock, half a millisecond
NEXT_HOPS_MAX = 100  # for which frames wait, those with the most frames
UNTRIED_MAX = 100  # next hops that have not been dialled yet: a table may name ten thousand
WARNINGS_MAX = 10  # certificates named in warnings
CERTIFICATES_MAX = 100  # of a status, those that end first
REFUSED_SECONDS = 60.0  # for which the refusal of a peer is a warning
_KIND_NAMES: dict[int, str] = {FrameKind.MESSAGE: "message", FrameKind.ACK: "ack", FrameKind.FAULT: "fault"}


SnapshotSection: TypeAlias = Literal[
    "run",
    "forwarding",
    "traffic",
    "links",
    "addresses",
    "next_hops",
    "held",
    "mirrors",
    "drops",
    "by_route",
    "routes",
    "transport",
    "databases",
    "roles",
]
"""A part of a `Snapshot`, by the name of its field."""


class TransportSnapshot(Struct, frozen=True):
    """Connections as a whole. All `certificates` with their roles, see `certificates_in_use`; `pauses` by limit."""

    status: TransportStatus = TransportStatus()
    certificates: tuple[tuple[str, Identity], ...] = ()
    pauses: Mapping[str, int] = {}


class RunSnapshot(Struct, frozen=True, kw_only=True):
    """The run as such. `task_failures` counts by task, `lag_s` is how late the loop was at worst lately."""

    lag_s: float = 0.0
    tasks: tuple[TaskStatus, ...] = ()
    task_failures: Mapping[str, int] = {}
    scripts: tuple[ScriptStatus, ...] = ()
    reload: ReloadStatus = ReloadStatus()
    reloaded_at: float = 0.0
    journal: JournalStatus | None = None


class TrafficSnapshot(Struct, frozen=True, kw_only=True):
    """
    Counters of the whole instance; what departed databases had counted is in them, so that none ever shrinks.

    Attributes:
        received: Dialog frames by name of the peer and kind; "" are the databases here.
        round_trips: By next hop, the number of acknowledgements by bucket and their sum.
        hops: Frames by the bucket of how long they were here.
        over_share: Frames dropped because their next hop had used its share of the pool.
        over_peer_share: Frames dropped because their sender had.
    """

    received: Mapping[str, Mapping[int, int]] = {}
    delivered: Mapping[str, int] = {}
    dropped: Mapping[Disposition, int] = {}
    duplicates: int = 0
    resent: Mapping[str, int] = {}
    round_trips: Mapping[str, Mapping[int, int]] = {}
    hops: tuple[int, ...] = ()
    hop_seconds: float = 0.0
    peer_errors: Mapping[str, int] = {}
    mirror_probes: int = 0
    mirror_answers: Mapping[str, int] = {}
    over_share: int = 0
    over_peer_share: int = 0


class LinkSnapshot(Struct, frozen=True, kw_only=True):
    """A connection to an adjacent instance. `label` names the peer in metrics; `connection_id` lasts as long as it."""

    status: ConnectionStatus
    connection_id: uuid.UUID
    label: str
    is_accept: bool
    activity_since: float
    progress_at: float
    cipher: str
    identity: Identity | None
    peer_arbitration: uuid.UUID | None
    peer_instance: uuid.UUID | None
    is_paused: bool
    is_blocked: bool
    opened_at: float
    online_at: float | None
    last_activity: float
    sends: int
    receives: int


class HeldFrames(Struct, frozen=True):
    """The frames that one outbox held; the frames themselves never change, so they are not copied."""

    pieces: tuple[Piece, ...]
    address: str
    why: str

    @property
    def frames(self) -> Iterator[Held]:
        """Each frame, in the order of leaving; in any thread."""
        return chain.from_iterable(piece.helds() for piece in self.pieces)


class MirrorSnapshot(Struct, frozen=True):
    """A mirrored pair in use, with the reports of ADDRESS and MIRROR_ADDRESS; at `due` they are asked again."""

    status: MirrorStatus
    pair: MirroredPair
    state: int
    address_seen: AddressState
    mirror_seen: AddressState
    due: float | None


class RouteFrames(Struct, frozen=True, gc=False):
    """Frames sent by a route; `next_hop` is None for all whose route is no longer remembered."""

    route: str
    next_hop: str | None
    frames: int


class RoutesSnapshot(Struct, frozen=True):
    """The routes of all databases, msdb included, and the addresses that are not reached."""

    tables: tuple[RouteTable, ...] = ()
    down: frozenset[NetworkAddress] = frozenset()


class DatabaseSnapshot(Struct, frozen=True):
    """
    A user database at work.

    Attributes:
        status: All but what is in its file.
        commits: Transactions by bucket of their duration, and their sum in seconds.
        write_lock_s: How long its writer has waited for the write transactions of applications.
    """

    status: DatabaseStatus
    commits: tuple[tuple[int, ...], float] = ((), 0.0)
    write_lock_s: float = 0.0


class Snapshot(Struct, frozen=True, kw_only=True):
    """All sections of one instance, and its identity. `taken_at` is the UTC instant of `loop_time`."""

    taken_at: datetime
    loop_time: float
    name: str
    software: str
    broker_instance: bytes
    started_at: float
    is_ready: bool
    loop: str
    kernel: str
    listen: tuple[str, ...]
    advertise: tuple[str, ...]
    endpoint: EndpointSettings
    draining: DrainStatus | None
    run: RunSnapshot = RunSnapshot()
    forwarding: ForwardingStatus = ForwardingStatus()
    traffic: TrafficSnapshot = TrafficSnapshot()
    links: tuple[LinkSnapshot, ...] = ()
    addresses: tuple[tuple[str, AddressStatus], ...] = ()
    next_hops: tuple[NextHopStatus, ...] = ()
    held: tuple[HeldFrames, ...] = ()
    mirrors: tuple[MirrorSnapshot, ...] = ()
    drops: tuple[DropSnapshot, ...] = ()
    by_route: tuple[RouteFrames, ...] = ()
    routes: RoutesSnapshot = RoutesSnapshot()
    transport: TransportSnapshot = TransportSnapshot()
    databases: tuple[tuple[str, DatabaseSnapshot], ...] = ()
    roles: tuple[tuple[str, OwnRoleStatus], ...] = ()

    def utc(self, loop_seconds: float) -> datetime:
        """The UTC instant of one of the loop's clock."""
        return self.taken_at + timedelta(seconds=loop_seconds - self.loop_time)

    @property
    def paths(self) -> dict[str, Path]:
        """The files of the user databases by name."""
        return {name: Path(database.status.path) for name, database in self.databases}


def read_snapshot(instance: Running, sections: Iterable[SnapshotSection]) -> Snapshot:
    """These sections of an instance, at this moment. Loop-only."""
    now = asyncio.get_running_loop().time()
    return _snapshot(instance, now, {section: tuple(_READ[section](instance, now)) for section in sections})


async def read_snapshot_in_steps(instance: Running, sections: Iterable[SnapshotSection]) -> Snapshot:
    """Read the same in several iterations of the loop, each section as of the moment when it is read."""
    loop = asyncio.get_running_loop()
    found: dict[SnapshotSection, tuple[Any, ...]] = {}
    deadline = time.monotonic() + STEP_SECONDS
    for section in sections:
        values, read = _READ[section](instance, loop.time()), list[Any]()
        while part := list(islice(values, STEP_VALUES)):
            read += part
            if time.monotonic() >= deadline:
                await asyncio.sleep(0)
                deadline = time.monotonic() + STEP_SECONDS
        found[section] = tuple(read)
    return _snapshot(instance, loop.time(), found)


def _snapshot(instance: Running, now: float, found: Mapping[SnapshotSection, tuple[Any, ...]]) -> Snapshot:
    draining = instance.drain.told
    values: dict[str, Any] = {key: some[0] if key in _SINGLE else some for key, some in found.items()}
    return Snapshot(
        taken_at=datetime.now(UTC),
        loop_time=now,
        name=instance.name,
        software=instance.software,
        broker_instance=instance.broker_instance,
        started_at=instance.started_at,
        is_ready=instance.is_ready and not vital_problems(instance),
        loop="asyncio" if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop) else "uvloop",
        kernel=instance.forwarder.kernel_name,
        listen=tuple(f"{listener.host}:{listener.port}" for listener in instance.listeners),
        advertise=tuple(instance.peers.hello.addresses),
        endpoint=instance.settings.endpoint,
        draining=None if draining is None else DrainStatus(**draining),
        **values,
    )


# --- the run, the forwarder and the databases ---


def _read_run(instance: Running, _: float) -> Iterator[RunSnapshot]:
    journal = None if instance.journal is None else JournalStatus(**instance.journal.status())
    failures = dict(instance.supervision.failures)
    yield RunSnapshot(
        lag_s=instance.lag.seconds,
        tasks=tuple(TaskStatus(**task) for task in instance.supervision.status()),
        task_failures=failures if journal is None else failures | {"journal": journal.failures},
        scripts=tuple(struct_from(ScriptStatus, one, stage=one.stage.value) for one in instance.catalog.scripts),
        reload=ReloadStatus(**instance.reloads.status()),
        reloaded_at=instance.reloads.last_success_at,
        journal=journal,
    )


def _read_forwarding(instance: Running, _: float) -> Iterator[ForwardingStatus]:
    forwarder, pool = instance.forwarder, instance.forwarder.pool
    forwarded = forwarder.forwarded
    received = dict.fromkeys(_KIND_NAMES.values(), 0)
    for kind, count in forwarder.received.items():
        received[kind_name(kind)] = received.get(kind_name(kind), 0) + count
    yield ForwardingStatus(
        enabled=instance.settings.endpoint.message_forwarding,
        received=received,
        forwarded=forwarded,
        delivered=forwarder.delivered,
        dropped=_reasons(forwarder.dropped),
        held=pool.frames,
        pool_bytes=pool.used_bytes,
        pool_limit_bytes=pool.limit_bytes,
        unaccounted=forwarder.passed_on - forwarded,
    )


def kind_name(kind: int) -> str:
    """The word for a kind of dialog frame; kinds of later versions share one."""
    return _KIND_NAMES.get(kind, "other")


def _reasons(dropped: Mapping[Disposition, int]) -> dict[str, int]:
    return {disposition.value: count for disposition, count in dropped.items() if count}


def _read_traffic(instance: Running, _: float) -> Iterator[TrafficSnapshot]:
    endpoints, past, hop = instance.endpoints.values(), instance.past, instance.forwarder.hop
    from_databases, delivered = past.received.copy(), past.delivered.copy()
    resent, trips = past.resent_to.copy(), past.round_trips.copy()
    duplicates = past.dropped[Disposition.DUPLICATE]
    for endpoint in endpoints:
        duplicates += endpoint.dropped[Disposition.DUPLICATE]
        from_databases.update(endpoint.transmitter.received)
        delivered.update(endpoint.delivered)
        resent.update(endpoint.transmitter.resent_to)
        trips.update(endpoint.transmitter.round_trips)
    received = instance.peers.frame_counts.totals(instance.peers.links.values())
    received[""] = from_databases + Counter(received.get("", {}))  # of links whose HELLO is not complete, too
    by_hop: dict[str, dict[int, int]] = {}
    for (next_hop, bucket), count in trips.items():
        by_hop.setdefault("" if next_hop is None else str(next_hop), {})[bucket] = count
    hop.count_pending()
    yield TrafficSnapshot(
        received=received,
        delivered=delivered,
        dropped=dropped_by_reason(instance),
        duplicates=duplicates,
        resent={peer: count for peer, count in resent.items() if count},
        round_trips=by_hop,
        hops=tuple(hop.counts),
        hop_seconds=hop.seconds,
        peer_errors=dict(instance.peers.protocol_errors),
        mirror_probes=instance.mirrors.probes,
        mirror_answers=dict(instance.mirrors.answers),
        over_share=instance.forwarder.pool.over_share,
        over_peer_share=instance.forwarder.pool.over_quota,
    )


def _read_databases(instance: Running, now: float) -> Iterator[tuple[str, DatabaseSnapshot]]:
    for name, endpoint in list(instance.endpoints.items()):
        transmitter, waits = endpoint.transmitter, endpoint.write_waits
        counts = transmitter.sent, transmitter.resent, transmitter.acknowledged, endpoint.delivered
        services = sorted(set(instance.catalog.databases[name].rows.services).union(*counts))
        status = DatabaseStatus(
            broker_instance=show_guid(endpoint.broker_instance),
            path=str(endpoint.path),
            problem=endpoint.problem,
            services={service: ServiceCounts(*(count[service] for count in counts)) for service in services},
            dropped=_reasons(endpoint.dropped),
            sending_dialogs=len(transmitter.senders),
            replaced=replaced_in(endpoint.path, instance.settings.instance.state_dir),
            write_lock=_write_lock(waits),
            blocked=[
                BlockedStatus(next_hop, dialogs, round(max(0.0, now - since), 3))
                for next_hop, (dialogs, since) in transmitter.blocked().items()
            ],
        )
        commits = tuple(endpoint.commits.counts), endpoint.commits.seconds
        yield name, DatabaseSnapshot(status, commits, waits.seconds)


def _write_lock(waits: WriteWaits) -> WriteLockStatus:
    present, long = waits.present, [*waits.recent, *([waits.present] if waits.present else [])]
    holder = long[-1].holder if long else None
    ended = waits.recent[-1].began + waits.recent[-1].seconds if waits.recent and present is None else None
    return WriteLockStatus(
        waiting_s=None if present is None else round(present.seconds, 3),
        pid=None if holder is None else holder.pid,
        process="" if holder is None else holder.name,
        recent=len(long),
        recent_s=round(sum(wait.seconds for wait in long), 3),
        last_s=None if ended is None else round(max(0.0, time.time() - ended), 3),
    )


def vital_problems(instance: Running) -> dict[str, str]:
    """The problems for which a started instance is not ready, by check of `/readyz`."""
    own = instance.certificates.security.own
    expired = ""
    if own is not None and own.not_after <= datetime.now(UTC):
        expired = f"the certificate of this instance has expired at {own.not_after:%Y-%m-%d %H:%M} UTC: renew it"
    failed = [store_problem(endpoint) for endpoint in instance.endpoints.values()]
    is_useless = failed and all(failed) and not instance.settings.endpoint.message_forwarding
    problems = {"certificate": expired, "a store works": f"none does: {failed[0]}" if is_useless else ""}
    return {name: problem for name, problem in problems.items() if problem}


def store_problem(endpoint: Endpoint) -> str:
    """Why the database of this endpoint stores nothing, or would not; "" where it does."""
    return endpoint.problem or room_problem(endpoint.path.parent) or ""


def replaced_in(path: Path, state_dir: Path) -> str:
    """A sentence about the lost database in whose place the one in this file was made; empty once that was accepted."""
    try:
        return replaced_at(path, state_dir)
    except StoreUnavailableError:
        return ""  # the record is reported when it is written


def _read_roles(instance: Running, _: float) -> Iterator[tuple[str, OwnRoleStatus]]:
    yield from instance.standings().items()


# --- links and addresses ---


def _read_links(instance: Running, now: float) -> Iterator[LinkSnapshot]:
    own, wall = int.from_bytes(instance.peers.hello.arbitration, "big"), datetime.now(UTC)
    for link in list(instance.peers.links.values()):
        activity, round_trip = link.activity.update(link, now), link.connection.round_trip
        since, progress = (wall + timedelta(seconds=at - now) for at in (activity.since, activity.progress_at))
        identity, peer = link.transport.identity, None if link.agreement is None else link.agreement.peer
        status = struct_from(
            ConnectionStatus,
            link,
            name=link.peer_name,
            direction="in" if link.is_accept else "out",
            state=link.state.value,
            flow=activity.state.value,
            flow_reason=activity.reason,
            flow_since=since.isoformat(timespec="milliseconds"),
            last_progress=progress.isoformat(timespec="milliseconds"),
            round_trip_ms=None if round_trip is None else round(round_trip * 1000, 3),
            encryption="TLS" if link.transport.cipher else "none",
            principal="" if identity is None else identity.principal_name,
            slowed_by=", ".join(sorted(link.slowed_by)),
            frames_received=link.received.total(),
        )
        yield struct_from(
            LinkSnapshot,
            link,
            link.transport,
            status=status,
            connection_id=uuid.UUID(int=own ^ link.number),  # unique for as long as the process lives
            activity_since=activity.since,
            progress_at=activity.progress_at,
            peer_arbitration=None if peer is None else uuid.UUID(bytes=peer.arbitration),
            peer_instance=None if peer is None else uuid.UUID(bytes=peer.instance),
            last_activity=max(link.connection.last_heard, link.connection.last_sent),
        )


def _read_addresses(instance: Running, _: float) -> Iterator[tuple[str, AddressStatus]]:
    """
    Those that were dialled or are served, and the first of those that routes name and that were never dialled.

    One that is not reached or not tried, and that no route names any longer, is left out unless frames
    or dialogs wait for it.
    """
    peers, outboxes, named = instance.peers, instance.forwarder.table.outboxes, instance.peers.dialer.named
    known, own = peers.table.known_addresses | outboxes.keys(), instance.forwarder.routing_context.own
    untried = list(islice((one for one in named if one not in known and one not in own), UNTRIED_MAX))
    gone = {
        one
        for one in known - named.keys()
        if peers.table.problem_of(one) or peers.table.health_of(one) is AddressHealth.UNTRIED
    }
    waited = {hop for one in instance.endpoints.values() for hop in one.transmitter.blocked()} if gone else set()
    gone = {one for one in gone if str(one) not in waited and (one not in outboxes or not outboxes[one].held)}
    for address in sorted(known - gone, key=str):
        health, problem, outbox = (
            peers.table.health_of(address).name.lower(),
            peers.table.problem_of(address),
            outboxes.get(address),
        )
        is_named = address in named
        if outbox is None:
            yield str(address), AddressStatus(health, problem, is_named=is_named)
            continue
        share, link = outbox.share, outbox.outlet
        peer = link.peer_name if isinstance(link, Link) else ""
        held = len(outbox.held), share.used_bytes, share.refused
        yield str(address), AddressStatus(health, problem, *held, peer, is_named)
    yield from ((str(address), AddressStatus("untried")) for address in untried)


def _read_routes(instance: Running, _: float) -> Iterator[RoutesSnapshot]:
    """An address is down when the last that is known of it is a failure."""
    peers = instance.peers
    yield RoutesSnapshot(
        tables=tuple(database.table for database in instance.catalog.databases.values()),
        down=frozenset(
            address
            for address, attempts in peers.table.histories.items()
            if attempts.failures > 0 and peers.table.health_of(address) is not AddressHealth.CONNECTED
        ),
    )


# --- frames that wait, and frames that left ---


def _read_next_hops(instance: Running, now: float) -> Iterator[NextHopStatus]:
    holding = [outbox for outbox in instance.forwarder.table.all_outboxes() if outbox.held]
    for outbox in heapq.nlargest(NEXT_HOPS_MAX, holding, key=lambda outbox: len(outbox.held)):
        hop = _next_hop(outbox, instance)
        attempts = instance.peers.table.histories.get(hop) if isinstance(hop, NetworkAddress) else None
        wait = None if attempts is None or outbox.outlet is not None else max(0.0, attempts.suppressed_until - now)
        yield NextHopStatus(
            next_hop=str(hop),
            held=len(outbox.held),
            held_bytes=outbox.share.used_bytes,
            oldest_s=round(now - next(iter(outbox.held)).since, 3),
            why=_why_held(outbox, instance),
            next_attempt_s=None if wait is None else round(wait, 3),
        )


def _read_held(instance: Running, _: float) -> Iterator[HeldFrames]:
    for outbox in instance.forwarder.table.all_outboxes():
        if outbox.held:
            address = str(_next_hop(outbox, instance))
            yield HeldFrames(tuple(outbox.held.pieces()), address, _why_held(outbox, instance))


def _next_hop(outbox: Outbox, instance: Running) -> NetworkAddress | MirroredPair:
    """Return the next hop of an outbox now: of a pair its principal, or the pair itself while that is not known."""
    if isinstance(outbox.address, NetworkAddress):
        return outbox.address
    return instance.mirrors.principal_of(outbox.address) or outbox.address


def _why_held(outbox: Outbox, instance: Running) -> str:
    """Say why the frames for one address, or for a mirrored pair, wait, and how many bytes wait there."""
    address, share = _next_hop(outbox, instance), outbox.share
    if isinstance(address, MirroredPair):
        disposition = Disposition.PRINCIPAL_UNKNOWN
        wall_offset = time.time() - asyncio.get_running_loop().time()
        trouble = instance.mirrors.trouble_of(address)
        why = f"{disposition} ({disposition.number}): {unknown_principal(trouble, wall_offset)}"
    elif outbox.outlet is None:
        why = connecting(address, PathProblem(instance.peers.table.problem_of(address)))
    else:
        why = f"the connection to {address} accepts nothing at the moment"
    room = ", no room for more" if share.is_full else ""
    return f"{why}; {share.used_bytes} of at most {share.limit_bytes} bytes wait for it{room}"


def _read_by_route(instance: Running, _: float) -> Iterator[RouteFrames]:
    """By route and next hop; of mirrored routes by the address that was principal then. As of the first value."""
    forwarder = instance.forwarder
    principals = forwarder.routing_context.principals
    entries = list(forwarder.entries.values())
    counts = [entry.frames for entry in entries]
    earlier = [one for former in forwarder.table.sent_earlier.values() for one in former.items()]
    if forwarder.retired_frames:
        yield RouteFrames("", None, forwarder.retired_frames)
    hops: dict[Outbox, str | None] = {}  # its text costs more than all else, and many routes lead to one address
    for entry, frames in zip(entries, counts, strict=True):
        outbox = entry.sink
        if not isinstance(outbox, Outbox):
            continue
        if outbox not in hops:
            address = outbox.address
            hop = principals.get(address) if isinstance(address, MirroredPair) else address
            hops[outbox] = None if hop is None else str(hop)
        text = hops[outbox]
        if text is not None:
            yield RouteFrames(entry.route, text, frames)
    yield from (RouteFrames(route, text, frames) for (route, text), frames in earlier)


def _read_mirrors(instance: Running, _: float) -> Iterator[MirrorSnapshot]:
    for pair, in_use in list(instance.mirrors.in_use.items()):
        route = in_use.route
        held, held_bytes = instance.mirrors.waiting(pair)
        seen = route.seen[pair.address], route.seen[pair.mirror_address]
        status = MirrorStatus(
            route=instance.mirrors.route_name(pair),
            service=pair.remote_service_name,
            broker_instance=str(pair.broker_instance),
            state=route.state.name,
            principal=None if route.principal is None else str(route.principal),
            epoch=route.epoch,
            partners={
                str(address): PartnerStatus(one.role and str(one.role), one.epoch, one.problem)
                for address, one in zip((pair.address, pair.mirror_address), seen, strict=True)
            },
            held=held,
            held_bytes=held_bytes,
            alarm=route.alarm,
        )
        yield MirrorSnapshot(status, pair, route.state.value, *seen, route.due)


# --- certificates ---

_CERTIFICATE_ROLES = {
    "own": "the certificate of this instance",
    "own_chain": "a certificate that is sent after that of this instance",
    "trust": "a trusted certificate",
    "peer": "the certificate of a peer",
    "peer_chain": "a CA of a peer",
}


def _read_transport(instance: Running, _: float) -> Iterator[TransportSnapshot]:
    endpoint, watch, peers = instance.settings.endpoint, instance.certificates, instance.peers
    certificates = tuple(sorted(certificates_in_use(instance), key=lambda one: one[1].not_after))
    sentences = {
        WarningKind.PLAIN_TEXT: plain_text_told(endpoint, connects=instance.catalog.leads_out),
        WarningKind.FILES_NOT_IN_USE: watch.problem and f"certificate files are not in use: {watch.problem}",
        WarningKind.PERMISSIONS: peers.permissions.warning,
        WarningKind.LOOPBACK: loopback_told(instance.settings.admin),
    }
    warnings = [TransportWarning(kind, text) for kind, text in sentences.items() if text]
    if lost := lost_imports(instance.settings, instance.catalog):
        names = f"the database {lost[0]} lacks" if len(lost) == 1 else f"the databases {', '.join(lost)} lack"
        text = f"{names} what broker partner import had made, whose certificates are here: a new one has none of it"
        warnings.append(TransportWarning(WarningKind.IMPORTS_LOST, text))
    since = max(asyncio.get_running_loop().time() - REFUSED_SECONDS, instance.catalog.permitted_at)
    warnings += [
        TransportWarning(WarningKind.REFUSED, f"a peer at {host} was refused: {reason}")
        for (host, reason), at in peers.handshaker.refused.items()
        if at > since and not any(_is_back(link, host, reason, at) for link in peers.links.values())
    ]
    now = datetime.now(UTC)
    warnings += expiry_warnings(certificates, now)
    status = struct_from(
        TransportStatus,
        watch,
        endpoint,
        warnings=[warning.text for warning in warnings],
        notices=warnings,
        certificates=[_certificate(role, one, now) for role, one in certificates[:CERTIFICATES_MAX]],
        reload_failures=watch.failures,
        handshakes=len(peers.handshaker.handshakes),
        connections_max=peers.admission.most,
        refused=dict(peers.admission.refused),
    )
    yield TransportSnapshot(status, certificates, dict(peers.admission.meters.pauses))


def _certificate(role: str, one: Identity, now: datetime) -> CertificateStatus:
    not_after = one.not_after.isoformat(timespec="seconds")
    return CertificateStatus(role, one.principal_name, one.fingerprint, not_after, (one.not_after - now).days)


def _is_back(link: Link, host: str, reason: str, at: float) -> bool:
    """Whether a peer from this host, refused at this instant, is connected since: the one that the reason names."""
    if link.online_at is None or link.online_at <= at or host_of(link.address) != host:
        return False
    identity = link.transport.identity
    return names_nobody(reason) or (identity is not None and identity.principal_name in reason)


def certificates_in_use(instance: Running) -> Iterable[tuple[str, Identity]]:
    """
    Role and certificate, each once.

    Roles: `own` and `own_chain` are what this instance shows, `trust` whom it trusts, `peer` and `peer_chain` what the
    peers that are connected now have shown, and by which CAs that was verified.
    """
    security = instance.peers.handshaker.security
    found = [("own", security.own)] if security.own is not None else []
    found += [("own_chain", one) for one in security.own_chain]
    found += [("trust", one) for one in security.trusted]
    for link in instance.peers.links.values():
        found += [("peer_chain" if position else "peer", one) for position, one in enumerate(link.transport.chain)]
    return {(role, one.fingerprint): (role, one) for role, one in found}.values()


def expiry_warnings(certificates: Iterable[tuple[str, Identity]], now: datetime) -> Iterator[TransportWarning]:
    """
    One for each certificate that has expired or soon does, the most urgent first, of many only some.

    Before them one on the first that is not valid yet: it was used, so the clock has gone back since.
    """
    every = list(certificates)
    for role, one in [(role, one) for role, one in every if one.not_before > now][:1]:
        when = f"{one.not_before:%Y-%m-%d %H:%M} UTC"
        text = f"{_CERTIFICATE_ROLES[role]} is not valid before {when}, by the clock of this machine"
        yield TransportWarning(WarningKind.CLOCK, f"{text}: {one.principal_name}")
    due = [(role, one) for role, one in every if one.not_after <= now + SOON]
    for role, one in due[:WARNINGS_MAX]:
        left, when = one.not_after - now, f"{one.not_after:%Y-%m-%d %H:%M} UTC"
        wait = f"{left.days} days" if left.days > 1 else f"{left // timedelta(hours=1)} hours"
        is_over = one.not_after <= now
        end = f"has expired at {when}" if is_over else f"ends in {wait}, at {when}"
        kind = WarningKind.EXPIRED if is_over else WarningKind.EXPIRES
        yield TransportWarning(kind, f"{_CERTIFICATE_ROLES[role]} {end}: {one.principal_name}")
    if len(due) > WARNINGS_MAX:
        yield TransportWarning(WarningKind.MORE_EXPIRE, f"{len(due) - WARNINGS_MAX} more certificates end soon")


_SINGLE: frozenset[SnapshotSection] = frozenset({"run", "forwarding", "traffic", "routes", "transport"})
# Those above have one value, the others many; what may change under way is copied with the first of them.
_READ: Mapping[SnapshotSection, Callable[[Running, float], Iterator[object]]] = {
    "run": _read_run,
    "forwarding": _read_forwarding,
    "traffic": _read_traffic,
    "routes": _read_routes,
    "transport": _read_transport,
    "links": _read_links,
    "addresses": _read_addresses,
    "next_hops": _read_next_hops,
    "held": _read_held,
    "mirrors": _read_mirrors,
    "drops": read_drops,
    "by_route": _read_by_route,
    "databases": _read_databases,
    "roles": _read_roles,
}

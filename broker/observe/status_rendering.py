"""
Makes the `Status` of an instance, from a snapshot and from the statistics of its databases' files.

Of a database whose file could not be read, that part is null. Lists are bounded here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import structs

from broker.net.certificates import CertificateWatch
from broker.net.tls import Encryption
from broker.observe.database_stats import QuickStats, ledger_status
from broker.observe.drops import DropSnapshot, remedy_of_drop
from broker.observe.snapshot import Snapshot, SnapshotSection
from broker.observe.status import DatabaseStatus, DropStatus, QueueStatus, RoleStatus, Status, struct_from
from broker.protocol.layout import show_guid
from broker.routing.mirrored import OwnRoleStatus

STATUS: tuple[SnapshotSection, ...] = (
    "run",
    "transport",
    "forwarding",
    "links",
    "addresses",
    "next_hops",
    "mirrors",
    "roles",
    "databases",
    "drops",
)


def render_status(
    snapshot: Snapshot,
    stats: Mapping[str, QuickStats | None],
    *,
    room_problem: str = "",
    audit_problem: str = "",
) -> Status:
    """
    Return the status of an instance, not judged yet.

    Args:
        snapshot: Has the sections of `STATUS`.
        stats: Statistics from the files, by database; None for one that could not be read.
        room_problem: Why the disk of the state directory is too full; "" while it is not.
        audit_problem: Why changes cannot be recorded; "" while they can.
    """
    return struct_from(
        Status,
        snapshot,
        broker_instance=show_guid(snapshot.broker_instance),
        started_at=_instant(datetime.fromtimestamp(snapshot.started_at, UTC)),
        uptime_s=round(time.time() - snapshot.started_at, 3),
        ready=snapshot.is_ready,
        listen=list(snapshot.listen),
        transport=snapshot.transport.status,
        connections=[link.status for link in snapshot.links],
        addresses=dict(snapshot.addresses),
        waiting=list(snapshot.next_hops),
        mirrored_routes=[mirror.status for mirror in snapshot.mirrors],
        tasks=list(snapshot.run.tasks),
        running_scripts=list(snapshot.run.scripts),
        reload=snapshot.run.reload,
        journal=snapshot.run.journal,
        mirroring={name: _role(role) for name, role in snapshot.roles},
        databases={name: _database(database.status, stats.get(name)) for name, database in snapshot.databases},
        drops=[_drop(drop, snapshot) for drop in snapshot.drops],
        room_problem=room_problem,
        audit_problem=audit_problem,
        verdict=None,
    )


def certificate_part(watch: CertificateWatch) -> dict[str, str]:
    """Whether the certificate files are in use, as a part of an answer about health; empty where there are none."""
    return {} if watch.security.encryption is Encryption.DISABLED else {"certificate files": watch.problem}


# --- parts ---


def _role(role: OwnRoleStatus) -> RoleStatus:
    return struct_from(
        RoleStatus,
        role,
        broker_instance=None if role.broker_instance is None else show_guid(role.broker_instance),
        role=role.role.value,
        since=_instant(datetime.fromtimestamp(role.since, UTC)),
    )


def _database(known: DatabaseStatus, stats: QuickStats | None) -> DatabaseStatus:
    if stats is None:
        return known
    return structs.replace(
        known,
        waiting_messages=stats.backlog.messages,
        oldest_waiting_s=round(stats.backlog.oldest_s, 3),
        ledger=ledger_status(stats.ledger),
        quarantined=stats.quarantined,
        failed=stats.failed,
        queues=[struct_from(QueueStatus, queue) for queue in stats.queues],
    )


def _drop(drop: DropSnapshot, snapshot: Snapshot) -> DropStatus:
    last_s = None if drop.last_at is None else round(max(0.0, snapshot.loop_time - drop.last_at), 3)
    return DropStatus(drop.disposition.value, drop.database, drop.frames, last_s, remedy_of_drop(drop, snapshot.name))


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")

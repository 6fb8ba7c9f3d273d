"""
The state of an instance at a glance, as the JSON of `/v1/status`.

Two steps, because of who owns what: `read_status` copies counters and states on the loop; what is in the files is read
in a thread and put in by `add_backlog`. Counters count since the start; nothing here adds up to more work for a frame.
The fields are a contract, told in docs/admin.md.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from broker.catalog.catalog import Catalog
from broker.config.consistency import loopback_told
from broker.dialog.endpoint import Endpoint
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Outbox
from broker.net.certificates import SOON, CertificateWatch, plain_text_told
from broker.net.link import Link
from broker.net.tls import Encryption, Identity, Security
from broker.observe.health import remedy_of
from broker.observe.instance import Running
from broker.observe.query import shown_value
from broker.observe.samples import Labels, MetricDefinition
from broker.observe.snapshot import connection_status, mirror_status, next_hop_status, read_mirrors, seconds_since
from broker.observe.views import DISPOSITIONS, MEMORY_VIEWS, RowSource
from broker.protocol.layout import FrameKind
from broker.routing.mirrored import OwnRoleStatus
from broker.store.sqlite.inspect import Backlog

# --- transport ---
# What there is to tell of connections as such: certificates and their ends, plain text, and limits that were met.
#
# Certificates have a role: `own` and `own_chain` are what this instance shows, `trust` whom it trusts, `peer` and
# `peer_chain` what the peers that are connected now have shown, and by which CAs that was verified.


CERTIFICATES_MAX = 100  # told in a status, those that end first
WARNINGS_MAX = 10
_SAID = {
    "own": "the certificate of this instance",
    "own_chain": "a certificate that is sent behind that of this instance",
    "trust": "a trusted certificate",
    "peer": "the certificate of a peer",
    "peer_chain": "a CA of a peer",
}

TRANSPORT_METRICS = (
    MetricDefinition(
        "broker_tls_certificate_expiry_timestamp_seconds",
        "When a certificate ends, in seconds since 1970: what this instance shows (own, own_chain), whom it trusts"
        " (trust), what connected peers have shown and by which CAs that was verified (peer, peer_chain).",
        ("role", "name"),
        fold=min,
    ),
    MetricDefinition("broker_tls_reloads_total", "How often changed certificate files were put to use."),
    MetricDefinition(
        "broker_tls_reload_failures_total",
        "How often changed certificate files could not be used; those before stay in use.",
    ),
    MetricDefinition(
        "broker_tls_last_reload_successful",
        "1 while what the certificate files hold is in use, 0 while it cannot be used and what was there before is.",
    ),
    MetricDefinition("broker_tls_handshakes", "TLS handshakes under way with those who connect."),
    MetricDefinition(
        "broker_connections_refused_total", "Connections refused or ended because of a limit.", ("limit",)
    ),
    MetricDefinition(
        "broker_connection_pauses_total",
        "How often a connection was not read for a while, because its peer brought more than it may.",
        ("limit",),
    ),
    MetricDefinition(
        "broker_forward_peer_share_exceeded_total",
        "Dialog frames dropped because what one peer had brought took its part of the pool; also counted as pool limit"
        " exceeded.",
    ),
)


def certificates_in_use(security: Security, links: Iterable[Link]) -> Iterator[tuple[str, Identity]]:
    """Role and certificate, each once."""
    told: set[tuple[str, str]] = set()
    for role, one in _certificates(security, links):
        if (role, one.fingerprint) not in told:
            told.add((role, one.fingerprint))
            yield role, one


def transport_readers() -> Mapping[str, Callable[[Running], Iterable[tuple[Labels, float]]]]:
    """What reads each of the metrics on the loop."""
    return {
        "broker_tls_certificate_expiry_timestamp_seconds": _expiries,
        "broker_tls_reloads_total": lambda instance: [((), instance.certificates.reloads)],
        "broker_tls_reload_failures_total": lambda instance: [((), instance.certificates.failures)],
        "broker_tls_last_reload_successful": lambda instance: [((), int(not instance.certificates.problem))],
        "broker_tls_handshakes": lambda instance: [((), len(instance.peers.handshaker.handshakes))],
        "broker_connections_refused_total": lambda instance: _counts(
            {"connections": 0, "connections_per_peer": 0} | instance.peers.admission.refused
        ),
        "broker_connection_pauses_total": lambda instance: _counts(
            {"bytes_per_second": 0, "messages_per_second": 0} | instance.peers.admission.meters.pauses
        ),
        "broker_forward_peer_share_exceeded_total": lambda instance: [((), instance.forwarder.pool.over_quota)],
    }


def transport_status(instance: Running, *, now: datetime | None = None) -> dict[str, Any]:
    """What a status tells. On the loop."""
    now = now or datetime.now(UTC)
    security, endpoint = instance.peers.handshaker.security, instance.settings.endpoint
    found = sorted(certificates_in_use(security, instance.peers.links.values()), key=lambda one: one[1].not_after)
    problem = instance.certificates.problem
    warnings = [plain_text_told(endpoint.encryption), problem and f"certificate files are not in use: {problem}"]
    warnings += [instance.peers.permissions.warning, loopback_told(instance.settings.admin)]
    return {
        "encryption": endpoint.encryption,
        "authentication": endpoint.authentication,
        "warnings": [one for one in warnings if one] + expiry_warnings(found, now),
        "certificates": [_certificate(role, one, now) for role, one in found[:CERTIFICATES_MAX]],
        "reloads": instance.certificates.reloads,
        "reload_failures": instance.certificates.failures,
        "problem": problem,
        "handshakes": len(instance.peers.handshaker.handshakes),
        "connections_max": instance.peers.admission.most,
        "refused": dict(instance.peers.admission.refused),
    }


def expiry_warnings(certificates: Iterable[tuple[str, Identity]], now: datetime) -> list[str]:
    """
    A sentence for each certificate that has ended, or does so soon; the most urgent first, of many only some.

    Before them one on the first that is not valid yet: it was used, so the clock has gone back since.
    """
    every = list(certificates)
    due = [(role, one) for role, one in every if one.not_after <= now + SOON]
    told = [
        f"{_SAID[role]} is not valid before {one.not_before:%Y-%m-%d %H:%M} UTC, by the clock of this machine:"
        f" {one.principal_name}"
        for role, one in every
        if one.not_before > now
    ][:1]
    for role, one in due[:WARNINGS_MAX]:
        left = one.not_after - now
        time = f"{left.days} days" if left.days > 1 else f"{left // timedelta(hours=1)} hours"
        when = f"{one.not_after:%Y-%m-%d %H:%M} UTC"
        end = f"has expired at {when}" if one.not_after <= now else f"ends in {time}, at {when}"
        told.append(f"{_SAID[role]} {end}: {one.principal_name}")
    if len(due) > WARNINGS_MAX:
        told.append(f"{len(due) - WARNINGS_MAX} more certificates end soon")
    return told


def own_certificate_problem(security: Security, *, now: datetime | None = None) -> str:
    """Why nobody can trust this instance any more; empty while somebody can."""
    own = security.own
    if own is None or own.not_after > (now or datetime.now(UTC)):
        return ""
    return f"the certificate of this instance has expired at {own.not_after:%Y-%m-%d %H:%M} UTC: renew it"


def certificate_part(watch: CertificateWatch) -> dict[str, str]:
    """Whether the certificate files are in use, for those who ask for health; nothing where there are none."""
    return {} if watch.security.encryption is Encryption.DISABLED else {"certificate files": watch.problem}


def _certificates(security: Security, links: Iterable[Link]) -> Iterator[tuple[str, Identity]]:
    if security.own is not None:
        yield "own", security.own
    yield from (("own_chain", one) for one in security.own_chain)
    yield from (("trust", one) for one in security.trusted)
    for link in links:
        for place, one in enumerate(link.transport.chain):
            yield "peer_chain" if place else "peer", one


def _expiries(instance: Running) -> Iterator[tuple[Labels, float]]:
    security, links = instance.peers.handshaker.security, instance.peers.links.values()
    for role, one in certificates_in_use(security, links):
        yield (role, one.principal_name), one.not_after.timestamp()


def _counts(counts: Mapping[str, int]) -> list[tuple[Labels, float]]:
    return [((name,), count) for name, count in counts.items()]


def _certificate(role: str, one: Identity, now: datetime) -> dict[str, Any]:
    return {
        "role": role,
        "name": one.principal_name,
        "fingerprint": one.fingerprint,
        "not_after": one.not_after.isoformat(timespec="seconds"),
        "days_left": (one.not_after - now).days,
    }


_KIND_NAMES: dict[int, str] = {FrameKind.MESSAGE: "message", FrameKind.ACK: "ack", FrameKind.FAULT: "fault"}
OTHER_KIND = "other"
UNTRIED_MAX = 100  # next hops told of that nobody has dialled yet: a table may name ten thousand
_UNTRIED = {"health": "untried", "problem": "", "held": 0, "held_bytes": 0, "over_share": 0, "peer": ""}


def read_status(instance: Running) -> dict[str, Any]:
    """Everything but what is in the files. On the loop."""
    now = asyncio.get_running_loop().time()
    at = datetime.now(UTC) - timedelta(seconds=now)  # when the loop's clock said 0
    return {
        "name": instance.name,
        "software": instance.software,
        "broker_instance": show_guid(instance.broker_instance),
        "started_at": datetime.fromtimestamp(instance.started_at, UTC).isoformat(timespec="milliseconds"),
        "uptime_s": round(time.time() - instance.started_at, 3),
        "ready": instance.is_ready,
        "draining": instance.drain.told,
        "loop": loop_name(),
        "kernel": instance.forwarder.kernel_name,
        "listen": [f"{listener.host}:{listener.port}" for listener in instance.listeners],
        "transport": transport_status(instance),
        "forwarding": _forwarding(instance.forwarder, is_enabled=instance.settings.endpoint.message_forwarding),
        "connections": [connection_status(link, at, now) for link in instance.peers.links.values()],
        "addresses": _addresses(instance),
        "waiting": next_hop_status(instance, now),
        "mirrored_routes": mirror_status(read_mirrors(instance.mirrors, now)),
        "tasks": instance.supervision.status(),
        "running_scripts": running_scripts(instance.catalog),
        "reload": instance.reloads.status(),
        "journal": None if instance.journal is None else dict(instance.journal.status()),
        "mirroring": {name: _standing(standing) for name, standing in instance.standings().items()},
        "databases": {
            name: _database(endpoint, instance.catalog.databases[name].rows.services)
            for name, endpoint in instance.endpoints.items()
        },
    }


def running_scripts(catalog: Catalog) -> list[dict[str, Any]]:
    """How far each script under way is. On the loop."""
    return [
        {
            "source": progress.source,
            "stage": progress.stage.value,
            "size": progress.size,
            "position": progress.position,
            "statements": progress.statements,
        }
        for progress in catalog.scripts
    ]


def add_backlog(status: dict[str, Any], backlogs: Mapping[str, Backlog | None]) -> dict[str, Any]:
    """Put in what waits in the files, by database; null where a file could not be read."""
    for name, backlog in backlogs.items():
        database = status["databases"][name]
        database["waiting_messages"] = None if backlog is None else backlog.messages
        database["oldest_waiting_s"] = None if backlog is None else round(backlog.oldest_s, 3)
    return status


def backlog_paths(instance: Running) -> dict[str, Path]:
    """The files to ask. On the loop."""
    return {name: endpoint.path for name, endpoint in instance.endpoints.items()}


def kind_name(kind: int) -> str:
    """The word for a kind of dialog frame; kinds of later versions share one."""
    return _KIND_NAMES.get(kind, OTHER_KIND)


def by_kind(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts under the words for the kinds; those this version knows are always there."""
    named = dict.fromkeys(_KIND_NAMES.values(), 0)
    for kind, count in counts.items():
        named[kind_name(kind)] = named.get(kind_name(kind), 0) + count
    return named


def loop_name() -> str:
    """Which event loop runs."""
    return "asyncio" if isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop) else "uvloop"


def show_guid(guid: bytes) -> str:
    """A GUID as the views show it."""
    return str(uuid.UUID(bytes=guid)).upper()


# --- parts, in the order in which they are told ---


def _forwarding(forwarder: Forwarder, *, is_enabled: bool) -> dict[str, Any]:
    return {
        "enabled": is_enabled,
        "received": by_kind(forwarder.received),
        "forwarded": forwarder.forwarded,
        "delivered": forwarder.delivered,
        "dropped": _reasons(forwarder.dropped),
        "held": forwarder.pool.frames,
        "pool_bytes": forwarder.pool.used_bytes,
        "pool_limit_bytes": forwarder.pool.limit_bytes,
        "unaccounted": forwarder.unaccounted,
    }


def _addresses(instance: Running) -> dict[str, Any]:
    """Those that were dialled or are served, and the first of those that routes name and nobody has dialled yet."""
    peers, outboxes = instance.peers, instance.forwarder.table.outboxes
    known, own = peers.table.known_addresses | outboxes.keys(), instance.forwarder.routing_context.own
    untried = islice((one for one in peers.dialer.named if one not in known and one not in own), UNTRIED_MAX)
    return {
        str(address): {
            "health": peers.table.health_of(address).name.lower(),
            "problem": peers.table.problem_of(address),
            "held": len(outboxes[address].held) if address in outboxes else 0,
            "held_bytes": outboxes[address].share.used_bytes if address in outboxes else 0,
            "over_share": outboxes[address].share.refused if address in outboxes else 0,
            "peer": _served_by(outboxes[address]) if address in outboxes else "",
        }
        for address in sorted(known, key=str)
    } | {str(address): dict(_UNTRIED) for address in untried}


def _served_by(outbox: Outbox) -> str:
    """The name of the peer that takes what is for an address; empty while there is none."""
    return outbox.outlet.peer_name if isinstance(outbox.outlet, Link) else ""


def _standing(standing: OwnRoleStatus) -> dict[str, Any]:
    return {
        "broker_instance": None if standing.broker_instance is None else show_guid(standing.broker_instance),
        "role": standing.role.value,
        "epoch": standing.epoch,
        "since": datetime.fromtimestamp(standing.since, UTC).isoformat(timespec="milliseconds"),
        "source": standing.source,
        "principal": standing.principal,
        "problem": standing.problem,
    }


def _database(endpoint: Endpoint, known: Iterable[str]) -> dict[str, Any]:
    transmitter = endpoint.transmitter
    counts = {
        "sent": transmitter.sent,
        "resent": transmitter.resent,
        "acknowledged": transmitter.acknowledged,
        "delivered": endpoint.delivered,
    }
    services = sorted(set(known).union(*counts.values()))
    return {
        "broker_instance": show_guid(endpoint.broker_instance),
        "path": str(endpoint.path),
        "problem": endpoint.problem,
        "services": {service: {what: count[service] for what, count in counts.items()} for service in services},
        "dropped": _reasons(endpoint.dropped),
        "sending_dialogs": len(transmitter.senders),
    }


def _reasons(dropped: Mapping[Disposition, int]) -> dict[str, int]:
    return {disposition.value: count for disposition, count in dropped.items() if count}


# --- dropped ---
# What was dropped here, by reason, each with its last frame and with what to do: for the status and its snapshots.


_DROP_COLUMNS = MEMORY_VIEWS[DISPOSITIONS]


def read_dropped(rows: RowSource, instance: str) -> list[dict[str, Any]]:
    """
    The rows of `sys.dm_broker_dispositions` by column, and in `do` what to do. Waits for the loop, so for a thread.

    Args:
        rows: What gives them.
        instance: The name of the instance, for what to do.
    """
    found: list[dict[str, Any]] = [dict(zip(_DROP_COLUMNS, map(shown_value, row), strict=True)) for row in rows()]
    for row in found:
        service = row["to_service_name"] or "SERVICE"
        row["do"] = remedy_of(row["disposition"], instance=instance, service=service)
    return found


def drops_of(rows: Iterable[Mapping[str, Any]], at: datetime) -> list[dict[str, Any]]:
    """What a status tells of them, as of an instant."""
    return [
        {
            "reason": row["disposition"],
            "database": row["database_name"],
            "frames": row["frames"],
            "last_s": _rounded(seconds_since(row["last_time"], at)),
            "do": row["do"],
        }
        for row in rows
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

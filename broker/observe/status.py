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
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from broker.control.catalog import Catalog
from broker.control.own_standing import OwnRoleStatus
from broker.dialog.endpoint import Endpoint
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Outbox
from broker.net.link import Link
from broker.observe.connection import connection_status
from broker.observe.instance import Running
from broker.observe.mirror import mirror_status, read_mirrors
from broker.observe.next_hop import next_hop_status
from broker.observe.transport import transport_status
from broker.protocol.layout import FrameKind
from broker.store.stock import Backlog

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
    peers, outboxes = instance.peers, instance.forwarder.outboxes
    known, own = peers.known_addresses | outboxes.keys(), instance.forwarder.here.own
    untried = islice((one for one in peers.dialling.named if one not in known and one not in own), UNTRIED_MAX)
    return {
        str(address): {
            "health": peers.health_of(address).name.lower(),
            "problem": peers.problem_of(address),
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

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
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from broker.dialog.endpoint import Endpoint
from broker.flow import Disposition
from broker.forwarding.forwarder import Forwarder
from broker.net.link import Link
from broker.net.peers import Peers
from broker.observe.backlog import Backlog
from broker.observe.instance import Running
from broker.wire.layout import Kind

KERNEL = "python"
_KIND_NAMES = {Kind.MESSAGE: "message", Kind.ACK: "ack", Kind.FAULT: "fault"}
OTHER_KIND = "other"


def read_status(instance: Running) -> dict[str, Any]:
    """Everything but what is in the files. On the loop."""
    return {
        "name": instance.name,
        "software": instance.software,
        "broker_instance": show_guid(instance.broker_instance),
        "started_at": datetime.fromtimestamp(instance.started_at, UTC).isoformat(timespec="milliseconds"),
        "uptime_s": round(time.time() - instance.started_at, 3),
        "ready": instance.is_ready,
        "loop": loop_name(),
        "kernel": KERNEL,
        "listen": [f"{listener.host}:{listener.port}" for listener in instance.listeners],
        "forwarding": _forwarding(instance.forwarder, is_enabled=instance.settings.endpoint.message_forwarding),
        "connections": [_connection(instance.peers, link) for link in instance.peers.links.values()],
        "addresses": _addresses(instance),
        "databases": {name: _database(endpoint) for name, endpoint in instance.endpoints.items()},
    }


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
    return _KIND_NAMES.get(Kind(kind), OTHER_KIND) if kind in Kind else OTHER_KIND


def by_kind(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts under the words for the kinds; those this version knows are always there."""
    named = Counter(dict.fromkeys(_KIND_NAMES.values(), 0))
    for kind, count in counts.items():
        named[kind_name(kind)] += count
    return dict(named)

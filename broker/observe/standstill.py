"""
What stands still in a database: dialogs in quarantine, queues that are off, messages that nobody receives.

Read from its file beside the daemon's own connection. Blocking, so for a thread. No message is counted: of each queue
the first one is looked up, so it costs the queues and not what lies in them.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.store import metadata
from broker.store.database import open_watch
from broker.store.quarantine import quarantined_dialogs
from broker.store.stock import oldest_ready_s

QUEUES_MAX = 50  # told of a database: those that are off, then those whose first message has waited the longest


@dataclass(frozen=True, slots=True)
class StillQueue:
    """One queue. Shape: `oldest_s` age of the first message that an application may receive, 0 when there is none."""

    name: str
    is_receive_enabled: bool
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Standstill:
    """One database. Shape: `quarantined` dialogs; `queues` that are off, or in which something waits."""

    quarantined: int = 0
    queues: tuple[StillQueue, ...] = ()


def read_standstill(path: Path) -> Standstill | None:
    """What stands still in this file; None when it cannot be read now."""
    now = time.time()
    try:
        with closing(open_watch(path)) as db:
            quarantined = quarantined_dialogs(db)
            queues = [
                StillQueue(name, queue.is_receive_enabled, oldest_ready_s(db, queue.queue_id, now))
                for name, queue in sorted(metadata.queues(db).items())
            ]
    except sqlite3.Error:
        return None
    still = [queue for queue in queues if queue.oldest_s or not queue.is_receive_enabled]
    still.sort(key=lambda queue: (queue.is_receive_enabled, -queue.oldest_s))
    return Standstill(quarantined, tuple(still[:QUEUES_MAX]))


def add_standstills(status: dict[str, Any], found: Mapping[str, Standstill | None]) -> dict[str, Any]:
    """Put it into what `/v1/status` tells, by database; null where a file could not be read."""
    for name, one in found.items():
        database = status["databases"][name]
        database["quarantined"] = None if one is None else one.quarantined
        database["queues"] = None if one is None else [_told(queue) for queue in one.queues]
    return status


def _told(queue: StillQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "is_receive_enabled": queue.is_receive_enabled,
        "oldest_s": round(queue.oldest_s, 3),
    }

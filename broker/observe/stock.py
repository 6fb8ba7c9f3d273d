"""
What lies in the file of a database: what waits to leave and why, what waits in its queues, what is in quarantine.

Blocking, so for a thread. A reader never waits for a writer. Counting walks an index from end to end, so whoever asks
again and again rests in between.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from broker.observe.backlog import Backlog, read_backlog
from broker.observe.ledger import read_ledger
from broker.store.balance import Balance
from broker.store.database import open_watch

QUEUES_MAX = 50  # told of a database, the fullest
LOOKED_AT = 1000  # of the messages that wait to leave, the oldest are looked at for the reasons
REASONS_MAX = 5
_READY, _QUARANTINED = 1, 4
_COUNTS = f"""
    SELECT q.name, q.is_receive_enabled, q.queue_id,
        coalesce(sum(m.count) FILTER (WHERE m.status = {_READY}), 0) AS ready,
        coalesce(sum(m.count) FILTER (WHERE m.status = {_QUARANTINED}), 0) AS quarantined
    FROM broker_queue AS q
    LEFT JOIN (SELECT queue_id, status, count(*) AS count FROM broker_message GROUP BY queue_id, status) AS m
        ON m.queue_id = q.queue_id
    GROUP BY q.queue_id ORDER BY ready + quarantined DESC, q.name LIMIT {QUEUES_MAX}
"""  # noqa: S608 - own numbers
# One look into the index for each priority, 1 to 12, instead of a walk over all that is ready.
_OLDEST = f"""
    WITH RECURSIVE level (priority) AS (SELECT 1 UNION ALL SELECT priority + 1 FROM level WHERE priority < 12)
    SELECT min(m.message_enqueue_time) FROM level JOIN broker_message AS m ON m.queuing_order = (
        SELECT first.queuing_order FROM broker_message AS first
        WHERE first.queue_id = ? AND first.status = {_READY} AND first.priority = level.priority
        ORDER BY first.queuing_order LIMIT 1)
"""  # noqa: S608 - own numbers
_REASONS = f"""
    SELECT c.far_service, c.transmission_status, count(*), min(t.enqueue_time)
    FROM (SELECT endpoint_id, enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT {LOOKED_AT}) AS t
    JOIN broker_conversation AS c ON c.endpoint_id = t.endpoint_id
    GROUP BY c.far_service, c.transmission_status ORDER BY count(*) DESC LIMIT {REASONS_MAX}
"""  # noqa: S608 - own numbers


@dataclass(frozen=True, slots=True)
class QueueStock:
    """One queue. Shape: messages that are `ready` and `quarantined`; `oldest_s` age of the first ready one, or 0."""

    name: str
    ready: int
    quarantined: int
    oldest_s: float
    is_receive_enabled: bool


@dataclass(frozen=True, slots=True)
class Reason:
    """Why messages to one service wait. Shape: `messages` among the oldest `LOOKED_AT`; `why` "" = nothing is said."""

    far_service: str
    why: str
    messages: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Stock:
    """
    One database.

    Shape: `queues` the fullest first, `queue_count` all of them; `quarantined` dialogs; `reasons` the most frequent
    first.
    """

    backlog: Backlog
    ledger: Balance
    queues: tuple[QueueStock, ...] = ()
    queue_count: int = 0
    quarantined: int = 0
    reasons: tuple[Reason, ...] = ()


def read_stock(path: Path) -> Stock | None:
    """What lies in this file; None when it cannot be read now. Blocking. Cost: the messages that lie there."""
    backlog, ledger = read_backlog(path), read_ledger(path)
    if backlog is None or ledger is None:
        return None
    now = time.time()
    try:
        with closing(open_watch(path)) as db:
            queues = read_queues(db, now)
            (count,) = db.execute("SELECT count(*) FROM broker_queue").fetchone()
            (dialogs,) = db.execute("SELECT count(*) FROM broker_failure WHERE quarantine_time IS NOT NULL").fetchone()
            reasons = [
                Reason(service, why or "", messages, max(0.0, now - since))
                for service, why, messages, since in (db.execute(_REASONS).fetchall() if backlog.messages else ())
            ]
    except sqlite3.Error:
        return None
    return Stock(backlog, ledger, tuple(queues), count, dialogs, tuple(reasons))


def read_queues(db: sqlite3.Connection, now: float) -> list[QueueStock]:
    """The fullest queues, at this UTC time. Blocking; raises sqlite3.Error."""
    return [
        QueueStock(name, ready, quarantined, oldest_ready_s(db, queue_id, now) if ready else 0.0, bool(is_enabled))
        for name, is_enabled, queue_id, ready, quarantined in db.execute(_COUNTS).fetchall()
    ]


def read_stocks(paths: Mapping[str, Path]) -> dict[str, Stock | None]:
    """The same of several databases. Blocking."""
    return {name: read_stock(path) for name, path in paths.items()}


def oldest_ready_s(db: sqlite3.Connection, queue_id: int, now: float) -> float:
    """The age, at this UTC time, of the first message of a queue that an application may receive; 0 without one."""
    (since,) = db.execute(_OLDEST, (queue_id,)).fetchone()
    return 0.0 if since is None else max(0.0, now - since)

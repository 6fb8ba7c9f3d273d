"""
What lies in a database, counted: what waits to leave and why, what waits in its queues, its conversations by state.

Reads only, on any connection to the database; whoever asks beside a daemon has one of its own (`open_watch`), and waits
for nobody. What a question costs stands with it: who asks again and again rests in between.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

QUEUES_MAX = 50  # told of a database, the fullest
LOOKED_AT = 1000  # of the messages that wait to leave, the oldest are looked at for the reasons
REASONS_MAX = 5
_READY, _QUARANTINED = 1, 4


@dataclass(frozen=True, slots=True)
class Backlog:
    """Shape: `messages` sent by applications and not yet acknowledged; `oldest_s` age of the first, 0 when none."""

    messages: int = 0
    oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why messages to one service wait. Shape: `messages` among the oldest `LOOKED_AT`; `why` "" = nothing is said."""

    far_service: str
    why: str
    messages: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class QueueStock:
    """One queue. Shape: messages that are `ready` and `quarantined`; `oldest_s` age of the first ready one, or 0."""

    name: str
    ready: int
    quarantined: int
    oldest_s: float
    is_receive_enabled: bool


# --- what waits to leave ------------------------------------------------------------------------------------

_REASONS = f"""
    SELECT c.far_service, c.transmission_status, count(*), min(t.enqueue_time)
    FROM (SELECT endpoint_id, enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT {LOOKED_AT}) AS t
    JOIN broker_conversation AS c ON c.endpoint_id = t.endpoint_id
    GROUP BY c.far_service, c.transmission_status ORDER BY count(*) DESC LIMIT {REASONS_MAX}
"""  # noqa: S608 - own numbers


def unacknowledged_messages(db: sqlite3.Connection) -> int:
    """How many messages of applications wait for their acknowledgement. Cost: a walk through an index."""
    messages: int = db.execute("SELECT count(*) FROM broker_transmission").fetchone()[0]
    return messages


def backlog_of(db: sqlite3.Connection, now: float) -> Backlog:
    """
    What waits to leave, at this UTC time.

    Cost: neither question looks at a message: the count walks an index, the oldest row is the first.
    """
    messages = unacknowledged_messages(db)
    row = db.execute("SELECT enqueue_time FROM broker_transmission ORDER BY transmission_id LIMIT 1").fetchone()
    return Backlog(messages, 0.0 if row is None else max(0.0, now - row[0]))


def reasons_of(db: sqlite3.Connection, now: float) -> list[WaitReason]:
    """Why the oldest of it wait, at this UTC time, the most frequent first. Cost: `LOOKED_AT` rows at most."""
    return [
        WaitReason(service, why or "", messages, max(0.0, now - since))
        for service, why, messages, since in db.execute(_REASONS).fetchall()
    ]


# --- what waits in queues -----------------------------------------------------------------------------------

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


def queue_count(db: sqlite3.Connection) -> int:
    """How many queues there are."""
    count: int = db.execute("SELECT count(*) FROM broker_queue").fetchone()[0]
    return count


def fullest_queues(db: sqlite3.Connection, now: float) -> list[QueueStock]:
    """The `QUEUES_MAX` fullest queues, at this UTC time. Cost: a walk through an index of all that lies in queues."""
    return [
        QueueStock(name, ready, quarantined, oldest_ready_s(db, queue_id, now) if ready else 0.0, bool(is_enabled))
        for name, is_enabled, queue_id, ready, quarantined in db.execute(_COUNTS).fetchall()
    ]


def oldest_ready_s(db: sqlite3.Connection, queue_id: int, now: float) -> float:
    """The age, at this UTC time, of the first message of a queue that an application may receive; 0 without one."""
    (since,) = db.execute(_OLDEST, (queue_id,)).fetchone()
    return 0.0 if since is None else max(0.0, now - since)


# --- conversations ------------------------------------------------------------------------------------------

_STATES = "SELECT service_name, state, count(*), min(create_date) FROM broker_conversation GROUP BY 1, 2"


def sides_by_service(db: sqlite3.Connection) -> list[tuple[str, str, int, float]]:
    """(service, state, sides, when the oldest of them began, UTC seconds). Cost: a walk through all conversations."""
    return db.execute(_STATES).fetchall()


def unended_dialogs(db: sqlite3.Connection) -> int:
    """How many sides are here that have not ended on both ends. Cost: a walk through all conversations."""
    count: int = db.execute("SELECT count(*) FROM broker_conversation WHERE state <> 'CD'").fetchone()[0]
    return count

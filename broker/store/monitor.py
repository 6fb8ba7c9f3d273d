"""
What watches a queue: its state, as far as the file and the readers that live can tell.

Readers run anywhere on this machine, not only where the daemon is; they tell of themselves beside the database
(`group_lock`). A program that calls `receive` by itself tells nothing, so it is not seen here.

Source: Service Broker documentation, "sys.dm_broker_queue_monitors", "Understanding When Activation Occurs".
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from broker.store.database import open_watch
from broker.store.group_lock import records


class MonitorState(StrEnum):
    """The documented states."""

    INACTIVE = "INACTIVE"  # nothing waits, and nobody reads
    NOTIFIED = "NOTIFIED"  # messages wait, and nobody reads
    RECEIVES_OCCURRING = "RECEIVES_OCCURRING"  # a reader lives


@dataclass(frozen=True, slots=True)
class Monitor:
    """
    One queue.

    Shape: times UTC seconds since 1970, None when no reader lives that could tell; `tasks_waiting` workers that have
    nothing to do; `readers` processes.
    """

    queue_id: int
    queue_name: str
    state: MonitorState
    last_empty_rowset_time: float | None
    last_activated_time: float | None
    tasks_waiting: int
    readers: int


def queue_monitors(path: Path) -> list[Monitor]:
    """
    The queues of a database. Blocking, so for a thread.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    told = records(str(path))
    query = (
        "SELECT q.queue_id, q.name,"
        " EXISTS (SELECT 1 FROM broker_message m WHERE m.queue_id = q.queue_id AND m.status = 1)"
        " FROM broker_queue q ORDER BY q.queue_id"
    )
    with closing(open_watch(path)) as db:
        queues = db.execute(query).fetchall()
    monitors = []
    for queue_id, name, is_waiting in queues:
        of_queue = [record for record in told if record.queue_name == name]
        idle = MonitorState.NOTIFIED if is_waiting else MonitorState.INACTIVE
        empty = [record.last_empty_time for record in of_queue if record.last_empty_time is not None]
        monitors.append(
            Monitor(
                queue_id,
                name,
                MonitorState.RECEIVES_OCCURRING if of_queue else idle,
                max(empty, default=None),
                max((record.activated_time for record in of_queue), default=None),
                sum(record.tasks_waiting for record in of_queue),
                len(of_queue),
            )
        )
    return monitors

"""
Rows of the instance's views that are read from the files of its databases, whenever somebody asks.

Blocking, so for a thread. A file that cannot be read leaves its rows out; `sys.databases` tells that something is wrong
with it.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from broker.observe.ledger import read_ledger
from broker.observe.view import DATABASES, LEDGER, QUEUE_MONITORS, Row, make_row
from broker.store.database import open_watch, origin
from broker.store.monitor import queue_monitors

MSDB = "msdb"
MSDB_ID = 4  # its number in the original, whose first database of a user is 5


def names_of(databases: Mapping[str, Path]) -> tuple[str, ...]:
    """The databases of the instance, msdb first, whether it has a file or not."""
    return (MSDB, *(name for name in databases if name != MSDB))


def database_ids(databases: Iterable[str]) -> dict[str, int]:
    """A number for each database: 4 for msdb, the others from 5 on by name; a new one may move those behind it."""
    return {MSDB: MSDB_ID} | {name: MSDB_ID + 1 + at for at, name in enumerate(sorted({*databases} - {MSDB}))}


def database_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    """`sys.databases`."""
    ids = database_ids(databases)
    for name in names_of(databases):
        path = databases.get(name)
        instance = created = None
        is_enabled = path is None
        if path is not None:
            try:
                with closing(open_watch(path)) as db:
                    identity, made_at = origin(db)
                instance, created = uuid.UUID(bytes=identity), datetime.fromtimestamp(made_at, UTC)
                is_enabled = True
            except sqlite3.Error:
                is_enabled = False  # the row itself tells: nothing can be sent or received there
        yield make_row(
            DATABASES,
            name=name,
            database_id=ids[name],
            service_broker_guid=instance,
            is_broker_enabled=is_enabled,
            create_date=created,
            path=None if path is None else str(path),
        )


def monitor_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    """`sys.dm_broker_queue_monitors`."""
    ids = database_ids(databases)
    for name, path in databases.items():
        try:
            monitors = queue_monitors(path)
        except sqlite3.Error:
            continue
        for monitor in monitors:
            times = (monitor.last_empty_rowset_time, monitor.last_activated_time)
            empty, activated = (None if at is None else datetime.fromtimestamp(at, UTC) for at in times)
            yield make_row(
                QUEUE_MONITORS,
                database_id=ids[name],
                queue_id=monitor.queue_id,
                state=str(monitor.state),
                last_empty_rowset_time=empty,
                last_activated_time=activated,
                tasks_waiting=monitor.tasks_waiting,
                database_name=name,
                queue_name=monitor.queue_name,
                readers=monitor.readers,
            )


def ledger_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    """`sys.dm_broker_ledger`."""
    for name, path in databases.items():
        balance = None if name == MSDB else read_ledger(path)
        if balance is not None:
            for entry, reason, messages in balance.entries():
                yield make_row(LEDGER, database_name=name, entry=entry, reason=reason, messages=messages)

"""
What a database file holds already, for whoever only looks: its identity, routes, queues and services.

The file is opened for reading only and may be in use by a running instance.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from broker.control.stored import stored_route
from broker.dialog import store
from broker.routing.route import Route


@dataclass(frozen=True, slots=True)
class Contents:
    """Shape: `broker_instance` 16 bytes; `routes` expired ones included; `services` each with the name of its queue."""

    broker_instance: bytes
    routes: tuple[Route, ...]
    queues: frozenset[str]
    services: Mapping[str, str]


def read_contents(path: Path) -> Contents | None:
    """What the file holds; None when there is no such file, when it cannot be read or is no database of the broker."""
    if not path.is_file():
        return None
    try:
        with closing(store.open_watch(path)) as db:
            if not store.has_schema(db):
                return None
            queue_name = {queue.queue_id: name for name, queue in store.queues(db).items()}
            return Contents(
                store.broker_instance(db),
                tuple(route for route in map(stored_route, store.routes(db)) if route is not None),
                frozenset(queue_name.values()),
                {name: queue_name[service.queue_id] for name, service in store.services(db).items()},
            )
    except sqlite3.Error:
        return None

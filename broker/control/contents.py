"""
What a database file holds already, for whoever only looks: its identity and what statements have made.

The file is opened for reading only and may be in use by a running instance.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from msgspec import Struct, field

from broker.control.stored import stored_route
from broker.routing.route import Route
from broker.security.binding import RemoteServiceBinding
from broker.security.grants import PermissionRule
from broker.store import database, metadata, permission, schema
from broker.store.metadata import Priority


class Contents(Struct, frozen=True):
    """
    Shape: `broker_instance` 16 bytes; `routes` expired ones included; `services` each with the name of its queue,
    `service_contracts` with its contracts; `contracts` each with its message types; priorities by name.
    """

    broker_instance: bytes
    routes: tuple[Route, ...]
    queues: frozenset[str]
    services: Mapping[str, str]
    service_contracts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    message_types: frozenset[str] = frozenset()
    contracts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    priorities: Mapping[str, Priority] = field(default_factory=dict)
    permissions: tuple[PermissionRule, ...] = ()
    bindings: Mapping[str, RemoteServiceBinding] = field(default_factory=dict)


def read_contents(path: Path) -> Contents | None:
    """What the file holds; None when there is no such file, when it cannot be read or is no database of the broker."""
    if not os.path.isfile(path):  # noqa: PTH113 - the other raises what the system refuses
        return None
    try:
        with closing(database.open_watch(path)) as db:
            if not schema.has_schema(db):
                return None
            queue_name = {queue.queue_id: name for name, queue in metadata.queues(db).items()}
            services = metadata.services(db)
            return Contents(
                database.broker_instance(db),
                tuple(route for route in map(stored_route, metadata.routes(db)) if route is not None),
                frozenset(queue_name.values()),
                {name: queue_name[service.queue_id] for name, service in services.items()},
                {name: service.contracts for name, service in services.items()},
                metadata.message_types(db),
                metadata.contracts(db),
                metadata.priorities(db),
                permission.permissions(db)[0],
                permission.bindings(db),
            )
    except sqlite3.Error:
        return None

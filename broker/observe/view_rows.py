"""
Rows of the instance's views that are read from the files of its databases, whenever somebody asks.

Blocking, so for a thread. A file that cannot be read leaves its rows out; `sys.databases` tells that something is wrong
with it.
"""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from broker.dialog.endpoint import Endpoint
from broker.errors import StoreUnavailableError
from broker.observe.database_stats import read_ledger
from broker.observe.instance import Running
from broker.observe.snapshot import (
    HeldCopy,
    connection_values,
    copy_held,
    held_values,
    mirror_rows,
    read_drops,
    read_mirrors,
)
from broker.observe.views import (
    DATABASE_MIRRORING,
    DATABASES,
    DISPOSITIONS,
    LEDGER,
    MIRRORS,
    QUEUE_MONITORS,
    Row,
    RowSource,
    make_row,
)
from broker.routing.mirrored import MirrorRole, OwnRoleStatus
from broker.store.sqlite.database import open_watch, origin
from broker.store.sqlite.lookup import handles_of
from broker.store.sqlite.reader_slots import queue_monitors

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


# --- own_role ---
# Rows of `sys.database_mirroring`: what this instance is for each of its databases.
#
# States and roles have the original's numbers and words where it has them. There is nothing between two copies to
# keep
# in step, so a database with a partner is `SYNCHRONIZED`, `PENDING_FAILOVER` while it is left to the partner, and
# `SUSPENDED` while something keeps this instance from its role.
#
# Source: Service Broker's product documentation, "sys.database_mirroring".


_ROLES = {MirrorRole.PRINCIPAL: (1, "PRINCIPAL"), MirrorRole.MIRROR: (2, "MIRROR")}
_SUSPENDED, _PENDING_FAILOVER, _SYNCHRONIZED = (0, "SUSPENDED"), (3, "PENDING_FAILOVER"), (4, "SYNCHRONIZED")


def role_rows(standings: Mapping[str, OwnRoleStatus]) -> Iterator[tuple[object, ...]]:
    """One row for each database; NULL state and role where `mirroring` is off, as in the original."""
    for name, standing in standings.items():
        is_mirrored = standing.source != "off"
        state, role = _state(standing) if is_mirrored else (None, None), _ROLES[standing.role]
        partner = standing.principal if standing.role is MirrorRole.MIRROR else ""
        yield make_row(
            DATABASE_MIRRORING,
            mirroring_guid=None if standing.broker_instance is None else UUID(bytes=standing.broker_instance),
            mirroring_state=state[0],
            mirroring_state_desc=state[1],
            mirroring_role=role[0] if is_mirrored else None,
            mirroring_role_desc=role[1] if is_mirrored else None,
            mirroring_role_sequence=standing.epoch,
            mirroring_partner_name=partner or None,
            database_name=name,
            role_since=datetime.fromtimestamp(standing.since, UTC),
            role_source=standing.source,
            problem=standing.problem or None,
        )


def _state(standing: OwnRoleStatus) -> tuple[int, str]:
    if standing.is_resting:
        return _PENDING_FAILOVER
    return _SUSPENDED if standing.problem else _SYNCHRONIZED


# --- row_readers ---
# Rows of the views that live in memory, made when somebody asks.
#
# A statement runs in a thread and the values belong to the loop, so each snapshot asks the loop to copy what it
# needs,
# in steps short enough not to hold up traffic, and makes rows of it in the thread. What is copied is whole: a held
# frame
# with the times it had at that moment.
#
# Source: Service Broker documentation, pages of the views; docs/views.md tells the meaning of every column.


ANSWER_SECONDS = 10.0  # for the loop to answer; a loop that is busy for longer has other troubles
SENDERS_A_STEP = 256  # dialogs asked about at once: a few milliseconds of the loop

_CONNECTIONS = "sys.dm_broker_connections"
_MIB = 1024 * 1024
_CERTIFICATE_AUTH = 4
_ENDPOINT_ALGORITHMS = {"disabled": (0, "NONE"), "supported": (4, "NONE, AES"), "required": (2, "AES")}

_T = TypeVar("_T")


class Snapshots:
    """What the system views ask of an instance. Made on the loop; its methods are for other threads."""

    def __init__(self, instance: Running) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()

    def by_view(self) -> dict[str, RowSource]:
        """What gives the rows of each view."""
        return {
            _CONNECTIONS: self.connections,
            "sys.dm_broker_forwarded_messages": self.forwarded_messages,
            "sys.service_broker_endpoints": self.endpoints,
            DISPOSITIONS: self.dispositions,
            DATABASE_MIRRORING: self.roles,
            MIRRORS: self.mirrors,
        }

    def connections(self) -> list[Row]:
        """One row for each connection to an adjacent instance."""
        return self._ask(self._read_connections)

    def endpoints(self) -> list[Row]:
        """The endpoint of this instance: one row."""
        return self._ask(self._read_endpoints)

    def dispositions(self) -> list[Row]:
        """One row for each reason for which frames were dropped, in each database and in the pass."""
        return self._ask(lambda: read_drops(self._instance, self._clock_zero()))

    def roles(self) -> list[Row]:
        """What the instance is for each of its databases."""
        return list(role_rows(self._ask(self._instance.standings)))

    def mirrors(self) -> list[Row]:
        """One row for each mirrored pair in use."""
        return list(mirror_rows(self._ask(lambda: read_mirrors(self._instance.mirrors, self._loop.time()))))

    def forwarded_messages(self) -> Iterator[Row]:
        """One row for each frame that waits here for its next hop."""
        for copy in self._ask(self._copy_held):
            for held in copy.frames:
                yield make_row("sys.dm_broker_forwarded_messages", **held_values(held, copy))

    def transmission_statuses(self) -> Mapping[bytes, str]:
        """
        What is known of each dialog that has something to send, by its conversation_handle.

        Raises:
            StoreUnavailableError: a file that cannot be read.
        """
        statuses: dict[bytes, str] = {}
        for endpoint in self._ask(lambda: list(self._instance.endpoints.values())):
            by_endpoint = dict(self._statuses(endpoint))
            if by_endpoint:
                handles = _handles(endpoint.path, by_endpoint)
                statuses.update((handle, by_endpoint[endpoint_id]) for endpoint_id, handle in handles)
        return statuses

    # --- asking the loop ---

    def _ask(self, question: Callable[[], _T]) -> _T:
        """The answer that the loop gives."""
        answer: Future[_T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001 - told by whoever waits
                answer.set_exception(error)

        self._loop.call_soon_threadsafe(ask)
        return answer.result(ANSWER_SECONDS)

    def _statuses(self, endpoint: Endpoint) -> Iterator[tuple[int, str]]:
        waiting = iter(self._ask(lambda: list(endpoint.transmitter.senders)))
        while step := list(islice(waiting, SENDERS_A_STEP)):
            yield from self._ask(lambda step=step: self._read_statuses(endpoint, step))  # type: ignore[misc]

    # --- on the loop ---

    def _read_statuses(self, endpoint: Endpoint, endpoint_ids: Iterable[int]) -> list[tuple[int, str]]:
        transmitter = endpoint.transmitter
        senders = [transmitter.senders.get(endpoint_id) for endpoint_id in endpoint_ids]
        return [(sender.endpoint_id, transmitter.status_of(sender)) for sender in senders if sender is not None]

    def _copy_held(self) -> list[HeldCopy]:
        now = self._loop.time()
        outboxes = self._instance.forwarder.table.all_outboxes()
        return [
            copy_held(outbox, self._instance.peers, self._instance.mirrors, now=now)
            for outbox in outboxes
            if outbox.held
        ]

    def _read_connections(self) -> list[Row]:
        at, arbitration = self._clock_zero(), self._instance.peers.hello.arbitration
        now = self._loop.time()
        links = self._instance.peers.links.values()
        return [make_row(_CONNECTIONS, **connection_values(link, arbitration, at, now)) for link in links]

    def _clock_zero(self) -> datetime:
        """When the loop's clock said 0."""
        return datetime.now(UTC) - timedelta(seconds=self._loop.time())

    def _read_endpoints(self) -> list[Row]:
        instance, pool = self._instance, self._instance.forwarder.pool
        endpoint, own = instance.settings.endpoint, instance.peers.handshaker.security.own
        listen = [f"{listener.host}:{listener.port}" for listener in instance.listeners]
        is_authenticating = endpoint.authentication == "certificate"
        algorithm, algorithm_desc = _ENDPOINT_ALGORITHMS[endpoint.encryption]
        row = make_row(
            "sys.service_broker_endpoints",
            name=instance.name,
            endpoint_id=1,
            protocol=2,
            protocol_desc="TCP",
            type=3,
            type_desc="SERVICE_BROKER",
            state=0 if listen else 1,
            state_desc="STARTED" if listen else "STOPPED",
            is_admin_endpoint=False,
            is_message_forwarding_enabled=endpoint.message_forwarding,
            message_forwarding_size=endpoint.message_forward_size // _MIB,
            connection_auth=_CERTIFICATE_AUTH if is_authenticating else None,
            connection_auth_desc="CERTIFICATE" if is_authenticating else None,
            certificate_id=None if own is None else own.fingerprint,
            encryption_algorithm=algorithm,
            encryption_algorithm_desc=algorithm_desc,
            listen=", ".join(listen),
            advertise=", ".join(instance.peers.hello.addresses),
            max_hops=endpoint.max_hops,
            forward_pool_bytes=pool.used_bytes,
            forward_pool_messages=pool.frames,
        )
        return [row]


def _handles(path: Path, endpoint_ids: Iterable[int]) -> list[tuple[int, bytes]]:
    """The conversation_handle of each endpoint that still exists."""
    try:
        with closing(open_watch(path)) as db:
            return handles_of(db, endpoint_ids)
    except sqlite3.Error as error:
        raise StoreUnavailableError(str(path), str(error)) from error

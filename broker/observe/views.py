"""
The system views of an instance: the columns of each, and the rows of those that live in memory.

A file view belongs to one database and is SQL over its file (`broker.store.sqlite.views`). The views here belong to the
instance. One that shows memory is one entry: its columns by name, each with the function that fills it from a
`Snapshot`, and the items that become rows. Others are read from the files of all databases; a file that cannot be read
leaves its rows out, and `sys.databases` shows that something is wrong with it.

Names, order and meaning of the columns are the original's; what does not exist here is NULL, and our own columns are at
the end. GUIDs are shown as upper-case text that compares without case, instants as `YYYY-MM-DD HH:MM:SS.mmm` in UTC,
bits as 0 and 1; bodies stay bytes and are shown as `0x...` with the result.

Source: Service Broker documentation, pages of the views named here; `views.toml` has the meaning of every column.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from broker.catalog.catalog import MSDB
from broker.errors import StoreUnavailableError
from broker.forwarding.held_frames import Held
from broker.observe.database_stats import read_ledger
from broker.observe.drops import FrameFields, frame_fields
from broker.observe.instance import Running
from broker.observe.message_catalogue import message_rows
from broker.observe.snapshot import LinkSnapshot, Snapshot, SnapshotSection, read_snapshot
from broker.routing.mirrored import MirrorRole, OwnRoleStatus
from broker.store.sqlite.database import origin
from broker.store.sqlite.reader_slots import activated_tasks, queue_monitors
from broker.store.sqlite.transaction import open_watch
from broker.store.sqlite.views import FILE_VIEWS

Row = tuple[object, ...]
RowSource = Callable[[], Iterable[Row]]
Column = Callable[[Any, Any], object]

MSDB_ID = 4  # its number in the original, whose first database of a user is 5


@dataclass(frozen=True)
class MemoryView:
    """
    A view of what an instance has in memory.

    Attributes:
        columns: By name, the function from an item and the snapshot to the value; UUIDs, instants and bools are values.
        items: Returns the items that become rows.
        sections: Of the snapshot that `items` needs.
    """

    name: str
    columns: Mapping[str, Column]
    items: Callable[[Snapshot], Iterable[Any]]
    sections: tuple[SnapshotSection, ...] = ()

    def rows(self, snapshot: Snapshot) -> Iterator[Row]:
        """A row for each item."""
        columns = tuple(self.columns.values())
        for item in self.items(snapshot):
            yield tuple([column(item, snapshot) for column in columns])


# --- how a column gets its value ---


def _value(value: object) -> Column:
    return lambda _item, _source: value


_null = _value(None)


def _of(path: str) -> Column:
    """An attribute of the item."""
    get = attrgetter(path)
    return lambda item, _source: get(item)


def _given(path: str) -> Column:
    """The same; NULL for an empty text."""
    get = attrgetter(path)
    return lambda item, _source: get(item) or None


def _utc(path: str) -> Column:
    """An attribute that is an instant of the loop's clock."""
    get = attrgetter(path)

    def read(item: object, snapshot: Snapshot) -> datetime | None:
        at = get(item)
        return None if at is None else snapshot.utc(at)

    return read


def _word(path: str) -> Column:
    """An attribute that is an enum, as its value."""
    get = attrgetter(path)
    return lambda item, _source: get(item) and str(get(item))


def _coded(name: str, get: Callable[[Any], tuple[object, object]]) -> dict[str, Column]:
    """A number of the original, and in a second column the word for it."""
    return {name: lambda item, _: get(item)[0], f"{name}_desc": lambda item, _: get(item)[1]}


def _same(*names: str, within: str = "") -> dict[str, Column]:
    """Columns that are named as the attributes are."""
    return {name: _of(within + name) for name in names}


# --- connections ---

_STATES = {"CONNECTED": 3, "LOGGED_IN": 4, "DRAINING": 4}
_CLOSED = 5
_LOGIN = ((1, "WAIT LOGIN NEGOTIATE"), (12, "ONLINE"))


def _encryption(link: LinkSnapshot) -> tuple[int | None, str]:
    """The original's number and word for a cipher suite; it has none for a cipher that it did not know."""
    if not link.cipher:
        return 0, "NONE"
    return (2, "AES") if "_AES_" in link.cipher else (None, link.cipher)


CONNECTIONS = MemoryView(
    "sys.dm_broker_connections",
    {
        "connection_id": _of("connection_id"),
        "transport_stream_id": _null,
        "state": lambda link, _: _STATES.get(link.status.state, _CLOSED),
        "state_desc": _of("status.state"),
        "connect_time": _utc("opened_at"),
        "login_time": _utc("online_at"),
        "last_activity_time": _utc("last_activity"),
        "authentication_method": lambda link, _: None if link.identity is None else "CERTIFICATE",
        "principal_name": _given("status.principal"),
        "remote_user_name": _null,
        "is_accept": _of("is_accept"),
        **_coded("login_state", lambda link: _LOGIN[link.peer_instance is not None]),
        "peer_certificate_id": lambda link, _: None if link.identity is None else link.identity.fingerprint,
        **_coded("encryption_algorithm", _encryption),
        "receives_posted": _null,
        "sends_posted": _null,
        "is_receive_flow_controlled": _of("is_paused"),
        "is_send_flow_controlled": _of("is_blocked"),
        "total_bytes_sent": _of("status.bytes_sent"),
        "total_bytes_received": _of("status.bytes_received"),
        "total_fragments_sent": _null,
        "total_fragments_received": _of("status.frames_received"),
        "total_sends": _of("sends"),
        "total_receives": _of("receives"),
        "peer_arbitration_id": _of("peer_arbitration"),
        "peer_name": lambda link, _: None if link.peer_instance is None else link.status.name,
        "peer_address": _of("status.address"),
        "peer_instance": _of("peer_instance"),
        "total_frames_rejected": _of("status.frames_rejected"),
        "peer_certificate_expiry_date": lambda link, _: None if link.identity is None else link.identity.not_after,
        "flow_state": _of("status.flow"),
        "flow_reason": _given("status.flow_reason"),
        "flow_since_time": _utc("activity_since"),
        "last_progress_time": _utc("progress_at"),
        "round_trip_ms": _of("status.round_trip_ms"),
    },
    attrgetter("links"),
    ("links",),
)

# --- frames that wait, frames that were dropped ---


class _HeldRow(Struct, frozen=True):
    fields: FrameFields
    held: Held
    address: str
    why: str


def _held_rows(snapshot: Snapshot) -> Iterator[_HeldRow]:
    for outbox in snapshot.held:
        for held in outbox.frames:
            yield _HeldRow(frame_fields(held.frame), held, outbox.address, outbox.why)


_PARTIES = ("to_service_name", "to_broker_instance", "from_service_name", "from_broker_instance")

FORWARDED_MESSAGES = MemoryView(
    "sys.dm_broker_forwarded_messages",
    {
        **_same("conversation_id", "is_initiator", *_PARTIES, within="fields."),
        "adjacent_broker_address": _of("address"),
        **_same("message_sequence_number", "message_fragment_number", within="fields."),
        **_same("hops_remaining", "time_to_live", within="fields."),
        "time_consumed": lambda row, snapshot: row.held.time_consumed(snapshot.loop_time) // 1000,
        "message_id": _of("fields.message_id"),
        "why_held": _of("why"),
        "held_ms": lambda row, snapshot: row.held.waited_ms(snapshot.loop_time),
        "frame_bytes": lambda row, _: len(row.held.frame),
    },
    _held_rows,
    ("held",),
)

DISPOSITIONS = MemoryView(
    "sys.dm_broker_dispositions",
    {
        "disposition": _of("disposition.value"),
        "message_number": lambda drop, _: drop.disposition.number or None,
        "database_name": _of("database"),
        "frames": _of("frames"),
        "last_time": _utc("last_at"),
        **_same("conversation_id", "is_initiator", *_PARTIES, within="fields."),
        **_same("message_sequence_number", "message_fragment_number", within="fields."),
        **_same("hops_remaining", "time_to_live", "message_id", within="fields."),
        "reason": _given("reason"),
    },
    attrgetter("drops"),
    ("drops",),
)

# --- the endpoint ---

_MIB = 1024 * 1024
_AUTHENTICATIONS = {"none": (None, None), "certificate": (4, "CERTIFICATE")}
_ENDPOINT_ALGORITHMS = {"disabled": (0, "NONE"), "supported": (4, "NONE, AES"), "required": (2, "AES")}


def _own_certificate(snapshot: Snapshot, _: Snapshot) -> str | None:
    return next((one.fingerprint for role, one in snapshot.transport.certificates if role == "own"), None)


ENDPOINTS = MemoryView(
    "sys.service_broker_endpoints",
    {
        "name": _of("name"),
        "endpoint_id": _value(1),
        "principal_id": _null,
        "protocol": _value(2),
        "protocol_desc": _value("TCP"),
        "type": _value(3),
        "type_desc": _value("SERVICE_BROKER"),
        **_coded("state", lambda one: (0, "STARTED") if one.listen else (1, "STOPPED")),
        "is_admin_endpoint": _value(False),
        "is_message_forwarding_enabled": _of("endpoint.message_forwarding"),
        "message_forwarding_size": lambda one, _: one.endpoint.message_forward_size // _MIB,
        **_coded("connection_auth", lambda one: _AUTHENTICATIONS[one.endpoint.authentication]),
        "certificate_id": _own_certificate,
        **_coded("encryption_algorithm", lambda one: _ENDPOINT_ALGORITHMS[one.endpoint.encryption]),
        "listen": lambda one, _: ", ".join(one.listen),
        "advertise": lambda one, _: ", ".join(one.advertise),
        "max_hops": _of("endpoint.max_hops"),
        "forward_pool_bytes": _of("forwarding.pool_bytes"),
        "forward_pool_messages": _of("forwarding.held"),
    },
    lambda snapshot: [snapshot],
    ("forwarding", "transport"),
)

# --- mirrored routes, and the roles of mirrored databases ---


def _reported_by(partner: str) -> dict[str, Column]:
    """The columns of the last report of a partner of a mirrored pair."""
    return {
        f"{partner}_probe_time": _utc(f"{partner}_seen.asked_at"),
        f"{partner}_answer_time": _utc(f"{partner}_seen.answered_at"),
        f"{partner}_role": _word(f"{partner}_seen.role"),
        f"{partner}_epoch": _of(f"{partner}_seen.epoch"),
        f"{partner}_problem": _given(f"{partner}_seen.problem"),
    }


MIRRORS = MemoryView(
    "sys.dm_broker_mirrors",
    {
        "route_name": _of("status.route"),
        **_same("remote_service_name", "broker_instance", within="pair."),
        "address": _word("pair.address"),
        "mirror_address": _word("pair.mirror_address"),
        "principal_address": _of("status.principal"),
        "state": _of("state"),
        "state_desc": _of("status.state"),
        "epoch": _of("status.epoch"),
        **_reported_by("address"),
        **_reported_by("mirror"),
        "next_probe_time": _utc("due"),
        "waiting_messages": _of("status.held"),
        "waiting_bytes": _of("status.held_bytes"),
        "alarm": _given("status.alarm"),
    },
    attrgetter("mirrors"),
    ("mirrors",),
)

_ROLES = {MirrorRole.PRINCIPAL: (1, "PRINCIPAL"), MirrorRole.MIRROR: (2, "MIRROR")}


class _RoleRow(Struct, frozen=True):
    """NULL state and role where `mirroring` is off, as in the original."""

    name: str
    role: OwnRoleStatus

    @property
    def state(self) -> tuple[int | None, str | None]:
        """
        As the original's states: nothing has to be kept in step between two copies, so a database with a partner is
        SYNCHRONIZED, or PENDING_FAILOVER while it is left to the partner, or SUSPENDED while it cannot have its role.
        """
        if self.role.source == "off":
            return None, None
        if self.role.is_resting:
            return 3, "PENDING_FAILOVER"
        return (0, "SUSPENDED") if self.role.problem else (4, "SYNCHRONIZED")

    @property
    def mirroring_role(self) -> tuple[int | None, str | None]:
        """The original's number and word."""
        return (None, None) if self.role.source == "off" else _ROLES[self.role.role]


DATABASE_MIRRORING = MemoryView(
    "sys.database_mirroring",
    {
        "database_id": _null,
        "mirroring_guid": lambda row, _: row.role.broker_instance and uuid.UUID(bytes=row.role.broker_instance),
        **_coded("mirroring_state", attrgetter("state")),
        **_coded("mirroring_role", attrgetter("mirroring_role")),
        "mirroring_role_sequence": _of("role.epoch"),
        # The instance that has taken the database over.
        "mirroring_partner_name": lambda row, _: (row.role.role is MirrorRole.MIRROR and row.role.principal) or None,
        "mirroring_failover_lsn": _null,
        "database_name": _of("name"),
        "role_since": lambda row, _: datetime.fromtimestamp(row.role.since, UTC),
        "role_source": _of("role.source"),
        "problem": _given("role.problem"),
    },
    lambda snapshot: (_RoleRow(*one) for one in snapshot.roles),
    ("roles",),
)

SNAPSHOT_VIEWS = (CONNECTIONS, FORWARDED_MESSAGES, ENDPOINTS, DATABASE_MIRRORING, DISPOSITIONS, MIRRORS)
ANSWER_SECONDS = 10.0  # for the loop to answer; a loop that is busy for longer has other troubles


def rows_of_running(instance: Running) -> dict[str, RowSource]:
    """
    Return the source of the rows of each view of a running instance. Loop-only; the sources are for other threads.

    A statement runs in a thread, while the values belong to the loop. So the loop copies what a view needs, whole: a
    frame that waits with the times that it had at that moment. The rows are made of it in the thread.
    """
    loop = asyncio.get_running_loop()

    async def copy(view: MemoryView) -> Snapshot:
        return read_snapshot(instance, view.sections)

    def rows(view: MemoryView) -> Iterator[Row]:
        return view.rows(asyncio.run_coroutine_threadsafe(copy(view), loop).result(ANSWER_SECONDS))

    return {view.name: partial(rows, view) for view in SNAPSHOT_VIEWS}


# --- views that are read from the files of databases ---


def database_ids(databases: Iterable[str]) -> dict[str, int]:
    """A number for each database: 4 for msdb, the others from 5 on by name; a new one may move those after it."""
    return {MSDB: MSDB_ID} | {name: MSDB_ID + 1 + at for at, name in enumerate(sorted({*databases} - {MSDB}))}


def find_name(name: str, names: Iterable[str]) -> str | None:
    """Find the name itself, or the only one that differs in case alone; None when there is neither."""
    alike = [known for known in names if known.casefold() == name.casefold()]
    return name if name in alike else alike[0] if len(alike) == 1 else None


def _database_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    """One that cannot be read is not enabled: nothing can be sent or received there."""
    ids = database_ids(databases)
    for name, path in databases.items():
        guid, is_enabled, made = None, False, None
        with suppress(sqlite3.Error), closing(open_watch(path)) as db:
            identity, made_at = origin(db)
            guid, is_enabled, made = uuid.UUID(bytes=identity), True, datetime.fromtimestamp(made_at, UTC)
        yield name, ids[name], guid, is_enabled, made, False, True, str(path)


def _monitor_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    ids = database_ids(databases)
    for name, path in databases.items():
        with suppress(sqlite3.Error):
            for one in queue_monitors(path):
                times = map(_wall_time, (one.last_empty_rowset_time, one.last_activated_time))
                yield (
                    ids[name],
                    one.queue_id,
                    str(one.state),
                    *times,
                    one.tasks_waiting,
                    name,
                    one.queue_name,
                    one.readers,
                )


def _task_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    """One for each worker of a reader."""
    ids = database_ids(databases)
    for name, path in databases.items():
        with suppress(sqlite3.Error):
            for queue_id, one in activated_tasks(path):
                for task in range(one.tasks):
                    is_waiting = task < one.tasks_waiting
                    ours = (name, one.queue_name, is_waiting)
                    yield (one.process_id, ids[name], queue_id, one.procedure_name, None, *ours)


def _wall_time(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)


def _ledger_rows(databases: Mapping[str, Path]) -> Iterator[Row]:
    for name, path in databases.items():
        balance = None if name == MSDB else read_ledger(path)
        if balance is not None:
            yield from ((name, *entry) for entry in balance.entries())


@dataclass(frozen=True)
class OwnView:
    """A view without a snapshot: its rows are read from the files of the databases, or are always the same."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[Mapping[str, Path]], Iterator[Row]]


DATABASES = OwnView(
    "sys.databases",
    (
        "name",
        "database_id",
        "service_broker_guid",
        "is_broker_enabled",
        "create_date",
        "is_trustworthy_on",
        "is_honor_broker_priority_on",
        "path",
    ),
    _database_rows,
)
QUEUE_MONITORS = OwnView(
    "sys.dm_broker_queue_monitors",
    (
        "database_id",
        "queue_id",
        "state",
        "last_empty_rowset_time",
        "last_activated_time",
        "tasks_waiting",
        "database_name",
        "queue_name",
        "readers",
    ),
    _monitor_rows,
)
ACTIVATED_TASKS = OwnView(
    "sys.dm_broker_activated_tasks",
    ("spid", "database_id", "queue_id", "procedure_name", "execute_as", "database_name", "queue_name", "is_waiting"),
    _task_rows,
)
LEDGER = OwnView("sys.dm_broker_ledger", ("database_name", "entry", "reason", "messages"), _ledger_rows)

# --- the newest lines of the audit file; a line that is not an entry is left out ---

AUDIT = "sys.dm_broker_audit"
# Each column, and its name in the file.
AUDIT_COLUMNS = {
    "audit_time": "at",
    "request_id": "request",
    "principal_name": "who",
    "role": "role",
    "origin": "from",
    "operation": "operation",
    "database_name": "database",
    "statement": "statement",
    "target": "target",
    "outcome": "outcome",
    "problem": "problem",
    "unsaid": "unsaid",
}
AUDIT_ROWS_MAX = 10_000  # rows of one SELECT
INTEGER_MAX = 2**63 - 1  # of SQLite
BYTES_MAX = 32 * 1024 * 1024


def audit_rows(path: Path) -> list[tuple[object, ...]]:
    """
    The newest lines of the file, oldest first. Blocking.

    Raises:
        StoreUnavailableError: the file cannot be read.
    """
    try:
        lines = _last_lines(path, BYTES_MAX)
    except FileNotFoundError:
        return []  # none yet, or just rotated
    except OSError as error:
        raise StoreUnavailableError(str(path), error.strerror or str(error)) from error
    return list(islice(_audit_rows(reversed(lines)), AUDIT_ROWS_MAX))[::-1]


def _last_lines(file: Path, most: int) -> list[bytes]:
    """The whole lines among the last bytes of a file."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        begin = max(0, size - most)
        opened.seek(begin)
        data = opened.read(size - begin)  # not `most`: memory is allocated for as much as is asked for
    lines = data.splitlines()
    return lines[1:] if begin else lines


def _audit_rows(lines: Iterator[bytes]) -> Iterator[tuple[object, ...]]:
    for line in lines:
        try:
            entry = json.loads(line)
            at = datetime.fromisoformat(entry["at"]).astimezone(UTC)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        yield (at, *(_shown(entry.get(key)) for key in list(AUDIT_COLUMNS.values())[1:]))


def _shown(value: Any) -> object:
    """Convert any value of the file to one that a view can hold."""
    if isinstance(value, int) and not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
        return str(value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


# --- which views there are, and which columns each has ---

_SYS_SCHEMA = 4  # the number of the schema `sys` in the original


def _view_rows(_: Mapping[str, Path]) -> Iterator[Row]:
    """By name; numbers are negative, as those of the original's own objects."""
    for position, name in enumerate(_ALL_COLUMNS, 1):
        schema, view = name.split(".", 1)
        yield view, -position, _SYS_SCHEMA, "V", "VIEW", True, schema, name in MEMORY_VIEWS


def _column_rows(_: Mapping[str, Path]) -> Iterator[Row]:
    """By view and in the order in which `SELECT *` gives them."""
    for number, (name, columns) in enumerate(_ALL_COLUMNS.items(), 1):
        schema, view = name.split(".", 1)
        for position, column in enumerate(columns, 1):
            yield -number, column, position, schema, view


SYSTEM_VIEWS = OwnView(
    "sys.system_views",
    ("name", "object_id", "schema_id", "type", "type_desc", "is_ms_shipped", "schema_name", "is_instance"),
    _view_rows,
)
SYSTEM_COLUMNS = OwnView(
    "sys.system_columns", ("object_id", "name", "column_id", "schema_name", "view_name"), _column_rows
)
MESSAGES = OwnView(
    "sys.messages",
    ("message_id", "language_id", "severity", "is_event_logged", "text", "reason", "remedy"),
    lambda _: message_rows(),
)
OWN_VIEWS = (DATABASES, QUEUE_MONITORS, ACTIVATED_TASKS, LEDGER, SYSTEM_VIEWS, SYSTEM_COLUMNS, MESSAGES)
MEMORY_VIEWS: Mapping[str, tuple[str, ...]] = {
    **{view.name: tuple(view.columns) for view in (*SNAPSHOT_VIEWS, *OWN_VIEWS)},
    AUDIT: tuple(AUDIT_COLUMNS),
}
_ALL_COLUMNS: Mapping[str, Iterable[str]] = dict(
    sorted({**{name: view.columns for name, view in FILE_VIEWS.items()}, **MEMORY_VIEWS}.items())
)

# Columns of memory views that hold GUIDs: they compare without case, as the file's GUIDs do.
GUID_COLUMNS = frozenset(
    {"broker_instance", "connection_id", "conversation_id", "from_broker_instance", "message_id", "mirroring_guid"}
    | {"peer_arbitration_id", "peer_instance", "service_broker_guid", "to_broker_instance", "transport_stream_id"}
)

# Columns that hold an instant; a text compared with one is read as an instant, however it is written.
INSTANT_COLUMNS = frozenset(
    {"audit_time", "connect_time", "create_date", "enqueue_time", "last_activity_time", "lifetime", "login_time"}
    | {"message_enqueue_time", "last_activated_time", "last_empty_rowset_time", "last_time", "role_since"}
    | {"address_probe_time", "address_answer_time", "mirror_probe_time", "mirror_answer_time", "next_probe_time"}
    | {"peer_certificate_expiry_date"}
)

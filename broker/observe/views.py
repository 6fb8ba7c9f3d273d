"""
The catalogue of numbers: what each number and each reason means, when it is told, and what to do.

Whatever raises an error or drops a frame has the number and the sentence; here stands what else a person needs. The
texts are in the TOML files beside this module, a table for each number or reason. `sys.messages` shows them, and
`python -m tools.error_pages` makes a page of each. A test fails when a number of the code has no table here, or a table
no number of the code.

Source: Transact-SQL reference, "sys.messages"; SQL Server documentation, "Database Engine events and errors".
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from broker.errors import StatementError, StoreUnavailableError
from broker.store.sqlite.views import ROUTES

_TEXTS = Path(__file__).parent / "messages"


class MessageChannel(StrEnum):
    """Where a number is told; the word is the key of the tables `when` and `example`."""

    STATEMENT = "statement"
    SELECT = "select"
    APPLICATION = "application"
    DIALOG = "dialog"
    FRAME = "frame"
    CONNECTION = "connection"
    REQUEST = "request"
    START = "start"


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """
    One number or reason.

    Shape: `number` 0 where the original has none for it; `reason` the word of a disposition, empty for an error;
    `title` one sentence; `when` by place; `told` who hears of a dropped frame, or of a dialog that failed; `original`
    what the number means there; `example` by place what makes the error: a statement, a SELECT, Python.
    """

    number: int
    title: str
    when: Mapping[MessageChannel, str]
    remedy: str
    reason: str = ""
    told: str = ""
    original: str = ""
    example: Mapping[MessageChannel, str] = field(default_factory=dict)


@cache
def catalogue() -> Mapping[str, MessageEntry]:
    """All entries, by number and then by reason."""
    return read(_TEXTS)


def read(directory: Path) -> dict[str, MessageEntry]:
    """
    The entries of all TOML files of a directory, by number and then by reason.

    Raises:
        ValueError: two files have the same table.
    """
    tables: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("*.toml")):
        for key, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if key in tables:
                raise ValueError(f"{path.name} has a second table [{key}]")
            tables[key] = table
    return {key: _entry(key, tables[key]) for key in sorted(tables, key=_order)}


def _order(key: str) -> tuple[bool, int, str]:
    return (not key.isdigit(), int(key) if key.isdigit() else 0, key)


def _entry(key: str, table: dict[str, Any]) -> MessageEntry:
    number = int(key) if key.isdigit() else 0
    when = {MessageChannel(place): text for place, text in table.pop("when").items()}
    example = {MessageChannel(place): text.strip("\n") for place, text in table.pop("example", {}).items()}
    return MessageEntry(number=number, when=when, example=example, **table)


# --- audit ---
# The rows of sys.dm_broker_audit: the newest lines of the audit file.
#
# Read from the end, so that the size of the file does not matter. A line that is not an entry is left out.


AUDIT = "sys.dm_broker_audit"
# Each column, and what the file calls it.
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
ROWS_MAX = 10_000  # what one SELECT gives
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
    return list(islice(_rows(reversed(lines)), ROWS_MAX))[::-1]


def _last_lines(file: Path, most: int) -> list[bytes]:
    """The whole lines among the last bytes of a file."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        begin = max(0, size - most)
        opened.seek(begin)
        data = opened.read(size - begin)  # no more: memory is taken for as much as is asked for
    lines = data.splitlines()
    return lines[1:] if begin else lines


def _rows(lines: Iterator[bytes]) -> Iterator[tuple[object, ...]]:
    for line in lines:
        try:
            told = json.loads(line)
            at = datetime.fromisoformat(told["at"]).astimezone(UTC)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
        yield (at, *(_shown(told.get(key)) for key in list(AUDIT_COLUMNS.values())[1:]))


def _shown(value: Any) -> object:
    """A value that a view can hold, whatever somebody has written into the file."""
    if isinstance(value, int) and not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
        return str(value)
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


# --- discovery ---
# Which views there are, and which columns each has, as views themselves.
#
# `sys.system_views` and `sys.system_columns` are the original's names for it. What a person finds with them is what
# the
# `\d` of `broker sql` and the completion of names go by, so that they know a daemon's own views, of whatever release.
#
# Source: Transact-SQL reference, "sys.system_views", "sys.system_columns".


SYSTEM_VIEWS = "sys.system_views"
SYSTEM_COLUMNS = "sys.system_columns"
VIEW_COLUMNS = ("name", "object_id", "schema_id", "type", "type_desc", "is_ms_shipped", "schema_name", "is_instance")
COLUMN_COLUMNS = ("object_id", "name", "column_id", "schema_name", "view_name")

_SYS_SCHEMA = 4  # the number of the schema `sys` in the original


def view_rows(
    of_file: Mapping[str, Sequence[str]], of_instance: Mapping[str, Sequence[str]]
) -> Iterator[tuple[object, ...]]:
    """
    `sys.system_views`, by name.

    Shape: the columns of each view, by its name with the schema; negative numbers, as the original's own objects have.
    """
    for number, name in _numbered(of_file, of_instance):
        schema, _, view = name.partition(".")
        yield view, number, _SYS_SCHEMA, "V", "VIEW", True, schema, name in of_instance


def column_rows(
    of_file: Mapping[str, Sequence[str]], of_instance: Mapping[str, Sequence[str]]
) -> Iterator[tuple[object, ...]]:
    """`sys.system_columns`, by view and in the order in which `SELECT *` gives them."""
    known = {**of_file, **of_instance}
    for number, name in _numbered(of_file, of_instance):
        schema, _, view = name.partition(".")
        for place, column in enumerate(known[name], 1):
            yield number, column, place, schema, view


def _numbered(
    of_file: Mapping[str, Sequence[str]], of_instance: Mapping[str, Sequence[str]]
) -> Iterator[tuple[int, str]]:
    """Each view with its number."""
    for place, name in enumerate(sorted({*of_file, *of_instance}), 1):
        yield -place, name


# --- message ---
# `sys.messages`: what the numbers mean that this system tells, and what to do.
#
# Source: Transact-SQL reference, "sys.messages".


MESSAGES = "sys.messages"
MESSAGE_COLUMNS = ("message_id", "language_id", "severity", "is_event_logged", "text", "reason", "remedy")

_ENGLISH = 1033
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")  # in a text of the catalogue, which pages are made of too


def message_rows() -> Iterator[tuple[object, ...]]:
    """A row for each number, by number."""
    for entry in catalogue().values():
        if entry.number:
            remedy = _LINK.sub(r"\1", entry.remedy)
            yield entry.number, _ENGLISH, StatementError.severity, False, entry.title, entry.reason, remedy


# --- connection_columns ---
# Part of `broker.observe.snapshot`.


CONNECTION_COLUMNS = (
    "connection_id",
    "transport_stream_id",
    "state",
    "state_desc",
    "connect_time",
    "login_time",
    "last_activity_time",
    "authentication_method",
    "principal_name",
    "remote_user_name",
    "is_accept",
    "login_state",
    "login_state_desc",
    "peer_certificate_id",
    "encryption_algorithm",
    "encryption_algorithm_desc",
    "receives_posted",
    "sends_posted",
    "is_receive_flow_controlled",
    "is_send_flow_controlled",
    "total_bytes_sent",
    "total_bytes_received",
    "total_fragments_sent",
    "total_fragments_received",
    "total_sends",
    "total_receives",
    "peer_arbitration_id",
    "peer_name",
    "peer_address",
    "peer_instance",
    "total_frames_rejected",
    "peer_certificate_expiry_date",
    "flow_state",
    "flow_reason",
    "flow_since_time",
    "last_progress_time",
    "round_trip_ms",
)


# --- view ---
# What each system view of an instance is: its columns, in order.
#
# A file view belongs to one database and is SQL over that database's file (`broker.store.sqlite.views`). A memory view
# belongs to the instance; its rows are made by the daemon when they are asked for. Names, order and meaning of the
# columns are the original's; what does not exist here is NULL, and our own columns stand at the end.
#
# GUIDs are shown as upper-case text that compares without case, instants as `YYYY-MM-DD HH:MM:SS.mmm` in UTC, bits as
# 0 and 1; bodies stay bytes and are shown as `0x...` with the result.
#
# Source: Service Broker documentation, pages of the views named here; docs/views.md tells the meaning of every
# column.


Row = tuple[object, ...]
RowSource = Callable[[], Iterable[Row]]

UNTRIED = "waiting: not tried yet"  # the status of a message about which the daemon says nothing

DATABASES = "sys.databases"
QUEUE_MONITORS = "sys.dm_broker_queue_monitors"
LEDGER = "sys.dm_broker_ledger"
DATABASE_MIRRORING = "sys.database_mirroring"
DISPOSITIONS = "sys.dm_broker_dispositions"
MIRRORS = "sys.dm_broker_mirrors"
MSDB_ROUTES = "msdb.sys.routes"  # the memory view that stands for the table where msdb is no file

MEMORY_VIEWS: Mapping[str, tuple[str, ...]] = {
    DATABASES: ("name", "database_id", "service_broker_guid", "is_broker_enabled", "create_date", "path"),
    "sys.dm_broker_connections": CONNECTION_COLUMNS,
    "sys.dm_broker_forwarded_messages": (
        "conversation_id",
        "is_initiator",
        "to_service_name",
        "to_broker_instance",
        "from_service_name",
        "from_broker_instance",
        "adjacent_broker_address",
        "message_sequence_number",
        "message_fragment_number",
        "hops_remaining",
        "time_to_live",
        "time_consumed",
        "message_id",
        "why_held",
        "held_ms",
        "frame_bytes",
    ),
    "sys.service_broker_endpoints": (
        "name",
        "endpoint_id",
        "principal_id",
        "protocol",
        "protocol_desc",
        "type",
        "type_desc",
        "state",
        "state_desc",
        "is_admin_endpoint",
        "is_message_forwarding_enabled",
        "message_forwarding_size",
        "connection_auth",
        "connection_auth_desc",
        "certificate_id",
        "encryption_algorithm",
        "encryption_algorithm_desc",
        "listen",
        "advertise",
        "max_hops",
        "forward_pool_bytes",
        "forward_pool_messages",
    ),
    QUEUE_MONITORS: (
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
    DATABASE_MIRRORING: (
        "database_id",
        "mirroring_guid",
        "mirroring_state",
        "mirroring_state_desc",
        "mirroring_role",
        "mirroring_role_desc",
        "mirroring_role_sequence",
        "mirroring_partner_name",
        "mirroring_failover_lsn",
        "database_name",
        "role_since",
        "role_source",
        "problem",
    ),
    DISPOSITIONS: (
        "disposition",
        "message_number",
        "database_name",
        "frames",
        "last_time",
        "conversation_id",
        "is_initiator",
        "to_service_name",
        "to_broker_instance",
        "from_service_name",
        "from_broker_instance",
        "message_sequence_number",
        "message_fragment_number",
        "hops_remaining",
        "time_to_live",
        "message_id",
        "reason",
    ),
    MIRRORS: (
        "route_name",
        "remote_service_name",
        "broker_instance",
        "address",
        "mirror_address",
        "principal_address",
        "state",
        "state_desc",
        "epoch",
        "address_probe_time",
        "address_answer_time",
        "address_role",
        "address_epoch",
        "address_problem",
        "mirror_probe_time",
        "mirror_answer_time",
        "mirror_role",
        "mirror_epoch",
        "mirror_problem",
        "next_probe_time",
        "waiting_messages",
        "waiting_bytes",
        "alarm",
    ),
    LEDGER: ("database_name", "entry", "reason", "messages"),
    AUDIT: tuple(AUDIT_COLUMNS),
    SYSTEM_VIEWS: VIEW_COLUMNS,
    SYSTEM_COLUMNS: COLUMN_COLUMNS,
    MESSAGES: MESSAGE_COLUMNS,
    MSDB_ROUTES: tuple(ROUTES.columns),
}

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


def make_row(view: str, **values: object) -> tuple[object, ...]:
    """
    A row of a memory view, from the values by column name.

    Columns not named are NULL. A name that is no column of the view is a bug of the caller.
    """
    columns = MEMORY_VIEWS[view]
    assert values.keys() <= set(columns), f"{view} has no column {sorted(values.keys() - set(columns))}"
    return tuple(values.get(column) for column in columns)

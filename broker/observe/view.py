"""
What each system view of an instance is: its columns, in order.

A file view belongs to one database and is SQL over that database's file (`broker.store.system_view`). A memory view
belongs to the instance; its rows are made by the daemon when they are asked for. Names, order and meaning of the
columns are the original's; what does not exist here is NULL, and our own columns stand at the end.

GUIDs are shown as upper-case text that compares without case, instants as `YYYY-MM-DD HH:MM:SS.mmm` in UTC, bits as
0 and 1; bodies stay bytes and are shown as `0x...` with the result.

Source: Service Broker documentation, pages of the views named here; docs/views.md tells the meaning of every column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from broker.observe.audit import AUDIT
from broker.observe.audit import COLUMNS as AUDIT_COLUMNS
from broker.observe.connection_columns import CONNECTION_COLUMNS
from broker.observe.discovery import COLUMN_COLUMNS, SYSTEM_COLUMNS, SYSTEM_VIEWS, VIEW_COLUMNS
from broker.observe.message import MESSAGE_COLUMNS, MESSAGES
from broker.store.system_view import ROUTES

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

"""
What each system view is: its columns, in order, and where their values come from.

A `FileView` belongs to one database and is an SQL view over that database's file, so a million rows cost nothing until
somebody asks for them. A memory view belongs to the instance; its rows are made by the daemon when they are asked for.
Names, order and meaning of the columns are the original's; what does not exist here is NULL, and our own columns stand
at the end. No user's text ever enters the SQL of this file.

GUIDs are shown as upper-case text that compares without case, instants as `YYYY-MM-DD HH:MM:SS.mmm` in UTC, bits as
0 and 1; bodies stay bytes and are shown as `0x...` with the result.

Source: Service Broker documentation, pages of the views named here; docs/views.md tells the meaning of every column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.dialog.conversation import State
from broker.observe.function import GUID
from broker.wire.layout import Flag

STATUS_FUNCTION = "transmission_status"  # SQL function: conversation_handle (blob) -> text
UNTRIED = "waiting: not tried yet"  # the status of a message about which the daemon says nothing


@dataclass(frozen=True, slots=True)
class FileView:
    """
    A view of one database.

    Shape: `columns` name -> SQL over `source`; in both `{db}` stands for the attached file, `{now}` for UTC seconds,
    `{queue_id}` for the number of a queue.
    """

    columns: Mapping[str, str]
    source: str

    def render(self, *, db: str, now: float, queue_id: int = 0) -> str:
        """The SELECT of this view over the file attached as `db`."""
        columns = ", ".join(f"{sql} AS {name}" for name, sql in self.columns.items())
        text = f"SELECT {columns} FROM {self.source}"  # noqa: S608 - made of this file's own words
        return text.format(db=db, now=repr(now), queue_id=queue_id)

    def render_empty(self) -> str:
        """The SELECT of this view where there is no file: the same columns, no row."""
        return f"SELECT {', '.join(f'NULL AS {name}' for name in self.columns)} WHERE 0"


def _guid(column: str) -> str:
    return f"{GUID}({column}) COLLATE NOCASE"


def _instant(column: str) -> str:
    return f"strftime('%Y-%m-%d %H:%M:%f', {column}, 'unixepoch')"


def _out_of_order(what: str, order: str) -> str:
    place = "(f.message_sequence_number, f.fragment_number) > (c.receive_sequence, c.receive_sequence_frag)"
    early = f"{{db}}.broker_fragment f WHERE f.endpoint_id = c.endpoint_id AND {place}"
    by_place = f"f.message_sequence_number {order}, f.fragment_number {order}"
    return f"(SELECT f.{what} FROM {early} ORDER BY {by_place} LIMIT 1)"  # noqa: S608 - made of this file's own words


_STATE_DESC = "CASE c.state " + " ".join(f"WHEN '{state.value}' THEN '{state.name}'" for state in State) + " END"

ROUTES = FileView(
    {
        "name": "r.name",
        "route_id": "r.route_id",
        "principal_id": "NULL",
        "remote_service_name": "r.remote_service_name",
        "broker_instance": _guid("r.broker_instance"),
        "lifetime": _instant("r.lifetime"),
        "address": "r.address",
        "mirror_address": "r.mirror_address",
        "weight": "r.weight",
        "is_expired": "coalesce(r.lifetime <= {now}, 0)",
    },
    "{db}.broker_route r",
)

_SERVICES = FileView(
    {
        "name": "s.name",
        "service_id": "s.service_id",
        "principal_id": "NULL",
        "service_queue_id": "s.queue_id",
        "queue_name": "(SELECT q.name FROM {db}.broker_queue q WHERE q.queue_id = s.queue_id)",
        "contracts": "s.contracts",
    },
    "{db}.broker_service s",
)

_SERVICE_QUEUES = FileView(
    {
        "name": "q.name",
        "object_id": "q.queue_id",
        "principal_id": "NULL",
        "type": "'SQ'",
        "type_desc": "'SERVICE_QUEUE'",
        "max_readers": "NULL",
        "activation_procedure": "NULL",
        "execute_as_principal_id": "NULL",
        "is_activation_enabled": "0",
        "is_receive_enabled": "q.is_receive_enabled",
        "is_enqueue_enabled": "q.is_receive_enabled",
        "is_retention_enabled": "0",
        "is_poison_message_handling_enabled": "0",
        "message_count": "(SELECT count(*) FROM {db}.broker_message m WHERE m.queue_id = q.queue_id)",
    },
    "{db}.broker_queue q",
)

_CONVERSATION_ENDPOINTS = FileView(
    {
        "conversation_handle": _guid("c.conversation_handle"),
        "conversation_id": _guid("c.conversation_id"),
        "is_initiator": "c.is_initiator",
        "service_contract_id": "NULL",
        "conversation_group_id": _guid("c.conversation_group_id"),
        "service_id": "(SELECT s.service_id FROM {db}.broker_service s WHERE s.name = c.service_name)",
        "lifetime": _instant("c.lifetime"),
        "state": "c.state",
        "state_desc": _STATE_DESC,
        "far_service": "c.far_service",
        "far_broker_instance": _guid("c.far_broker_instance"),
        "principal_id": "NULL",
        "far_principal_id": "NULL",
        "outbound_session_key_identifier": "NULL",
        "inbound_session_key_identifier": "NULL",
        "security_timestamp": "NULL",
        "dialog_timer": "NULL",
        "send_sequence": "c.send_sequence",
        "last_send_tran_id": "NULL",
        "end_dialog_sequence": "c.end_dialog_sequence",
        "receive_sequence": "c.receive_sequence",
        "receive_sequence_frag": "c.receive_sequence_frag",
        "system_sequence": "NULL",
        "first_out_of_order_sequence": _out_of_order("message_sequence_number", "ASC"),
        "last_out_of_order_sequence": _out_of_order("message_sequence_number", "DESC"),
        "last_out_of_order_frag": _out_of_order("fragment_number", "DESC"),
        "is_system": "0",
        "priority": "NULL",
        "service_name": "c.service_name",
        "service_contract_name": "c.contract",
        "create_date": _instant("c.create_date"),
        "acknowledged_sequence": "c.acknowledged_sequence",
        "early_fragments": "c.early_fragments",
    },
    "{db}.broker_conversation c",
)

_TRANSMISSION_QUEUE = FileView(
    {
        "conversation_handle": _guid("c.conversation_handle"),
        "to_service_name": "c.far_service",
        "to_broker_instance": _guid("c.far_broker_instance"),
        "from_service_name": "c.service_name",
        "service_contract_name": "c.contract",
        "enqueue_time": _instant("t.enqueue_time"),
        "message_sequence_number": "t.message_sequence_number",
        "message_type_name": "t.message_type_name",
        "is_conversation_error": f"CAST((t.flags & {int(Flag.ERROR)}) <> 0 AS INTEGER)",
        "is_end_of_dialog": f"CAST((t.flags & {int(Flag.END_DIALOG)}) <> 0 AS INTEGER)",
        "message_body": "t.message_body",
        "transmission_status": f"{STATUS_FUNCTION}(c.conversation_handle)",
        "priority": "NULL",
        "conversation_id": _guid("c.conversation_id"),
        "body_bytes": "length(t.message_body)",
    },
    "{db}.broker_transmission t LEFT JOIN {db}.broker_conversation c USING (endpoint_id)",
)

# What `SELECT * FROM [BillingQueue]` reads: a look at the queue that takes nothing out of it.
QUEUE = FileView(
    {
        "status": "1",
        "queuing_order": "m.queuing_order",
        "conversation_handle": _guid("c.conversation_handle"),
        "message_sequence_number": "m.message_sequence_number",
        "service_name": "c.service_name",
        "message_type_name": "m.message_type_name",
        "message_body": "m.message_body",
        "message_enqueue_time": _instant("m.message_enqueue_time"),
        "body_bytes": "length(m.message_body)",
    },
    "{db}.broker_message m LEFT JOIN {db}.broker_conversation c USING (endpoint_id) WHERE m.queue_id = {queue_id}",
)

FILE_VIEWS: Mapping[str, FileView] = {
    "sys.routes": ROUTES,
    "sys.services": _SERVICES,
    "sys.service_queues": _SERVICE_QUEUES,
    "sys.conversation_endpoints": _CONVERSATION_ENDPOINTS,
    "sys.transmission_queue": _TRANSMISSION_QUEUE,
}

DATABASES = "sys.databases"
MSDB_ROUTES = "msdb.sys.routes"  # the memory view that stands for the table where msdb is no file

MEMORY_VIEWS: Mapping[str, tuple[str, ...]] = {
    DATABASES: ("name", "service_broker_guid", "is_broker_enabled", "create_date", "path"),
    "sys.dm_broker_connections": (
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
    ),
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
    MSDB_ROUTES: tuple(ROUTES.columns),
}

# Columns of memory views that hold GUIDs: they compare without case, as the file's GUIDs do.
GUID_COLUMNS = frozenset(
    {
        "broker_instance",
        "connection_id",
        "conversation_id",
        "from_broker_instance",
        "message_id",
        "peer_arbitration_id",
        "peer_instance",
        "service_broker_guid",
        "to_broker_instance",
        "transport_stream_id",
    }
)

# Columns that hold an instant; a text compared with one is read as an instant, however it is written.
INSTANT_COLUMNS = frozenset(
    {"connect_time", "create_date", "enqueue_time", "last_activity_time", "lifetime", "login_time"}
    | {"message_enqueue_time"}
)


def make_row(view: str, **values: object) -> tuple[object, ...]:
    """
    A row of a memory view, from the values by column name.

    Columns not named are NULL. A name that is no column of the view is a bug of the caller.
    """
    columns = MEMORY_VIEWS[view]
    assert values.keys() <= set(columns), f"{view} has no column {sorted(values.keys() - set(columns))}"
    return tuple(values.get(column) for column in columns)

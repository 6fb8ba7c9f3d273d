"""
The system views that belong to one database: each an SQL view over its tables.

Names, order and meaning of the columns are the original's; what does not exist here is NULL, and our own columns stand
at the end. GUIDs are shown as upper-case text that compares without case, instants as `YYYY-MM-DD HH:MM:SS.mmm` in UTC,
bits as 0 and 1. What only the daemon knows comes from functions of SQL that whoever asks has to give
(`broker.store.file_view`).

Source: Service Broker documentation, pages of the views named here; docs/views.md tells the meaning of every column.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.conversation.state import ConversationState
from broker.protocol.layout import Flag
from broker.store.agreement_view import AGREEMENT_VIEWS, contract_id
from broker.store.file_view import STATUS_FUNCTION, FileView, guid, instant
from broker.store.permission_view import PERMISSION_VIEWS
from broker.store.secured import sentence_sql


def _out_of_order(what: str, order: str) -> str:
    place = "(f.message_sequence_number, f.fragment_number) > (c.receive_sequence, c.receive_sequence_frag)"
    early = f"{{db}}.broker_fragment f WHERE f.endpoint_id = c.endpoint_id AND {place}"
    by_place = f"f.message_sequence_number {order}, f.fragment_number {order}"
    return f"(SELECT f.{what} FROM {early} ORDER BY {by_place} LIMIT 1)"  # noqa: S608 - made of this file's own words


_STATE_DESC = (
    "CASE c.state " + " ".join(f"WHEN '{state.value}' THEN '{state.name}'" for state in ConversationState) + " END"
)

ROUTES = FileView(
    {
        "name": "r.name",
        "route_id": "r.route_id",
        "principal_id": "NULL",
        "remote_service_name": "r.remote_service_name",
        "broker_instance": guid("r.broker_instance"),
        "lifetime": instant("r.lifetime"),
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
        "is_poison_message_handling_enabled": "q.is_poison_message_handling_enabled",
        "message_count": "(SELECT count(*) FROM {db}.broker_message m WHERE m.queue_id = q.queue_id)",
    },
    "{db}.broker_queue q",
)

# A closed side is known by its tombstone alone, which is kept until `security_timestamp`.
_OF_OPEN = (
    "conversation_handle, conversation_group_id, lifetime, far_service, far_broker_instance, service_name, contract,"
    " create_date, dialog_timer, send_sequence, acknowledged_sequence, end_dialog_sequence, early_fragments, priority,"
    " endpoint_id"
)
_OF_BOTH = "conversation_id, is_initiator, receive_sequence, receive_sequence_frag"
_BOTH_KINDS = (
    f"(SELECT {_OF_OPEN}, {_OF_BOTH}, state, NULL AS security_timestamp FROM {{db}}.broker_conversation UNION ALL"  # noqa: S608
    f" SELECT conversation_handle{', NULL' * _OF_OPEN.count(',')}, {_OF_BOTH}, 'CD', expire_time"
    " FROM {db}.broker_tombstone) c"
)

_KEY_OF = (
    "(SELECT k.{column} FROM {{db}}.broker_session_key k WHERE k.conversation_id = c.conversation_id"
    " AND k.is_initiator = c.is_initiator)"
)
_CONVERSATION_ENDPOINTS = FileView(
    {
        "conversation_handle": guid("c.conversation_handle"),
        "conversation_id": guid("c.conversation_id"),
        "is_initiator": "c.is_initiator",
        "service_contract_id": contract_id("c.contract"),
        "conversation_group_id": guid("c.conversation_group_id"),
        "service_id": "(SELECT s.service_id FROM {db}.broker_service s WHERE s.name = c.service_name)",
        "lifetime": instant("c.lifetime"),
        "state": "c.state",
        "state_desc": _STATE_DESC,
        "far_service": "c.far_service",
        "far_broker_instance": guid("c.far_broker_instance"),
        "principal_id": "NULL",
        "far_principal_id": "NULL",
        "outbound_session_key_identifier": "NULL",
        "inbound_session_key_identifier": "NULL",
        "security_timestamp": instant("c.security_timestamp"),
        "dialog_timer": instant("c.dialog_timer"),
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
        "priority": "c.priority",
        "service_name": "c.service_name",
        "service_contract_name": "c.contract",
        "create_date": instant("c.create_date"),
        "acknowledged_sequence": "c.acknowledged_sequence",
        "early_fragments": "c.early_fragments",
        "far_principal": _KEY_OF.format(column="far_principal"),
        "far_certificate": _KEY_OF.format(column="far_certificate"),
        "security_desc": sentence_sql(schema="{db}.", far_service="c.far_service"),
    },
    _BOTH_KINDS,
)

_CONVERSATION_GROUPS = FileView(
    {
        "conversation_group_id": guid("c.conversation_group_id"),
        "service_id": "(SELECT s.service_id FROM {db}.broker_service s WHERE s.name = c.service_name)",
        "is_system": "0",
        "service_name": "c.service_name",
        "conversations": "c.conversations",
    },
    "(SELECT conversation_group_id, min(service_name) AS service_name, count(*) AS conversations"
    " FROM {db}.broker_conversation GROUP BY conversation_group_id) c",
)

_TRANSMISSION_QUEUE = FileView(
    {
        "conversation_handle": guid("c.conversation_handle"),
        "to_service_name": "c.far_service",
        "to_broker_instance": guid("c.far_broker_instance"),
        "from_service_name": "c.service_name",
        "service_contract_name": "c.contract",
        "enqueue_time": instant("t.enqueue_time"),
        "message_sequence_number": "t.message_sequence_number",
        "message_type_name": "t.message_type_name",
        "is_conversation_error": f"CAST((t.flags & {int(Flag.ERROR)}) <> 0 AS INTEGER)",
        "is_end_of_dialog": f"CAST((t.flags & {int(Flag.END_DIALOG)}) <> 0 AS INTEGER)",
        "message_body": "t.message_body",
        "transmission_status": f"{STATUS_FUNCTION}(c.conversation_handle)",
        "priority": "c.priority",
        "conversation_id": guid("c.conversation_id"),
        "body_bytes": "coalesce(t.body_length, length(t.message_body))",
    },
    "{db}.broker_transmission t LEFT JOIN {db}.broker_conversation c USING (endpoint_id)",
)

# What `SELECT * FROM [BillingQueue]` reads: a look at the queue that takes nothing out of it.
QUEUE = FileView(
    {
        "status": "m.status",
        "priority": "m.priority",
        "queuing_order": "m.queuing_order",
        "conversation_handle": guid("c.conversation_handle"),
        "message_sequence_number": "m.message_sequence_number",
        "service_name": "c.service_name",
        "message_type_name": "m.message_type_name",
        "message_body": "m.message_body",
        "message_enqueue_time": instant("m.message_enqueue_time"),
        "body_bytes": "length(m.message_body)",
    },
    "{db}.broker_message m LEFT JOIN {db}.broker_conversation c USING (endpoint_id) WHERE m.queue_id = {queue_id}",
)

FILE_VIEWS: Mapping[str, FileView] = {
    "sys.routes": ROUTES,
    "sys.services": _SERVICES,
    "sys.service_queues": _SERVICE_QUEUES,
    **AGREEMENT_VIEWS,
    **PERMISSION_VIEWS,
    "sys.conversation_endpoints": _CONVERSATION_ENDPOINTS,
    "sys.conversation_groups": _CONVERSATION_GROUPS,
    "sys.transmission_queue": _TRANSMISSION_QUEUE,
}

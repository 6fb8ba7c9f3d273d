"""
The system views that belong to one database: each an SQL view over its file, so a million rows cost nothing until read.

Names, order and meaning of the columns are the original's; columns without a counterpart here are NULL, and our own
columns are last. GUIDs are shown as upper-case text that compares without case, instants as `YYYY-MM-DD HH:MM:SS.mmm`
in UTC, bits as 0 and 1. Built-in
objects have no row in the file and are listed first, with the numbers of `broker.conversation.message_types`. A service
or priority may name a contract that no statement has made, whose number is NULL. Principals are texts and have no
numbers, so columns with numbers of principals are NULL, and the texts are in our own columns. No user's text ever
enters the SQL made here.

Source: Service Broker documentation, pages of the views named here; SQL documentation, "sys.server_permissions",
"sys.database_permissions". `broker/observe/views.toml` gives the meaning of every column.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker.conversation.message_types import CONTRACTS, MESSAGE_TYPES, SentBy, Validation
from broker.conversation.state import ON_ITS_WAY, ConversationState
from broker.protocol.layout import Flag
from broker.store.sqlite.metadata import FIRST_ID
from broker.store.sqlite.session_keys import sentence_sql

GUID_FUNCTION = "guid_text"  # SQL function of the caller: a blob of 16 bytes -> text
BODIES = frozenset({"message_body"})  # columns with the contents of messages


@dataclass(frozen=True, slots=True)
class FileView:
    """
    A view of one database: for each column, its SQL over `source`.

    In both, `{db}` is the attached file, `{now}` UTC seconds, `{queue_id}` the number of a queue.
    """

    columns: Mapping[str, str]
    source: str

    def render(self, *, db: str, now: float, queue_id: int = 0, shows_bodies: bool = True) -> str:
        """The SELECT of this view over the file attached as `db`, with or without the bodies of messages."""
        shown = (
            self.columns if shows_bodies else {**self.columns, **dict.fromkeys(BODIES & self.columns.keys(), "NULL")}
        )
        columns = ", ".join(f"{sql} AS {name}" for name, sql in shown.items())
        text = f"SELECT {columns} FROM {self.source}"  # noqa: S608 - made of this file's own words
        return text.format(db=db, now=repr(now), queue_id=queue_id)


def guid(column: str) -> str:
    """A GUID as text that compares without case."""
    return f"{GUID_FUNCTION}({column}) COLLATE NOCASE"


def instant(column: str) -> str:
    """An instant as text."""
    return f"strftime('%Y-%m-%d %H:%M:%f', {column}, 'unixepoch')"


# --- columns and tables that several views have --------------------------------------------------------------------

# The original's letter and word; JSON is our own.
_VALIDATIONS = {
    Validation.NONE: ("N", "NONE"),
    Validation.EMPTY: ("E", "EMPTY"),
    Validation.WELL_FORMED_XML: ("X", "XML"),
    Validation.JSON: ("J", "JSON"),
}


def _text(value: str) -> str:
    """A literal of SQL; braces are doubled, for `FileView.render` formats the text."""
    return "'" + value.replace("'", "''").replace("{", "{{").replace("}", "}}") + "'"


def _values(columns: str, rows: list[tuple[object, ...]]) -> str:
    """A table of constants, in front of what is in the file."""
    named = [zip(row, columns.split(", "), strict=True) for row in rows]
    return " UNION ALL ".join("SELECT " + ", ".join(f"{value} AS {column}" for value, column in row) for row in named)


def _case(column: str, values: Mapping[str, str]) -> str:
    return f"CASE {column} " + " ".join(f"WHEN '{key}' THEN '{value}'" for key, value in values.items()) + " END"


_TYPES = _values(
    "message_type_id, name, validation",
    [(one.message_type_id, _text(one.name), _text(one.validation)) for one in MESSAGE_TYPES],
)
_CONTRACTS = _values("contract_id, name", [(one.service_contract_id, _text(one.name)) for one in CONTRACTS])
_USAGES = _values(
    "contract_id, message_type_id, sent_by",
    [(one.service_contract_id, kind, _text(by)) for one in CONTRACTS for kind, by in one.message_types.items()],
)


def contract_id(name: str) -> str:
    """The number of the contract of a name, as SQL; NULL when nothing has made it."""
    built_in = " ".join(f"WHEN {_text(one.name)} THEN {one.service_contract_id}" for one in CONTRACTS)
    stored = f"(SELECT k.contract_id FROM {{db}}.broker_contract k WHERE k.name = {name})"  # noqa: S608 - own words
    return f"CASE {name} {built_in} ELSE {stored} END"


def _of_message_type(column: str, built_in: Mapping[str, object], undeclared: str) -> str:
    """A column of the type of a message, as SQL; `undeclared` when no statement has made it."""
    name = "m.message_type_name"
    known = " ".join(f"WHEN {_text(one)} THEN {value}" for one, value in built_in.items())
    stored = f"(SELECT {column} FROM {{db}}.broker_message_type t WHERE t.name = {name})"  # noqa: S608 - own words
    return f"CASE {name} {known} ELSE coalesce({stored}, {undeclared}) END"


def _service_id(name: str) -> str:
    return f"(SELECT s.service_id FROM {{db}}.broker_service s WHERE s.name = {name})"  # noqa: S608 - own words


_LETTER = _case("t.validation", {key: letter for key, (letter, _) in _VALIDATIONS.items()})


def _is_sent_by(side: SentBy) -> str:
    return f"u.sent_by IN ('{side}', '{SentBy.ANY}')"


# --- who may do what ---------------------------------------------------------------------------------------------

SERVER_PERMISSIONS = "sys.server_permissions"  # of the instance: in every database, those of msdb
_SERVICE, _ENDPOINT = 17, 105  # classes of the original
_STATE = "CASE p.state WHEN 'GRANT' THEN 'G' ELSE 'D' END"


def _permissions(class_id: int, class_desc: str, major_id: str, letters: str, permission: str) -> FileView:
    """Those of one class; the securable that is a pattern has no number."""
    return FileView(
        {
            "class": str(class_id),
            "class_desc": f"'{class_desc}'",
            "major_id": major_id,
            "minor_id": "0",
            "grantee_principal_id": "NULL",
            "grantor_principal_id": "NULL",
            "type": f"'{letters}'",
            "permission_name": "p.permission",
            "state": _STATE,
            "state_desc": "p.state",
            "securable_name": "p.securable",
            "grantee_name": "p.principal",
        },
        f"{{db}}.broker_permission p WHERE p.permission = '{permission}'",
    )


# --- all views of a file -------------------------------------------------------------------------------------------


def _out_of_order(what: str, order: str) -> str:
    place = "(f.message_sequence_number, f.fragment_number) > (c.receive_sequence, c.receive_sequence_frag)"
    early = f"{{db}}.broker_fragment f WHERE f.endpoint_id = c.endpoint_id AND {place}"
    by_place = f"f.message_sequence_number {order}, f.fragment_number {order}"
    return f"(SELECT f.{what} FROM {early} ORDER BY {by_place} LIMIT 1)"  # noqa: S608 - made of this file's own words


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

# What `SELECT * FROM [BillingQueue]` reads: the queue, from which nothing is removed.
QUEUE = FileView(
    {
        "status": "m.status",
        "priority": "m.priority",
        "queuing_order": "m.queuing_order",
        "conversation_group_id": guid("c.conversation_group_id"),
        "conversation_handle": guid("c.conversation_handle"),
        "message_sequence_number": "m.message_sequence_number",
        "service_name": "c.service_name",
        "service_id": _service_id("c.service_name"),
        "service_contract_name": "c.contract",
        "service_contract_id": contract_id("c.contract"),
        "message_type_name": "m.message_type_name",
        "message_type_id": _of_message_type(
            "message_type_id", {one.name: one.message_type_id for one in MESSAGE_TYPES}, "NULL"
        ),
        "validation": _of_message_type(
            _LETTER, {one.name: f"'{_VALIDATIONS[one.validation][0]}'" for one in MESSAGE_TYPES}, "'N'"
        ),
        "message_body": "m.message_body",
        "message_enqueue_time": instant("m.message_enqueue_time"),
        "body_bytes": "length(m.message_body)",
    },
    "{db}.broker_message m LEFT JOIN {db}.broker_conversation c USING (endpoint_id) WHERE m.queue_id = {queue_id}",
)

FILE_VIEWS: Mapping[str, FileView] = {
    "sys.routes": ROUTES,
    "sys.services": FileView(
        {
            "name": "s.name",
            "service_id": "s.service_id",
            "principal_id": "NULL",
            "service_queue_id": "s.queue_id",
            "queue_name": "(SELECT q.name FROM {db}.broker_queue q WHERE q.queue_id = s.queue_id)",
            "contracts": "s.contracts",
            "is_exclusive_target": "s.is_exclusive_target",
        },
        "{db}.broker_service s",
    ),
    "sys.service_queues": FileView(
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
    ),
    "sys.service_queue_usages": FileView(
        {"service_id": "s.service_id", "service_queue_id": "s.queue_id"}, "{db}.broker_service s"
    ),
    "sys.service_message_types": FileView(
        {
            "name": "t.name",
            "message_type_id": "t.message_type_id",
            "principal_id": "NULL",
            "validation": _LETTER,
            "validation_desc": _case("t.validation", {key: word for key, (_, word) in _VALIDATIONS.items()}),
            "xml_collection_id": "NULL",
        },
        f"({_TYPES} UNION ALL SELECT message_type_id, name, validation FROM {{db}}.broker_message_type"  # noqa: S608 - own words
        f" WHERE message_type_id >= {FIRST_ID}) t",
    ),
    "sys.service_contracts": FileView(
        {"name": "c.name", "service_contract_id": "c.contract_id", "principal_id": "NULL"},
        f"({_CONTRACTS} UNION ALL SELECT contract_id, name FROM {{db}}.broker_contract) c",  # noqa: S608 - own words
    ),
    "sys.service_contract_message_usages": FileView(
        {
            "service_contract_id": "u.contract_id",
            "message_type_id": "u.message_type_id",
            "is_sent_by_initiator": _is_sent_by(SentBy.INITIATOR),
            "is_sent_by_target": _is_sent_by(SentBy.TARGET),
        },
        f"({_USAGES} UNION ALL SELECT contract_id, message_type_id, sent_by"  # noqa: S608 - own words
        " FROM {db}.broker_contract_message_type) u",
    ),
    "sys.service_contract_usages": FileView(
        {
            "service_id": "s.service_id",
            "service_contract_id": contract_id("j.value"),
            "service_contract_name": "j.value",
        },
        "{db}.broker_service s, json_each(s.contracts) j",
    ),
    "sys.conversation_priorities": FileView(
        {
            "priority_id": "p.priority_id",
            "name": "p.name",
            "service_contract_id": contract_id("p.contract_name"),
            "local_service_id": _service_id("p.local_service_name"),
            "remote_service_name": "p.remote_service_name",
            "priority": "p.priority_level",
            "service_contract_name": "p.contract_name",
            "local_service_name": "p.local_service_name",
        },
        "{db}.broker_priority p",
    ),
    SERVER_PERMISSIONS: _permissions(_ENDPOINT, "ENDPOINT", "1", "CO", "CONNECT"),
    "sys.database_permissions": _permissions(_SERVICE, "SERVICE", _service_id("p.securable"), "SN", "SEND"),
    "sys.remote_service_bindings": FileView(
        {
            "name": "b.name",
            "remote_service_binding_id": "b.remote_service_binding_id",
            "principal_id": "NULL",
            "remote_service_name": "b.remote_service_name",
            "service_contract_id": "NULL",
            "remote_principal_id": "NULL",
            "is_anonymous_on": "b.is_anonymous_on",
            "remote_principal_name": "b.remote_principal",
        },
        "{db}.broker_remote_service_binding b",
    ),
    "sys.conversation_endpoints": FileView(
        {
            "conversation_handle": guid("c.conversation_handle"),
            "conversation_id": guid("c.conversation_id"),
            "is_initiator": "c.is_initiator",
            "service_contract_id": contract_id("c.contract"),
            "conversation_group_id": guid("c.conversation_group_id"),
            "service_id": _service_id("c.service_name"),
            "lifetime": instant("c.lifetime"),
            "state": "c.state",
            "state_desc": _case("c.state", {state.value: state.name for state in ConversationState}),
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
            "security_desc": sentence_sql("{db}."),
        },
        _BOTH_KINDS,
    ),
    "sys.conversation_groups": FileView(
        {
            "conversation_group_id": guid("c.conversation_group_id"),
            "service_id": _service_id("c.service_name"),
            "is_system": "0",
            "service_name": "c.service_name",
            "conversations": "c.conversations",
        },
        "(SELECT conversation_group_id, min(service_name) AS service_name, count(*) AS conversations"
        " FROM {db}.broker_conversation GROUP BY conversation_group_id) c",
    ),
    "sys.transmission_queue": FileView(
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
            "transmission_status": f"CASE WHEN c.transmission_status LIKE '{ON_ITS_WAY}%' THEN '' ELSE"
            " coalesce(c.transmission_status, '') END",
            "priority": "c.priority",
            "conversation_id": guid("c.conversation_id"),
            "body_bytes": "coalesce(t.body_length, length(t.message_body))",
            "progress": "c.transmission_status",
        },
        "{db}.broker_transmission t LEFT JOIN {db}.broker_conversation c USING (endpoint_id)",
    ),
}


# --- attached files: several on one connection that is made for reading the views ---------------------------------

# The tables of the views, whose rows may be counted: count(*) reads no column, and belongs to no view.
_SOURCES = " ".join(view.source for view in (*FILE_VIEWS.values(), QUEUE))
COUNTED = frozenset(re.findall(r"\b(?:broker_\w+|json_each)\b", _SOURCES))


def attach(db: sqlite3.Connection, path: Path, alias: str) -> None:
    """
    Make the file readable under this name, read only.

    Raises:
        sqlite3.Error: it is not there, cannot be read, or is not a database of the broker.
    """
    db.execute(f"ATTACH ? AS {alias}", (f"{path.absolute().as_uri()}?mode=ro",))
    db.execute(f"SELECT 1 FROM {alias}.broker_database").fetchone()  # noqa: S608 - the caller's own name


def queue_numbers(db: sqlite3.Connection, alias: str) -> dict[str, int]:
    """The number of each queue of an attached database, by name."""
    return dict(db.execute(f"SELECT name, queue_id FROM {alias}.broker_queue"))  # noqa: S608 - the caller's own name

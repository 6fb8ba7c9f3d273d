"""
The views of what two sides agree on: message types, contracts, and the priorities of conversations.

What is built in has no row in the file and stands in front, with the numbers of `broker.conversation.message_types`.
Services and priorities may name a contract that no statement has made; its number is NULL then.

Source: Service Broker documentation, pages of the views named here.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.conversation.message_types import CONTRACTS, MESSAGE_TYPES, SentBy, Validation
from broker.store.file_view import FileView

# The original's letter and word; JSON is our own.
_VALIDATIONS = {
    Validation.NONE: ("N", "NONE"),
    Validation.EMPTY: ("E", "EMPTY"),
    Validation.WELL_FORMED_XML: ("X", "XML"),
    Validation.JSON: ("J", "JSON"),
}
_FIRST_ID = 65536  # of what statements make; a row below stands for something that is built in


def _text(value: str) -> str:
    """A literal of SQL; braces are doubled, for `FileView.render` formats the text."""
    return "'" + value.replace("'", "''").replace("{", "{{").replace("}", "}}") + "'"


def _values(rows: list[tuple[object, ...]], *columns: str) -> str:
    """A table of constants, in front of what is in the file."""
    selects = (
        "SELECT " + ", ".join(f"{value} AS {column}" for value, column in zip(row, columns, strict=True))
        for row in rows
    )
    return " UNION ALL ".join(selects)


def _case(column: str, values: Mapping[str, str]) -> str:
    return f"CASE {column} " + " ".join(f"WHEN '{key}' THEN '{value}'" for key, value in values.items()) + " END"


_TYPES = _values(
    [(one.message_type_id, _text(one.name), _text(one.validation)) for one in MESSAGE_TYPES],
    "message_type_id",
    "name",
    "validation",
)
_CONTRACTS = _values([(one.service_contract_id, _text(one.name)) for one in CONTRACTS], "contract_id", "name")
_USAGES = _values(
    [
        (contract.service_contract_id, message_type_id, _text(sent_by))
        for contract in CONTRACTS
        for message_type_id, sent_by in contract.message_types.items()
    ],
    "contract_id",
    "message_type_id",
    "sent_by",
)


def contract_id(name: str) -> str:
    """The number of the contract of a name, as SQL; NULL when nothing has made it."""
    built_in = " ".join(f"WHEN {_text(one.name)} THEN {one.service_contract_id}" for one in CONTRACTS)
    stored = f"(SELECT k.contract_id FROM {{db}}.broker_contract k WHERE k.name = {name})"  # noqa: S608 - own words
    return f"CASE {name} {built_in} ELSE {stored} END"


def _is_sent_by(side: SentBy) -> str:
    return f"u.sent_by IN ('{side}', '{SentBy.ANY}')"


_SERVICE_MESSAGE_TYPES = FileView(
    {
        "name": "t.name",
        "message_type_id": "t.message_type_id",
        "principal_id": "NULL",
        "validation": _case("t.validation", {key: letter for key, (letter, _) in _VALIDATIONS.items()}),
        "validation_desc": _case("t.validation", {key: word for key, (_, word) in _VALIDATIONS.items()}),
        "xml_collection_id": "NULL",
    },
    f"({_TYPES} UNION ALL SELECT message_type_id, name, validation FROM {{db}}.broker_message_type"  # noqa: S608 - own words
    f" WHERE message_type_id >= {_FIRST_ID}) t",
)

_SERVICE_CONTRACTS = FileView(
    {"name": "c.name", "service_contract_id": "c.contract_id", "principal_id": "NULL"},
    f"({_CONTRACTS} UNION ALL SELECT contract_id, name FROM {{db}}.broker_contract) c",  # noqa: S608 - own words
)

_SERVICE_CONTRACT_MESSAGE_USAGES = FileView(
    {
        "service_contract_id": "u.contract_id",
        "message_type_id": "u.message_type_id",
        "is_sent_by_initiator": _is_sent_by(SentBy.INITIATOR),
        "is_sent_by_target": _is_sent_by(SentBy.TARGET),
    },
    f"({_USAGES} UNION ALL"  # noqa: S608 - own words
    " SELECT contract_id, message_type_id, sent_by FROM {db}.broker_contract_message_type) u",
)

_SERVICE_CONTRACT_USAGES = FileView(
    {"service_id": "s.service_id", "service_contract_id": contract_id("j.value"), "service_contract_name": "j.value"},
    "{db}.broker_service s, json_each(s.contracts) j",
)

_CONVERSATION_PRIORITIES = FileView(
    {
        "priority_id": "p.priority_id",
        "name": "p.name",
        "service_contract_id": contract_id("p.contract_name"),
        "local_service_id": "(SELECT s.service_id FROM {db}.broker_service s WHERE s.name = p.local_service_name)",
        "remote_service_name": "p.remote_service_name",
        "priority": "p.priority_level",
        "service_contract_name": "p.contract_name",
        "local_service_name": "p.local_service_name",
    },
    "{db}.broker_priority p",
)

AGREEMENT_VIEWS: Mapping[str, FileView] = {
    "sys.service_message_types": _SERVICE_MESSAGE_TYPES,
    "sys.service_contracts": _SERVICE_CONTRACTS,
    "sys.service_contract_message_usages": _SERVICE_CONTRACT_MESSAGE_USAGES,
    "sys.service_contract_usages": _SERVICE_CONTRACT_USAGES,
    "sys.conversation_priorities": _CONVERSATION_PRIORITIES,
}

"""
The rules of a dialog, by the contracts and priorities of its database: its priority, and the messages it may carry.

Two queries for calls that begin a dialog or send on it, on any connection.
"""

from __future__ import annotations

import sqlite3

from broker.conversation.message_types import DEFAULT, Rule, SentBy, Validation

PRIORITY_DEFAULT = 5  # of a conversation that no priority covers; the original's

# One look-up in an index when the contract is not declared.
_RULE = (
    "SELECT t.validation, u.sent_by FROM broker_contract c LEFT JOIN broker_message_type t ON t.name = ?2"
    " LEFT JOIN broker_contract_message_type u USING (contract_id, message_type_id) WHERE c.name = ?1"
)
_PRIORITY_FOR = (
    "SELECT priority_level FROM broker_priority WHERE (contract_name IS NULL OR contract_name = ?)"
    " AND (local_service_name IS NULL OR local_service_name = ?)"
    " AND (remote_service_name IS NULL OR remote_service_name = ?)"
    " ORDER BY contract_name IS NULL, local_service_name IS NULL, remote_service_name IS NULL LIMIT 1"
)


def message_rule(db: sqlite3.Connection, contract: str, message_type: str) -> Rule | None:
    """
    Return the rule of a contract for a message type; None when the contract is not declared, so any type may be sent.

    The built-in contract DEFAULT is not declared, so under it any type may be sent.

    Cost: one look-up in an index, some microseconds, when the contract is not declared; otherwise three.
    """
    row = db.execute(_RULE, (contract, message_type)).fetchone()
    if row is None:
        return None
    validation, sent_by = row
    return Rule(
        message_type,
        None if sent_by is None else SentBy(sent_by),
        Validation.NONE if validation is None else Validation(validation),
        is_declared=validation is not None or message_type == DEFAULT,
    )


def priority_for(db: sqlite3.Connection, contract: str, local_service: str, remote_service: str) -> int:
    """
    The priority of a new conversation, 1 .. 10: that of the most specific match, by contract, then local service.

    Cost: some microseconds when no priority is declared; otherwise the priorities are read through.
    Source: Service Broker documentation, "Conversation Priorities".
    """
    row = db.execute(_PRIORITY_FOR, (contract, local_service, remote_service)).fetchone()
    return PRIORITY_DEFAULT if row is None else int(row[0])

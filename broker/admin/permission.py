"""
Which role a statement takes.

A SELECT takes viewer. What can be changed back takes operator; what destroys messages or conversations, and who may
connect, send or be believed, takes admin. So does a statement that is not named here.
"""

from __future__ import annotations

from broker.control.admin_role import AdminRole
from broker.ddl.statements import (
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterQueue,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRoute,
    CreateService,
    DatabaseOption,
    DropMessageType,
    DropPriority,
    DropRoute,
    EndConversation,
    MoveConversation,
    Statement,
    UseDatabase,
)

STATEMENT_LEAST = AdminRole.OPERATOR  # no statement takes less, so a viewer's script is refused unread
_OF_OPERATOR = (
    UseDatabase,
    CreateRoute,
    AlterRoute,
    DropRoute,
    CreateQueue,
    AlterQueue,
    CreateService,
    AlterService,
    CreateMessageType,
    AlterMessageType,
    DropMessageType,
    CreateContract,
    CreatePriority,
    AlterPriority,
    DropPriority,
    MoveConversation,
    BeginConversationTimer,
)
_OPTIONS_OF_OPERATOR = frozenset({DatabaseOption.ENABLE_BROKER, DatabaseOption.PARTNER_FAILOVER})


def role_for(statement: Statement) -> AdminRole:
    """The least role that may have this carried out."""
    match statement:
        case EndConversation():
            is_enough = not statement.cleanup
        case AlterDatabase():
            is_enough = statement.option in _OPTIONS_OF_OPERATOR
        case _:
            is_enough = isinstance(statement, _OF_OPERATOR)
    return AdminRole.OPERATOR if is_enough else AdminRole.ADMIN

"""What every statement looks like as text; the property test holds that it reads back."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.ddl.parser import parse_script
from broker.ddl.render import render_name, render_statement, render_text
from broker.ddl.statements import (
    ANY,
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterQueue,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    ContractType,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRoute,
    CreateService,
    DatabaseOption,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRoute,
    DropService,
    EndConversation,
    MoveConversation,
    PriorityProperties,
    QueueName,
    Statement,
    UseDatabase,
)
from broker.routing.route import RouteProperties

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
OTHER = "6b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
ALL = RouteProperties("it's", GUID, -5, "tcp://h", "tcp://ж", 2)
Q = QueueName("q")


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (UseDatabase("msdb"), "USE [msdb];"),
        (
            CreateRoute("a]b", ALL, "o"),
            (
                f"CREATE ROUTE [a]]b] AUTHORIZATION [o] WITH SERVICE_NAME = 'it''s', BROKER_INSTANCE = '{GUID}', "
                "LIFETIME = -5, ADDRESS = 'tcp://h', MIRROR_ADDRESS = N'tcp://ж', WEIGHT = 2;"
            ),
        ),
        (CreateRoute("r", RouteProperties(address="")), "CREATE ROUTE [r] WITH ADDRESS = '';"),
        (AlterRoute("r", RouteProperties(lifetime=0)), "ALTER ROUTE [r] WITH LIFETIME = 0;"),
        (DropRoute("r"), "DROP ROUTE [r];"),
        (CreateQueue(Q), "CREATE QUEUE [q];"),
        (CreateQueue(Q, status=True), "CREATE QUEUE [q] WITH STATUS = ON;"),
        (CreateQueue(QueueName("q", "dbo"), status=False), "CREATE QUEUE [dbo].[q] WITH STATUS = OFF;"),
        (AlterQueue(Q, status=True), "ALTER QUEUE [q] WITH STATUS = ON;"),
        (AlterQueue(Q, status=False), "ALTER QUEUE [q] WITH STATUS = OFF;"),
        (
            CreateQueue(Q, status=False, poison_message_handling=True),
            "CREATE QUEUE [q] WITH STATUS = OFF, POISON_MESSAGE_HANDLING (STATUS = ON);",
        ),
        (
            AlterQueue(Q, poison_message_handling=False),
            "ALTER QUEUE [q] WITH POISON_MESSAGE_HANDLING (STATUS = OFF);",
        ),
        (DropQueue(Q), "DROP QUEUE [q];"),
        (CreateService("//s", Q), "CREATE SERVICE [//s] ON QUEUE [q];"),
        (
            CreateService("//s", Q, ("//c", "DEFAULT"), "o"),
            "CREATE SERVICE [//s] AUTHORIZATION [o] ON QUEUE [q] ([//c], [DEFAULT]);",
        ),
        (AlterService("s", Q), "ALTER SERVICE [s] ON QUEUE [q];"),
        (
            AlterService("s", None, ("a",), ("b", "c")),
            "ALTER SERVICE [s] (ADD CONTRACT [a], DROP CONTRACT [b], DROP CONTRACT [c]);",
        ),
        (AlterService("s", Q, ("a",)), "ALTER SERVICE [s] ON QUEUE [q] (ADD CONTRACT [a]);"),
        (DropService("s"), "DROP SERVICE [s];"),
        (EndConversation(UUID(GUID)), f"END CONVERSATION '{GUID}';"),
        (EndConversation(UUID(GUID), cleanup=True), f"END CONVERSATION '{GUID}' WITH CLEANUP;"),
        (
            EndConversation(UUID(GUID), error_code=7, description="it's"),
            f"END CONVERSATION '{GUID}' WITH ERROR = 7 DESCRIPTION = 'it''s';",
        ),
        (MoveConversation(UUID(GUID), UUID(OTHER)), f"MOVE CONVERSATION '{GUID}' TO '{OTHER}';"),
        (BeginConversationTimer(UUID(GUID), -3), f"BEGIN CONVERSATION TIMER ('{GUID}') TIMEOUT = -3;"),
        (CreateMessageType("//t"), "CREATE MESSAGE TYPE [//t];"),
        (CreateMessageType("t", "JSON", "o"), "CREATE MESSAGE TYPE [t] AUTHORIZATION [o] VALIDATION = JSON;"),
        (AlterMessageType("t", "NONE"), "ALTER MESSAGE TYPE [t] VALIDATION = NONE;"),
        (DropMessageType("t"), "DROP MESSAGE TYPE [t];"),
        (
            CreateContract("c", (ContractType("a]", "TARGET"), ContractType("DEFAULT", "ANY")), "o"),
            "CREATE CONTRACT [c] AUTHORIZATION [o] ([a]]] SENT BY TARGET, [DEFAULT] SENT BY ANY);",
        ),
        (DropContract("c"), "DROP CONTRACT [c];"),
        (CreatePriority("p"), "CREATE BROKER PRIORITY [p] FOR CONVERSATION;"),
        (
            CreatePriority("p", PriorityProperties("ANY", ANY, "it's", 7)),
            (
                "CREATE BROKER PRIORITY [p] FOR CONVERSATION SET (CONTRACT_NAME = [ANY], LOCAL_SERVICE_NAME = ANY, "
                "REMOTE_SERVICE_NAME = 'it''s', PRIORITY_LEVEL = 7);"
            ),
        ),
        (
            AlterPriority("p", PriorityProperties(remote_service_name=ANY)),
            "ALTER BROKER PRIORITY [p] FOR CONVERSATION SET (REMOTE_SERVICE_NAME = ANY);",
        ),
        (DropPriority("p"), "DROP BROKER PRIORITY [p];"),
        (AlterDatabase("d", DatabaseOption.NEW_BROKER), "ALTER DATABASE [d] SET NEW_BROKER;"),
        (AlterDatabase("d", DatabaseOption.PARTNER_FAILOVER), "ALTER DATABASE [d] SET PARTNER FAILOVER;"),
        (AlterDatabase(None, DatabaseOption.ENABLE_BROKER), "ALTER DATABASE CURRENT SET ENABLE_BROKER;"),
    ],
)
def test_statement_has_one_text_that_reads_back(statement: Statement, text: str) -> None:
    assert text == render_statement(statement)
    assert [statement] == parse_script(text)


def test_statement_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="no rendering for Statement"):
        render_statement(Statement())


def test_names_and_texts_double_their_closing_mark() -> None:
    expected = ("[a]]]]]", "'a'''''", "N'é'")
    assert expected == (render_name("a]]"), render_text("a''"), render_text("é"))

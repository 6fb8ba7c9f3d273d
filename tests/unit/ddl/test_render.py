"""What statements look like as text; the property test proves that every one reads back."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.ddl import statements as ddl
from broker.ddl.parser import parse_script
from broker.ddl.render import render_name, render_statement, render_text
from broker.routing.route import RouteProperties
from broker.security.grants import Permission

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
ALL = RouteProperties("it's", GUID, -5, "tcp://h", "tcp://ж", 2)
Q = ddl.QueueName("q", "dbo")


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (ddl.UseDatabase("msdb"), "USE [msdb];"),
        (
            ddl.CreateRoute("a]b", ALL, "o"),
            (
                f"CREATE ROUTE [a]]b] AUTHORIZATION [o] WITH SERVICE_NAME = 'it''s', BROKER_INSTANCE = '{GUID}', "
                "LIFETIME = -5, ADDRESS = 'tcp://h', MIRROR_ADDRESS = N'tcp://ж', WEIGHT = 2;"
            ),
        ),
        (ddl.AlterRoute("r", RouteProperties(lifetime=0)), "ALTER ROUTE [r] WITH LIFETIME = 0;"),
        (
            ddl.CreateQueue(Q, status=False, poison_message_handling=True),
            "CREATE QUEUE [dbo].[q] WITH STATUS = OFF, POISON_MESSAGE_HANDLING (STATUS = ON);",
        ),
        (ddl.CreateService("//s", Q, ("c", "d")), "CREATE SERVICE [//s] ON QUEUE [dbo].[q] ([c], [d]);"),
        (
            ddl.CreateService("s", Q, exclusive_target=True),
            "CREATE SERVICE [s] ON QUEUE [dbo].[q] WITH (EXCLUSIVE_TARGET = ON);",
        ),
        (ddl.AlterService("s", exclusive_target=False), "ALTER SERVICE [s] WITH (EXCLUSIVE_TARGET = OFF);"),
        (
            ddl.AlterService("s", None, ("a",), ("b", "c")),
            "ALTER SERVICE [s] (ADD CONTRACT [a], DROP CONTRACT [b], DROP CONTRACT [c]);",
        ),
        (
            ddl.EndConversation(UUID(GUID), error_code=7, description="it's"),
            f"END CONVERSATION '{GUID}' WITH ERROR = 7 DESCRIPTION = 'it''s';",
        ),
        (ddl.CreateMessageType("t", "JSON"), "CREATE MESSAGE TYPE [t] VALIDATION = JSON;"),
        (
            ddl.CreateContract("c", (ddl.ContractType("a]", "TARGET"), ddl.ContractType("DEFAULT", "ANY"))),
            "CREATE CONTRACT [c] ([a]]] SENT BY TARGET, [DEFAULT] SENT BY ANY);",
        ),
        (
            ddl.CreatePriority("p", ddl.PriorityProperties("ANY", ddl.ANY, "it's", 7)),
            (
                "CREATE BROKER PRIORITY [p] FOR CONVERSATION SET (CONTRACT_NAME = [ANY], LOCAL_SERVICE_NAME = ANY, "
                "REMOTE_SERVICE_NAME = 'it''s', PRIORITY_LEVEL = 7);"
            ),
        ),
        (ddl.DropPriority("p"), "DROP BROKER PRIORITY [p];"),
        (ddl.DropRemoteServiceBinding("b"), "DROP REMOTE SERVICE BINDING [b];"),
        (
            ddl.RevokePermission(Permission.SEND, "s", ("a", "b")),
            "REVOKE SEND ON SERVICE::[s] FROM [a], [b];",
        ),
        (
            ddl.AlterDatabase(None, ddl.DatabaseOption.PARTNER_FAILOVER),
            "ALTER DATABASE CURRENT SET PARTNER FAILOVER;",
        ),
    ],
)
def test_statement_has_one_text_that_reads_back(statement: ddl.Statement, text: str) -> None:
    assert text == render_statement(statement)
    assert [statement] == parse_script(text)


def test_statement_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="no rendering for Statement"):
        render_statement(ddl.Statement())


def test_names_and_texts_double_their_closing_mark() -> None:
    expected = ("[a]]]]]", "'a'''''", "N'é'")
    assert expected == (render_name("a]]"), render_text("a''"), render_text("é"))

"""What statements look like as text; the property test proves that every one reads back."""

from uuid import UUID

import pytest

from broker.ddl import statements as ddl
from broker.ddl.render import render_statement
from broker.routing.route import RouteProperties
from broker.security.grants import Permission

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
ALL = RouteProperties("it's", GUID, -5, "tcp://h", "tcp://ж", 2)


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            ddl.CreateRoute("a]b", ALL, "o"),
            (
                f"CREATE ROUTE [a]]b] AUTHORIZATION [o] WITH SERVICE_NAME = 'it''s', BROKER_INSTANCE = '{GUID}', "
                "LIFETIME = -5, ADDRESS = 'tcp://h', MIRROR_ADDRESS = N'tcp://ж', WEIGHT = 2;"
            ),
        ),
        (
            ddl.CreateQueue(ddl.QueueName("q", "dbo"), status=False, poison_message_handling=True),
            "CREATE QUEUE [dbo].[q] WITH STATUS = OFF, POISON_MESSAGE_HANDLING (STATUS = ON);",
        ),
        (
            ddl.EndConversation(UUID(GUID), error_code=7, description="it's"),
            f"END CONVERSATION '{GUID.upper()}' WITH ERROR = 7 DESCRIPTION = 'it''s';",
        ),
        (
            ddl.RevokePermission(Permission.SEND, "s", ("a", "b")),
            "REVOKE SEND ON SERVICE::[s] FROM [a], [b];",
        ),
    ],
)
def test_statement_has_one_text(statement: ddl.Statement, text: str) -> None:
    assert text == render_statement(statement)

"""What tools for SQL Server write into scripts runs; what cannot is refused with what to do instead."""

import pytest

from broker.ddl.parser import parse_script, read_script
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    AlterQueue,
    CreateQueue,
    CreateRoute,
    DropRoute,
    ExistsGuard,
    QueueName,
    Statement,
    UseDatabase,
)
from broker.errors import DdlSyntaxError
from broker.routing.route import RouteProperties

IS_THERE, IS_MISSING = ExistsGuard("routes", "a"), ExistsGuard("routes", "a", is_negated=True)
UNLESS = "IF NOT EXISTS (SELECT TOP (1) name FROM [msdb].[sys].[ROUTES] WHERE [name] = 'a')"
LOCAL = RouteProperties(address="LOCAL")


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SET ANSI_NULLS ON\nGO\nSET ANSI_NULLS, QUOTED_IDENTIFIER ON\nUSE a", [UseDatabase("a")]),
        ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET DATEFIRST 7;", []),
        ("USE a\nGO 5 -- times\n", [UseDatabase("a")]),
        (
            "CREATE QUEUE [dbo].[q] WITH RETENTION = OFF , POISON_MESSAGE_HANDLING (STATUS = ON)  ON [PRIMARY]",
            [CreateQueue(QueueName("q", "dbo"), poison_message_handling=True)],
        ),
        ('CREATE QUEUE q ON "default"', [CreateQueue(QueueName("q"))]),
        ("ALTER QUEUE q WITH RETENTION = OFF", [AlterQueue(QueueName("q"))]),
        ("ALTER QUEUE q WITH ACTIVATION (DROP)", [AlterQueue(QueueName("q"))]),
        (
            "CREATE QUEUE q WITH STATUS = ON , ACTIVATION ( STATUS = OFF , PROCEDURE_NAME = p, EXECUTE AS N'dbo'  )",
            [CreateQueue(QueueName("q"), status=True)],
        ),
        (
            f"{UNLESS} BEGIN CREATE ROUTE a WITH ADDRESS='LOCAL' CREATE ROUTE b WITH ADDRESS='LOCAL'; END DROP ROUTE c",
            [CreateRoute("a", LOCAL, guard=IS_MISSING), CreateRoute("b", LOCAL, guard=IS_MISSING), DropRoute("c")],
        ),
        ("BEGIN DROP ROUTE b END; DROP ROUTE c; GO\nUSE a", [DropRoute("b"), DropRoute("c"), UseDatabase("a")]),
        ("DROP ROUTE IF EXISTS a; DROP ROUTE [IF]", [DropRoute("a", guard=IS_THERE), DropRoute("IF")]),
        (
            "IF EXISTS (SELECT 1 FROM sys.routes WHERE name = 'a')\nDROP ROUTE a\nDROP ROUTE b",
            [DropRoute("a", guard=IS_THERE), DropRoute("b")],
        ),
    ],
)
def test_it_is_read_and_written_and_read_again(text: str, statements: list[Statement]) -> None:
    assert statements == parse_script(text)
    if all(not isinstance(one, AlterQueue) for one in statements):
        assert statements == parse_script("\n".join(map(render_statement, statements)))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SEND ON CONVERSATION @h MESSAGE TYPE [t] (N'x')", "SEND is not a statement here: an application does it"),
        ("DROP ROUTE a\nSEND ON CONVERSATION @h", "dialog.send(body, type=...); or broker send"),
        ("BEGIN DIALOG CONVERSATION @h FROM SERVICE [s] TO SERVICE 't'", "broker.begin_dialog(db, from_service="),
        ("WAITFOR (RECEIVE * FROM q), TIMEOUT 5000", "broker.receive(db, queue=..., wait=SECONDS)"),
        ("RECEIVE TOP (1) * FROM q", "or broker receive"),
        ("GET CONVERSATION GROUP @g FROM q", "messages of one conversation group"),
        ("CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ()", "[endpoint]"),
        ("ALTER ENDPOINT e STATE = STOPPED", "[endpoint]"),
        ("GRANT RECEIVE ON q TO [CN=a]", "chown and chmod"),
        ("GRANT CONNECT TO [CN=a]", "say CONNECT ON ENDPOINT::name"),
        ("REVOKE SEND FROM [CN=a]", "say SEND ON SERVICE::name"),
        ("GRANT CONTROL ON SERVICE::s TO [CN=a]", "the permissions are CONNECT ON ENDPOINT and SEND ON SERVICE"),
        ("DENY REFERENCES ON CONTRACT::c TO [CN=a]", "may use every message type"),
        ("ALTER DATABASE d SET HONOR_BROKER_PRIORITY ON", "priorities are always honored"),
        ("ALTER DATABASE d SET TRUSTWORTHY ON", "CREATE REMOTE SERVICE BINDING"),
        ("CREATE QUEUE q WITH ACTIVATION (STATUS = ON)", "@broker.reader('queue')"),
        ("CREATE QUEUE q WITH RETENTION = ON", "an application keeps what it needs"),
        ("CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'x'", "CREATE MASTER KEY is not a statement here: private keys"),
        ("CREATE CERTIFICATE c", "broker certs"),
        ("CREATE LOGIN l", "GRANT ... TO [CN=...]"),
        ("ALTER ROLE r ADD MEMBER u", "GRANT ... TO [CN=...]"),
        ("ALTER ENDPOINT e FOR SERVICE_BROKER (MESSAGE_FORWARD_SIZE = 15)", "message_forward_size"),
        ("ALTER AUTHORIZATION ON SERVICE::s TO dbo", "owners mean nothing here"),
        ("ALTER SERVICE MASTER KEY REGENERATE", "private_key"),
        ("CREATE XML SCHEMA COLLECTION c AS ''", "check the body against its schema in the application"),
        ("CREATE TABLE t (a INT)", "only objects of the broker"),
        ("BACKUP DATABASE d TO DISK = 'x'", "back up the database file"),
        ("KILL 55", "broker dialogs end"),
        ("BEGIN TRY", "statements of the broker only"),
        ("GRANT VIEW DEFINITION ON SERVICE::s TO u", "the permissions are CONNECT ON ENDPOINT and SEND ON SERVICE"),
        ("GRANT ALTER ON SERVICE::s TO u", "the permissions are CONNECT ON ENDPOINT and SEND ON SERVICE"),
        ("ALTER QUEUE q MOVE TO [PRIMARY]", "there is no index to move"),
        ("ALTER DATABASE d SET PARTNER = 'TCP://a:1'", "databases.NAME.mirroring"),
        ("ALTER DATABASE d SET SINGLE_USER WITH ROLLBACK IMMEDIATE", "about a database server"),
        ("GET_TRANSMISSION_STATUS('x')", "it is a function"),
        ("BEGIN TRANSACTION", "a script is one change"),
        ("COMMIT", "a script is one change"),
        ("DECLARE @h uniqueidentifier", "broker.begin_dialog, dialog.send; or broker send"),
        ("EXEC sp_executesql N'x'", "statements of the broker only"),
        ("CREATE EVENT NOTIFICATION n ON QUEUE q FOR QUEUE_ACTIVATION TO SERVICE 's'", "@broker.reader('queue')"),
        ("ALTER EVENT SESSION s ON SERVER STATE = START", "ALTER EVENT SESSION is not a statement here"),
        ("CREATE SEQUENCE s START WITH 1", "only objects of the broker"),
        ("DROP ROUTE a ELSE DROP ROUTE b", "a second IF, EXISTS in place of NOT EXISTS"),
        ("IF 1 = 1 DROP ROUTE a", "expected EXISTS or NOT"),
        ("IF EXISTS (SELECT * FROM sys.tables WHERE name = 'a') DROP ROUTE a", "IF EXISTS can ask for sys.routes,"),
        ("IF EXISTS (SELECT * FROM sys.routes WHERE route_id = 'a') DROP ROUTE a", "WHERE name = 'text'"),
        ("IF EXISTS (SELECT 1 FROM sys.routes WHERE name = 'a' AND address = 'b') DROP ROUTE a", "leave AND and its"),
        (
            "IF EXISTS (SELECT 1) DROP QUEUE q",
            "by IF [NOT] EXISTS (SELECT * FROM sys.service_queues WHERE name = 'name')",
        ),
        ("IF EXISTS (SELECT * FROM sys.routes WHERE name = 'a') USE b", "USE cannot be under IF"),
        ("SET @x = 5", "variables are not supported"),
        ("END CONVERSATION @h", "variables are not supported"),
        ("END", "expected CONVERSATION"),
        ("IF OBJECT_ID(N'dbo.q') IS NULL CREATE QUEUE q", "IF [NOT] EXISTS (SELECT * FROM sys.service_queues WHERE"),
        ("IF DB_ID('x') IS NULL CREATE DATABASE x", "the databases are those of the configuration"),
        (f"{UNLESS} BEGIN PRINT N'a' END", "PRINT is not a statement here: leave it out"),
        (f"{UNLESS} BEGIN DROP ROUTE a; DROP ROUTE b", "this BEGIN has no END"),
        (f"{UNLESS} IF EXISTS (SELECT 1 FROM sys.routes WHERE name = 'b') DROP ROUTE b", "IF cannot be under IF"),
        (f"{UNLESS} BEGIN DROP ROUTE a {UNLESS} DROP ROUTE b END", "IF cannot be under IF"),
    ],
)
@pytest.mark.promise("statements 2")
def test_what_cannot_run_says_what_to_do(text: str, problem: str) -> None:
    mistakes = [one for one in read_script(text) if isinstance(one, DdlSyntaxError)]

    assert problem in mistakes[0].problem
    assert "did you mean" not in mistakes[0].problem


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("BEGIN TRY DROP ROUTE a END TRY BEGIN CATCH THROW END CATCH", ["BEGIN TRY", "BEGIN CATCH"]),
        ("IF 1 = 1 BEGIN DROP ROUTE a END DROP ROUTE b", ["expected EXISTS"]),
        ("BEGIN TRANSACTION; BEGIN DROP ROUTE a END; COMMIT", ["BEGIN TRANSACTION", "COMMIT"]),
    ],
)
def test_the_end_of_a_block_is_no_second_mistake(text: str, mistakes: list[str]) -> None:
    found = [one.problem for one in read_script(text) if isinstance(one, DdlSyntaxError)]

    assert len(mistakes) == len(found), found
    assert all(words in problem for words, problem in zip(mistakes, found, strict=True))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ALTER SERVICE s (ADD CONTRCT c)", "did you mean CONTRACT?"),
        ("GRANT SNED ON SERVICE::s TO u", "did you mean SEND?"),
        ("GRANT SEND FOR SERVICE::s TO u", "incorrect syntax near 'FOR'; expected ON"),
    ],
)
@pytest.mark.promise("statements 2")
def test_a_slip_in_a_statement_is_a_slip(text: str, problem: str) -> None:
    mistakes = [one for one in read_script(text) if isinstance(one, DdlSyntaxError)]

    assert problem in mistakes[0].problem


@pytest.mark.promise("statements 2")
def test_a_variable_has_the_number_of_the_original() -> None:
    with pytest.raises(DdlSyntaxError) as refused:
        parse_script("MOVE CONVERSATION @h TO @g")

    assert 137 == refused.value.number

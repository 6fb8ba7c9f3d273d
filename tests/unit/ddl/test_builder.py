"""Every form of every statement, and what the grammar allows but a rule refuses."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.ddl.parser import parse_script
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
from broker.errors import DdlSyntaxError, Span
from broker.routing.route import RouteProperties

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
Q = QueueName("q")

# One of each kind that the documentation of CREATE ROUTE shows.
ROUTES = [
    (
        (
            "CREATE ROUTE ByDns WITH SERVICE_NAME = '//bikes.example/Orders', "
            f"BROKER_INSTANCE = '{GUID}', ADDRESS = 'TCP://broker.bikes.example:1234' ;"
        ),
        RouteProperties("//bikes.example/Orders", GUID, None, "TCP://broker.bikes.example:1234"),
    ),
    (
        "CREATE ROUTE ByNetBios WITH SERVICE_NAME = '//bikes.example/Orders', ADDRESS = 'TCP://SERVER02:1234' ;",
        RouteProperties("//bikes.example/Orders", address="TCP://SERVER02:1234"),
    ),
    (
        "CREATE ROUTE ByIp WITH SERVICE_NAME = '//bikes.example/Orders', ADDRESS = 'TCP://192.168.10.2:1234' ;",
        RouteProperties("//bikes.example/Orders", address="TCP://192.168.10.2:1234"),
    ),
    (
        "CREATE ROUTE Forwarder WITH ADDRESS = 'TCP://dispatch.bikes.example' ;",
        RouteProperties(address="TCP://dispatch.bikes.example"),
    ),
    (
        "CREATE ROUTE Here WITH SERVICE_NAME = '//bikes.example/Log', ADDRESS = 'LOCAL' ;",
        RouteProperties("//bikes.example/Log", address="LOCAL"),
    ),
    (
        (
            "CREATE ROUTE ThreeDays WITH SERVICE_NAME = '//bikes.example/Orders', LIFETIME = 259200, "
            "ADDRESS = 'TCP://services.bikes.example:1234' ;"
        ),
        RouteProperties("//bikes.example/Orders", None, 259200, "TCP://services.bikes.example:1234"),
    ),
    (
        (
            f"CREATE ROUTE Mirrored WITH SERVICE_NAME = '//bikes.example/Orders', BROKER_INSTANCE = '{GUID}', "
            "ADDRESS = 'TCP://east.bikes.example:1234', MIRROR_ADDRESS = 'TCP://west.bikes.example:4567' ;"
        ),
        RouteProperties(
            "//bikes.example/Orders", GUID, None, "TCP://east.bikes.example:1234", "TCP://west.bikes.example:4567"
        ),
    ),
    ("CREATE ROUTE Wire WITH ADDRESS = 'TRANSPORT' ;", RouteProperties(address="TRANSPORT")),
]


@pytest.mark.parametrize(("text", "properties"), ROUTES)
@pytest.mark.parametrize("end", [" ;", "", "\nGO\n"])
def test_documented_routes_are_read(text: str, properties: RouteProperties, end: str) -> None:
    name = text.split()[2]

    assert [CreateRoute(name, properties)] == parse_script(text.removesuffix(" ;") + end)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("USE orders", UseDatabase("orders")),
        (
            "create route r authorization [the owner] with weight=3,address=N'tcp://h',lifetime=-7,service_name='s'",
            CreateRoute("r", RouteProperties("s", None, -7, "tcp://h", None, 3), "the owner"),
        ),
        ("CREATE ROUTE Address WITH ADDRESS = ''", CreateRoute("Address", RouteProperties(address=""))),
        ("CREATE ROUTE \"with\" WITH ADDRESS = 'x'", CreateRoute("with", RouteProperties(address="x"))),
        ("ALTER ROUTE r WITH LIFETIME = +5", AlterRoute("r", RouteProperties(lifetime=5))),
        (
            "ALTER ROUTE r WITH SERVICE_NAME = 's' LIFETIME = 5 ADDRESS = 'a'",
            AlterRoute("r", RouteProperties("s", None, 5, "a")),
        ),
        (
            "ALTER ROUTE r WITH MIRROR_ADDRESS = 'm', BROKER_INSTANCE = 'b',",
            AlterRoute("r", RouteProperties(None, "b", None, None, "m")),
        ),
        ("DROP ROUTE #r", DropRoute("#r")),
        ("CREATE QUEUE q", CreateQueue(Q)),
        ("CREATE QUEUE q WITH STATUS = ON", CreateQueue(Q, status=True)),
        ("CREATE QUEUE dbo.[q] WITH STATUS = OFF", CreateQueue(QueueName("q", "dbo"), status=False)),
        ("ALTER QUEUE q WITH STATUS = ON", AlterQueue(Q, status=True)),
        ("ALTER QUEUE status WITH STATUS = off", AlterQueue(QueueName("status"), status=False)),
        (
            "ALTER QUEUE q WITH POISON_MESSAGE_HANDLING (STATUS = ON) STATUS = OFF",
            AlterQueue(Q, status=False, poison_message_handling=True),
        ),
        (
            "CREATE QUEUE q WITH STATUS = ON, POISON_MESSAGE_HANDLING (STATUS = OFF),",
            CreateQueue(Q, status=True, poison_message_handling=False),
        ),
        ("DROP QUEUE dbo . q", DropQueue(QueueName("q", "dbo"))),
        ("CREATE SERVICE [//s] ON QUEUE q", CreateService("//s", Q)),
        (
            "CREATE SERVICE [//s] AUTHORIZATION o ON QUEUE dbo.q ([//C], [DEFAULT])",
            CreateService("//s", QueueName("q", "dbo"), ("//C", "DEFAULT"), "o"),
        ),
        ("ALTER SERVICE s ON QUEUE q", AlterService("s", Q)),
        ("ALTER SERVICE s ON QUEUE q (ADD CONTRACT c)", AlterService("s", Q, ("c",))),
        (
            "ALTER SERVICE s (DROP CONTRACT a, ADD CONTRACT b, DROP CONTRACT c)",
            AlterService("s", None, ("b",), ("a", "c")),
        ),
        ("DROP SERVICE service", DropService("service")),
        (f"END CONVERSATION '{GUID}'", EndConversation(UUID(GUID))),
        (f"END CONVERSATION N'{GUID.upper()}' WITH CLEANUP", EndConversation(UUID(GUID), cleanup=True)),
        (
            f"END CONVERSATION '{GUID}' WITH ERROR = 5 DESCRIPTION = ''",
            EndConversation(UUID(GUID), error_code=5, description=""),
        ),
        (f"MOVE CONVERSATION '{GUID}' TO '{GUID}'", MoveConversation(UUID(GUID), UUID(GUID))),
        (f"BEGIN CONVERSATION TIMER ('{GUID}') TIMEOUT = 60", BeginConversationTimer(UUID(GUID), 60)),
        ("CREATE MESSAGE TYPE [//t]", CreateMessageType("//t")),
        ("create message type type authorization o validation = none", CreateMessageType("type", "NONE", "o")),
        ("ALTER MESSAGE TYPE t VALIDATION = well_formed_xml", AlterMessageType("t", "WELL_FORMED_XML")),
        ("DROP MESSAGE TYPE message", DropMessageType("message")),
        (
            "CREATE CONTRACT [//c] (sent SENT BY ANY, [DEFAULT] SENT BY INITIATOR, target SENT BY TARGET)",
            CreateContract(
                "//c",
                (ContractType("sent", "ANY"), ContractType("DEFAULT", "INITIATOR"), ContractType("target", "TARGET")),
            ),
        ),
        ("DROP CONTRACT contract", DropContract("contract")),
        ("CREATE BROKER PRIORITY p FOR CONVERSATION", CreatePriority("p")),
        (
            (
                "CREATE BROKER PRIORITY priority FOR CONVERSATION SET (PRIORITY_LEVEL = DEFAULT, CONTRACT_NAME = ANY"
                " REMOTE_SERVICE_NAME = N'//r' LOCAL_SERVICE_NAME = [ANY])"
            ),
            CreatePriority("priority", PriorityProperties(ANY, "ANY", "//r", 5)),
        ),
        (
            "ALTER BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = +10)",
            AlterPriority("p", PriorityProperties(priority_level=10)),
        ),
        ("DROP BROKER PRIORITY broker", DropPriority("broker")),
        *(
            (f"ALTER DATABASE orders SET NEW_BROKER{end}", AlterDatabase("orders", DatabaseOption.NEW_BROKER))
            for end in (
                "",
                " WITH ROLLBACK IMMEDIATE",
                " WITH ROLLBACK AFTER 5",
                " WITH ROLLBACK AFTER 5 SECONDS",
                " WITH NO_WAIT",
            )
        ),
        (
            "ALTER DATABASE CURRENT SET ERROR_BROKER_CONVERSATIONS",
            AlterDatabase(None, DatabaseOption.ERROR_BROKER_CONVERSATIONS),
        ),
        (
            "alter database Partner set partner Failover",
            AlterDatabase("Partner", DatabaseOption.PARTNER_FAILOVER),
        ),
        ("ALTER DATABASE [current] SET ENABLE_BROKER", AlterDatabase("current", DatabaseOption.ENABLE_BROKER)),
    ],
)
def test_statement_is_read(text: str, statement: Statement) -> None:
    assert [statement] == parse_script(text)


def test_names_keep_their_case() -> None:
    create = parse_script("create service Orders on queue Q (Contract)")[0]

    assert CreateService("Orders", QueueName("Q"), ("Contract",)) == create
    assert CreateService("orders", QueueName("Q"), ("Contract",)) != create


def test_values_are_plain_texts_and_numbers() -> None:
    """A token of the parser must not outlive the parse."""
    create = parse_script("CREATE ROUTE r AUTHORIZATION o WITH ADDRESS = 'a', LIFETIME = 1")[0]

    assert isinstance(create, CreateRoute)
    properties = create.properties
    assert {str, int} == {type(value) for value in (create.name, create.owner, properties.address, properties.lifetime)}


@pytest.mark.parametrize("name", ["r" * 128, "[" + "]]" * 128 + "]"])
def test_name_of_128_characters_is_accepted(name: str) -> None:
    assert len(parse_script(f"DROP ROUTE {name}")) == 1


@pytest.mark.parametrize(
    ("text", "number", "column", "length", "problem"),
    [
        ("DROP ROUTE []", 1038, 12, 2, "a name must not be empty"),
        ("CREATE ROUTE r AUTHORIZATION \"\" WITH ADDRESS='x'", 1038, 30, 2, "a name must not be empty"),
        ("DROP ROUTE " + "r" * 129, 103, 12, 129, "this name has 129 characters; at most 128 are allowed"),
        (
            "CREATE QUEUE [a\ud800]",
            102,
            14,
            4,
            "this name cannot be written as UTF-8: it has half a character",
        ),
        (
            "CREATE ROUTE [\udfff] WITH ADDRESS = 'LOCAL';",
            102,
            14,
            3,
            "this name cannot be written as UTF-8: it has half a character",
        ),
        ("CREATE ROUTE r WITH WEIGHT = 1", 102, 14, 1, "CREATE ROUTE needs ADDRESS"),
        ("CREATE ROUTE r WITH ADDRESS = 'a', Address = 'b'", 102, 36, 7, "ADDRESS is given twice"),
        ("ALTER ROUTE r WITH LIFETIME = 1 LIFETIME = 1", 102, 33, 8, "LIFETIME is given twice"),
        ("END CONVERSATION 'x'", 8169, 18, 3, "'x' is no conversation handle: write a GUID"),
        ("ALTER QUEUE q WITH STATUS = ON status = OFF", 102, 32, 6, "STATUS is given twice"),
        (
            "CREATE SERVICE s ON QUEUE q (a, [a])",
            8404,
            33,
            3,
            "the contract 'a' is given twice; remove one",
        ),
        (
            "CREATE CONTRACT c (a SENT BY ANY, a SENT BY TARGET)",
            8403,
            35,
            1,
            "the message type 'a' is given twice; remove one",
        ),
        (
            "CREATE CONTRACT c (a SENT BY TARGET)",
            8492,
            17,
            1,
            "the contract 'c' must have at least one message type SENT BY INITIATOR or ANY",
        ),
        (
            "CREATE BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = 1, PRIORITY_LEVEL = 2)",
            102,
            68,
            14,
            "PRIORITY_LEVEL is given twice",
        ),
        (f"MOVE CONVERSATION '{GUID}' TO 'x'", 8169, 61, 3, "'x' is no conversation group: write a GUID"),
        ("END CONVERSATION ''", 8169, 18, 2, "'' is no conversation handle: write a GUID"),
    ],
)
def test_what_the_grammar_cannot_say_is_refused_at_its_token(
    text: str, number: int, column: int, length: int, problem: str
) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script(text)

    expected = (number, problem, Span("-", 1, column, length))
    assert expected == (caught.value.number, caught.value.problem, caught.value.span)

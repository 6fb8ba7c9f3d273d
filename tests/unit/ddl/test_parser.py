"""Every form of every statement, and the error for text that is not one: number, place, caret, what was expected."""

from __future__ import annotations

from uuid import UUID

import pytest

from broker.ddl.parser import parse_script, read_script
from broker.ddl.render import render_statement
from broker.ddl.statements import (
    ANY,
    AlterDatabase,
    AlterMessageType,
    AlterPriority,
    AlterQueue,
    AlterRemoteServiceBinding,
    AlterRoute,
    AlterService,
    BeginConversationTimer,
    ContractType,
    CreateContract,
    CreateMessageType,
    CreatePriority,
    CreateQueue,
    CreateRemoteServiceBinding,
    CreateRoute,
    CreateService,
    DatabaseOption,
    DenyPermission,
    DropContract,
    DropMessageType,
    DropPriority,
    DropQueue,
    DropRemoteServiceBinding,
    DropRoute,
    DropService,
    EndConversation,
    GrantPermission,
    MoveConversation,
    PriorityProperties,
    QueueName,
    RevokePermission,
    Statement,
    UseDatabase,
)
from broker.errors import DdlSyntaxError, Span
from broker.routing.route import RouteProperties
from broker.security.grants import Permission

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


@pytest.mark.parametrize("name", ["r" * 128, "[" + "]]" * 128 + "]"])
def test_name_of_128_characters_is_accepted(name: str) -> None:
    assert len(parse_script(f"DROP ROUTE {name}")) == 1


@pytest.mark.parametrize(
    ("text", "number", "column", "length", "problem"),
    [
        ("DROP ROUTE []", 1038, 12, 2, "a name must not be empty"),
        ("DROP ROUTE [] x", 1038, 12, 2, "a name must not be empty"),  # the first of two mistakes
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


PROPERTIES = "ADDRESS, BROKER_INSTANCE, LIFETIME, MIRROR_ADDRESS, SERVICE_NAME or WEIGHT"
OPENING = "ALTER, BEGIN, CREATE, DENY, DROP, END, GRANT, MOVE, REVOKE or USE"
KINDS = "BROKER, CONTRACT, MESSAGE, QUEUE, REMOTE, ROUTE or SERVICE"
QUEUE = "is not supported; what is supported is WITH STATUS and POISON_MESSAGE_HANDLING"
RETENTION = "an application keeps what it needs in its own table, in the transaction that sends or receives"
ACTIVATION = "write the reader as a function, @broker.reader('queue'), and start it with broker run"
VALID_XML = "use WELL_FORMED_XML, and check the body against its schema in the application"


def mistake(text: str) -> DdlSyntaxError:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "caret", "problem"),
    [
        (
            "CREATE ROUTE r WITH ADRESS = 'x'",
            "                    ^^^^^^",
            f"incorrect syntax near 'ADRESS'; expected {PROPERTIES}; did you mean ADDRESS?",
        ),
        (
            "CREATE ROUTE r WITH service_nam = 'x'",
            "                    ^^^^^^^^^^^",
            f"incorrect syntax near 'service_nam'; expected {PROPERTIES}; did you mean SERVICE_NAME?",
        ),
        (
            "CREATE ROUTE r WITH PRIORITY = 'x'",
            "                    ^^^^^^^^",
            f"incorrect syntax near 'PRIORITY'; expected {PROPERTIES}",
        ),
        (
            "CRAETE ROUTE r",
            "^^^^^^",
            f"incorrect syntax near 'CRAETE'; expected {OPENING}; did you mean CREATE?",
        ),
        ("SELEC 1", "^^^^^", f"incorrect syntax near 'SELEC'; expected {OPENING}; did you mean SELECT?"),
        (
            "SELECT 1",
            "^^^^^^",
            f"incorrect syntax near 'SELECT'; expected {OPENING}; a SELECT is asked by itself, not in a script",
        ),
        (
            "Delete FROM sys.routes",
            "^^^^^^",
            "DELETE is not supported: the views are read only; ALTER, CREATE and DROP change what they show",
        ),
        (
            "CREATE VIEW v",
            "       ^^^^",
            f"incorrect syntax near 'VIEW'; expected {KINDS}",
        ),
        (
            "CREATE ROUTE r WITH",
            "                   ^",
            f"incorrect syntax at the end of the statement; expected {PROPERTIES}",
        ),
        (
            "DROP",
            "    ^",
            f"incorrect syntax at the end of the statement; expected {KINDS}",
        ),
        ("DROP ROUTE ;", "          ^", "incorrect syntax at the end of the statement; expected a name"),
        (
            "CREATE ROUTE db.r WITH ADDRESS = 'x'",
            "               ^",
            "incorrect syntax near '.'; expected AUTHORIZATION or WITH",
        ),
        ("DROP ROUTE with", "           ^^^^", "incorrect syntax near 'with'; expected a name"),
        ("DROP ROUTE 'r'", "           ^^^", "incorrect syntax near \"'r'\"; expected a name"),
        (
            "CREATE ROUTE r WITH ADDRESS = 'x' WEIGHT = 1",
            "                                  ^^^^^^",
            "incorrect syntax near 'WEIGHT'; expected ',' or the end of the statement",
        ),
        (
            "CREATE ROUTE r WITH ADDRESS = 'x',",
            "                                  ^",
            f"incorrect syntax at the end of the statement; expected {PROPERTIES}",
        ),
        (
            "CREATE ROUTE r WITH ADDRESS : 'x'",
            "                            ^",
            "incorrect syntax near ':'; expected '='",
        ),
        (
            "CREATE ROUTE r WITH ADDRESS = LOCAL",
            "                              ^^^^^",
            "incorrect syntax near 'LOCAL'; expected a text in quotes",
        ),
        (
            "CREATE ROUTE r WITH LIFETIME = '5'",
            "                               ^^^",
            "incorrect syntax near \"'5'\"; expected a whole number",
        ),
        (
            "CREATE ROUTE r WITH LIFETIME = 1.5",
            "                               ^^^",
            "incorrect syntax near '1.5'; expected a whole number",
        ),
        (
            "CREATE ROUTE r WITH LIFETIME = " + "9" * 1001,
            "                               " + "^" * 1001,
            "incorrect syntax near '" + "9" * 37 + "...'; expected a whole number",
        ),
        ("DROP ROUTE r, s", "            ^", "incorrect syntax near ','; expected the end of the statement"),
        (
            "ALTER ROUTE r AUTHORIZATION o",
            "              ^^^^^^^^^^^^^",
            "incorrect syntax near 'AUTHORIZATION'; expected WITH",
        ),
        (
            "END CONVERSATION @handle",
            "                 ^^^^^^^",
            "incorrect syntax near '@handle'; expected a text in quotes",
        ),
        ("ALTER SERVICE s", "               ^", "incorrect syntax at the end of the statement; expected '(' or ON"),
        (
            "CREATE SERVICE s ON QUEUE q ()",
            "                             ^",
            "incorrect syntax near ')'; expected a name",
        ),
        (
            "CREATE QUEUE q WITH STATUS = ON, RETENTION = ON",
            "                                 ^^^^^^^^^",
            f"the option RETENTION of CREATE QUEUE is not supported; {RETENTION}",
        ),
        (
            "ALTER QUEUE q WITH activation (STATUS = ON)",
            "                   ^^^^^^^^^^",
            f"the option ACTIVATION of ALTER QUEUE is not supported; {ACTIVATION}",
        ),
        (
            "CREATE QUEUE q WITH POISON_MESSAGE_HANDLING = ON",
            "                                            ^",
            "incorrect syntax near '='; expected '('",
        ),
        (
            "CREATE MESSAGE TYPE t VALIDATION = VALID_XML WITH SCHEMA COLLECTION c",
            "                                   ^^^^^^^^^",
            f"the option VALID_XML of CREATE MESSAGE TYPE is not supported; {VALID_XML}",
        ),
        (
            "ALTER MESSAGE TYPE t VALIDATION = valid_xml WITH SCHEMA COLLECTION c",
            "                                  ^^^^^^^^^",
            f"the option VALID_XML of ALTER MESSAGE TYPE is not supported; {VALID_XML}",
        ),
        (
            "ALTER MESSAGE TYPE t VALIDATION = XML",
            "                                  ^^^",
            "incorrect syntax near 'XML'; expected EMPTY, JSON, NONE or WELL_FORMED_XML",
        ),
        (
            "CREATE CONTRACT c (t SENT BY INITATOR)",
            "                             ^^^^^^^^",
            "incorrect syntax near 'INITATOR'; expected ANY, INITIATOR or TARGET; did you mean INITIATOR?",
        ),
        (
            "CREATE CONTRACT c",
            "                 ^",
            "incorrect syntax at the end of the statement; expected '(' or AUTHORIZATION",
        ),
        (
            "CREATE CONTRACT c (DEFAULT SENT BY ANY)",
            "                   ^^^^^^^",
            "incorrect syntax near 'DEFAULT'; expected a name",
        ),
        (
            "ALTER CONTRACT c",
            "      ^^^^^^^^",
            "incorrect syntax near 'CONTRACT'; expected BROKER, DATABASE, MESSAGE, QUEUE, REMOTE, ROUTE or SERVICE",
        ),
        (
            "CREATE BROKER PRIORITY p FOR CONVERSATION SET (LEVEL = 3)",
            "                                               ^^^^^",
            (
                "incorrect syntax near 'LEVEL'; expected CONTRACT_NAME, LOCAL_SERVICE_NAME, PRIORITY_LEVEL or"
                " REMOTE_SERVICE_NAME"
            ),
        ),
        (
            "ALTER BROKER PRIORITY p FOR CONVERSATION",
            "                                        ^",
            "incorrect syntax at the end of the statement; expected SET",
        ),
        (
            "ALTER DATABASE d SET RECOVERY SIMPLE",
            "                     ^^^^^^^^",
            (
                "incorrect syntax near 'RECOVERY'; expected DISABLE_BROKER, ENABLE_BROKER, ERROR_BROKER_CONVERSATIONS,"
                " NEW_BROKER or PARTNER"
            ),
        ),
        ("CREATE QUEUE q ON files", "               ^^", f"the option ON of CREATE QUEUE {QUEUE}"),
        ("ALTER QUEUE q REBUILD", "              ^^^^^^^", f"the option REBUILD of ALTER QUEUE {QUEUE}"),
        ("CREATE QUEUE 'on'", "             ^^^^", "incorrect syntax near \"'on'\"; expected a name"),
    ],
)
def test_mistake_has_its_caret_and_says_what_was_expected(text: str, caret: str, problem: str) -> None:
    error = mistake(text)

    assert problem == error.problem
    assert error.span is not None
    assert f"Msg 102, Level {error.severity}, -:1:{error.span.column}\n{problem}\n{text}\n{caret}" == str(error)


@pytest.mark.parametrize(
    ("text", "number", "caret"),
    [
        ("END CONVERSATION 'abc", 105, "                 ^"),
        ("DROP ROUTE [abc", 105, "           ^"),
        ("DROP ROUTE x /* y", 113, "             ^^"),
    ],
)
def test_unclosed_quote_or_comment_has_the_originals_number(text: str, number: int, caret: str) -> None:
    error = mistake(text)

    assert number == error.number
    assert str(error).endswith(f"\n{text}\n{caret}")


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("DROP ROUTE a\nGO\nDROP ROUTE\n\n", 3, 11),
        ("CREATE ROUTE r WITH ADDRESS = 'x';\r\nDROP\r\n  ROUTE\r\n  'x'\r\n", 4, 3),
        ("/* one\ntwo */ DROP QUEUE q x", 2, 21),
        ("DROP ROUTE a\nGO 5", 2, 1),
        ("'a\nb", 1, 1),
        ("DROP ROUTE a;\nDROP ROUTE [b", 2, 12),
    ],
)
def test_line_and_column_count_from_one_over_the_whole_script(text: str, line: int, column: int) -> None:
    span = mistake(text).span

    assert span is not None
    assert (line, column) == (span.line, span.column)


def test_error_names_its_source() -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script("x", source="routes.d/a.sql")

    assert str(caught.value).startswith("Msg 102, Level 16, routes.d/a.sql:1:1\n")


def test_every_mistake_can_be_had_in_one_reading() -> None:
    outcomes = list(read_script("DROP x; DROP ROUTE a DROP y GO\nGO\nDROP ROUTE b; DROP ROUTE 'c"))

    problems = [outcome.number if isinstance(outcome, DdlSyntaxError) else outcome for outcome in outcomes]
    assert [102, DropRoute("a"), 102, DropRoute("b"), 105] == problems


@pytest.mark.parametrize("text", ["", " \n", ";", "GO", "-- nothing\n/* at all */"])
def test_script_without_statements_is_empty(text: str) -> None:
    assert [] == parse_script(text)


SEND, CONNECT = Permission.SEND, Permission.CONNECT


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        (
            "GRANT SEND ON SERVICE::[//shop/Orders] TO [CN=orders]",
            GrantPermission(SEND, "//shop/Orders", ("CN=orders",)),
        ),
        ("grant connect on endpoint :: gw to public", GrantPermission(CONNECT, "gw", ("public",))),
        ("GRANT SEND ON SERVICE::s TO a, [b c], public", GrantPermission(SEND, "s", ("a", "b c", "public"))),
        ("DENY SEND ON SERVICE::[*] TO a CASCADE", DenyPermission(SEND, "*", ("a",))),
        ("REVOKE SEND ON SERVICE::s FROM a", RevokePermission(SEND, "s", ("a",))),
        ("REVOKE CONNECT ON ENDPOINT::[*] TO a CASCADE", RevokePermission(CONNECT, "*", ("a",))),
        ("GRANT SEND ON SERVICE::send TO connect", GrantPermission(SEND, "send", ("connect",))),
        (
            f"GRANT SEND ON SERVICE::[{'x' * 512}] TO [CN={'y' * 1021}]",
            GrantPermission(SEND, "x" * 512, ("CN=" + "y" * 1021,)),
        ),
        (
            "CREATE REMOTE SERVICE BINDING b AUTHORIZATION dbo TO SERVICE N'//s' WITH USER = [CN=x], ANONYMOUS = ON",
            CreateRemoteServiceBinding("b", "//s", "CN=x", anonymous=True, owner="dbo"),
        ),
        (
            "CREATE REMOTE SERVICE BINDING remote TO SERVICE '//s' WITH ANONYMOUS=OFF USER=x,",
            CreateRemoteServiceBinding("remote", "//s", "x"),
        ),
        ("ALTER REMOTE SERVICE BINDING b WITH USER = x", AlterRemoteServiceBinding("b", user="x")),
        ("ALTER REMOTE SERVICE BINDING b WITH ANONYMOUS = OFF", AlterRemoteServiceBinding("b", anonymous=False)),
        ("DROP REMOTE SERVICE BINDING b", DropRemoteServiceBinding("b")),
    ],
)
def test_statement_is_read_and_written_and_read_again(text: str, statement: Statement) -> None:
    assert [statement] == parse_script(text)
    assert [statement] == parse_script(render_statement(statement))


def test_statements_need_no_mark_between_them() -> None:
    text = "GRANT SEND ON SERVICE::s TO a DENY SEND ON SERVICE::s TO b REVOKE SEND ON SERVICE::s TO c DROP ROUTE r"

    assert [GrantPermission, DenyPermission, RevokePermission, DropRoute] == [type(one) for one in parse_script(text)]


@pytest.mark.parametrize(
    ("text", "number", "problem", "marked"),
    [
        ("GRANT SEND ON SERVICE::s TO [sha256:1]", 15151, "is not a fingerprint", "[sha256:1]"),
        ("GRANT SEND ON SERVICE::s TO a, b, [a]", 102, "the principal 'a' is given twice", "[a]"),
        ("GRANT SEND ON SERVICE::s TO [CN=a], [cn = a]", 102, "is given twice", "[cn = a]"),
        (f"GRANT SEND ON SERVICE::[{'x' * 513}] TO a", 103, "at most 512", f"[{'x' * 513}]"),
        (f"GRANT SEND ON SERVICE::[{'ж' * 257}] TO a", 103, "at most 512 bytes", f"[{'ж' * 257}]"),
        ("GRANT SEND ON SERVICE::[] TO a", 1038, "must not be empty", "[]"),
        (f"GRANT SEND ON SERVICE::s TO [{'x' * 1025}]", 103, "at most 1024", f"[{'x' * 1025}]"),
        ("GRANT SEND ON ENDPOINT::s TO a", 102, "expected SERVICE", "ENDPOINT"),
        ("GRANT CONTROL ON SERVICE::s TO a", 102, "expected CONNECT or SEND", "CONTROL"),
        ("GRANT SEND ON SERVICE::s FROM a", 102, "expected TO", "FROM"),
        ("GRANT SEND ON SERVICE::s TO a WITH GRANT OPTION", 102, "a principal cannot pass them on", "WITH"),
        ("GRANT SEND ON SERVICE::s TO a AS b", 102, "a principal cannot pass them on", "AS"),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE 's' WITH ANONYMOUS = ON", 102, "needs USER", "b"),
        ("CREATE REMOTE SERVICE BINDING b TO SERVICE '' WITH USER = x", 103, "1 to 512 bytes", "''"),
        ("ALTER REMOTE SERVICE BINDING b WITH USER = x USER = y", 102, "USER is given twice", "USER"),
        ("ALTER REMOTE SERVICE BINDING b WITH USER = [sha256:1]", 15151, "is not a fingerprint", "[sha256:1]"),
    ],
)
def test_mistake_has_its_number_and_place(text: str, number: int, problem: str, marked: str) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script(text)

    error = caught.value
    assert error.span is not None
    assert (number, marked) == (error.number, text[error.span.column - 1 :][: error.span.length])
    assert problem in error.problem

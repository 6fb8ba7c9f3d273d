"""Every form of every statement, and the error for text that is not one: number, place, caret, what was expected."""

from uuid import UUID

import pytest

from broker.ddl import statements as ddl
from broker.ddl.parser import parse_script, read_script
from broker.ddl.render import render_statement
from broker.errors import DdlSyntaxError
from broker.routing.route import RouteProperties
from broker.security.grants import Permission

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
Q = ddl.QueueName("q")


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("USE orders", ddl.UseDatabase("orders")),
        (
            "create route r authorization [the owner] with weight=3,address=N'tcp://h',lifetime=-7,service_name='s'",
            ddl.CreateRoute("r", RouteProperties("s", None, -7, "tcp://h", None, 3), "the owner"),
        ),
        ("CREATE ROUTE Address WITH ADDRESS = ''", ddl.CreateRoute("Address", RouteProperties(address=""))),
        ("CREATE ROUTE \"with\" WITH ADDRESS = 'x'", ddl.CreateRoute("with", RouteProperties(address="x"))),
        ("ALTER ROUTE r WITH LIFETIME = +5", ddl.AlterRoute("r", RouteProperties(lifetime=5))),
        (
            "ALTER ROUTE r WITH SERVICE_NAME = 's' LIFETIME = 5 ADDRESS = 'a'",
            ddl.AlterRoute("r", RouteProperties("s", None, 5, "a")),
        ),
        (
            "ALTER ROUTE r WITH MIRROR_ADDRESS = 'm', BROKER_INSTANCE = 'b',",
            ddl.AlterRoute("r", RouteProperties(None, "b", None, None, "m")),
        ),
        ("DROP ROUTE #r", ddl.DropRoute("#r")),
        (f"DROP ROUTE [{']]' * 128}]", ddl.DropRoute("]" * 128)),
        ("CREATE QUEUE dbo.[q] WITH STATUS = OFF", ddl.CreateQueue(ddl.QueueName("q", "dbo"), status=False)),
        ("ALTER QUEUE status WITH STATUS = off", ddl.AlterQueue(ddl.QueueName("status"), status=False)),
        (
            "ALTER QUEUE q WITH POISON_MESSAGE_HANDLING (STATUS = ON) STATUS = OFF",
            ddl.AlterQueue(Q, status=False, poison_message_handling=True),
        ),
        (
            "CREATE QUEUE q WITH STATUS = ON, POISON_MESSAGE_HANDLING (STATUS = OFF),",
            ddl.CreateQueue(Q, status=True, poison_message_handling=False),
        ),
        ("DROP QUEUE dbo . q", ddl.DropQueue(ddl.QueueName("q", "dbo"))),
        (
            "CREATE SERVICE [//s] AUTHORIZATION o ON QUEUE dbo.q ([//C], [DEFAULT])",
            ddl.CreateService("//s", ddl.QueueName("q", "dbo"), ("//C", "DEFAULT"), "o"),
        ),
        (
            "ALTER SERVICE s (DROP CONTRACT a, ADD CONTRACT b, DROP CONTRACT c)",
            ddl.AlterService("s", None, ("b",), ("a", "c")),
        ),
        ("CREATE SERVICE s ON QUEUE q WITH (EXCLUSIVE_TARGET = ON)", ddl.CreateService("s", Q, exclusive_target=True)),
        ("ALTER SERVICE s WITH (EXCLUSIVE_TARGET = OFF)", ddl.AlterService("s", exclusive_target=False)),
        (
            "ALTER SERVICE s (ADD CONTRACT c) WITH (EXCLUSIVE_TARGET = ON)",
            ddl.AlterService("s", None, ("c",), exclusive_target=True),
        ),
        ("DROP SERVICE service", ddl.DropService("service")),
        (f"END CONVERSATION '{GUID}'", ddl.EndConversation(UUID(GUID))),
        (f"END CONVERSATION N'{GUID.upper()}' WITH CLEANUP", ddl.EndConversation(UUID(GUID), cleanup=True)),
        (
            f"END CONVERSATION '{GUID}' WITH ERROR = 5 DESCRIPTION = ''",
            ddl.EndConversation(UUID(GUID), error_code=5, description=""),
        ),
        (f"MOVE CONVERSATION '{GUID}' TO '{GUID}'", ddl.MoveConversation(UUID(GUID), UUID(GUID))),
        (f"BEGIN CONVERSATION TIMER ('{GUID}') TIMEOUT = 60", ddl.BeginConversationTimer(UUID(GUID), 60)),
        ("create message type type authorization o validation = none", ddl.CreateMessageType("type", "NONE", "o")),
        ("ALTER MESSAGE TYPE t VALIDATION = well_formed_xml", ddl.AlterMessageType("t", "WELL_FORMED_XML")),
        ("DROP MESSAGE TYPE message", ddl.DropMessageType("message")),
        (
            "CREATE CONTRACT [//c] (sent SENT BY ANY, [DEFAULT] SENT BY INITIATOR, target SENT BY TARGET)",
            ddl.CreateContract(
                "//c",
                (
                    ddl.ContractType("sent", "ANY"),
                    ddl.ContractType("DEFAULT", "INITIATOR"),
                    ddl.ContractType("target", "TARGET"),
                ),
            ),
        ),
        ("DROP CONTRACT contract", ddl.DropContract("contract")),
        (
            (
                "CREATE BROKER PRIORITY priority FOR CONVERSATION SET (PRIORITY_LEVEL = DEFAULT, CONTRACT_NAME = ANY"
                " REMOTE_SERVICE_NAME = N'//r' LOCAL_SERVICE_NAME = [ANY])"
            ),
            ddl.CreatePriority("priority", ddl.PriorityProperties(ddl.ANY, "ANY", "//r", 5)),
        ),
        (
            "ALTER BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = +10)",
            ddl.AlterPriority("p", ddl.PriorityProperties(priority_level=10)),
        ),
        ("DROP BROKER PRIORITY broker", ddl.DropPriority("broker")),
        *(
            (f"ALTER DATABASE orders SET NEW_BROKER{end}", ddl.AlterDatabase("orders", ddl.DatabaseOption.NEW_BROKER))
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
            ddl.AlterDatabase(None, ddl.DatabaseOption.ERROR_BROKER_CONVERSATIONS),
        ),
        (
            "alter database Partner set partner Failover",
            ddl.AlterDatabase("Partner", ddl.DatabaseOption.PARTNER_FAILOVER),
        ),
        ("ALTER DATABASE [current] SET ENABLE_BROKER", ddl.AlterDatabase("current", ddl.DatabaseOption.ENABLE_BROKER)),
        (
            "GRANT SEND ON SERVICE::[//shop/Orders] TO [CN=orders]",
            ddl.GrantPermission(Permission.SEND, "//shop/Orders", ("CN=orders",)),
        ),
        ("grant connect on endpoint :: gw to public", ddl.GrantPermission(Permission.CONNECT, "gw", ("public",))),
        (
            "GRANT SEND ON SERVICE::s TO a, [b c], public",
            ddl.GrantPermission(Permission.SEND, "s", ("a", "b c", "public")),
        ),
        ("DENY SEND ON SERVICE::[*] TO a CASCADE", ddl.DenyPermission(Permission.SEND, "*", ("a",))),
        ("GRANT CONNECT ON ENDPOINT::* TO a", ddl.GrantPermission(Permission.CONNECT, "*", ("a",))),
        ("REVOKE CONNECT ON ENDPOINT::[*] TO a CASCADE", ddl.RevokePermission(Permission.CONNECT, "*", ("a",))),
        ("GRANT SEND ON SERVICE::send TO connect", ddl.GrantPermission(Permission.SEND, "send", ("connect",))),
        (
            f"GRANT SEND ON SERVICE::[{'x' * 512}] TO [CN={'y' * 1021}]",
            ddl.GrantPermission(Permission.SEND, "x" * 512, ("CN=" + "y" * 1021,)),
        ),
        (
            "CREATE REMOTE SERVICE BINDING b AUTHORIZATION dbo TO SERVICE N'//s' WITH USER = [CN=x], ANONYMOUS = ON",
            ddl.CreateRemoteServiceBinding("b", "//s", "CN=x", anonymous=True, owner="dbo"),
        ),
        (
            "CREATE REMOTE SERVICE BINDING remote TO SERVICE '//s' WITH ANONYMOUS=OFF USER=x,",
            ddl.CreateRemoteServiceBinding("remote", "//s", "x"),
        ),
        ("ALTER REMOTE SERVICE BINDING b WITH ANONYMOUS = OFF", ddl.AlterRemoteServiceBinding("b", anonymous=False)),
    ],
)
@pytest.mark.promise("statements 4")
def test_statement_is_read_and_written_and_read_again(text: str, statement: ddl.Statement) -> None:
    assert [statement] == parse_script(text)
    assert [statement] == parse_script(render_statement(statement))


PROPERTIES = "ADDRESS, BROKER_INSTANCE, LIFETIME, MIRROR_ADDRESS, SERVICE_NAME or WEIGHT"
OPENING = "ALTER, BEGIN, CREATE, DENY, DROP, END, GRANT, MOVE, REVOKE or USE"
KINDS = "BROKER, CONTRACT, MESSAGE, QUEUE, REMOTE, ROUTE or SERVICE"
QUEUE = "is not supported; what is supported is WITH STATUS and POISON_MESSAGE_HANDLING"
GIVER = "only an administrator of the instance gives permissions"


# The mark encloses what the error points at; nothing at the end of a statement.
EXPECTED = [
    ("CREATE ROUTE r WITH «ADRESS» = 'x'", f"expected {PROPERTIES}; did you mean ADDRESS?"),
    ("CREATE ROUTE r WITH «service_nam» = 'x'", f"expected {PROPERTIES}; did you mean SERVICE_NAME?"),
    ("CREATE ROUTE r WITH «PRIORITY» = 'x'", f"expected {PROPERTIES}"),
    ("«CRAETE» ROUTE r", f"expected {OPENING}; did you mean CREATE?"),
    ("«SELEC» 1", f"expected {OPENING}; did you mean SELECT?"),
    ("CREATE «THING» v", f"expected {KINDS}"),
    ("CREATE ROUTE r WITH«»", f"expected {PROPERTIES}"),
    ("DROP«»", f"expected {KINDS}"),
    ("CREATE ROUTE db«.»r WITH ADDRESS = 'x'", "expected AUTHORIZATION or WITH"),
    ("DROP SERVICE «/»/shop/Orders;", "expected a name; a name like this is written in brackets: [//shop/Orders]"),
    ("DROP ROUTE «with»", "expected a name; a name that is a keyword is written in brackets: [with]"),
    ("DROP ROUTE «'r'»", "expected a name"),
    ("CREATE ROUTE r WITH ADDRESS = 'x' «WEIGHT» = 1", "expected ',' or the end of the statement"),
    ("CREATE ROUTE r WITH ADDRESS = 'x',«»", f"expected {PROPERTIES}"),
    ("CREATE ROUTE r WITH ADDRESS «:» 'x'", "expected '='"),
    ("CREATE ROUTE r WITH ADDRESS = «LOCAL»", "expected a text in quotes"),
    ("CREATE ROUTE r WITH LIFETIME = «'5'»", "expected a whole number"),
    ("CREATE ROUTE r WITH LIFETIME = «1.5»", "expected a whole number"),
    ("DROP ROUTE r«,» s", "expected the end of the statement"),
    ("ALTER ROUTE r «AUTHORIZATION» o", "expected WITH"),
    ("END CONVERSATION «7»", "expected a text in quotes"),
    ("ALTER SERVICE s«»", "expected '(', ON or WITH"),
    ("CREATE SERVICE s ON QUEUE q («)»", "expected a name"),
    ("CREATE QUEUE q WITH POISON_MESSAGE_HANDLING «=» ON", "expected '('"),
    ("ALTER MESSAGE TYPE t VALIDATION = «XML»", "expected EMPTY, JSON, NONE or WELL_FORMED_XML"),
    ("CREATE CONTRACT c (t SENT BY «INITATOR»)", "expected ANY, INITIATOR or TARGET; did you mean INITIATOR?"),
    ("CREATE CONTRACT c«»", "expected '(' or AUTHORIZATION"),
    (
        "CREATE CONTRACT c («DEFAULT» SENT BY ANY)",
        "expected a name; a name that is a keyword is written in brackets: [DEFAULT]",
    ),
    ("ALTER «CONTRACT» c", "expected BROKER, DATABASE, MESSAGE, QUEUE, REMOTE, ROUTE or SERVICE"),
    (
        "CREATE BROKER PRIORITY p FOR CONVERSATION SET («LEVEL» = 3)",
        "expected CONTRACT_NAME, LOCAL_SERVICE_NAME, PRIORITY_LEVEL or REMOTE_SERVICE_NAME",
    ),
    ("ALTER BROKER PRIORITY p FOR CONVERSATION«»", "expected SET"),
    (
        "ALTER DATABASE d SET «PAGE_VERIFY» NONE",
        "expected DISABLE_BROKER, ENABLE_BROKER, ERROR_BROKER_CONVERSATIONS, NEW_BROKER or PARTNER",
    ),
    ("CREATE QUEUE «'on'»", "expected a name"),
    ("GRANT «OWNERSHIP» ON SERVICE::s TO a", "expected CONNECT or SEND"),
    ("GRANT SEND ON SERVICE::s «FROM» a", "expected TO"),
]
# Number, statement, and what the sentence has to say.
REFUSED = [
    (1038, "DROP ROUTE «[]»", "a name must not be empty"),
    (1038, "DROP ROUTE «[]» x", "a name must not be empty"),
    (1038, "CREATE ROUTE r AUTHORIZATION «\"\"» WITH ADDRESS='x'", "a name must not be empty"),
    (103, f"DROP ROUTE «{'r' * 129}»", "this name has 129 characters; at most 128 are allowed"),
    (102, "CREATE QUEUE «[a\ud800]»", "it has half a character"),
    (102, "CREATE ROUTE «[\udfff]» WITH ADDRESS = 'LOCAL';", "it has half a character"),
    (102, "CREATE ROUTE «r» WITH WEIGHT = 1", "CREATE ROUTE needs ADDRESS"),
    (102, "CREATE ROUTE r WITH ADDRESS = 'a', «Address» = 'b'", "ADDRESS is given twice"),
    (102, "ALTER ROUTE r WITH LIFETIME = 1 «LIFETIME» = 1", "LIFETIME is given twice"),
    (8169, "END CONVERSATION «'x'»", "'x' is no conversation handle: write a GUID"),
    (102, "ALTER QUEUE q WITH STATUS = ON «status» = OFF", "STATUS is given twice"),
    (8404, "CREATE SERVICE s ON QUEUE q (a, «[a]»)", "the contract 'a' is given twice; remove one"),
    (8403, "CREATE CONTRACT c (a SENT BY ANY, «a» SENT BY TARGET)", "the message type 'a' is given twice; remove one"),
    (8492, "CREATE CONTRACT «c» (a SENT BY TARGET)", "at least one message type SENT BY INITIATOR or ANY"),
    (
        102,
        "CREATE BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = 1, «PRIORITY_LEVEL» = 2)",
        "PRIORITY_LEVEL is given twice",
    ),
    (8169, f"MOVE CONVERSATION '{GUID}' TO «'x'»", "'x' is no conversation group: write a GUID"),
    (8169, "END CONVERSATION «''»", "'' is no conversation handle: write a GUID"),
    (102, "«Delete» FROM sys.routes", "DELETE is not supported: the views are read only; ALTER, CREATE and DROP"),
    (102, "«Select» * FROM sys.routes", "run it alone, without USE and GO; broker sql -d NAME chooses the database"),
    (102, "DROP ROUTE« »;", "incorrect syntax at the end of the statement; expected a name"),
    (102, f"CREATE ROUTE r WITH LIFETIME = «{'9' * 1001}»", f"near '{'9' * 37}...'; expected a whole number"),
    (102, "CREATE QUEUE q WITH STATUS = ON, RETENTION = «ON»", "an application keeps what it needs in its own table"),
    (102, "ALTER QUEUE q WITH «activation» (STATUS = ON)", "write the reader as a function, @broker.reader('queue')"),
    (102, "CREATE MESSAGE TYPE t VALIDATION = «VALID_XML» WITH SCHEMA COLLECTION c", "use WELL_FORMED_XML"),
    (102, "ALTER MESSAGE TYPE t VALIDATION = «valid_xml» WITH SCHEMA COLLECTION c", "use WELL_FORMED_XML"),
    (102, "ALTER QUEUE q «ON» files", f"the option ON of ALTER QUEUE {QUEUE}"),
    (102, "ALTER QUEUE q «REBUILD»", f"the option REBUILD of ALTER QUEUE {QUEUE}"),
    (105, "END CONVERSATION «'»abc", "this text is not closed: its ' is missing"),
    (105, "DROP ROUTE «[»abc", "this name is not closed: its ] is missing"),
    (113, "DROP ROUTE x «/*» y", "this comment is not closed: its */ is missing"),
    (102, "GRANT CONNECT ON ENDPOINT «TO» [x]", "as in CONNECT ON ENDPOINT::name"),
    (102, "GRANT SEND ON «ENDPOINT»::s TO a", "as in SEND ON SERVICE::name"),
    (102, "GRANT SEND ON «[//shop/Foo]» TO x", "the name comes after SERVICE::, as in SEND ON SERVICE::name"),
    (15151, "GRANT SEND ON SERVICE::s TO «[sha256:1]»", "write sha256: and 64 hexadecimal digits"),
    (102, "GRANT SEND ON SERVICE::s TO a, b, «[a]»", "the principal 'a' is given twice; remove one"),
    (102, "GRANT SEND ON SERVICE::s TO [CN=a], «[cn = a]»", "the principal 'cn = a' is given twice; remove one"),
    (103, f"GRANT SEND ON SERVICE::«[{'x' * 513}]» TO a", "this name has 513 characters; at most 512 are allowed"),
    (103, f"GRANT SEND ON SERVICE::«[{'ж' * 257}]» TO a", "the name of a service has at most 512 bytes"),
    (1038, "GRANT SEND ON SERVICE::«[]» TO a", "a name must not be empty"),
    (103, f"GRANT SEND ON SERVICE::s TO «[{'x' * 1025}]»", "has 1025 characters; at most 1024 are allowed"),
    (102, "GRANT SEND ON SERVICE::s TO a «WITH» GRANT OPTION", GIVER),
    (102, "GRANT SEND ON SERVICE::s TO a «AS» b", GIVER),
    (102, "CREATE REMOTE SERVICE BINDING «b» TO SERVICE 's' WITH ANONYMOUS = ON", "needs USER"),
    (103, "CREATE REMOTE SERVICE BINDING b TO SERVICE «''» WITH USER = x", "the name of a service has 1 to 512 bytes"),
    (102, "ALTER REMOTE SERVICE BINDING b WITH USER = x «USER» = y", "USER is given twice"),
    (15151, "ALTER REMOTE SERVICE BINDING b WITH USER = «[sha256:1]»", "'sha256:1' is not a fingerprint"),
]


def mistake(text: str) -> DdlSyntaxError:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script(text)
    return caught.value


def check(number: int, marked: str, problem: str) -> None:
    """The statement ends in this error: its number, its place, what it has to say, and its caret."""
    before, _, rest = marked.partition("«")
    blamed, _, after = rest.partition("»")

    head, sentence, *shown = str(error := mistake(before + blamed + after)).split("\n")

    assert head == f"Msg {number}, Level {error.severity}, -:1:{len(before) + 1}"
    assert problem in sentence
    assert shown == [before + blamed + after, " " * len(before) + "^" * max(1, len(blamed))]


@pytest.mark.parametrize(("marked", "expected"), EXPECTED)
def test_incorrect_syntax_has_its_caret_and_says_what_was_expected(marked: str, expected: str) -> None:
    blamed = marked.partition("«")[2].partition("»")[0]
    near = f"near {blamed!r}" if blamed else "at the end of the statement"

    check(102, marked, f"incorrect syntax {near}; {expected}")


@pytest.mark.parametrize(("number", "marked", "problem"), REFUSED)
def test_what_is_refused_has_its_number_and_its_caret(number: int, marked: str, problem: str) -> None:
    check(number, marked, problem)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("DROP ROUTE a\nGO\nDROP ROUTE\n\n", 3, 11),
        ("CREATE ROUTE r WITH ADDRESS = 'x';\r\nDROP\r\n  ROUTE\r\n  'x'\r\n", 4, 3),
        ("/* one\ntwo */ DROP QUEUE q x", 2, 21),
        ("DROP ROUTE a\nGO now", 2, 1),
        ("'a\nb", 1, 1),
        ("DROP ROUTE a;\nDROP ROUTE [b", 2, 12),
    ],
)
def test_line_and_column_count_from_one_over_the_whole_script(text: str, line: int, column: int) -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script(text, source="routes.d/a.sql")

    assert f", routes.d/a.sql:{line}:{column}\n" in str(caught.value)


def test_every_mistake_can_be_had_in_one_reading() -> None:
    outcomes = list(read_script("DROP x; DROP ROUTE a DROP y GO\nGO\nDROP ROUTE b; DROP ROUTE 'c"))

    problems = [outcome.number if isinstance(outcome, DdlSyntaxError) else outcome for outcome in outcomes]
    assert [102, ddl.DropRoute("a"), 102, ddl.DropRoute("b"), 105] == problems

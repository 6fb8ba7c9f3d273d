"""What is said about text that is no statement: number, place, caret, what was expected, what was meant."""

from __future__ import annotations

import pytest

from broker.ddl.parser import OPENERS, iter_script, parse_script, read_script
from broker.ddl.statements import CreateRoute, DropRoute, UseDatabase
from broker.errors import DdlSyntaxError

PROPERTIES = "ADDRESS, BROKER_INSTANCE, LIFETIME, MIRROR_ADDRESS, SERVICE_NAME or WEIGHT"
OPENING = "ALTER, BEGIN, CREATE, DENY, DROP, END, GRANT, MOVE, REVOKE or USE"
KINDS = "BROKER, CONTRACT, MESSAGE, QUEUE, REMOTE, ROUTE or SERVICE"
QUEUE = "is not supported; what is supported is WITH STATUS and POISON_MESSAGE_HANDLING"
RETENTION = "an application keeps what it needs in a table of its own, in the transaction that sends or receives"
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


def test_rule_broken_inside_a_statement_is_told_at_its_token() -> None:
    assert str(mistake("USE a; USE []")).endswith("\na name must not be empty\nUSE a; USE []\n           ^^")


def test_text_line_is_shown_without_its_carriage_return() -> None:
    assert mistake("DROP ROUTE 'a'\r\n").text_line == "DROP ROUTE 'a'"


def test_error_names_its_source() -> None:
    with pytest.raises(DdlSyntaxError) as caught:
        parse_script("x", source="routes.d/a.sql")

    assert str(caught.value).startswith("Msg 102, Level 16, routes.d/a.sql:1:1\n")


def test_statements_before_a_mistake_are_given_first() -> None:
    script = iter_script("USE a; CREATE ROUTE r WITH ADDRESS = 'LOCAL'; DROP; DROP ROUTE r")

    assert [UseDatabase, CreateRoute] == [type(next(script)), type(next(script))]
    with pytest.raises(DdlSyntaxError):
        next(script)


def test_every_mistake_can_be_had_in_one_reading() -> None:
    outcomes = list(read_script("DROP x; DROP ROUTE a DROP y GO\nGO\nDROP ROUTE b; DROP ROUTE 'c"))

    problems = [outcome.number if isinstance(outcome, DdlSyntaxError) else outcome for outcome in outcomes]
    assert [102, DropRoute("a"), 102, DropRoute("b"), 105] == problems


@pytest.mark.parametrize("text", ["", " \n", ";", "GO", "-- nothing\n/* at all */"])
def test_script_without_statements_is_empty(text: str) -> None:
    assert [] == parse_script(text)


def test_words_that_open_a_statement_come_from_the_grammar() -> None:
    expected = {"ALTER", "BEGIN", "CREATE", "DENY", "DROP", "END", "GRANT", "MOVE", "REVOKE", "USE"}
    assert expected == OPENERS

"""One SELECT of T-SQL, read and written again for SQLite."""

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone

import pytest
from sqlglot.dialects.tsql import TSQL

from broker.errors import Span, StatementError
from broker.observe.sql_functions import Value, add_functions, read_instant, render_guid, render_instant
from broker.observe.tsql import CALLS_MAX, LEVELS_MAX, TEXT_MAX, SelectQuery, TableName

NOW = datetime(2026, 5, 9, 7, 35, 25, 123456, tzinfo=UTC)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection, now=NOW)
        yield connection


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("'a' + N'b' + 'c'", "abc"),
        ("0x01 + 0x02", b"\x01\x02"),
        ("'7' + 1", 8),
        ("NULL + 1", None),
        ("LEN(N'it''s')", 4),
        ("ISNULL(NULL, 'x')", "x"),
        ("CHARINDEX('a', 'cba')", 3),
        ("STRING_AGG('a', ',')", "a"),
        ("5 / 2", 2),
        ("GETUTCDATE()", "2026-05-09 07:35:25.123"),
        ("DB_NAME()", "msdb"),
        ("CURRENT_TIMESTAMP", "2026-05-09 07:35:25.123"),
        ("DATE('2026-05-09', 'start of month', '-1 day')", "2026-04-30"),
        ("CAST(12345 AS NVARCHAR(3))", "123"),
        ("CAST('<a/>' AS XML)", "<a/>"),
        ("CAST('7.5' AS DECIMAL(10, 2))", 7.5),
        ("CAST('a' AS VARBINARY(8))", b"a"),
        ("CASE WHEN 'a' = 'A' COLLATE Latin1_General_CI_AS THEN 1 ELSE 0 END", 1),
        ("CASE WHEN 'a' = 'A' COLLATE Latin1_General_BIN2 THEN 1 ELSE 0 END", 0),
    ],
)
def test_expression_has_the_value_of_the_original(db: sqlite3.Connection, expression: str, expected: Value) -> None:
    assert (expected,) == db.execute(rendered(f"SELECT {expression}")).fetchone()


@pytest.mark.parametrize("sql", ["tsql_plus('a', 1)", "tsql_to_datetime('soon')"])
def test_value_that_cannot_be_converted_fails_the_statement(db: sqlite3.Connection, sql: str) -> None:
    with pytest.raises(sqlite3.OperationalError, match="user-defined function raised exception"):
        db.execute(f"SELECT {sql}").fetchone()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01", datetime(2026, 1, 1, tzinfo=UTC)),
        (" 2026-01-01T10:00 ", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        ("2026-01-01 10:00:00.5", datetime(2026, 1, 1, 10, 0, 0, 500000, tzinfo=UTC)),
        ("2026-01-01T10:00Z", datetime(2026, 1, 1, 10, tzinfo=UTC)),
        ("2026-01-01T10:00+02:00", datetime(2026, 1, 1, 8, tzinfo=UTC)),
    ],
)
def test_instant_is_read_as_utc(text: str, expected: datetime) -> None:
    assert expected == read_instant(text)
    for value in ("", "soon", 7.5, None):
        with pytest.raises(ValueError, match="isoformat"):
            read_instant(value)


def test_instant_is_shown_in_utc_and_a_guid_in_upper_case() -> None:
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))

    assert render_instant(at) == "2025-12-31 23:00:00.000"
    assert render_guid(bytes(range(16))) == "00010203-0405-0607-0809-0A0B0C0D0E0F"
    assert render_guid(None) is None


@pytest.mark.parametrize(
    "call",
    [
        "instr('abcabc', 'ca')",
        "instr('abc', '')",
        "instr('a', NULL)",
        "instr(x'010203', x'0203')",
        "instr('ä€', '€')",
        "replace('abcabc', 'b', 'xy')",
        "replace('abc', '', 'x')",
        "replace('a', NULL, 'b')",
        "replace(1210, 1, 7)",
        "trim('xxaxbyx', 'xy')",
        "ltrim('xxaxx', 'x')",
        "trim(NULL, 'x')",
        "trim('  a ')",
    ],
)
def test_function_in_place_of_one_of_sqlite_gives_the_same(db: sqlite3.Connection, call: str) -> None:
    with closing(sqlite3.connect(":memory:")) as plain:
        assert plain.execute(f"SELECT {call}").fetchone() == db.execute(f"SELECT {call}").fetchone()


def test_replacement_that_would_be_too_large_is_never_made(db: sqlite3.Connection) -> None:
    """It would have 400 GB."""
    with pytest.raises(sqlite3.DataError, match="too big"):
        db.execute("SELECT replace(?1, 'a', ?1)", ("a" * 640_000,))


SECONDS = 10.0  # of the processor, for a statement that takes a second at most
PARSER = TSQL.parser_class


def rendered(text: str) -> str:
    """The statement with `v` and the table's own name in place of each table."""
    statement = SelectQuery(text)
    return statement.render({table: f"v_{table.name}" for table in statement.tables})


def refused(text: str) -> StatementError:
    with pytest.raises(StatementError) as caught:
        rendered(text)
    return caught.value


def test_name_with_a_schema_is_never_what_the_statement_defines() -> None:
    statement = SelectQuery("WITH Q AS (SELECT 1 AS a) SELECT 1 FROM dbo.Q")

    assert frozenset({TableName(None, "dbo", "Q")}) == statement.tables
    assert frozenset({"q"}) == statement.own


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 102),
        ("(SELECT 1)", 102),
        ("WITH q AS (SELECT 1 AS a) VALUES (1)", 102),
        ("SELECT a b c FROM Q", 102),
        ("SELECT 1; SELECT 2", 102),
        ("SELECT 1" + " " * TEXT_MAX, 102),
        ("SELECT 1\nGO" + " " * (TEXT_MAX - 20) + "x", 102),  # one pass: with a search behind each blank half a minute
        ("SELECT DATEDIFF('', a, b) FROM Q", 102),
        ("SELECT DATEADD([], 1, 2)", 102),
        ("SELECT CONVERT('', 1)", 195),
        ("SELECT VECTOR(a, 1)", 102),
        ("SELECT JSON_OBJECT_AGG(1)", 195),
        ("SELECT 'abc", 105),
        ("SELECT 1 /* x", 105),
        ("SELECT " + "(" * 5000, 191),
        ("SELECT 1" + "+1" * 4000, 191),
        ("DELETE FROM sys.routes", 259),
        ("WITH q AS (SELECT 1 AS a) INSERT INTO Q SELECT * FROM q", 259),
        ("SELECT * INTO #t FROM Q", 259),
        ("SELECT @a", 137),
        ("SELECT * FROM Q FOR JSON AUTO", 102),
        ("SELECT * FROM Q CROSS APPLY R(a) s", 102),
        ("SELECT * FROM Q PIVOT (SUM(a) FOR b IN ([c])) p", 102),
        ("SELECT a FROM Q GROUP BY ROLLUP(a)", 102),
        ("SELECT TOP 5 PERCENT a FROM Q", 102),
        ("SELECT a FROM Q WHERE a LIKE '[a-c]%'", 102),
        ("SELECT TRY_CAST(a AS INT) FROM Q", 102),
        ("SELECT * FROM (VALUES (1)) AS t(x)", 102),
        ("SELECT * FROM (WITH q AS (SELECT 1 AS a) SELECT a FROM q) r", 156),
        ("SELECT DATEADD(day, 1, a) FROM Q", 195),
        ("SELECT CAST(a AS DATETIME) FROM Q", 243),
        ("SELECT a COLLATE Klingon FROM Q", 448),
        ("SELECT load_extension('x')", 195),
        ("SELECT sys.fn_x(1)", 4121),
        ("SELECT * FROM pragma_table_info('Q')", 208),
        ("SELECT * FROM db..Q", 208),
        ("SELECT * FROM server.db.dbo.Q", 7202),
    ],
)
def test_what_cannot_be_done_is_refused_by_number(text: str, number: int) -> None:
    assert number == refused(text).number


def called_words() -> list[str]:
    """What sqlglot reads as a type or a function where a parenthesis follows."""
    kinds = PARSER.FUNC_TOKENS | PARSER.TYPE_TOKENS
    keywords = {word for word, kind in TSQL.tokenizer_class.KEYWORDS.items() if kind in kinds}
    return sorted({*PARSER.FUNCTIONS, *PARSER.FUNCTION_PARSERS, *keywords, "(a)->", "nowhere"})


@pytest.mark.parametrize(
    ("levels", "times"),
    [
        pytest.param(40, 1, id="deep"),
        pytest.param(LEVELS_MAX, 12, id="both", marks=pytest.mark.long),
        pytest.param(1, CALLS_MAX, id="many", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("call", ["{word}(", "{word}(a, "])
def test_calls_of_any_word_are_understood_or_refused_in_time(call: str, levels: int, times: int) -> None:
    for word in called_words():
        begin = call.format(word=word)
        nested = begin * levels + "1" + ")" * begin.count("(") * levels
        started = time.process_time()
        with contextlib.suppress(StatementError):
            rendered("SELECT " + ", ".join([nested] * times))
        assert time.process_time() - started < SECONDS, word


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "date(" * LEVELS_MAX + ",".join(["1"] * 4000) + ")" * LEVELS_MAX,
        "SELECT 1 FROM " + "a JOIN " * 60 + "a",
        "SELECT " + "(SELECT 1 OFFSET " * 60 + "1" + " ROWS)" * 60,
        "SELECT CAST(1 AS [" + "date(" * 60 + "1" + ")" * 60 + "])",
        "SELECT " + ", ".join(["CAST(1 AS [" + "date(" * 60 + "1" + ")" * 60 + "])"] * 40),
        "SELECT " + "datetime2(" * LEVELS_MAX + f"[{'a' * 60_000}]" + ")" * LEVELS_MAX,
        "WITH a0 AS (SELECT 1 AS x)"
        + "".join(f", a{at} AS (SELECT p.x FROM a{at - 1} p, a{at - 1} q)" for at in range(1, 40))
        + " SELECT x FROM a39",
        "WITH a0 AS (SELECT 1 AS x)"
        + "".join(f", a{at} AS (SELECT x + x AS x FROM a{at - 1})" for at in range(1, 40))
        + " SELECT x FROM a39",
        f"SELECT 1 FROM (SELECT CASE {'WHEN a THEN a ' * 900}END AS x FROM Q) q WHERE 1 IN ({'x, ' * 2000}x)",
    ],
    ids=lambda text: text[:40],
)
def test_statement_that_would_grow_without_bound_is_refused(text: str) -> None:
    assert refused(text).number in {191, 195}


@pytest.mark.parametrize(("calls", "is_refused"), [(CALLS_MAX, False), (CALLS_MAX + 1, True)])
def test_calls_are_counted(calls: int, *, is_refused: bool) -> None:
    text = "SELECT " + ", ".join(["LEN('a')"] * calls)

    assert (102 == refused(text).number) if is_refused else rendered(text)


def test_question_of_a_person_has_room() -> None:
    """As deep and as wide as somebody may write it."""
    rendered("""
        WITH late AS (
            SELECT far_service, CASE WHEN lifetime < GETUTCDATE() THEN 'old' ELSE state END AS s
            FROM sys.conversation_endpoints
            WHERE far_service IN
                  (SELECT name FROM sys.services WHERE (name LIKE 'a%' OR (name LIKE 'b%' AND LEN(name) > 3)))
        ), counted AS (SELECT far_service, s, COUNT(*) AS n FROM late GROUP BY far_service, s)
        SELECT l.far_service, SUBSTRING(UPPER(ISNULL(CAST(l.n AS VARCHAR(10)), 'none')), 1, 5), r.n
        FROM counted l LEFT JOIN counted r ON r.far_service = l.far_service AND r.s = 'old'
        WHERE EXISTS
              (SELECT 1 FROM (SELECT far_service FROM late WHERE s <> 'old') q WHERE q.far_service = l.far_service)
        ORDER BY l.n DESC
    """)
    rendered("SELECT 1 WHERE 1 IN (" + ", ".join(["'4d0f7a2e-0000-0000-0000-000000000000'"] * 1500) + ")")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT [x(1) FROM database_0.broker_route --](1)",
        "SELECT dbo.[x) FROM broker_route --](1)",
        "SELECT a COLLATE [BIN_) FROM broker_route --] FROM Q",
        "SELECT DATEADD([x') FROM broker_route --], 1, a) FROM Q",
        "SELECT [`a` FROM broker_route --] FROM Q",
        "SELECT 'a'' FROM broker_route --' FROM Q",
        "SELECT a AS [b` FROM broker_route --] FROM Q",
        "SELECT a FROM [Q` FROM broker_route --]",
        "SELECT a /* */ FROM broker_route -- */ FROM Q",
    ],
)
def test_text_inside_a_name_never_becomes_sql(text: str) -> None:
    """It is refused or quoted; with everything quoted taken out no table of the file is left."""
    try:
        sql = rendered(text)
    except StatementError:
        sql = ""

    assert "broker_route" not in re.sub(r"`(``|[^`])*`|'(''|[^'])*'", "", sql)


@pytest.mark.parametrize(
    ("text", "span", "line"),
    [
        ("DROP TABLE Q", Span("-", 1, 1, 4), "DROP TABLE Q"),
        ("SELECT 1;\n SELECT 2", Span("-", 2, 2, 6), " SELECT 2"),
        ("SELECT a,\r\n b c d FROM Q\r\n", Span("-", 2, 6, 1), " b c d FROM Q"),
        ("SELECT a\nFROM Q\nWHERE b = = 3", Span("-", 3, 11, 1), "WHERE b = = 3"),
        ("SELECT 'find', find(1)", Span("-", 1, 16, 4), "SELECT 'find', find(1)"),
    ],
)
def test_error_shows_its_place(text: str, span: Span, line: str) -> None:
    error = refused(text)

    assert (span, line) == (error.span, error.text_line)

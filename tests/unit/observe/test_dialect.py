from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from broker.observe.dialect import ViewsSQLite, bare, collation_of, is_known_function, is_known_type, unit_of


def write(expression: str) -> str:
    """The first column of a SELECT, for SQLite."""
    column: exp.Expr = sqlglot.parse_one(f"SELECT {expression}", read="tsql").expressions[0]
    return column.sql(ViewsSQLite, identify=True)


@pytest.mark.parametrize(
    ("tsql", "sqlite"),
    [
        ("[a b]", "`a b`"),
        ("[a`b]", "`a``b`"),
        ('"a"', "`a`"),
        ("a + 'x' + b", "TSQL_PLUS(TSQL_PLUS(`a`, 'x'), `b`)"),
        ("LEN(a)", "TSQL_LENGTH(`a`)"),
        ("DATALENGTH(a)", "TSQL_DATA_LENGTH(`a`)"),
        ("LEFT(a, 2)", "TSQL_LEFT(`a`, 2)"),
        ("RIGHT(a, 2)", "TSQL_RIGHT(`a`, 2)"),
        ("CONCAT(a, 'b', 1)", "TSQL_CONCAT(`a`, 'b', 1)"),
        ("ISNULL(a, 'x')", "COALESCE(`a`, 'x')"),
        ("CHARINDEX('a', b)", "INSTR(`b`, 'a')"),
        ("STRING_AGG(a, ',')", "GROUP_CONCAT(`a`, ',')"),
        ("COUNT_BIG(*)", "COUNT(*)"),
        ("N'it''s'", "'it''s'"),
        ("0x00FF", "x'00FF'"),
        ("5 / 2", "5 / 2"),
        ("GETUTCDATE()", "TSQL_NOW()"),
        ("SYSUTCDATETIME()", "TSQL_NOW()"),
        ("GETDATE()", "TSQL_NOW()"),
        ("CURRENT_TIMESTAMP", "TSQL_NOW()"),
        ("DATEADD(mi, -5, GETUTCDATE())", "TSQL_DATE_ADD('minute', -5, TSQL_NOW())"),
        ("DATEDIFF(ss, a, b)", "TSQL_DATE_DIFF('second', `a`, `b`)"),
        ("DATEPART(hh, a)", "TSQL_DATE_PART('hour', `a`)"),
        ("YEAR(a)", "TSQL_DATE_PART('year', `a`)"),
        ("MONTH(a)", "TSQL_DATE_PART('month', `a`)"),
        ("DAY(a)", "TSQL_DATE_PART('day', `a`)"),
        ("CAST(a AS NVARCHAR(10))", "substr(CAST(`a` AS TEXT), 1, 10)"),
        ("CAST(a AS NVARCHAR(MAX))", "CAST(`a` AS TEXT)"),
        ("CAST(a AS VARCHAR)", "CAST(`a` AS TEXT)"),
        ("CAST(a AS XML)", "CAST(`a` AS TEXT)"),
        ("CONVERT(VARCHAR(8), a)", "substr(CAST(`a` AS TEXT), 1, 8)"),
        ("CONVERT(VARCHAR(30), a, 121)", "substr(CAST(`a` AS TEXT), 1, 30)"),
        ("CAST(a AS BIGINT)", "CAST(`a` AS INTEGER)"),
        ("CAST(a AS FLOAT)", "CAST(`a` AS REAL)"),
        ("CAST(a AS DECIMAL(10, 2))", "CAST(`a` AS NUMERIC)"),
        ("CAST(a AS VARBINARY(8))", "CAST(`a` AS BLOB)"),
        ("CAST(a AS DATETIME2(7))", "tsql_to_datetime(`a`)"),
        ("CAST(a AS DATE)", "substr(tsql_to_datetime(`a`), 1, 10)"),
        ("CAST(a AS UNIQUEIDENTIFIER)", "(upper(CAST(`a` AS TEXT)) COLLATE NOCASE)"),
        ("CAST(a AS BIT)", "(CAST(`a` AS INTEGER) <> 0)"),
        ("a COLLATE Latin1_General_CI_AS", "`a` COLLATE NOCASE"),
        ("a COLLATE Latin1_General_BIN2", "`a` COLLATE BINARY"),
    ],
)
def test_tsql_is_written_with_the_same_meaning(tsql: str, sqlite: str) -> None:
    assert sqlite == write(tsql)


@pytest.mark.parametrize(
    ("name", "is_known"),
    [("GETUTCDATE", True), ("datalength", True), ("ifnull", True), ("load_extension", False), ("a) FROM b --", False)],
)
def test_only_listed_functions_are_known(name: str, *, is_known: bool) -> None:
    assert is_known == is_known_function(name)


@pytest.mark.parametrize(("name", "is_known"), [("int", True), ("xml", True), ("geography", False), ("foo", False)])
def test_only_listed_types_are_known(name: str, *, is_known: bool) -> None:
    cast = sqlglot.parse_one(f"CAST(a AS {name})", read="tsql")

    assert is_known == is_known_type(cast.args["to"])


@pytest.mark.parametrize(
    ("name", "collation"),
    [
        ("Latin1_General_CI_AS", "NOCASE"),
        ("SQL_Latin1_General_CP1_CS_AS", "BINARY"),
        ("Latin1_General_BIN", "BINARY"),
        ("x) FROM y", None),
    ],
)
def test_collation_is_told_by_its_name(name: str, collation: str | None) -> None:
    assert collation == collation_of(name)


@pytest.mark.parametrize(
    ("expression", "unit"),
    [("DATEADD(yy, 1, a)", "year"), ("DATEPART(MI, a)", "minute"), ("DATEADD(fortnight, 1, a)", None)],
)
def test_unit_is_known_by_any_of_its_words(expression: str, unit: str | None) -> None:
    assert unit == unit_of(sqlglot.parse_one(expression, read="tsql"))


def test_node_without_a_unit_has_none() -> None:
    assert unit_of(exp.DateAdd(this=exp.column("a"), expression=exp.Literal.number(1))) is None


@pytest.mark.parametrize(("expression", "inner"), [("CAST(a AS TEXT)", "a"), ("CAST(a AS INT)", "CAST(a AS INTEGER)")])
def test_conversion_that_the_parser_put_around_is_taken_off(expression: str, inner: str) -> None:
    assert inner == bare(sqlglot.parse_one(expression, read="tsql")).sql("tsql")

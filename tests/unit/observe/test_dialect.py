from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from broker.observe.tsql import ViewsSQLite, bare, collation_of, is_known_function, is_known_type


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
        ("LEN(a)", "LENGTH(`a`)"),
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
        ("DATETIME(a, '-5 minutes')", "DATETIME(`a`, '-5 minutes')"),
        ("DATE(a, 'start of month', '-1 day')", "DATE(`a`, 'start of month', '-1 day')"),
        ("JULIANDAY(a) - JULIANDAY(b)", "JULIANDAY(`a`) - JULIANDAY(`b`)"),
        ("CAST(a AS NVARCHAR(10))", "substr(CAST(`a` AS TEXT), 1, 10)"),
        ("CAST(a AS NVARCHAR(MAX))", "CAST(`a` AS TEXT)"),
        ("CAST(a AS VARCHAR)", "CAST(`a` AS TEXT)"),
        ("CAST(a AS XML)", "CAST(`a` AS TEXT)"),
        ("CAST(a AS BIGINT)", "CAST(`a` AS INTEGER)"),
        ("CAST(a AS FLOAT)", "CAST(`a` AS REAL)"),
        ("CAST(a AS DECIMAL(10, 2))", "CAST(`a` AS NUMERIC)"),
        ("CAST(a AS VARBINARY(8))", "CAST(`a` AS BLOB)"),
        ("a COLLATE Latin1_General_CI_AS", "`a` COLLATE NOCASE"),
        ("a COLLATE Latin1_General_BIN2", "`a` COLLATE BINARY"),
    ],
)
def test_tsql_is_written_with_the_same_meaning(tsql: str, sqlite: str) -> None:
    assert sqlite == write(tsql)


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        ("GETUTCDATE", True),
        ("unixepoch", True),
        ("ifnull", True),
        ("strftime", False),
        ("load_extension", False),
        ("a) FROM b --", False),
    ],
)
def test_only_listed_functions_are_known(name: str, *, is_known: bool) -> None:
    assert is_known == is_known_function(name)


@pytest.mark.parametrize(
    ("name", "is_known"), [("int", True), ("xml", True), ("datetime", False), ("geography", False), ("foo", False)]
)
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


@pytest.mark.parametrize(("expression", "inner"), [("CAST(a AS TEXT)", "a"), ("CAST(a AS INT)", "CAST(a AS INTEGER)")])
def test_conversion_that_the_parser_put_around_is_taken_off(expression: str, inner: str) -> None:
    assert inner == bare(sqlglot.parse_one(expression, read="tsql")).sql("tsql")

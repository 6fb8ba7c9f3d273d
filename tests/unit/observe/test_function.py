from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone

import pytest

from broker.observe.tsql import ALLOWED, BUILT_IN, Value, add_functions, read_instant, render_guid, render_instant

NOW = datetime(2026, 5, 9, 7, 35, 25, 123456, tzinfo=UTC)


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        add_functions(connection, now=NOW)
        yield connection


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("tsql_now()", "2026-05-09 07:35:25.123"),
        ("tsql_plus('a', 'b')", "ab"),
        ("tsql_plus(x'01', x'02')", b"\x01\x02"),
        ("tsql_plus(1, 2)", 3),
        ("tsql_plus(1, 2.5)", 3.5),
        ("tsql_plus('7', 1)", 8),
        ("tsql_plus('7.5', 1)", 8.5),
        ("tsql_plus(NULL, 1)", None),
        ("tsql_plus('a', NULL)", None),
        ("tsql_to_datetime('20260101')", "2026-01-01 00:00:00.000"),
        ("tsql_to_datetime(NULL)", None),
    ],
)
def test_function_gives_what_the_original_gives(db: sqlite3.Connection, sql: str, expected: Value) -> None:
    (value,) = db.execute(f"SELECT {sql}").fetchone()

    assert expected == value


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


@pytest.mark.parametrize("value", ["", "soon", 7.5, None])
def test_what_is_no_instant_is_refused(value: Value) -> None:
    with pytest.raises(ValueError, match="isoformat"):
        read_instant(value)


def test_instant_is_shown_in_utc() -> None:
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))

    assert render_instant(at) == "2025-12-31 23:00:00.000"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, None), (bytes(range(16)), "00010203-0405-0607-0809-0A0B0C0D0E0F")],
)
def test_guid_is_shown_in_upper_case(value: bytes | None, expected: str | None) -> None:
    assert expected == render_guid(value)


def test_functions_of_the_views_are_not_for_statements() -> None:
    assert {name for name in ALLOWED if name.startswith("tsql_")} == ALLOWED - BUILT_IN


def test_no_allowed_function_reaches_outside() -> None:
    """Not even SQLite's own, should a build bring them."""
    outside = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "randomblob", "zeroblob", "printf"}

    assert ALLOWED & outside == set()


@pytest.mark.parametrize(
    "call",
    [
        "instr('abcabc', 'ca')",
        "instr('abc', 'x')",
        "instr('abc', '')",
        "instr(NULL, 'a')",
        "instr('a', NULL)",
        "instr(x'010203', x'0203')",
        "instr(12345, 34)",
        "instr(1.5, '.')",
        "instr('ä€', '€')",
        "replace('abcabc', 'b', 'xy')",
        "replace('abc', '', 'x')",
        "replace('aaa', 'aa', '')",
        "replace(NULL, 'a', 'b')",
        "replace('a', NULL, 'b')",
        "replace('a', 'a', NULL)",
        "replace(1210, 1, 7)",
        "replace('ä€', '€', 'x')",
        "trim('xxaxbyx', 'xy')",
        "ltrim('xxaxx', 'x')",
        "rtrim('xxaxx', 'x')",
        "trim('abc', '')",
        "trim(NULL, 'x')",
        "rtrim('x', NULL)",
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

from __future__ import annotations

import sqlite3

import pytest

from broker.errors import BrokerError, DdlSyntaxError, StatementError, StoreUnavailableError, UnknownNameError
from broker.observe.query import nearest, translate
from broker.observe.tsql import SelectQuery

STATEMENT = SelectQuery("SELECT nam, COUNT(*) FROM Q")


def told(sentence: str, code: int = sqlite3.SQLITE_ERROR) -> BrokerError:
    error = sqlite3.OperationalError(sentence)
    error.sqlite_errorcode = code
    return translate(error, STATEMENT, columns=["name", "address"], path="/a.db")


@pytest.mark.parametrize(
    ("sentence", "kind", "number", "problem"),
    [
        ("no such column: nam", UnknownNameError, 207, "invalid column name 'nam'; did you mean name?"),
        ("no such column: q.nam", UnknownNameError, 207, "invalid column name 'q.nam'; did you mean name?"),
        ("no such column: xyz", UnknownNameError, 207, "invalid column name 'xyz'"),
        ("ambiguous column name: nam", UnknownNameError, 209, "ambiguous column name 'nam': name its table too"),
        ("no such table: x", UnknownNameError, 208, "invalid object name 'x'"),
        ("no such function: F", StatementError, 195, "'F' is not a recognized function name"),
        ("not authorized to use function: hex", StatementError, 195, "'hex' is not a recognized function name"),
        ("wrong number of arguments to function ABS()", StatementError, 174, "wrong number of arguments to 'ABS'"),
        ("misuse of aggregate: COUNT()", StatementError, 147, "an aggregate or window function is out of place: COUNT"),
        (
            "misuse of window function RANK()",
            StatementError,
            147,
            "an aggregate or window function is out of place: RANK",
        ),
        ("access to d.t.c is prohibited", StatementError, 229, "the SELECT permission was denied on 'd.t.c'"),
        ("not authorized", StatementError, 229, "the permission was denied: only the views can be read"),
        (
            "user-defined function raised exception",
            StatementError,
            241,
            "conversion failed: no date, time or number",
        ),
        ("circular reference: q", StatementError, 252, "the expression 'q' refers to itself without UNION ALL"),
        ('near "FOR": syntax error', DdlSyntaxError, 102, "not supported near 'FOR'"),
        ("something else", DdlSyntaxError, 102, "not supported: something else"),
    ],
)
def test_sentence_of_sqlite_becomes_a_numbered_error(
    sentence: str, kind: type[StatementError], number: int, problem: str
) -> None:
    error = told(sentence)

    assert isinstance(error, StatementError)
    assert (kind, number, problem) == (type(error), error.number, error.problem)


def test_error_shows_the_place_in_the_text_that_was_given() -> None:
    error = told("no such column: nam")

    assert str(error).splitlines() == [
        "Msg 207, Level 16, -:1:8",
        "invalid column name 'nam'; did you mean name?",
        "SELECT nam, COUNT(*) FROM Q",
        "       ^^^",
    ]


def test_a_value_that_is_too_large_is_the_callers_fault() -> None:
    error = told("string or blob too big", sqlite3.SQLITE_TOOBIG)

    assert isinstance(error, StatementError)
    assert (error.number, error.problem) == (7119, "a value or a row is too large: 64 KiB, for admins 1.25 MiB")


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR | 256])
def test_fault_of_the_file_is_the_machines(code: int) -> None:
    error = told("disk I/O error", code)

    assert isinstance(error, StoreUnavailableError)
    assert str(error) == "store /a.db: disk I/O error"


def test_error_without_a_code_is_the_callers() -> None:
    error = translate(sqlite3.ProgrammingError("odd"), STATEMENT, columns=[], path="/a.db")

    assert isinstance(error, DdlSyntaxError)


@pytest.mark.parametrize(
    ("name", "hint"), [("NAM", "; did you mean Name?"), ("adress", "; did you mean address?"), ("zzz", "")]
)
def test_nearest_name_is_told_in_its_own_case(name: str, hint: str) -> None:
    assert hint == nearest(name, ["Name", "address"])

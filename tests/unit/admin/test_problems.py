"""The answer to a request that failed: its status, and what is in it."""

import json

import pytest
from aiohttp import web

from broker.admin.problems import ForbiddenError, http_problem, problem_of
from broker.errors import (
    BadRequestError,
    ConversationError,
    DdlSyntaxError,
    DuplicateNameError,
    ListenFailedError,
    SettingError,
    Span,
    StatementError,
    StoreUnavailableError,
    UnknownNameError,
)

STATUSES = [
    (UnknownNameError(208, "x"), 404, "unknown-name"),
    (DuplicateNameError(2714, "x"), 409, "duplicate-name"),
    (DdlSyntaxError(102, "x"), 400, "syntax"),
    (StatementError(9743, "x"), 400, "statement"),
    (ConversationError(8426, "x"), 400, "request"),
    (SettingError("endpoint.listen", "x"), 400, "request"),
    (BadRequestError("x"), 400, "request"),
    (ForbiddenError("x"), 403, "forbidden"),
    (StoreUnavailableError("orders.db", "x"), 503, "store"),
    (ListenFailedError("tcp://a", "x"), 503, "resource"),
    (AssertionError("x"), 500, "internal"),
    (KeyError("x"), 500, "internal"),
]


@pytest.mark.parametrize(("error", "status", "slug"), STATUSES, ids=lambda value: type(value).__name__)
def test_every_error_has_its_status(error: Exception, status: int, slug: str) -> None:
    response = problem_of(error)

    assert status == response.status
    assert response.content_type == "application/problem+json"
    members = json.loads(response.body)  # type: ignore[arg-type]
    assert (f"urn:broker:problem:{slug}", status) == (members["type"], members["status"])
    assert (status == 500) == (members["detail"] == "see the log of the instance")


def test_statement_is_shown_with_its_place() -> None:
    error = DdlSyntaxError(102, "incorrect syntax near 'QEUE'", Span("-", 2, 8, 4), "CREATE QEUE Q")

    members = json.loads(problem_of(error).body)  # type: ignore[arg-type]

    assert members == {
        "type": "urn:broker:problem:syntax",
        "title": "The statement is not understood",
        "status": 400,
        "detail": str(error),
        "number": 102,
        "problem": "incorrect syntax near 'QEUE'",
        "line": 2,
        "column": 8,
        "caret": "CREATE QEUE Q\n       ^^^^",
    }


def test_place_without_its_line_has_no_caret() -> None:
    members = json.loads(problem_of(StatementError(911, "x", Span("a.sql", 3, 1))).body)  # type: ignore[arg-type]

    assert {"number": 911, "problem": "x", "line": 3, "column": 1}.items() <= members.items()
    assert "caret" not in members


def test_wrong_method_tells_the_right_ones() -> None:
    response = http_problem(web.HTTPMethodNotAllowed("PUT", ["HEAD", "GET"]), "/v1/status")

    assert response.headers["Allow"] == "GET, HEAD"
    assert json.loads(response.body)["detail"] == "/v1/status is asked with GET, HEAD"  # type: ignore[arg-type]

"""The answer to a request that failed: its status, and what is in it."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from broker.admin.problems import BUG, ForbiddenError, http_problem, kind_of, problem_of, secure
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


def test_statement_without_a_text_has_no_place() -> None:
    members = json.loads(problem_of(StatementError(911, "no such database")).body)  # type: ignore[arg-type]

    assert {"number", "problem"} == members.keys() - {"type", "title", "status", "detail"}


def test_caret_stands_below_its_line_whatever_characters_the_line_holds() -> None:
    error = DdlSyntaxError(102, "p", Span("-", 1, 4), "a\u2028b\x0cc")

    assert "a\u2028b\x0cc\n   ^" == json.loads(problem_of(error).body)["caret"]  # type: ignore[arg-type]


def test_place_without_its_line_has_no_caret() -> None:
    members = json.loads(problem_of(StatementError(911, "x", Span("a.sql", 3, 1))).body)  # type: ignore[arg-type]

    assert {"number": 911, "problem": "x", "line": 3, "column": 1}.items() <= members.items()
    assert "caret" not in members


def test_bug_tells_nothing_of_the_inside() -> None:
    members = json.loads(problem_of(ValueError("secret")).body)  # type: ignore[arg-type]

    assert kind_of(ValueError("secret")) is BUG
    assert members["detail"] == "see the log of the instance"


def test_unknown_path_is_named() -> None:
    response = http_problem(web.HTTPNotFound(), "/v1/nope")

    assert json.loads(response.body) == {  # type: ignore[arg-type]
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is nothing at /v1/nope",
    }


def test_wrong_method_tells_the_right_ones() -> None:
    response = http_problem(web.HTTPMethodNotAllowed("PUT", ["HEAD", "GET"]), "/v1/status")

    assert response.headers["Allow"] == "GET, HEAD"
    assert json.loads(response.body)["detail"] == "/v1/status is asked with GET, HEAD"  # type: ignore[arg-type]


def test_body_that_is_too_large_is_told() -> None:
    response = http_problem(web.HTTPRequestEntityTooLarge(max_size=1, actual_size=2), "/v1/sql")

    assert response.status == 413


def test_an_answer_is_for_nobody_but_who_asked_and_no_page() -> None:
    headers: dict[str, str] = {"Content-Security-Policy": "default-src 'self'"}

    secure(headers)

    assert {
        "Content-Security-Policy": "default-src 'self'",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Frame-Options": "DENY",
        "Server": "broker",
    } == headers

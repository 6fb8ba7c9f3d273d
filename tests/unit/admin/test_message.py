from __future__ import annotations

import msgspec
import pytest

from broker.admin.api import PAGE_ROWS, Problem, SqlRequest, ViewRequest


def test_request_without_a_database_leaves_it_open() -> None:
    request = msgspec.json.decode(b'{"statement": "SELECT 1"}', type=SqlRequest)

    assert SqlRequest("SELECT 1", None) == request


def test_database_may_be_null() -> None:
    request = msgspec.json.decode(b'{"statement": "x", "database": null}', type=SqlRequest)

    assert request.database is None


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{}", "missing required field `statement`"),
        (b'{"statment": "x"}', "unknown field `statment`"),
        (b'{"statement": 1}', "Expected `str`, got `int`"),
        (b"[]", "Expected `object`, got `array`"),
    ],
)
def test_request_that_is_none_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.json.decode(body, type=SqlRequest)


def test_page_begins_at_the_beginning() -> None:
    request = msgspec.convert({"name": "sys.routes"}, ViewRequest, strict=False)

    assert ViewRequest("sys.routes", PAGE_ROWS, 0, None) == request


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "10001"}, {"after": "-1"}, {"after": "x"}, {"lmit": "1"}])
def test_page_outside_its_range_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "sys.routes", **query}, ViewRequest, strict=False)


def test_problem_leaves_out_what_is_not_known() -> None:
    problem = Problem("about:blank", "Not Found", 404, "there is nothing")

    assert set(msgspec.to_builtins(problem)) == {"type", "title", "status", "detail"}

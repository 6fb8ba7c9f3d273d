""""""

from __future__ import annotations

import json

import pytest
from aiohttp import web
from multidict import CIMultiDict

from broker.admin.problems import (
    BUG,
    TARGET_MAX,
    ForbiddenError,
    MediaTypeError,
    check_content,
    check_fields,
    check_site,
    check_target,
    http_problem,
    is_loopback,
    kind_of,
    problem_of,
)
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

JSON = {"Content-Type": "application/json"}


def _site(scheme: str = "http", **headers: str) -> None:
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    check_site(fields, scheme=scheme, answers_to=is_loopback)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:9422", "127.0.0.1", "127.0.0.1:9422", "127.3.2.1:80", "[::1]:9422"]
)
def test_loopback_host_is_answered(host: str) -> None:
    _site(Host=host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "broker.example:9422",
        "10.0.0.1",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1",
        "[::2]",
        "evil.example@127.0.0.1",
        "127.0.0.1/evil",
        "127.0.0.1#",
        "127.0.0.1\\",
    ],
)
def test_any_other_host_is_refused(host: str) -> None:
    """A name that somebody points at 127.0.0.1 is not one of ours."""
    with pytest.raises(ForbiddenError) as caught:
        _site(Host=host)

    assert f"Host is {host!r}; only loopback addresses and names of this server are answered" == str(caught.value)


def test_no_host_at_all_is_refused() -> None:
    with pytest.raises(ForbiddenError, match=r"^Host is None"):
        _site()


def test_a_name_of_the_server_is_answered() -> None:
    headers = CIMultiDict({"Host": "gateway.example:9422", "Origin": "https://gateway.example:9422"})

    check_site(headers, scheme="https", answers_to=lambda host: host == "gateway.example")


def test_on_a_socket_the_host_may_be_any_and_the_page_may_not() -> None:
    check_site(CIMultiDict({"Host": "broker"}), scheme="http", answers_to=None)

    with pytest.raises(ForbiddenError, match=r"^Origin is 'http://evil.example'"):
        check_site(CIMultiDict({"Host": "broker", "Origin": "http://evil.example"}), scheme="http", answers_to=None)


def test_page_of_this_very_server_is_answered() -> None:
    _site(Host="127.0.0.1:9422", Origin="http://127.0.0.1:9422", Sec_Fetch_Site="same-origin")


@pytest.mark.parametrize(
    "origin",
    ["null", "", "http://evil.example", "https://127.0.0.1:9422", "http://127.0.0.1:3000", "http://localhost:9422"],
)
def test_page_of_another_origin_is_refused(origin: str) -> None:
    """Another server on this machine is another origin too."""
    with pytest.raises(ForbiddenError) as caught:
        _site(Host="127.0.0.1:9422", Origin=origin)

    assert f"Origin is {origin!r}; pages of other sites may not use this interface" == str(caught.value)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "Cross-Site"])
def test_what_a_browser_says_comes_from_another_site_is_refused(site: str) -> None:
    """Also where it sends no Origin, as for a picture or a link."""
    with pytest.raises(ForbiddenError, match=f"^Sec-Fetch-Site is '{site}'"):
        _site(Host="127.0.0.1:9422", Sec_Fetch_Site=site)


def test_an_address_that_a_person_typed_is_answered() -> None:
    _site(Host="127.0.0.1:9422", Sec_Fetch_Site="none")


@pytest.mark.parametrize("content", ["application/json", "Application/JSON", 'application/json; charset="utf-8"'])
def test_json_is_taken(content: str) -> None:
    check_content(CIMultiDict({"Content-Type": content}))


@pytest.mark.parametrize(
    "content",
    [
        "multipart/form-data; boundary=x",
        "text/plain",
        "text/plain; application/json",
        "application/json, text/plain",
        "application/jsonx",
        "application/json; charset=utf-7",
        "",
    ],
)
def test_what_a_form_can_send_is_refused(content: str) -> None:
    with pytest.raises(MediaTypeError, match=r"a request here is application/json$"):
        check_content(CIMultiDict({"Content-Type": content}))


UNASKED = [{}, {"Content-Type": "application/x-www-form-urlencoded"}]


@pytest.mark.parametrize("said", UNASKED)
def test_what_a_program_says_unasked_is_taken(said: dict[str, str]) -> None:
    check_content(CIMultiDict(said))


@pytest.mark.parametrize("said", UNASKED)
@pytest.mark.parametrize("name", ["Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"])
def test_a_browser_has_to_say_that_it_is_json(said: dict[str, str], name: str) -> None:
    with pytest.raises(MediaTypeError, match=r"a request here is application/json$"):
        check_content(CIMultiDict({**said, name: "x"}))


def test_a_compressed_body_is_refused() -> None:
    """A few bytes may hold gigabytes."""
    with pytest.raises(MediaTypeError, match=r"^Content-Encoding is 'gzip'"):
        check_content(CIMultiDict({**JSON, "Content-Encoding": "gzip"}))


@pytest.mark.parametrize("target", ["/", "/v1/status", "/v1/views/sys.routes?limit=1&database=a%20b", "/a%20b"])
def test_a_plain_path_is_taken(target: str) -> None:
    check_target(target)


@pytest.mark.parametrize(
    "target",
    [
        "//v1/status",
        "/v1//status",
        "/v1/status/",
        "/v1/../v1/status",
        "/v1/./status",
        "/..",
        "/v1/%2e%2e/status",
        "/v1/%2E/status",
        "/v1%2fstatus",
        "/v1%5Cstatus",
        "/v1\\status",
        "/v1/status%00",
        "/v1/status%0d%0aX: y",
        "/v1/%252e%252e/status",
        "/v1/status\x00",
        "/v1/stätus",
        "/v1/%zz",
        "/v1/status#x",
        "/v1/status?a=\x01",
        "http://127.0.0.1/v1/status",
        "*",
        "127.0.0.1:22",
        "",
        "/" + "a" * TARGET_MAX,
    ],
)
def test_a_path_that_could_be_read_in_two_ways_is_refused(target: str) -> None:
    with pytest.raises(BadRequestError):
        check_target(target)


@pytest.mark.parametrize("name", ["Host", "origin", "Authorization", "Content-Type", "Sec-Fetch-Site"])
def test_a_header_that_counts_stands_there_once(name: str) -> None:
    with pytest.raises(BadRequestError, match=r"stands there twice$"):
        check_fields(CIMultiDict([(name, "one"), (name, "two")]))


def test_other_headers_may_stand_there_more_often() -> None:
    check_fields(CIMultiDict([("Accept", "a"), ("Accept", "b")]))


LINK = {"Host": "localhost", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


def test_a_link_of_another_site_leads_to_the_page_only() -> None:
    check_site(CIMultiDict(LINK), scheme="http", answers_to=is_loopback, is_page=True)
    with pytest.raises(ForbiddenError):
        check_site(CIMultiDict(LINK), scheme="http", answers_to=is_loopback)


@pytest.mark.parametrize(
    "fields",
    [
        {"Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Mode": ""},
        {"Origin": "http://evil.example"},
        {"Host": "evil.example"},
    ],
)
def test_what_is_no_link_does_not_lead_to_the_page(fields: dict[str, str]) -> None:
    with pytest.raises(ForbiddenError):
        check_site(CIMultiDict({**LINK, **fields}), scheme="http", answers_to=is_loopback, is_page=True)


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

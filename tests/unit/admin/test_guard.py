"""How a request must be written: hosts, origins, bodies, paths and header fields."""

import pytest
from multidict import CIMultiDict

from broker.admin.guard import TARGET_MAX, check_content, check_fields, check_site, check_target, is_loopback
from broker.admin.problems import ForbiddenError, MediaTypeError
from broker.errors import BadRequestError

JSON = {"Content-Type": "application/json"}
UNASKED = [{}, {"Content-Type": "application/x-www-form-urlencoded"}]


def _site(scheme: str = "http", **headers: str) -> None:
    fields = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    check_site(fields, scheme=scheme, answers_to=is_loopback)


def test_good_requests_are_answered() -> None:
    for host in ("localhost", "LOCALHOST:9422", "127.0.0.1", "127.3.2.1:80", "[::1]:9422"):
        _site(Host=host)
    _site(Host="127.0.0.1:9422", Origin="http://127.0.0.1:9422", Sec_Fetch_Site="same-origin")
    headers = CIMultiDict({"Host": "gateway.example:9422", "Origin": "https://gateway.example:9422"})
    check_site(headers, scheme="https", answers_to=lambda host: host == "gateway.example")
    for content in ("application/json", "Application/JSON", 'application/json; charset="utf-8"'):
        check_content(CIMultiDict({"Content-Type": content}))
    for said in UNASKED:
        check_content(CIMultiDict(said))
    for target in ("/", "/v1/status", "/v1/views/sys.routes?limit=1&database=a%20b", "/a%20b"):
        check_target(target)


@pytest.mark.parametrize(
    "host", ["", "broker.example:9422", "10.0.0.1", "127.0.0.1.evil.example", "[::1", "[::2]", "127.0.0.1\\"]
)
def test_any_other_host_is_refused(host: str) -> None:
    """A name that somebody points at 127.0.0.1 is not one of ours."""
    with pytest.raises(ForbiddenError) as caught:
        _site(Host=host)

    assert f"Host is {host!r}; only loopback addresses and names of this server are answered" == str(caught.value)


def test_on_a_socket_the_host_may_be_any_and_the_page_may_not() -> None:
    check_site(CIMultiDict({"Host": "broker"}), scheme="http", answers_to=None)

    with pytest.raises(ForbiddenError, match=r"^Origin is 'http://evil.example'"):
        check_site(CIMultiDict({"Host": "broker", "Origin": "http://evil.example"}), scheme="http", answers_to=None)


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


@pytest.mark.parametrize(
    "content", ["text/plain", "application/json, text/plain", "application/json; charset=utf-7", ""]
)
def test_what_a_form_can_send_is_refused(content: str) -> None:
    with pytest.raises(MediaTypeError, match=r"a request here is application/json$"):
        check_content(CIMultiDict({"Content-Type": content}))


@pytest.mark.parametrize("said", UNASKED)
@pytest.mark.parametrize("name", ["Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"])
def test_a_browser_has_to_say_that_it_is_json(said: dict[str, str], name: str) -> None:
    with pytest.raises(MediaTypeError, match=r"a request here is application/json$"):
        check_content(CIMultiDict({**said, name: "x"}))


def test_a_compressed_body_is_refused() -> None:
    """A few bytes may hold gigabytes."""
    with pytest.raises(MediaTypeError, match=r"^Content-Encoding is 'gzip'"):
        check_content(CIMultiDict({**JSON, "Content-Encoding": "gzip"}))


@pytest.mark.parametrize(
    "target",
    [
        "//v1/status",
        "/v1//status",
        "/v1/status/",
        "/..",
        "/v1/%2e%2e/status",
        "/v1%2fstatus",
        "/v1/status%00",
        "/v1/%zz",
        "/v1/status?a=\x01",
        "*",
        "",
        "/" + "a" * TARGET_MAX,
    ],
)
def test_a_path_that_could_be_read_in_two_ways_is_refused(target: str) -> None:
    with pytest.raises(BadRequestError):
        check_target(target)


@pytest.mark.parametrize("name", ["Host", "origin", "Authorization", "Content-Type", "Sec-Fetch-Site"])
def test_a_header_that_counts_stands_there_once(name: str) -> None:
    with pytest.raises(BadRequestError, match=r"is given twice$"):
        check_fields(CIMultiDict([(name, "one"), (name, "two")]))


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

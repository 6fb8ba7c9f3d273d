"""
Checks of the form of a request: refuses those of web pages, and those that two programs could read differently.

A browser runs scripts of foreign sites on the machine of a user who may control the instance. They cannot forge the
headers that it adds to their requests: `Host` must name this server, so that a name that is pointed at its address (DNS
rebinding) is refused; `Origin` must be this server, `Sec-Fetch-Site` must not name another site, and the body
of a browser must be declared as JSON, which a form cannot do. A program may leave the content type out, or send the
default of `curl -d` and urllib. No cookie is ever read.

A path is what it says, character by character: nothing is decoded, joined or shortened, so that a proxy in front of the
instance that forbids a path cannot be talked round. Nothing here reads a body, a clock or a file.

Source: Fetch Standard ("Sec-Fetch-Site" header, CORS-safelisted request), RFC 9110, RFC 9112, RFC 3986.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from broker.admin.problems import ForbiddenError, MediaTypeError
from broker.config.values import ListenAddress
from broker.errors import BadRequestError

TARGET_MAX = 4096  # characters of path and query; a name of a database takes 128
_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"  # pchar of RFC 3986
_PATH = re.compile(f"/(?:{_CHARACTER}+(?:/{_CHARACTER}+)*)?")
_QUERY = re.compile(f"(?:{_CHARACTER}|[/?])*")
# Escapes of characters with a meaning in a path, and of control characters.
_AMBIGUOUS = re.compile(r"%(?:2[EeFf]|5[Cc]|25|[01][0-9A-Fa-f]|7[Ff])")
_DOTS = frozenset({".", ".."})
_ONCE = ("Host", "Origin", "Authorization", "Content-Type", "Content-Length", "Content-Encoding", "Sec-Fetch-Site")
FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via")  # a proxy writes them: another machine may ask
_SITES = frozenset({"same-origin", "none"})  # this server's own page, or a person who typed the address
_UNASKED = "application/x-www-form-urlencoded"  # the default of curl and urllib
_BROWSERS = ("Origin", "Referer", "Cookie", "Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")  # they write
_LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
_JSON = re.compile(r'application/json\s*(?:;\s*charset="?utf-8"?\s*)?', re.IGNORECASE)


def check_target(target: str) -> None:
    """
    Refuse a request target that is not plainly one path.

    Raises:
        BadRequestError: it says what is wrong with it.
    """
    if len(target) > TARGET_MAX:
        raise BadRequestError(f"the path of a request and its query have at most {TARGET_MAX} characters")
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise BadRequestError("a request names a path of this server, like /v1/status, and nothing before it")
    if _PATH.fullmatch(path) is None or _QUERY.fullmatch(query) is None:
        raise BadRequestError("the path holds an empty part, or a character that a path is not written with")
    if _AMBIGUOUS.search(path) or any(part in _DOTS for part in path.split("/")):
        raise BadRequestError("the path holds a dot part, or an escaped dot, slash, percent or control character")


def check_fields(headers: Mapping[str, str]) -> None:
    """
    Refuse header fields that say one thing twice.

    Raises:
        BadRequestError: it names the field.
    """
    names = [name.lower() for name, _ in headers.items()]  # iterating gives a name once
    for name in _ONCE:
        if names.count(name.lower()) > 1:
            raise BadRequestError(f"the header {name} is given twice")


def check_site(
    headers: Mapping[str, str], *, scheme: str, answers_to: Callable[[str], bool] | None, is_page: bool = False
) -> None:
    """
    Refuse a request that a page of another site has a browser send.

    Args:
        headers: Of the request, each of the checked ones once at most.
        scheme: `http` or `https`.
        answers_to: Whether a host is this server; None where it may be called anything, on a Unix socket.
        is_page: Whether a file of the status page is asked for, which a person may come to by a link of another site.

    Raises:
        ForbiddenError: it says which header is not that of this server.
    """
    host = headers.get("Host")
    if answers_to is not None and not answers_to(host_name(host)):
        raise ForbiddenError(f"Host is {host!r}; only loopback addresses and names of this server are answered")
    origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
    if origin is not None and origin.lower() != f"{scheme}://{host}".lower():
        raise ForbiddenError(f"Origin is {origin!r}; pages of other sites may not use this interface")
    if site is not None and site.lower() not in _SITES and not (is_page and _is_link(headers)):
        raise ForbiddenError(f"Sec-Fetch-Site is {site!r}; pages of other sites may not use this interface")


def check_content(headers: Mapping[str, str]) -> None:
    """
    Refuse a body that is not said to be JSON, as it is, by a browser, or is said to be something else.

    Raises:
        MediaTypeError: it says what has to be said.
    """
    content = headers.get("Content-Type")
    is_unsaid = content is None or content.lower() == _UNASKED
    if not (is_unsaid or _JSON.fullmatch(content or "")) or (is_unsaid and any(name in headers for name in _BROWSERS)):
        raise MediaTypeError(f"Content-Type is {content!r}; a request here is application/json")
    encoding = headers.get("Content-Encoding")
    if encoding is not None and encoding.lower() != "identity":
        raise MediaTypeError(f"Content-Encoding is {encoding!r}; a request here is not compressed")


def is_loopback(host: str) -> bool:
    """Whether a host, without its port, is this machine."""
    return bool(host) and ListenAddress(host, 0).is_loopback


def _is_link(headers: Mapping[str, str]) -> bool:
    """Whether a user follows a link into a new window: no script of the page with the link sees the answer."""
    return all((headers.get(name) or "").lower() == value for name, value in _LINK.items())


def host_name(host: str | None) -> str:
    """The host of a `Host` field, without port and brackets; empty when there is none."""
    if host is None or any(mark in host for mark in "/@?#\\"):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""

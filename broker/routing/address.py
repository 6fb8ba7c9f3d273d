"""
Address of a route: a network address or one of two keywords.

Text comes in as people wrote it and becomes one normal form here, so that two spellings of one peer are one value.
The form has scheme and host in lower case, the port always present, no trailing slash, IPv6 in its shortest form.
Nothing here resolves a name or opens a connection, and nothing else in the package takes an address apart.

The text as it was written is kept by the route (`address_text`), because the catalogue echoes it.

Source: Service Broker documentation, "CREATE ROUTE", clause ADDRESS; the port may be left out, as in its examples.
"""

from __future__ import annotations

import re
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from msgspec import Struct

DEFAULT_PORT = 4022  # the port every example of the original uses; ADDRESS may leave it out
HOST_MAX_CHARACTERS = 253  # a domain name in text form (RFC 1035); a label has at most 63

_SCHEME = "tcp://"
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_PORT = re.compile(r"[0-9]{1,5}")


class Keyword(StrEnum):
    """What ADDRESS may say instead of an address."""

    LOCAL = "LOCAL"  # deliver inside this instance
    TRANSPORT = "TRANSPORT"  # take the address from the beginning of the service name


LOCAL = Keyword.LOCAL
TRANSPORT = Keyword.TRANSPORT


class NetworkAddress(Struct, frozen=True, cache_hash=True):
    """
    A peer's broker endpoint. Made by `parse_address`, which normalises; equal values mean the same endpoint.

    Attributes:
        host: In lower case, an IPv6 address without its brackets.
        port: 1 .. 65535.
    """

    host: str
    port: int = DEFAULT_PORT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEME}{host}:{self.port}"


def parse_address(text: str) -> NetworkAddress | Keyword:
    """
    Read what ADDRESS or MIRROR_ADDRESS says; keywords and scheme in any case.

    Args:
        text: `tcp://host`, `tcp://host:port`, either with one `/` at the end, `LOCAL` or `TRANSPORT`.

    Raises:
        ValueError: anything else; its text is a sentence for the person who wrote the address.
    """
    keyword = text.upper()
    if text.isascii() and keyword in Keyword.__members__:  # there are other letters whose capital is an ASCII one
        return Keyword(keyword)
    if any(character.isspace() for character in text):
        raise ValueError(f"{text!r} contains a blank")
    if text[: len(_SCHEME)].lower() != _SCHEME:
        raise ValueError(f"{text!r} is neither tcp://host:port nor LOCAL nor TRANSPORT")
    host, port = _split(text[len(_SCHEME) :].removesuffix("/"), text)
    return NetworkAddress(_host(host, text), _port(port, text))


def transport_address(service_name: str) -> NetworkAddress | None:
    """
    The address a service name begins with, up to its first `/` or its end; None when it holds none.

    `tcp://host:4022/Orders` gives tcp://host:4022. Source: ADDRESS = 'TRANSPORT'.
    """
    end = service_name.find("/", len(_SCHEME))
    try:
        address = parse_address(service_name if end < 0 else service_name[:end])
    except ValueError:
        return None
    return address if isinstance(address, NetworkAddress) else None


def _split(authority: str, text: str) -> tuple[str, str | None]:
    """Host and port as written; the host of an IPv6 address keeps its brackets, the port is None when left out."""
    for mark, what in (("@", "a user name"), ("?", "a query"), ("#", "a fragment"), ("/", "a path")):
        if mark in authority:
            raise ValueError(f"{text!r} carries {what}; an address is tcp://host:port")
    bracketed, bracket, rest = authority.partition("]")
    if bracket:
        if rest and not rest.startswith(":"):
            raise ValueError(f"{text!r} goes on after the bracket of its IPv6 address")
        return bracketed + bracket, rest[1:] if rest else None
    host, colon, port = authority.partition(":")
    if ":" in port:
        raise ValueError(f"{text!r} holds an IPv6 address without brackets, or two ports")
    return host, port if colon else None


def _host(host: str, text: str) -> str:
    """The host in normal form."""
    if not host:
        raise ValueError(f"{text!r} names no host")
    if host.startswith("["):
        try:
            return _ipv6(host[1:-1])
        except AddressValueError:
            raise ValueError(f"{text!r} holds no valid IPv6 address between its brackets") from None
    is_ascii = host.isascii()  # asked before: a Kelvin sign becomes an ASCII k
    host = host.lower()
    labels = host.removesuffix(".").split(".")
    if not is_ascii or len(host) > HOST_MAX_CHARACTERS or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text!r} names no valid host: letters, digits, '-', '_' and '.', at most 63 between dots")
    if labels[-1].isdecimal():
        # A name whose last label is a number is an IPv4 address to every resolver, so it has to be a good one.
        try:
            return str(IPv4Address(host))
        except AddressValueError:
            raise ValueError(f"{text!r} holds no valid IPv4 address") from None
    return host


def _ipv6(text: str) -> str:
    """The shortest form; a zone (`%eth0`) is refused, as it means something on one machine only."""
    if "%" in text:
        raise AddressValueError(text)
    return IPv6Address(text).compressed


def _port(port: str | None, text: str) -> int:
    """The port as a number."""
    if port is None:
        return DEFAULT_PORT
    if _PORT.fullmatch(port) is None or not 1 <= int(port) <= 65535:
        raise ValueError(f"{text!r} has no valid port: a number from 1 to 65535")
    return int(port)

"""
The types that a setting may have, on top of those that msgspec knows.

The annotation of a setting is its whole check: `Annotated[Duration, Meta(ge=1, le=60)]`. msgspec checks types, limits,
words and shapes, strictly: it converts nothing. Durations, sizes, paths and addresses are written as text, for which
TOML has no type; a `Kind` in their annotations says how to read one, what an error calls it, and how to write it back.

Nothing here opens a file, resolves a name or knows where a value came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias
from uuid import UUID

from msgspec import Meta

from broker.config.units import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size, render_duration, render_size
from broker.routing.address import NetworkAddress, parse_address

PATH_MAX = 4096  # characters; PATH_MAX of Linux
_GUID = r"\{?[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?"
_HOST_AND_PORT = r".+:[0-9]{1,5}"
_PORT = re.compile(r"[0-9]{1,5}")


# --- addresses to listen on ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """
    An address to listen on, written "host:port".

    Unlike the address of a route it has no scheme, and its port is never left out.

    Attributes:
        host: In lower case, an IPv6 address without its brackets.
        port: 0 to 65535, 0 = any free port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listen(text: str) -> ListenAddress:
    """
    Read "host:port"; an IPv6 host in brackets.

    Raises:
        ValueError: No host, no valid host, or no port from 0 to 65535; its text says which.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError("has no port from 0 to 65535")
    try:
        address = parse_address(f"tcp://{host}:1")
    except ValueError:
        raise ValueError("names no host to listen on") from None
    assert isinstance(address, NetworkAddress), "what begins with tcp:// is not a keyword"
    return ListenAddress(address.host, int(port))


def clash(one: ListenAddress, other: ListenAddress) -> bool:
    """Both cannot be bound at once: same port, and one host, or one of them all interfaces, of IPv4 or of both."""
    if one.port != other.port or not one.port:
        return False
    hosts = {one.host, other.host}
    return len(hosts) == 1 or "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))  # noqa: S104


# --- kinds ---------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """
    How values of one type are written, where msgspec does not know it.

    Attributes:
        noun: The noun for an expected value in an error, with an article.
        hint: How to write one.
        parse: Makes the value from a text, or raises ValueError; None: msgspec takes the value as the file has it.
        render: Makes the text from the value; None: by `str`.
        allowed: The allowed values in the words of the reference; empty: the limits.
        unit: The unit or the quantity that the number counts.
        empty: The meaning of the empty text, which is then read as None.
        has_numbers: Whether a number may be written instead of a text.
        is_text: Whether its limits are those of a length.
        schema: The JSON Schema; None: that of msgspec.
        base: The directory of a relative path: "config" that of the configuration file, "state" `instance.state_dir`.
    """

    noun: str
    hint: str
    parse: Callable[[str], object] | None = None
    render: Callable[[Any], str] | None = None
    allowed: str = ""
    unit: str = ""
    empty: str = ""
    has_numbers: bool = False
    is_text: bool = False
    schema: Mapping[str, Any] | None = None
    base: str = ""


def _printable(given: str) -> str:
    if not given.isprintable():
        raise ValueError("a control character")
    return given


def _parse_path(given: str) -> Path:
    if not 1 <= len(_printable(given)) <= PATH_MAX:
        raise ValueError("no path")
    return Path(given)


def _parse_guid(given: str) -> UUID:
    if not re.fullmatch(_GUID, given) or not UUID(given).int:
        raise ValueError("the zero GUID means any database")
    return UUID(given)


def _parse_peer(given: str) -> NetworkAddress:
    address = parse_address(given)
    if not isinstance(address, NetworkAddress):
        raise ValueError("a keyword of routes")  # noqa: TRY004 - reported as any other wrong value
    return address


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


_PLAIN = "write it without quotes"
_QUOTED = "write it in quotes, without control characters"
BOOL = Kind("true or false", _PLAIN, allowed="true, false")
NUMBER = Kind("a number", _PLAIN)
WHOLE_NUMBER = Kind("a whole number", _PLAIN)
LIST = Kind("a list", 'write it in brackets, like ["one", "two"], also for one or none')
TEXT = Kind("a text", _QUOTED, str, is_text=True)
TABLE = Kind("a table", "write it as a table")
_DURATION = Kind(
    "a duration",
    'write a number and a unit in quotes, like "250ms", "10s", "5m", "1h" or "7d"',
    parse_duration,
    render_duration,
    unit="time",
    schema=_text(DURATION_PATTERN),
)
_SIZE = Kind(
    "a size",
    'write bytes as a plain number, or a text like "512KiB", "64MiB" or "10MB"',
    parse_size,
    render_size,
    unit="bytes",
    has_numbers=True,
    schema=_text(SIZE_PATTERN) | {"type": ["string", "integer"]},
)
_PATH = Kind(
    f"a path of 1 to {PATH_MAX} characters",
    _QUOTED,
    _parse_path,
    allowed=f"path of 1 to {PATH_MAX} characters",
    schema={"type": "string", "minLength": 1, "maxLength": PATH_MAX},
    base="config",
)
_OPTIONAL_PATH = _PATH._replace(empty="none", schema={"type": "string", "minLength": 0, "maxLength": PATH_MAX})
_LISTEN = Kind(
    "an address to listen on",
    'write "host:port" with a port up to 65535, like "127.0.0.1:4022", "[::1]:4022" or, for all interfaces,'
    ' "0.0.0.0:4022"',
    parse_listen,
    allowed='"host:port"',
    schema=_text(_HOST_AND_PORT),
)
_PEER = Kind(
    "an address that a peer could dial",
    'write "tcp://host:port" with a port up to 65535, like "tcp://gateway-a.example:4022"',
    _parse_peer,
    allowed='"tcp://host:port"',
    schema=_text("[Tt][Cc][Pp]://.+"),
)
_DATABASE_GUID = Kind(
    "a GUID other than zero",
    'write it like "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11", or leave the key out to have one made',
    _parse_guid,
    allowed="a GUID",
    schema=_text(_GUID),
)


def choice_of(words: tuple[str, ...]) -> Kind:
    """One of some words."""
    allowed = ", ".join(f'"{word}"' for word in words)
    return Kind(f"one of {allowed}", "write one of these words in quotes", str, allowed=allowed)


def kind(one: Kind) -> Meta:
    """The note of an annotation that says how its values are written."""
    return Meta(extra={"kind": one})


def number_of(unit: str) -> Meta:
    """The note of a whole number that counts `unit`."""
    return kind(WHOLE_NUMBER._replace(unit=unit))


def text(noun: str, *, allowed: str = "", base: str = "") -> Meta:
    """The note of a text on one line; `noun` is what it is: a name, a pattern."""
    return kind(Kind(f"a {noun}", _QUOTED, _printable, allowed=allowed, is_text=True, base=base))


Duration: TypeAlias = Annotated[float, kind(_DURATION)]  # seconds
Size: TypeAlias = Annotated[int, kind(_SIZE)]  # bytes
ConfigPath: TypeAlias = Annotated[Path, kind(_PATH)]
StatePath: TypeAlias = Annotated[Path, kind(_PATH._replace(base="state"))]
OptionalConfigPath: TypeAlias = Annotated[Path | None, kind(_OPTIONAL_PATH)]
OptionalStatePath: TypeAlias = Annotated[Path | None, kind(_OPTIONAL_PATH._replace(base="state"))]
Pattern: TypeAlias = Annotated[str, Meta(min_length=1, max_length=PATH_MAX), text("path or pattern", base="config")]
Listen: TypeAlias = Annotated[ListenAddress, kind(_LISTEN)]
OptionalListen: TypeAlias = Annotated[
    ListenAddress | None, kind(_LISTEN._replace(empty="off", schema=_text(f"({_HOST_AND_PORT})?")))
]
PeerAddress: TypeAlias = Annotated[NetworkAddress, kind(_PEER)]
DatabaseGuid: TypeAlias = Annotated[UUID | None, kind(_DATABASE_GUID)]

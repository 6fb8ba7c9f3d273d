"""
The roles of the admin API, and whom `[admin.roles]` gives one.

    user:alice           a user of this machine, by name or number, over the Unix socket
    group:ops            everybody whose process has that group, over the Unix socket
    token:ci             who shows the token of that name
    certificate:CN=ops   who shows a certificate of that principal, as in `broker.security.principal`

Of several roles the highest counts. No file is read here, and no name of a user is looked up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, auto
from inspect import get_annotations
from ipaddress import ip_address
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeGuard, dataclass_transform, get_args, get_origin
from uuid import UUID

from broker.config.toml import KeyPath
from broker.config.units import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size, render_size
from broker.routing.address import NetworkAddress, parse_address
from broker.security.principal import PUBLIC, Principal, PrincipalError, Who, parse_principal

TOKEN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class AdminRole(IntEnum):
    """
    What somebody may do; each role may do what those below it may.

    Shape: VIEWER asks, OPERATOR changes what can be changed back, ADMIN does everything.
    """

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As settings, tokens and answers write it."""
        return self.name.lower()


ROLE_WORDS = tuple(role.word for role in AdminRole)
GIVEN_WORDS = ROLE_WORDS[1:]  # what a token or an entry of `[admin.roles]` may give


def role_of(word: str) -> AdminRole:
    """The role of a word of `ROLE_WORDS`."""
    return AdminRole(ROLE_WORDS.index(word))


class HolderKind(StrEnum):
    """By what somebody is known."""

    USER = "user"
    GROUP = "group"
    TOKEN = "token"  # noqa: S105 - a word, no secret
    CERTIFICATE = "certificate"


class HolderError(ValueError):
    """A text that names nobody who could have a role; its sentence says what would."""


class RoleHolder(NamedTuple):
    """Somebody who has a role. Shape: `name` as it is written; `principal` of a certificate only."""

    kind: HolderKind
    name: str
    principal: Principal | None = None

    def shows(self, who: Who) -> bool:
        """Whether a certificate that says this is one of them."""
        return self.principal is not None and self.principal.covers(who)


def parse_holder(text: str) -> RoleHolder:
    """
    Read a key of `[admin.roles]`.

    Raises:
        HolderError: it is none.
    """
    word, colon, name = text.partition(":")
    if not colon or not name or word not in list(HolderKind):
        raise HolderError(
            f'{text!r} names nobody: write "user:NAME", "group:NAME", "token:NAME" or "certificate:CN=NAME"'
        )
    kind = HolderKind(word)
    if kind is HolderKind.TOKEN and TOKEN_NAME.fullmatch(name) is None:
        raise HolderError(f"{name!r} is no name of a token: 1 to 64 letters, digits, dots, hyphens and underscores")
    if kind is not HolderKind.CERTIFICATE:
        return RoleHolder(kind, name)
    try:
        principal = parse_principal(name)
    except PrincipalError as error:
        raise HolderError(str(error)) from None
    if principal.text == PUBLIC:
        raise HolderError("a role for public would be one for everybody: name a certificate")
    return RoleHolder(kind, name, principal)


# --- finding ---
# One thing found about settings that are each allowed by themselves.


class SettingFinding(NamedTuple):
    """One thing found; `path` is the key to change, `also` the other keys it depends on."""

    path: KeyPath
    problem: str
    hint: str
    also: tuple[KeyPath, ...] = ()


# --- listen ---
# Where a listener of this instance listens: a host and a port, written "host:port".
#
# Unlike a route's address it has no scheme, its port is never left out, and port 0 stands for any free port. What a
# valid host is, is decided by `broker.routing.address` alone.


_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """
    Where a listener listens.

    Shape: `host` in lower case, an IPv6 address without its brackets; `port` 0 .. 65535, 0 = any free port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
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
        ValueError: no host, no valid host, or no port from 0 to 65535; its text says which.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError("has no port from 0 to 65535")
    try:
        address = parse_address(f"tcp://{host}:1")
    except ValueError:
        raise ValueError("names no host to listen on") from None
    assert isinstance(address, NetworkAddress), "what begins with tcp:// is no keyword"
    return ListenAddress(address.host, int(port))


def clash(one: ListenAddress, other: ListenAddress) -> bool:
    """Both cannot be bound at once: same port, and one host, or one of them all interfaces, of IPv4 or of both."""
    if one.port != other.port or not one.port:
        return False
    hosts = {one.host, other.host}
    return len(hosts) == 1 or "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))  # noqa: S104


# --- value ---
# The kinds of value a setting may have: how one is read, what its errors say, what its documentation says.
#
# A kind stands in the annotation of a field, `Annotated[float, duration("100ms", "1h")]`, and is the whole validation
# of that field: a section collects what the kinds refuse, so that one run reports everything. A kind is strict: it
# takes
# the TOML type it names and converts nothing else. `from_text` is the one lenient door, for environment variables and
# flags, where everything is text.
#
# No kind opens a file, resolves a name or knows where its value came from.


_PATH_CHARACTERS = 4096  # PATH_MAX of Linux
_SHOWN_CHARACTERS = 60  # of a wrong value in a report: enough to recognise it
_GUID = r"\{?[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\}?"
_HOST_AND_PORT = r".+:[0-9]{1,5}"


def _unchanged(text: str) -> object:
    return text


_STRING_SCHEMA: dict[str, Any] = {"type": "string"}


def _or_empty(pattern: str, *, may_be_off: bool) -> str:
    """A pattern that may take the empty text as well."""
    return f"^({pattern})?$" if may_be_off else f"^{pattern}$"


class ValueKind(NamedTuple):
    """
    One kind of value.

    Shape: `allowed` and `unit` for the reference; `read` gives the value the program works with, or raises what
    `refuse` makes; `from_text` gives the TOML value that a text stands for, or the text; `json_schema` takes all that
    `read` takes, for editors; `element` is the kind of a list's elements, each of which is then read and refused by
    itself.
    """

    allowed: str
    read: Callable[[object], object]
    from_text: Callable[[str], object] = _unchanged
    unit: str = ""
    json_schema: dict[str, Any] = _STRING_SCHEMA
    element: ValueKind | None = None


class ValueRefusedError(Exception):
    """A value that its kind does not take: what is wrong, and what to do. Only whoever reads a section sees it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}"


def refuse(problem: str, hint: str) -> ValueRefusedError:
    """The error a kind raises: what is wrong, and what to do."""
    return ValueRefusedError(problem, hint)


def show(value: object) -> str:
    """A value as a report names it: as TOML writes it, cut short; a container by what it is."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            text = json.dumps(value, ensure_ascii=not value.isprintable())
            return text if len(text) <= _SHOWN_CHARACTERS else f'{text[:_SHOWN_CHARACTERS]}..."'
        case int() if abs(value) >= 10**_SHOWN_CHARACTERS:
            return "a number of many digits"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return str(value)[:_SHOWN_CHARACTERS]


def duration(low: str, high: str) -> ValueKind:
    """A span of time between two others; read as float seconds."""
    shortest, longest, allowed = parse_duration(low), parse_duration(high), f"{low} to {high}"

    def read(value: object) -> float:
        try:
            seconds = parse_duration(_text(value))
        except ValueError:
            hint = 'write a number and a unit in quotes, like "250ms", "10s", "5m", "1h" or "7d"'
            raise refuse(f"{show(value)} is no duration", hint) from None
        if not shortest <= seconds <= longest:
            raise refuse(f"{show(value)} is out of range", f"allowed is {allowed}")
        return seconds

    return ValueKind(allowed, read, unit="time", json_schema={"type": "string", "pattern": f"^{DURATION_PATTERN}$"})


def size(low: int, high: int) -> ValueKind:
    """An amount of memory between two others, in bytes; read as bytes."""
    allowed = f"{render_size(low)} to {render_size(high)}"

    def read(value: object) -> int:
        try:
            count = value if _is_integer(value) else parse_size(_text(value))
        except ValueError:
            hint = 'write bytes as a plain number, or a text like "512KiB", "64MiB" or "10MB"'
            raise refuse(f"{show(value)} is no size", hint) from None
        if not low <= count <= high:
            raise refuse(f"{show(value)} is out of range", f"allowed is {allowed}")
        return count

    schema = {"type": ["string", "integer"], "pattern": f"^{SIZE_PATTERN}$", "minimum": low, "maximum": high}
    return ValueKind(allowed, read, unit="bytes", json_schema=schema)


def integer(low: int, high: int, *, unit: str) -> ValueKind:
    """A whole number in a range; `unit` says of what."""

    def read(value: object) -> int:
        if not _is_integer(value):
            raise refuse(f"{show(value)} is no whole number", f"write one from {low} to {high}, without quotes")
        if not low <= value <= high:
            raise refuse(f"{show(value)} is out of range", f"allowed is {low} to {high}")
        return value

    def from_text(text: str) -> object:
        return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text

    schema = {"type": "integer", "minimum": low, "maximum": high}
    return ValueKind(f"{low} to {high}", read, from_text, unit, json_schema=schema)


def fraction() -> ValueKind:
    """A part of a whole, none and all included; read as a float."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(f"{show(value)} is no number", "write one from 0 to 1, without quotes")
        if not 0 <= value <= 1:
            raise refuse(f"{show(value)} is out of range", "allowed is 0 to 1")
        return float(value)

    def from_text(text: str) -> object:
        return float(text) if re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text) else text

    schema = {"type": "number", "minimum": 0, "maximum": 1}
    return ValueKind("0 to 1", read, from_text, json_schema=schema)


def flag() -> ValueKind:
    """Yes or no."""

    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise refuse(f"{show(value)} is neither true nor false", "write true or false, without quotes")
        return value

    def from_text(text: str) -> object:
        return {"true": True, "false": False}.get(text.lower(), text)

    return ValueKind("true, false", read, from_text, json_schema={"type": "boolean"})


def choice(*words: str) -> ValueKind:
    """One of some words."""
    allowed = ", ".join(f'"{word}"' for word in words)

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise refuse(f"{show(value)} is not one of the allowed words", f"allowed is {allowed}")
        return value

    return ValueKind(allowed, read, json_schema={"enum": list(words)})


def text(noun: str, *, longest: int) -> ValueKind:
    """A text on one line; `noun` is what it is: a name, a path, a pattern."""
    allowed = f"{noun} of 1 to {longest} characters"

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise refuse(f"{show(value)} is no {noun}", "write a text in quotes")
        if not 1 <= len(value) <= longest or not value.isprintable():
            raise refuse(f"{show(value)} is no {noun}", f"write a {allowed}, none of them a control character")
        return value

    return ValueKind(allowed, read, json_schema={"type": "string", "minLength": 1, "maxLength": longest})


def path(*, may_be_off: bool = False) -> ValueKind:
    """A path, made absolute by whoever knows what it is relative to; with `may_be_off`, "" is read as None."""
    writing = text("path", longest=_PATH_CHARACTERS)

    def read(value: object) -> Path | None:
        if may_be_off and value == "":
            return None
        return Path(str(writing.read(value)))

    schema = writing.json_schema | ({"minLength": 0} if may_be_off else {})
    return ValueKind(writing.allowed + (', "" = none' if may_be_off else ""), read, json_schema=schema)


def guid() -> ValueKind:
    """A broker instance; the zero GUID means "not specified" on the wire and is no GUID of a database; None stays."""

    def read(value: object) -> UUID | None:
        if value is None:
            return None
        try:
            if not re.fullmatch(_GUID, _text(value)):
                raise ValueError("no GUID")  # noqa: TRY301 - told below, as what UUID refuses
            broker_instance = UUID(_text(value))
        except ValueError:
            hint = 'write it like "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11", or leave the key out to have one made'
            raise refuse(f"{show(value)} is no GUID", hint) from None
        if not broker_instance.int:
            raise refuse("the zero GUID stands for any broker instance", "leave the key out to have one made")
        return broker_instance

    return ValueKind("a GUID", read, json_schema={"type": "string", "pattern": f"^{_GUID}$"})


def listen(*, may_be_off: bool = False) -> ValueKind:
    """A `ListenAddress`, written host:port; with `may_be_off`, "" is read as None."""

    def read(value: object) -> ListenAddress | None:
        if may_be_off and value == "":
            return None
        try:
            address = parse_listen(_text(value))
        except ValueError as error:
            hint = 'write "host:port", like "127.0.0.1:4022", "[::1]:4022" or, for all interfaces, "0.0.0.0:4022"'
            raise refuse(f"{show(value)} {error}", hint) from None
        return address

    schema = {"type": "string", "pattern": _or_empty(_HOST_AND_PORT, may_be_off=may_be_off)}
    return ValueKind('"host:port"' + (', "" = off' if may_be_off else ""), read, json_schema=schema)


def advertised() -> ValueKind:
    """A `NetworkAddress` that other instances dial."""

    def read(value: object) -> NetworkAddress:
        hint = 'write "tcp://host:port", like "tcp://gateway-a.example:4022"'
        try:
            address = parse_address(_text(value))
        except ValueError:
            raise refuse(f"{show(value)} is no address that a peer could dial", hint) from None
        if not isinstance(address, NetworkAddress):
            raise refuse(f"{show(value)} is no address that a peer could dial", hint)
        return address

    return ValueKind('"tcp://host:port"', read, json_schema={"type": "string", "pattern": "^[Tt][Cc][Pp]://.+"})


def list_of(element: ValueKind) -> ValueKind:
    """Any number of values of one kind; read as a tuple."""

    def read(value: object) -> tuple[object, ...]:
        if not isinstance(value, list):
            raise refuse(f"{show(value)} is no list", 'write it in brackets, like ["one", "two"], also for one or none')
        return tuple(value)

    def from_text(text: str) -> object:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text

    schema = {"type": "array", "items": element.json_schema}
    return ValueKind(f"list of {element.allowed}", read, from_text, element.unit, schema, element)


def _text(value: object) -> str:
    """The value if it is a text, else one that nothing accepts."""
    return value if isinstance(value, str) else ""


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


# --- section ---
# A section of settings: one table of the configuration, read into a value that never changes.
#
# A section is declared as a dataclass is, each key with its type and its `ValueKind` in `Annotated`, its default and
# what
# the reference tells of it; `broker.config.values` makes these fields. Reading is strict and complete: no key is
# invented, no value converted, and every fault of all sections below is found in one run. Defaults are read as what a
# file holds, so they are written as one would write them there.
#
# Nothing here knows a file, a place or a name of a setting. It is small because every command that reads a
# configuration
# pays for it before it says a word: docs/decisions/0013-commands-start-at-once.md.


class Wrong(Enum):
    """What may be wrong with a key."""

    REFUSED = auto()  # its kind does not take the value
    UNKNOWN = auto()  # there is no such key
    MISSING = auto()  # it has to be there
    NO_SECTION = auto()  # it is a section, and the value is no table


class ValueFault(NamedTuple):
    """One thing that is wrong. Shape: `value` as it was given; `problem` and `hint` of what a kind refused, else ""."""

    path: KeyPath
    wrong: Wrong
    value: object = None
    problem: str = ""
    hint: str = ""

    def __str__(self) -> str:
        told = f"{self.problem}; {self.hint}" if self.problem else self.wrong.name.lower().replace("_", " ")
        return f"{'.'.join(map(str, self.path))}: {told}"


class SectionError(Exception):
    """Everything that is wrong with a table; whoever knows where it came from tells it."""

    def __init__(self, faults: list[ValueFault]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


class Told(NamedTuple):
    """What the field of a key is made with. Shape: `default` as in the file, `...` for none; `said` it in words."""

    default: object
    description: str = ""
    reason: str = ""
    reload: str = ""
    said: str = ""
    factory: Callable[[], object] | None = None


class Key(NamedTuple):
    """One key of a section. Shape: `kind` of a setting; `below` the section there, by names where `is_mapping`."""

    told: Told
    kind: ValueKind | None = None
    below: type[Section] | None = None
    is_mapping: bool = False

    @property
    def is_required(self) -> bool:
        """Whether it has no default."""
        return self.told.default is ... and self.told.factory is None

    def default(self) -> object:
        """As the file would hold it."""
        return self.told.default if self.told.factory is None else self.told.factory()


_KEYS: dict[type[Section], Mapping[str, Key]] = {}  # worked out when a section is first read


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """
    Base of every section. Two of one class are equal when every value is.

    Raises:
        SectionError: what is given is not what its keys take.

    Shape: `given` the keys that were given, not left to their default.
    """

    given: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, **values: Any) -> None:
        self._read(values)

    @classmethod
    def read(cls, table: Mapping[str, object]) -> Self:
        """What a table of the file says; raises SectionError."""
        made = object.__new__(cls)
        made._read(table)
        return made

    def with_values(self, values: Mapping[str, object]) -> Self:
        """The same with other values, which are taken as they are."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self), **values)
        return copy

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Section):
            return NotImplemented
        mine, yours = vars(self), vars(other)
        return type(self) is type(other) and all(mine[name] == yours[name] for name in keys_of(type(self)))

    __hash__ = None  # type: ignore[assignment]  # it holds dictionaries

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={vars(self)[name]!r}" for name in keys_of(type(self)))
        return f"{type(self).__name__}({shown})"

    def _read(self, table: Mapping[str, object]) -> None:
        faults: list[ValueFault] = []
        self._fill(table, (), faults)
        if faults:
            raise SectionError(faults)

    def _fill(self, table: Mapping[str, object], path: KeyPath, faults: list[ValueFault]) -> None:
        """Take the values of a table, or tell what is wrong with them."""
        keys, found = keys_of(type(self)), vars(self)
        for name, key in keys.items():
            if name not in table and key.is_required:
                faults.append(ValueFault((*path, name), Wrong.MISSING))
            else:
                given = table[name] if name in table else key.default()
                found[name] = _value(key, given, (*path, name), faults)
        faults += [ValueFault((*path, name), Wrong.UNKNOWN, value) for name, value in table.items() if name not in keys]
        found["given"] = frozenset(table)


def keys_of(section: type[Section]) -> Mapping[str, Key]:
    """The keys of a section, in the order in which it declares them."""
    if section not in _KEYS:
        hints = get_annotations(section, eval_str=True)  # what `get_type_hints` checks besides takes as long again
        told_of = {name: told for name, told in vars(section).items() if isinstance(told, Told)}
        _KEYS[section] = {name: _key(hints[name], told) for name, told in told_of.items()}
    return _KEYS[section]


def _key(hint: Any, told: Told) -> Key:
    kind = next((note for note in get_args(hint)[1:] if isinstance(note, ValueKind)), None)
    if kind is not None:
        return Key(told, kind)
    is_mapping = get_origin(hint) is Mapping
    below = get_args(hint)[1] if is_mapping else hint
    assert isinstance(below, type) and issubclass(below, Section), f"{hint} is neither a kind nor a section"  # noqa: PT018
    return Key(told, None, below, is_mapping)


def _value(key: Key, given: Any, path: KeyPath, faults: list[ValueFault]) -> object:
    """What a key says; None where it is wrong, which is told."""
    if key.below is None:
        assert key.kind is not None, f"{path} has no kind"
        return _read(key.kind, given, path, faults)
    if not key.is_mapping:
        return _section(key.below, given, path, faults)
    if not isinstance(given, Mapping):
        faults.append(ValueFault(path, Wrong.NO_SECTION, given))
        return None
    return {name: _section(key.below, one, (*path, name), faults) for name, one in given.items()}


def _section(section: type[Section], given: Any, path: KeyPath, faults: list[ValueFault]) -> Section | None:
    """A section that is one already stays as it is."""
    if isinstance(given, section):
        return given
    if not isinstance(given, Mapping):
        faults.append(ValueFault(path, Wrong.NO_SECTION, given))
        return None
    made = object.__new__(section)
    made._fill(given, path, faults)
    return made


def _read(kind: ValueKind, given: object, path: KeyPath, faults: list[ValueFault]) -> object:
    """A value, and each element of a list by itself."""
    try:
        value = kind.read(given)
    except ValueRefusedError as error:
        faults.append(ValueFault(path, Wrong.REFUSED, given, error.problem, error.hint))
        return None
    return value if kind.element is None else tuple(_elements(kind.element, value, path, faults))


def _elements(kind: ValueKind, values: Any, path: KeyPath, faults: list[ValueFault]) -> Iterator[object]:
    for number, one in enumerate(values):
        yield _read(kind, one, (*path, number), faults)


# --- setting ---
# What a setting carries besides its value, and how the tree of settings is walked.
#
# Every field of a section is made by `setting`, which asks for everything the reference page tells: what it is, why
# it
# has this default, and what a reload does about a change of it. The allowed range and the unit come from the field's
# `ValueKind`. The functions below read all that back from the models, so that the reference, the environment, the
# error report and a reload know every key without a second list.


ANY_NAME = "NAME"  # stands for the name a person chose, as in databases.NAME.path


class Reload(StrEnum):
    """What makes a changed value count."""

    LIVE = "live"  # a reload applies it at once
    RECONNECT = "reconnect"  # a reload applies it to connections made from then on
    RESTART = "restart"  # only a restart does; a reload names it and leaves it


class Setting(NamedTuple):
    """
    One key, as the reference shows it.

    Shape: `path` with `ANY_NAME` where a person names a thing; `default` as one writes it in TOML, or said in words
    where `default_is_said`, "" when the key is required.
    """

    path: KeyPath
    kind: ValueKind
    default: str
    default_is_said: bool
    description: str
    reason: str
    reload: Reload


def setting(
    default: object,
    description: str,
    *,
    reason: str,
    reload: Reload,
    said: str = "",
    factory: Callable[[], Any] | None = None,
) -> Any:
    """
    The field of a section.

    Args:
        default: As one writes it in the file; `...` makes the key required.
        description: What it is, one or two sentences.
        reason: Why this default and this range.
        reload: What makes a changed value count.
        said: The default in words, where it depends on the machine or on the moment.
        factory: Makes such a default; `default` is then ignored.
    """
    return Told(default, description, reason, reload.value, said, factory)


def section(below: type[Section]) -> Any:
    """The field of a section below this one, which has its defaults when it is left out."""
    return Told(None, factory=below)


def sections() -> Any:
    """The field of sections by the names that a person has chosen; none when it is left out."""
    return Told(None, factory=dict)


def settings_of(model: type[Section], path: KeyPath = ()) -> Iterator[Setting]:
    """Every setting of a tree of sections, in the order in which the sections declare them."""
    for name, key in keys_of(model).items():
        if key.below is not None:
            yield from settings_of(key.below, (*path, name, ANY_NAME) if key.is_mapping else (*path, name))
            continue
        assert key.kind is not None, f"{name} has no kind"
        told = key.told
        default = told.said or _as_written(told.default)
        reload = Reload(told.reload)
        yield Setting((*path, name), key.kind, default, bool(told.said), told.description, told.reason, reload)


def names_at(model: type[Section], path: KeyPath) -> list[str]:
    """The keys that may stand below a path; empty where a person chooses them, or where nothing may stand."""
    found = _descend(model, path)
    return list(keys_of(found)) if isinstance(found, type) else []


def kind_at(model: type[Section], path: KeyPath) -> ValueKind | None:
    """The kind of a setting; None when the path is no setting."""
    found = _descend(model, path)
    return found.kind if isinstance(found, Key) else None


def _descend(model: type[Section], path: KeyPath) -> type[Section] | Key | None:
    """The section or the key at a path; a mapping of sections swallows the step that names its entry."""
    here: type[Section] | Key | None = model
    for step in path:
        if isinstance(here, type):
            key = keys_of(here).get(str(step))
            here = key.below if key is not None and key.below is not None and not key.is_mapping else key
        else:
            here = here.below if here is not None else None
    return here


def _as_written(default: object) -> str:
    """The default as one writes it in TOML."""
    match default:
        case str():
            return f'"{default}"'
        case bool():
            return str(default).lower()
        case list():
            return f"[{', '.join(map(_as_written, default))}]"
        case _:
            return "" if default is ... else str(default)

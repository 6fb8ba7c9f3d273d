"""
The kinds of value a setting may have: how one is read, what its errors say, what its documentation says.

A kind stands in the annotation of a field, `Annotated[float, duration("100ms", "1h")]`, and is the whole validation
of that field: a section collects what the kinds refuse, so that one run reports everything. A kind is strict: it takes
the TOML type it names and converts nothing else. `from_text` is the one lenient door, for environment variables and
flags, where everything is text.

No kind opens a file, resolves a name or knows where its value came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard
from uuid import UUID

from broker.control.listen import ListenAddress, parse_listen
from broker.control.quantity import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size, render_size
from broker.routing.address import NetworkAddress, parse_address

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

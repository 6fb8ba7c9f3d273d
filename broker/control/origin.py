"""
Every key in force, with its value and where that came from: default, file, variable or flag.

Values are written as one would write them in the file; paths are absolute, as the program uses them. What follows the
program of `role_command` may be a password, and is masked: what is shown here ends up in tickets. No other key holds a
secret: keys, certificates and tokens are named by their files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from broker.control.place import KeyPath, dotted
from broker.control.quantity import render_duration, render_size
from broker.control.setting import ANY_NAME, Setting, settings_of
from broker.control.value import ValueKind

if TYPE_CHECKING:
    from broker.control.config import Settings

DEFAULT = "default"
MASK = "***"
_MASKED_BEHIND = {"role_command": 1}  # of a list: what follows so many elements

Value: TypeAlias = "bool | int | float | str | list[Value] | dict[str, str]"


@dataclass(frozen=True, slots=True)
class InForce:
    """
    One key.

    Shape: `value` as JSON and TOML have it, None for one that is made once and kept elsewhere; `origin` `default`,
    `FILE:LINE:COLUMN`, the name of a variable, or `flag`; `reload` what makes a change of it count.
    """

    path: KeyPath
    value: Value | None
    origin: str
    reload: str

    @property
    def key(self) -> str:
        """Its name: `endpoint.max_hops`."""
        return dotted(self.path)

    @property
    def written(self) -> str:
        """The value as one writes it in the file; `made once` where there is none."""
        return "made once" if self.value is None else written(self.value)


def in_force(settings: Settings) -> list[InForce]:
    """Every key of these settings, in the order of the reference, that of a database once for each."""
    return [_key(settings, one, path) for one, path in _keys(settings)]


def written(value: Value) -> str:
    """A value as TOML writes it, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=not value.isprintable())
        case list():
            return f"[{', '.join(map(written, value))}]"
        case dict():
            pairs = (f"{json.dumps(name, ensure_ascii=False)} = {written(one)}" for name, one in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            return str(value)


def _keys(settings: Settings) -> Iterator[tuple[Setting, KeyPath]]:
    known = list(settings_of(type(settings)))
    for one in known:
        if ANY_NAME not in one.path:
            yield one, one.path
    for name in settings.databases:
        for one in known:
            if ANY_NAME in one.path:
                yield one, tuple(name if step == ANY_NAME else step for step in one.path)


def _key(settings: Settings, one: Setting, path: KeyPath) -> InForce:
    found: object = settings
    for step in path:
        found = found[str(step)] if isinstance(found, Mapping) else getattr(found, str(step))
    value = _shown(one.kind, found)
    masked_behind = _MASKED_BEHIND.get(str(path[-1]))
    if masked_behind is not None and isinstance(value, list):
        value = [word if number < masked_behind else MASK for number, word in enumerate(value)]
    return InForce(path, value, _origin(settings, path), one.reload.value)


def _shown(kind: ValueKind, found: object) -> Value | None:
    """A value that the program works with, as one writes it; what is turned off is the empty text."""
    if isinstance(found, tuple):
        return [_shown(kind.element or kind, one) or "" for one in found]
    if found is None:
        return "" if kind.allowed.endswith(("= off", "= none")) else None
    if kind.unit == "time" and isinstance(found, float):
        return render_duration(found)
    if kind.unit == "bytes" and isinstance(found, int):
        return render_size(found)
    if isinstance(found, Mapping):
        return {str(name): str(one) for name, one in found.items()}
    return found if isinstance(found, bool | int | float | str) else str(found)


def _origin(settings: Settings, path: KeyPath) -> str:
    places = settings.places
    elsewhere = places.origin(path)
    if elsewhere is not None:
        return elsewhere
    span = places.values.get(path) or places.keys.get(path)
    return DEFAULT if span is None else f"{span.source}:{span.line}:{span.column}"

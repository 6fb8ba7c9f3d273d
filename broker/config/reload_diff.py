"""
What a reload comes to, key by key: which settings differ, and what makes each of them count.

Two sets of settings are compared as values, so what was written in another way and means the same is no difference.
What only a restart applies keeps its old value: `in_force` gives the settings that hold after a reload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from broker.config.consistency import contradictions
from broker.config.settings import Settings
from broker.config.toml import KeyPath, dotted
from broker.config.units import render_duration, render_size
from broker.config.values import ANY_NAME, Reload, kind_at, settings_of
from broker.errors import SettingError

_JOURNAL: KeyPath = ("journal", "directory")
_IN_STATE_DIR: frozenset[KeyPath] = frozenset({_JOURNAL, ("admin", "socket"), ("admin", "tokens"), ("admin", "audit")})


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One setting with another value.

    Shape: `effect` what makes it count; `before` and `after` as one writes them in TOML, `""` being none; `place` as
    file:line:column of the new value, or the variable that holds it, empty where it is the default.
    """

    path: KeyPath
    effect: Reload
    before: str
    after: str
    place: str = ""

    @property
    def key(self) -> str:
        """As an error names it."""
        return dotted(self.path)


def differences(old: Settings, new: Settings) -> list[Difference]:
    """What differs, in the order of the reference; a database that only one of them has is one difference."""
    return list(_differences(old, new))


def _differences(old: Settings, new: Settings) -> Iterator[Difference]:
    for one in settings_of(Settings):
        if ANY_NAME not in one.path and _value(old, one.path) != _value(new, one.path):
            yield _difference(old, new, one.path, _effect(one.path, one.reload, old, new))
    for name in {**old.databases, **new.databases}:
        path: KeyPath = ("databases", name)
        if name not in old.databases:
            yield Difference(path, Reload.RESTART, "", "a new database", _place(new, path))
        elif name not in new.databases:
            yield Difference(path, Reload.RESTART, "a database", "")
    for one in settings_of(Settings):
        if ANY_NAME in one.path:
            for name in old.databases.keys() & new.databases.keys():
                path = (one.path[0], name, *one.path[2:])
                if _value(old, path) != _value(new, path):
                    yield _difference(old, new, path, _effect(path, one.reload, old, new))


def _effect(path: KeyPath, usual: Reload, old: Settings, new: Settings) -> Reload:
    """
    What makes a key count, beside what its section says.

    The pass is built with a journal or without. What is relative to the state directory goes where that goes, and what
    asks for a role goes with the role.
    """
    is_journal_new = path == _JOURNAL and (old.journal.directory is None) != (new.journal.directory is None)
    is_moved = path in _IN_STATE_DIR and old.instance.state_dir != new.instance.state_dir
    of_role = path[0] == "databases" and str(path[2]).startswith("role_")
    is_role_new = of_role and _value(old, (*path[:2], "mirroring")) != _value(new, (*path[:2], "mirroring"))
    return Reload.RESTART if is_journal_new or is_moved or is_role_new else usual


def _difference(old: Settings, new: Settings, path: KeyPath, effect: Reload) -> Difference:
    return Difference(path, effect, shown(old, path), shown(new, path), _place(new, path))


def _place(settings: Settings, path: KeyPath) -> str:
    error = settings.error(path, "")
    if error.span is not None:
        return f"{error.span.source}:{error.span.line}:{error.span.column}"
    return error.key.removeprefix(dotted(path)).strip(" ()")


def shown(settings: Settings, path: KeyPath) -> str:
    """The value at a path as one writes it in TOML."""
    kind = kind_at(Settings, path)
    return _written(_value(settings, path), "" if kind is None else kind.unit)


def _written(value: Any, unit: str) -> str:  # noqa: PLR0911 - a table of kinds
    match value:
        case bool():
            return str(value).lower()
        case None:
            return '""'
        case int() | float() if unit == "time":
            return f'"{render_duration(value)}"'
        case int() if unit == "bytes":
            return f'"{render_size(value)}"'
        case int() | float():
            return str(value)
        case tuple():
            return f"[{', '.join(_written(one, unit) for one in value)}]"
        case Mapping():
            return f"{{{', '.join(f'{_written(key, unit)} = {_written(one, unit)}' for key, one in value.items())}}}"
        case _:
            return f'"{value}"'


def _value(settings: Settings, path: KeyPath) -> Any:
    found: Any = settings
    for step in path:
        found = found[str(step)] if isinstance(found, Mapping) else getattr(found, str(step))
    return found


def in_force(old: Settings, new: Settings, changed: Iterable[Difference]) -> Settings:
    """The new settings with the old values of what only a restart applies, and the places of the new ones."""
    settings = new
    for one in changed:
        if one.effect is Reload.RESTART:
            settings = _with(settings, one.path, old)
    return settings


def _with(settings: Settings, path: KeyPath, old: Settings) -> Settings:
    """The same with the old value at a path."""
    section = str(path[0])
    if section != "databases":
        part = getattr(settings, section).with_values({str(path[1]): _value(old, path)})
        return settings.with_values({section: part})
    name = str(path[1])
    databases = dict(settings.databases)
    if len(path) > 2:
        databases[name] = databases[name].with_values({str(path[2]): _value(old, path)})
    elif name in old.databases:
        databases[name] = old.databases[name]
    else:
        del databases[name]
    return settings.with_values({"databases": databases})


def mixed_contradictions(settings: Settings, changed: Iterable[Difference]) -> list[SettingError]:
    """What is wrong with settings in force of which half of a change waits for a restart."""
    waiting = [one.key for one in changed if one.effect is Reload.RESTART]
    if not waiting:
        return []
    errors = settings.report(contradictions(settings))
    for error in errors:
        error.hint = f"restart the instance: until then {', '.join(waiting)} has its old value"
    return errors

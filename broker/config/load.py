"""
From file, environment and flags to `Settings`, or to a report of everything that is wrong.

Three layers, the later wins: the TOML file; `BROKER_SECTION__KEY` in the environment (double underscores nest, a list
is written in JSON); overrides a command was given as flags. A report has every value that is refused, or, when none is,
every contradiction between them. Nothing but `SettingsError` leaves this module for any text whatever.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from broker.config.consistency import contradictions
from broker.config.settings import Settings, by_place, with_pool_share
from broker.config.toml import KeyPath, SettingsSource, dotted, read_config
from broker.config.units import render_duration, render_size
from broker.config.values import (
    ANY_NAME,
    SectionError,
    Setting,
    ValueFault,
    ValueKind,
    Wrong,
    kind_at,
    names_at,
    settings_of,
    show,
)
from broker.errors import SettingError, SettingsError

ENVIRONMENT_PREFIX = "BROKER_"
# Short names for what one changes most often without a file; the long names win.
_SHORT_NAMES = {
    "BROKER_LOG_FORMAT": ("observe", "log_format"),
    "BROKER_LOG_LEVEL": ("observe", "log_level"),
}
_REMOVED: Mapping[KeyPath, str] = {
    ("endpoint", "workers"): "remove it: an instance is one process. "
    "For more throughput run more instances; endpoint.reuse_port lets them share a port",
}
"""What to do about keys that earlier versions had."""
_NOTHING: Mapping[str, object] = MappingProxyType({})


def load_settings(
    path: Path | None, *, environ: Mapping[str, str], overrides: Mapping[str, object] = _NOTHING
) -> Settings:
    """
    Load, merge and check.

    Args:
        path: The TOML file; None for none, and then relative paths are relative to the working directory.
        environ: The environment; names without the prefix or without a double underscore are not ours.
        overrides: By dotted key (`endpoint.max_hops`); a text is read as in the environment.

    Returns:
        Settings with absolute paths.

    Raises:
        SettingsError: everything that is wrong, the file from top to bottom, then environment and flags.
    """
    data, places = read_config(path)
    errors: list[SettingError] = []
    ours = {name: text for name, text in environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    source = SettingsSource(None if path is None else without_dots(path.absolute()), ours, dict(overrides))
    places = places._replace(source=source)
    for origin, steps, value in [*_from_environment(environ, data), *_from_flags(overrides)]:
        if not all(str(step).isprintable() for step in steps):
            problem = "has a character in its name that cannot be printed"
            errors.append(SettingError(f"{dotted(steps)} ({ascii(origin)[1:-1]})", problem, None, "remove it"))
        elif _put(data, steps, value):
            places.elsewhere[steps] = origin
        else:
            hint = "set the key above it as a whole, a list in JSON"
            errors.append(
                SettingError(f"{dotted(steps)} ({origin})", "stands below something that is no table", None, hint)
            )
    base = Path.cwd() if path is None else without_dots(path.absolute()).parent
    try:
        settings = with_pool_share(_absolute(Settings.read(data), base)).placed(places)
    except SectionError as error:
        blank = Settings().placed(places)
        errors += [_explain(blank, fault) for fault in error.faults]
    else:
        errors += settings.report(contradictions(settings))
    if errors:
        raise SettingsError(sorted(errors, key=by_place))
    return settings


# --- environment and flags ----------------------------------------------------------------------------------


def _from_environment(environ: Mapping[str, str], data: dict[str, Any]) -> list[tuple[str, KeyPath, object]]:
    """Origin, path and value of every variable that is ours, the short names first."""
    found: list[tuple[str, tuple[str, ...], str]]
    found = [(name, steps, environ[name]) for name, steps in _SHORT_NAMES.items() if name in environ]
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            steps = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            found.append((name, _database_as_written(steps, data), environ[name]))
    return [(name, steps, _from_text(steps, text)) for name, steps, text in found]


def _database_as_written(steps: tuple[str, ...], data: dict[str, Any]) -> tuple[str, ...]:
    """Names of databases keep their case in the file; a variable has none."""
    databases = data.get("databases")
    if len(steps) < 2 or steps[0] != "databases" or not isinstance(databases, dict):
        return steps
    name = next((name for name in databases if name.lower() == steps[1]), steps[1])
    return (steps[0], name, *steps[2:])


def _from_flags(overrides: Mapping[str, object]) -> list[tuple[str, KeyPath, object]]:
    found: list[tuple[str, KeyPath, object]] = []
    for key, value in overrides.items():
        steps = tuple(key.split("."))
        found.append(("flag", steps, _from_text(steps, value) if isinstance(value, str) else value))
    return found


def _from_text(steps: KeyPath, text: str) -> object:
    kind = kind_at(Settings, steps)
    return text if kind is None else kind.from_text(text)


def _put(data: dict[str, Any], steps: KeyPath, value: object) -> bool:
    """Set a value in nested tables; False where the file has something else than a table, which is reported."""
    *above, last = steps
    for step in above:
        data = data.setdefault(str(step), {})
        if not isinstance(data, dict):
            return False
    data[str(last)] = value
    return True


# --- the report ---------------------------------------------------------------------------------------------


def _explain(settings: Settings, fault: ValueFault) -> SettingError:
    """What is wrong, in words."""
    path = fault.path
    match fault.wrong:
        case Wrong.REFUSED:
            return settings.error(path, fault.problem, fault.hint)
        case Wrong.UNKNOWN:
            return settings.error(path, "unknown key", _nearest(path), of_key=True)
        case Wrong.MISSING:
            section = path[:-1]
            return settings.error(section, f"lacks {path[-1]}, which is required", f"add it to [{dotted(section)}]")
        case Wrong.NO_SECTION:
            problem = f"{show(fault.value)} stands where a section belongs"
            return settings.error(path, problem, f"write [{dotted(path)}] and its keys below")


def _nearest(path: KeyPath) -> str:
    """
    What to do about an unknown key.

    If no earlier version had it, it may mean the nearest name here, the same name elsewhere, or any name here.
    """
    if path in _REMOVED:
        return _REMOVED[path]
    name = str(path[-1])
    here = names_at(Settings, path[:-1])
    near = get_close_matches(name, here, n=1)
    if near:
        return f'did you mean "{near[0]}"?'
    elsewhere = [dotted(one.path) for one in settings_of(Settings) if one.path[-1] == name]
    if elsewhere:
        return f'did you mean "{elsewhere[0]}"?'
    return f"known here: {', '.join(here)}"


# --- paths --------------------------------------------------------------------------------------------------


def without_dots(path: Path) -> Path:
    """
    An absolute path without `..` in it, so that one place has one name.

    Links that lead to what is before a `..` are followed, as the system does; those behind it stay as they are written,
    because where they lead may change while the instance runs.
    """
    if ".." not in path.parts:
        return path
    end = len(path.parts) - path.parts[::-1].index("..")
    return Path(os.path.realpath(Path(*path.parts[:end])), *path.parts[end:])


def _absolute(settings: Settings, base: Path) -> Settings:
    """What people write relative to `base`, state relative to the state directory, itself relative to `base`."""
    state_dir = without_dots(base / settings.instance.state_dir)

    def patterns(relative: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one if Path(one).is_absolute() else f"{glob.escape(str(base))}/{one}" for one in relative)

    def below(directory: Path, relative: Path | None) -> Path | None:
        return None if relative is None else without_dots(directory / relative)

    databases = {
        name: database.with_values(
            {
                "path": without_dots(state_dir / database.path),
                **{key: below(base, getattr(database, key)) for key in ("certificate", "private_key")},
                **{key: patterns(getattr(database, key)) for key in ("scripts", "peers")},
            }
        )
        for name, database in settings.databases.items()
    }
    return settings.with_values(
        {
            "instance": settings.instance.with_values({"state_dir": state_dir}),
            "endpoint": settings.endpoint.with_values(
                {
                    **{key: below(base, getattr(settings.endpoint, key)) for key in ("certificate", "private_key")},
                    **{key: patterns(getattr(settings.endpoint, key)) for key in ("trust", "peers")},
                }
            ),
            "routes": settings.routes.with_values({"files": patterns(settings.routes.files)}),
            "databases": databases,
            "admin": settings.admin.with_values(
                {
                    **{key: below(state_dir, getattr(settings.admin, key)) for key in ("socket", "tokens", "audit")},
                    **{key: below(base, getattr(settings.admin, key)) for key in ("certificate", "private_key")},
                    **{key: patterns(getattr(settings.admin, key)) for key in ("trust", "peers")},
                }
            ),
            "journal": settings.journal.with_values({"directory": below(state_dir, settings.journal.directory)}),
        }
    )


# --- origin ---
# Every key in force, with its value and where that came from: default, file, variable or flag.
#
# Values are written as one would write them in the file; paths are absolute, as the program uses them. What follows
# the
# program of `role_command` may be a password, and is masked: what is shown here ends up in tickets. No other key
# holds a
# secret: keys, certificates and tokens are named by their files.


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

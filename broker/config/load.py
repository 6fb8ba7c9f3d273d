"""
From file, environment and flags to `Settings`, or to a report of everything that is wrong; and every key in force.

Three layers, the later wins: the TOML file; `BROKER_SECTION__KEY` in the environment (double underscores nest, a list
is written in JSON); overrides from flags. A report has every wrong value, or, when there is none, every contradiction
between values. No text whatever raises anything but `SettingsError`.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct

from broker.config.consistency import contradictions
from broker.config.schema import (
    ANY_NAME,
    Form,
    Section,
    SectionError,
    Setting,
    SettingFinding,
    keys_of,
    section_at,
    setting_at,
    settings_of,
)
from broker.config.settings import Settings, by_place, with_pool_share
from broker.config.toml import KeyPath, SettingsSource, dotted, read_config
from broker.errors import SettingError, SettingsError

ENVIRONMENT_PREFIX = "BROKER_"
# Short names for what one changes most often without a file; the long names win.
_SHORT_NAMES = {
    "BROKER_LOG_FORMAT": ("observe", "log_format"),
    "BROKER_LOG_LEVEL": ("observe", "log_level"),
}
# What to do about keys that earlier versions had.
_REMOVED: Mapping[KeyPath, str] = {
    ("endpoint", "workers"): "remove it: an instance is one process. "
    "For more throughput run more instances; endpoint.reuse_port lets them share a port",
}
_NOTHING: Mapping[str, object] = MappingProxyType({})
DEFAULT = "default"  # the origin of a value that was not given
MASK = "***"
_MASKED_AFTER = {"role_command": 1}  # of a list: what follows so many elements may be a password


def load_settings(
    path: Path | None, *, environ: Mapping[str, str], overrides: Mapping[str, object] = _NOTHING
) -> Settings:
    """
    Load, merge and check.

    Args:
        path: The TOML file; None for none, and then relative paths are relative to the working directory.
        environ: The environment; names without the prefix or without a double underscore are ignored.
        overrides: By dotted key (`endpoint.max_hops`); a text is read as in the environment.

    Returns:
        Settings with absolute paths.

    Raises:
        SettingsError: Everything that is wrong, the file from top to bottom, then environment and flags.
    """
    data, places = read_config(path)
    errors: list[SettingError] = []
    ours = {name: text for name, text in environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    source = SettingsSource(None if path is None else without_dots(path.absolute()), ours, dict(overrides))
    places = places._replace(source=source)
    for origin, steps, value in [*_from_environment(ours, data), *_from_flags(overrides)]:
        if not all(step.isprintable() for step in steps):
            problem = "has a character in its name that cannot be printed"
            errors.append(SettingError(f"{dotted(steps)} ({ascii(origin)[1:-1]})", problem, None, "remove it"))
        elif _put(data, steps, value):
            places.elsewhere[steps] = origin
        else:
            hint = "set the key above it as a whole, a list in JSON"
            errors.append(
                SettingError(f"{dotted(steps)} ({origin})", "is below something that is not a table", None, hint)
            )
    base = Path.cwd() if source.path is None else source.path.parent
    try:
        settings = with_pool_share(_absolute(Settings.read(data), base)).placed(places)
    except SectionError as error:
        blank = Settings().placed(places)
        errors += [blank.error(one.path, one.problem, _hint(one), of_key=one.of_key) for one in error.faults]
    else:
        errors += settings.report(contradictions(settings))
    if errors:
        raise SettingsError(sorted(errors, key=by_place))
    return settings


# --- environment and flags -----------------------------------------------------------------------------------


def _from_environment(ours: Mapping[str, str], data: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], object]]:
    """Origin, path and value of every variable that is a setting, the short names first."""
    for name, short in _SHORT_NAMES.items():
        if name in ours:
            yield name, short, _from_text(short, ours[name])
    for name in sorted(ours):
        if "__" in name:
            steps = _database_as_written(tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")), data)
            yield name, steps, _from_text(steps, ours[name])


def _database_as_written(steps: tuple[str, ...], data: dict[str, Any]) -> tuple[str, ...]:
    """Names of databases keep their case in the file; those of variables have none."""
    databases = data.get("databases")
    if len(steps) < 2 or steps[0] != "databases" or not isinstance(databases, dict):
        return steps
    name = next((name for name in databases if name.lower() == steps[1]), steps[1])
    return (steps[0], name, *steps[2:])


def _from_flags(overrides: Mapping[str, object]) -> Iterator[tuple[str, tuple[str, ...], object]]:
    for key, value in overrides.items():
        steps = tuple(key.split("."))
        yield "flag", steps, _from_text(steps, value) if isinstance(value, str) else value


def _from_text(steps: KeyPath, text: str) -> object:
    setting = setting_at(Settings, steps)
    return text if setting is None else setting.form.from_text(text)


def _put(data: dict[str, Any], steps: tuple[str, ...], value: object) -> bool:
    """Set a value in nested tables; False where the file has something other than a table."""
    *above, last = steps
    for step in above:
        data = data.setdefault(step, {})
        if not isinstance(data, dict):
            return False
    data[last] = value
    return True


# --- the report ----------------------------------------------------------------------------------------------


def _hint(found: SettingFinding) -> str:
    """
    What to do.

    An unknown key that earlier versions did not have may mean the nearest name here, the same name elsewhere, or any
    name here.
    """
    path, name = found.path, str(found.path[-1]) if found.path else ""
    if not found.of_key:
        return found.hint
    if path in _REMOVED:
        return _REMOVED[path]
    section = section_at(Settings, path[:-1])
    here = [] if section is None else list(keys_of(section))
    elsewhere = (dotted(one.path) for one in settings_of(Settings) if one.path[-1] == name)
    meant = next(iter(get_close_matches(name, here, n=1)), None) or next(elsewhere, None)
    return f'did you mean "{meant}"?' if meant else f"known here: {', '.join(here)}"


# --- paths ---------------------------------------------------------------------------------------------------


def without_dots(path: Path) -> Path:
    """
    An absolute path without `..` in it, so that one place has one name.

    Links before a `..` are followed, as the system does; those after it stay as they are written, because where they
    lead may change while the instance runs.
    """
    if ".." not in path.parts:
        return path
    end = len(path.parts) - path.parts[::-1].index("..")
    return Path(os.path.realpath(Path(*path.parts[:end])), *path.parts[end:])


def _absolute(settings: Settings, base: Path) -> Settings:
    """The same settings with absolute paths; `base` is the directory of the configuration file."""
    bases = {"config": base, "state": without_dots(base / settings.instance.state_dir)}

    def section(of: Section) -> Section:
        forms = {name: key.form for name, key in keys_of(type(of)).items() if isinstance(key, Setting)}
        paths = {name: _absolute_value(form, getattr(of, name), bases) for name, form in forms.items()}
        return of.replace(**paths)

    parts = {name: getattr(settings, name) for name in keys_of(Settings)}
    return settings.replace(
        **{name: section(one) for name, one in parts.items() if isinstance(one, Section)},
        databases={name: section(one) for name, one in settings.databases.items()},
    )


def _absolute_value(form: Form, value: Any, bases: Mapping[str, Path]) -> Any:
    if isinstance(value, tuple) and form.element is not None:
        return tuple(_absolute_value(form.element, one, bases) for one in value)
    base = bases.get(form.kind.base)
    if base is None or value is None:
        return value
    if isinstance(value, Path):
        return without_dots(base / value)
    return value if Path(value).is_absolute() else f"{glob.escape(str(base))}/{value}"  # a pattern


# --- every key in force --------------------------------------------------------------------------------------


class SettingInForce(Struct, frozen=True):
    """One key."""

    key: Annotated[str, Meta(description="As in the reference: endpoint.max_hops.")]
    value: Annotated[Any, Meta(description="As one writes it in the file; null where it is made once and kept.")]
    origin: Annotated[str, Meta(description="default, FILE:LINE:COLUMN, the name of a variable, or flag.")]
    reload: Annotated[str, Meta(description="How a change takes effect: live, reconnect or restart.")]


def in_force(settings: Settings) -> list[SettingInForce]:
    """
    Every key of these settings, in the order of the reference, those of a database once for each.

    Paths are absolute, as the program uses them. The arguments of `role_command` may hold a password, and are masked:
    what is shown here ends up in tickets. No other key is secret: keys and tokens are named by their files.
    """
    return [_in_force(settings, one, path) for one, path in all_keys(settings.databases)]


def all_keys(databases: Iterable[str]) -> Iterator[tuple[Setting, KeyPath]]:
    """Every setting with its path, those of a database once for each name."""
    known = list(settings_of(Settings))
    for one in known:
        if ANY_NAME not in one.path:
            yield one, one.path
    for name in databases:
        for one in known:
            if ANY_NAME in one.path:
                yield one, tuple(name if step == ANY_NAME else step for step in one.path)


def origin_of(settings: Settings, path: KeyPath) -> str:
    """`default`, `FILE:LINE:COLUMN`, the name of a variable, or `flag`."""
    places = settings.places
    span = places.values.get(path) or places.keys.get(path)
    place = DEFAULT if span is None else f"{span.source}:{span.line}:{span.column}"
    return places.origin(path) or place


def _in_force(settings: Settings, one: Setting, path: KeyPath) -> SettingInForce:
    value = one.form.write(settings.value_at(path))
    masked_after = _MASKED_AFTER.get(str(path[-1]))
    if masked_after is not None:
        value = [word if number < masked_after else MASK for number, word in enumerate(value)]
    return SettingInForce(dotted(path), value, origin_of(settings, path), one.reload.value)

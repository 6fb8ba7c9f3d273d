"""
What a setting carries besides its value, and how the tree of settings is walked.

Every field of a section is made by `setting`, which asks for everything the reference page tells: what it is, why it
has this default, and what a reload does about a change of it. The allowed range and the unit come from the field's
`ValueKind`. The functions below read all that back from the models, so that the reference, the environment, the
error report and a reload know every key without a second list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

from broker.control.place import KeyPath
from broker.control.section import Key, Section, Told, keys_of
from broker.control.value import ValueKind

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

"""
What a setting carries besides its value, and how the tree of settings is walked.

Every field of a section is made by `setting`, which asks for everything the reference page tells: what it is, why it
has this default, and what a reload does about a change of it. The allowed range and the unit come from the field's
`ValueKind`. The functions below read all that back from the models, so that the reference, the environment, the
error report and a reload know every key without a second list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from broker.control.place import KeyPath
from broker.control.value import ValueKind

ANY_NAME = "NAME"  # stands for the name a person chose, as in databases.NAME.path


class Reload(StrEnum):
    """What makes a changed value count."""

    LIVE = "live"  # a reload applies it at once
    RECONNECT = "reconnect"  # a reload applies it to connections made from then on
    RESTART = "restart"  # only a restart does; a reload names it and leaves it


class Section(BaseModel):
    """Base of every section: no key is invented, no value converted, nothing changed afterwards."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", validate_default=True)


@dataclass(frozen=True, slots=True)
class Setting:
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
    extra: dict[str, JsonValue] = {"reason": reason, "reload": reload.value, "said": said}
    if factory is not None:
        return Field(default_factory=factory, description=description, json_schema_extra=extra)
    return Field(default, description=description, json_schema_extra=extra)


def settings_of(model: type[BaseModel], path: KeyPath = ()) -> Iterator[Setting]:
    """Every setting of a tree of sections, in the order in which the sections declare them."""
    for name, info in model.model_fields.items():
        below = _model_below(info)
        if below is not None:
            yield from settings_of(below, (*path, name, ANY_NAME) if _is_mapping(info) else (*path, name))
            continue
        kind = _kind(info)
        extra = info.json_schema_extra
        assert kind is not None, f"{name} has no kind"
        assert isinstance(extra, dict), f"{name} is not made by setting()"
        reason, reload, said = (str(extra[key]) for key in ("reason", "reload", "said"))
        default = said or _as_written(info.default)
        yield Setting((*path, name), kind, default, bool(said), info.description or "", reason, Reload(reload))


def names_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The keys that may stand below a path; empty where a person chooses them, or where nothing may stand."""
    found = _descend(model, path)
    return list(found.model_fields) if isinstance(found, type) else []


def kind_at(model: type[BaseModel], path: KeyPath) -> ValueKind | None:
    """The kind of a setting; None when the path is no setting."""
    found = _descend(model, path)
    return _kind(found) if isinstance(found, FieldInfo) else None


def _descend(model: type[BaseModel], path: KeyPath) -> type[BaseModel] | FieldInfo | None:
    """The section or the field at a path; a mapping of sections swallows the step that names its entry."""
    here: type[BaseModel] | FieldInfo | None = model
    for step in path:
        if isinstance(here, type):
            here = here.model_fields.get(str(step))
            below = _model_below(here) if here is not None else None
            here = here if below is None or (here is not None and _is_mapping(here)) else below
        else:
            here = _model_below(here) if here is not None else None
    return here


def _model_below(info: FieldInfo) -> type[BaseModel] | None:
    """The section a field holds, by itself or as the values of a mapping."""
    candidate = get_args(info.annotation)[1] if _is_mapping(info) else info.annotation
    return candidate if isinstance(candidate, type) and issubclass(candidate, BaseModel) else None


def _is_mapping(info: FieldInfo) -> bool:
    return get_origin(info.annotation) is Mapping


def _kind(info: FieldInfo) -> ValueKind | None:
    return next((note for note in info.metadata if isinstance(note, ValueKind)), None)


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
            return "" if default is PydanticUndefined else str(default)

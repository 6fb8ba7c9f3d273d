"""
The machinery of a section of settings: its base class, the facts about each key, and its JSON Schema.

A section is a msgspec Struct. Each key has its type and limits, what it is, why, and when a change takes effect, all in
its annotation (see `broker.config.values`), and its default as the program works with it. From these the reader, the
reference page, the environment, `broker config`, a reload and editors know every key, so there is no second list.

msgspec stops at the first wrong value; here every key, element and entry is converted by itself, so that one run
reports everything.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin

import msgspec
from msgspec import Meta, Struct, inspect

from broker.config.toml import KeyPath, dotted, render_value
from broker.config.values import BOOL, LIST, NUMBER, TABLE, TEXT, WHOLE_NUMBER, Kind, choice_of

ANY_NAME = "NAME"  # in a path: the name that a person chose, as in databases.NAME.path
SHOWN_CHARACTERS = 60  # of a wrong value in an error: enough to recognize it


class Reload(StrEnum):
    """When a changed value takes effect."""

    LIVE = "live"  # a reload applies it at once
    RECONNECT = "reconnect"  # a reload applies it to connections made from then on
    RESTART = "restart"  # only a restart does; a reload names it and keeps the old value


_WHEN = {
    Reload.LIVE: "A reload applies it at once.",
    Reload.RECONNECT: "A reload applies it to connections made from then on.",
    Reload.RESTART: "A change takes a restart.",
}


def about(description: str, *, why: str, reload: Reload = Reload.LIVE, default: str = "") -> Meta:
    """
    The note of a key for people.

    Args:
        description: What it is, one or two sentences.
        why: The reason of the default and the limits.
        reload: When a changed value takes effect.
        default: The default in words, where it depends on the machine or on the moment.
    """
    return Meta(description=description, extra={"why": why, "reload": reload, "default": default})


# --- how one value is read and written -----------------------------------------------------------------------


class SettingFinding(NamedTuple):
    """Something found about a value, or with `of_key` about its key: what is wrong, and what to do."""

    path: KeyPath
    problem: str
    hint: str
    of_key: bool = False

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.problem}; {self.hint}"


class Form(NamedTuple):
    """
    How the values of one annotation are read, described and written.

    Attributes:
        type: The annotation.
        kind: The kind of the annotation, or of its type.
        low: The least number or length; None where there are no limits.
        high: The greatest.
        element: Of a list: the form of its elements.
        entry: Of a table: the form of the value under each of its names.
    """

    type: Any
    kind: Kind
    low: int | float | None = None
    high: int | float | None = None
    element: Form | None = None
    entry: Form | None = None

    @property
    def limits(self) -> str:
        """Of numbers "1 to 255", of texts "1 to 128 characters"; empty where there are none."""
        if self.low is None or self.high is None:
            return ""
        render = self.kind.render or str
        return f"{render(self.low)} to {render(self.high)}{' characters' if self.kind.is_text else ''}"

    @property
    def allowed(self) -> str:
        """The values that may be written, for the reference."""
        if self.element is not None:
            return f"list of {self.element.allowed}"
        limits = f"{self.kind.noun.removeprefix('a ')} of {self.limits}" if self.kind.is_text else self.limits
        allowed = self.kind.allowed or limits
        return f'{allowed}, "" = {self.kind.empty}' if self.kind.empty else allowed

    def read(self, given: object, path: KeyPath, faults: list[SettingFinding]) -> Any:
        """The value that the program works with; a wrong one is added to `faults`."""
        if self.element is not None and isinstance(given, list):
            return tuple(self.element.read(one, (*path, number), faults) for number, one in enumerate(given))
        if self.entry is not None and isinstance(given, dict):
            return {name: self.entry.read(one, (*path, name), faults) for name, one in given.items()}
        if self.kind.empty and given == "":
            return None
        try:
            return msgspec.convert(self._parse(given), self.type)
        except ValueError as error:
            if self.limits and any(sign in str(error) for sign in ("` >= ", "` <= ")):  # of msgspec: the type fits
                faults.append(SettingFinding(path, f"{show(given)} is out of range", f"allowed is {self.limits}"))
                return None
            within = self.limits and f" {'of' if self.kind.is_text else 'from'} {self.limits}"
            faults.append(SettingFinding(path, f"{show(given)} is not {self.kind.noun}{within}", self.kind.hint))
            return None

    def _parse(self, given: object) -> object:
        if self.kind.parse is None or (self.kind.has_numbers and not isinstance(given, str)):
            return given
        if not isinstance(given, str):
            raise ValueError("not a text")  # noqa: TRY004 - reported as any other wrong value
        return self.kind.parse(given)

    def from_text(self, text: str) -> object:
        """Return the file's value for a text of the environment or of a flag: numbers, booleans, lists as JSON."""
        if self.kind.parse is not None:
            return text
        try:
            return json.loads(text.lower() if self.kind is BOOL else text)
        except (ValueError, RecursionError):
            return text

    def write(self, value: Any) -> Any:
        """Return the value as the file would have it; None for one that was not written."""
        if self.element is not None:
            return [self.element.write(one) for one in value]
        if value is None:
            return "" if self.kind.empty else None
        if self.kind.render is not None:
            return self.kind.render(value)
        return value if isinstance(value, bool | int | float | dict) else str(value)

    def json_schema(self) -> dict[str, Any]:
        """Return the schema for editors: all that `read` accepts, and values that break what no schema can express."""
        if self.element is not None:
            return {"type": "array", "items": self.element.json_schema()}
        if self.kind.schema is None:
            return msgspec.json.schema(self.type)
        limits = {"minimum": self.low, "maximum": self.high} if self.kind.has_numbers else {}
        return {**self.kind.schema, **limits}


# The kind of a type, and the names of its limits.
_BY_TYPE: Mapping[type[inspect.Type], tuple[Kind | None, str, str]] = {
    inspect.IntType: (WHOLE_NUMBER, "ge", "le"),
    inspect.FloatType: (NUMBER, "ge", "le"),
    inspect.StrType: (TEXT, "min_length", "max_length"),
    inspect.BoolType: (BOOL, "", ""),
}


def form_of(annotation: Any) -> Form:
    """The form of an annotation."""
    info = inspect.type_info(annotation)
    kind = None
    if isinstance(info, inspect.Metadata):
        kind, info = (info.extra or {}).get("kind"), info.type
    bare = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    by_type, low, high = _BY_TYPE.get(type(info), (None, "", ""))
    element = entry = None
    match info:
        case inspect.LiteralType():
            by_type = choice_of(get_args(bare))
        case inspect.VarTupleType():
            by_type, element = LIST, form_of(get_args(bare)[0])
        case inspect.DictType():
            by_type, entry = TABLE, form_of(get_args(bare)[1])
    kind = kind or by_type
    assert kind is not None, f"{annotation} has no kind"
    return Form(annotation, kind, getattr(info, low, None), getattr(info, high, None), element, entry)


def show(value: object) -> str:
    """A value as an error names it: as TOML writes it, cut short; a container by what it is."""
    match value:
        case int() if abs(value) >= 10**SHOWN_CHARACTERS:
            return "a number of many digits"
        case list():
            return "a list"
        case dict():
            return "a table"
    text = render_value(value)
    cut = '..."' if isinstance(value, str) else ""
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + cut


# --- sections ------------------------------------------------------------------------------------------------


class SectionError(Exception):
    """Everything that is wrong with a table."""

    def __init__(self, faults: list[SettingFinding]) -> None:
        super().__init__(faults)
        self.faults = faults

    def __str__(self) -> str:
        return "\n".join(map(str, self.faults))


class Section(Struct, frozen=True, kw_only=True, dict=True):
    """
    Base of every section. Two of one class are equal when every value is.

    Attributes:
        given: The keys that were given, not left to their defaults.
    """

    given: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def read(cls, table: Mapping[str, object]) -> Self:
        """
        Make the section of a table of the file.

        Raises:
            SectionError: Everything that is wrong with it.
        """
        faults: list[SettingFinding] = []
        section: Self = _read(cls, table, (), faults)
        if faults:
            raise SectionError(faults)
        return section

    def replace(self, **values: Any) -> Self:
        """The same with other values, which are not checked."""
        copy = msgspec.structs.replace(self, **values)
        vars(copy).update(vars(self))
        return copy


class Setting(NamedTuple):
    """
    One key, as the reference shows it.

    Attributes:
        path: From the section or settings that were asked for, with `ANY_NAME` where a person chooses a name.
        default: As one writes it in the file, or in words where `default_is_said`; empty when the key is required.
        reload: When a changed value takes effect.
    """

    path: KeyPath
    form: Form
    default: str
    default_is_said: bool
    description: str
    why: str
    reload: Reload


class Below(NamedTuple):
    """A section below another; with `is_mapping` one for each name that a person chooses."""

    model: type[Section]
    is_mapping: bool


@cache
def keys_of(model: type[Section]) -> Mapping[str, Setting | Below]:
    """The keys of a section, in the order in which it declares them."""
    return {field.name: _key(field) for field in msgspec.structs.fields(model)}


def _key(field: msgspec.structs.FieldInfo) -> Setting | Below:
    is_mapping = get_origin(field.type) is Mapping
    below = get_args(field.type)[1] if is_mapping else field.type
    if isinstance(below, type) and issubclass(below, Section):
        return Below(below, is_mapping)
    form, info = form_of(field.type), inspect.type_info(field.type)
    assert isinstance(info, inspect.Metadata), f"{field.name} has no note"
    notes = (info.extra or {}) | (info.extra_json_schema or {})
    said = notes["default"]
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    written = said or ("" if field.required else render_value(form.write(default)))
    return Setting((field.name,), form, written, bool(said), notes["description"], notes["why"], notes["reload"])


def settings_of(model: type[Section], path: KeyPath = ()) -> Iterator[Setting]:
    """Every setting of a tree of sections, in the order in which the sections declare them."""
    for name, key in keys_of(model).items():
        if isinstance(key, Below):
            yield from settings_of(key.model, (*path, name, ANY_NAME) if key.is_mapping else (*path, name))
        else:
            yield key._replace(path=(*path, name))


def section_at(model: type[Section], path: KeyPath) -> type[Section] | None:
    """The section at a path; None where there is none."""
    here: type[Section] | None = model
    steps = iter(path)
    for step in steps:
        key = None if here is None else keys_of(here).get(str(step))
        has_name = isinstance(key, Below) and (not key.is_mapping or next(steps, None) is not None)
        here = key.model if isinstance(key, Below) and has_name else None
    return here


def setting_at(model: type[Section], path: KeyPath) -> Setting | None:
    """The setting at a path; None where there is none."""
    section = section_at(model, path[:-1])
    key = None if section is None or not path else keys_of(section).get(str(path[-1]))
    return key if isinstance(key, Setting) else None


def _read(model: type[Section], table: object, path: KeyPath, faults: list[SettingFinding]) -> Any:
    """The section of a table; without one when something is wrong with it, which is added to `faults`."""
    if not isinstance(table, Mapping):
        faults.append(
            SettingFinding(path, f"{show(table)} is not a section", f"write [{dotted(path)}] and its keys below")
        )
        return None
    values: dict[str, Any] = {}
    before = len(faults)
    keys = keys_of(model)
    for name, key in keys.items():
        here = (*path, name)
        if name not in table:
            if isinstance(key, Setting) and not key.default:
                faults.append(SettingFinding(path, f"lacks {name}, which is required", f"add it to [{dotted(path)}]"))
        elif isinstance(key, Setting):
            values[name] = key.form.read(table[name], here, faults)
        elif key.is_mapping and isinstance(entries := table[name], Mapping):
            values[name] = {one: _read(key.model, entries[one], (*here, one), faults) for one in entries}
        else:
            values[name] = _read(key.model, table[name], here, faults)
    faults += [SettingFinding((*path, name), "unknown key", "", of_key=True) for name in table if name not in keys]
    if len(faults) > before:
        return None
    section = model(**values)
    vars(section)["given"] = frozenset(table)
    return section


# --- for editors ---------------------------------------------------------------------------------------------


def json_schema(model: type[Section]) -> dict[str, Any]:
    """
    The JSON Schema of a section, draft 2020-12: editors complete keys and mark mistakes by it.

    It accepts every file that the program accepts. The program rejects more: ranges of what is written as text, and
    what several keys mean together; `broker check` reports all of it.
    """
    properties: dict[str, Any] = {}
    required = []
    for name, key in keys_of(model).items():
        if isinstance(key, Below):
            below = json_schema(key.model)
            properties[name] = {"type": "object", "additionalProperties": below} if key.is_mapping else below
            continue
        what = f"{key.description}\n\nAllowed: {key.form.allowed}. {key.why} {_WHEN[key.reload]}"
        properties[name] = key.form.json_schema() | {"description": what}
        if not key.default:
            required.append(name)
        elif not key.default_is_said:
            properties[name]["default"] = tomllib.loads(f"value = {key.default}")["value"]
    schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": required} if required else {})

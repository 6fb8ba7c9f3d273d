"""
A section of settings: one table of the configuration, read into a value that never changes.

A section is declared as a dataclass is, each key with its type and its `ValueKind` in `Annotated`, its default and what
the reference tells of it; `broker.control.setting` makes these fields. Reading is strict and complete: no key is
invented, no value converted, and every fault of all sections below is found in one run. Defaults are read as what a
file holds, so they are written as one would write them there.

Nothing here knows a file, a place or a name of a setting. It is small because every command that reads a configuration
pays for it before it says a word: docs/decisions/0013-commands-start-at-once.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from inspect import get_annotations
from typing import Any, ClassVar, NamedTuple, Self, dataclass_transform, get_args, get_origin

from broker.control.place import KeyPath
from broker.control.value import ValueKind, ValueRefusedError


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

"""Where a set of settings came from, so that it can be read again."""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from broker.errors import SettingError, SettingsError, Span, caret

_NOTHING: Mapping[str, str] = MappingProxyType({})


class SettingsSource(NamedTuple):
    """
    What `load_settings` was given.

    Shape: `path` absolute, None = no file; `environ` only what is about settings; `overrides` by dotted key.
    """

    path: Path | None
    environ: Mapping[str, str] = _NOTHING
    overrides: Mapping[str, object] = _NOTHING

    @property
    def name(self) -> str:
        """How people call it."""
        return "the environment" if self.path is None else str(self.path)


# --- place ---
# Where each key and each value of a TOML text stands.
#
# `tomllib` gives values without places, and an error report without a line is a search. This index walks a text that
# `tomllib` has already accepted, so it checks nothing: it only has to find the ends of things. A key path is a tuple
# of names, with a number for each element of an array: ("endpoint", "listen", 0).
#
# Lines and columns count from 1, columns in characters; CR LF counts as one end of line, as it does for `tomllib`.


KeyPath: TypeAlias = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")  # between values: blanks, ends of line, comments
_KEY = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[A-Za-z0-9_-]+')
_DOT = re.compile(r"[ \t]*(\.)?[ \t]*")
# The long quotes first, and at their end up to two more of the same: they belong to the string.
_STRING = re.compile(
    r'"""(?:\\[\s\S]|[^\\])*?"{3,5}|\'\'\'[\s\S]*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'',
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def dotted(path: KeyPath) -> str:
    """A key path as one text: `endpoint.listen[0]`; a name that TOML would quote is quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", step, re.ASCII)
            text += ("." if text else "") + (step if bare else json.dumps(step, ensure_ascii=not step.isprintable()))
    return text


class KeyPositions(NamedTuple):
    """
    Places in one TOML text, and where else a value came from.

    Shape: `keys` and `values` by key path; `elsewhere` names the origin of a value that came from no file; `lines` of
    the text; `source` all of where the settings came from, to read them again, None of those that a program has made.
    """

    keys: dict[KeyPath, Span]
    values: dict[KeyPath, Span]
    elsewhere: dict[KeyPath, str]
    lines: list[str]
    source: SettingsSource | None = None

    def __repr__(self) -> str:
        """Without what is in the file and the environment."""
        return f"Places(keys={self.keys!r}, values={self.values!r}, elsewhere={self.elsewhere!r})"

    def origin(self, path: KeyPath) -> str | None:
        """What set this key or made this section, when not the file: an environment variable's name, or `flag`."""
        found = (self.elsewhere.get(path[:end]) for end in range(len(path), 0, -1))
        origin = next((origin for origin in found if origin is not None), None)
        if origin is None and path not in self.keys:
            below = (other for key, other in self.elsewhere.items() if key[: len(path)] == path)
            origin = next(below, None)
        return origin

    def span(self, path: KeyPath, *, of_key: bool = False) -> Span | None:
        """The place of a value (or of its key); else of the nearest thing around it that has one."""
        if self.origin(path) is not None:
            return None
        if of_key and path in self.keys:
            return self.keys[path]
        found = (self.values.get(path[:end]) or self.keys.get(path[:end]) for end in range(len(path), 0, -1))
        return next((span for span in found if span is not None), None)

    def excerpt(self, span: Span | None) -> str:
        """The line of the text in which a place is, and a caret below it; empty for no place."""
        return "" if span is None else excerpt(self.lines, span)


def split_lines(text: str) -> list[str]:
    """The lines of a text, as spans count them."""
    return text.replace("\r\n", "\n").split("\n")


def excerpt(lines: list[str], span: Span) -> str:
    """The line of a place, with what a terminal might obey made visible, and a caret; empty behind the last line."""
    if not 1 <= span.line <= len(lines):
        return ""
    shown = "".join(one if one.isprintable() or one == "\t" else "\ufffd" for one in lines[span.line - 1])
    return caret(shown, span)


def index_places(text: str, *, source: str) -> KeyPositions:
    """
    Find every key and value.

    Args:
        text: TOML that `tomllib.loads` accepts.
        source: Name of the file, for the spans.

    Raises:
        RecursionError: nested deeper than the interpreter allows; `tomllib` raises it for such a text as well.
    """
    walk = _TomlWalk(text.replace("\r\n", "\n"), source)
    walk.document()
    return KeyPositions(walk.keys, walk.values, {}, split_lines(text))


class _TomlWalk:
    """One pass over the text; `at` only grows."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.keys: dict[KeyPath, Span] = {}
        self.values: dict[KeyPath, Span] = {}
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._tables: dict[KeyPath, int] = {}  # how many elements an array of tables has so far

    def document(self) -> None:
        table: KeyPath = ()
        while self._skip():
            start = self.at
            if self.text.startswith("[[", start):
                table = self._header(2)
                number = self._tables.get(table, 0)
                self._tables[table] = number + 1
                table = (*table, number)
            elif self.text[start] == "[":
                table = self._header(1)
            else:
                self._pair(table)
                continue
            for end in range(1, len(table) + 1):
                self._note(self.keys, table[:end], start)

    def _header(self, brackets: int) -> KeyPath:
        """`[a.b]` or `[[a.b]]`; steps into an array of tables mean its last element."""
        self.at += brackets
        path: KeyPath = ()
        names = self._names()
        for name in names[:-1]:
            path = self._into((*path, name))
        path = (*path, names[-1])
        self.at += brackets
        return path if brackets == 2 else self._into(path)

    def _into(self, path: KeyPath) -> KeyPath:
        return (*path, self._tables[path] - 1) if path in self._tables else path

    def _pair(self, table: KeyPath) -> None:
        """`a.b = value`."""
        start = self.at
        path = (*table, *self._names())
        for end in range(len(table) + 1, len(path)):
            self._note(self.keys, path[:end], start)
        self._note(self.keys, path, start)
        self.at += 1  # the equals sign
        self._value(path)

    def _names(self) -> list[str]:
        """A dotted key; leaves `at` behind it and the blanks that follow."""
        names = []
        more: str | None = "."
        self.at = self._end(_BLANK)
        while more:
            end = self._end(_KEY)
            token = self.text[self.at : end]
            names.append(str(tomllib.loads(f"name = {token}")["name"]) if token[0] in "\"'" else token)
            dot = _DOT.match(self.text, end)
            more, self.at = (dot[1], dot.end()) if dot else (None, end)
        return names

    def _value(self, path: KeyPath) -> None:
        self.at = self._end(_BLANK)
        start = self.at
        opening = self.text[start]
        if opening == "[":
            self._array(path)
        elif opening == "{":
            self._inline_table(path)
        elif opening in "\"'":
            self.at = self._end(_STRING)
        else:
            self.at += len(self.text[start : self._end(_SCALAR)].rstrip())
        self._note(self.values, path, start)

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        number = 0
        while self._skip() and self.text[self.at] != "]":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._value((*path, number))
            number += 1
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._skip() and self.text[self.at] != "}":
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self._pair(path)
        self.at += 1

    def _skip(self) -> bool:
        """Go to the next thing that is neither blank nor comment; False at the end."""
        self.at = self._end(_BLANK)
        return self.at < len(self.text)

    def _end(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"no {pattern.pattern} at {self.at}: a text that tomllib refuses"
        return match.end()

    def _note(self, into: dict[KeyPath, Span], path: KeyPath, start: int) -> None:
        """Remember the first place of this path, from `start` to `at` or to the end of that line."""
        line = bisect_right(self._line_starts, start)
        line_end = self.text.find("\n", start, self.at)
        length = len(self.text[start : line_end if line_end >= 0 else self.at].rstrip())
        column = start - self._line_starts[line - 1] + 1
        into.setdefault(path, Span(self.source, line, column, length))


# --- config_file ---
# Reads the configuration file: its bytes, its text, its TOML. The first mistake of any of these ends it.
#
# Only a plain file of a sane size is read: a pipe would wait for ever, a device has no end. `tomllib` reports the
# place
# of a mistake in its sentence only, so it is read out of there.


FILE_MAX_BYTES = 4 << 20  # a configuration of ten thousand databases is half of it

# Compiled where they are needed, for files that are wrong.
_PLACE = r" \((?:at line ([0-9]+), column ([0-9]+)|at end of document)\)$"
_TWICE = r"^Cannot (?:declare \(.*\) twice|overwrite a value|mutate immutable namespace \(.*\))$"
_NAMES = "name a TOML file that exists and may be read"
_SYNTAX = "correct the syntax, then check again"
_PEM = re.compile(r"^-----BEGIN ", re.MULTILINE)


class ConfigFile(NamedTuple):
    """What is in a file. Shape: `data` as `tomllib` gives it."""

    data: dict[str, Any]
    places: KeyPositions


def read_config(path: Path | None) -> ConfigFile:
    """
    Read a file; None is none, and empty.

    Raises:
        SettingsError: it cannot be read, or is not TOML.
    """
    if path is None:
        return ConfigFile({}, KeyPositions({}, {}, {}, []))
    source = str(path)
    text = _decode(_read(path, source), source)
    if _PEM.search(text):  # its lines are shown to nobody
        raise _refused(source, "is a key or a certificate in PEM form", "name the TOML file that names it")
    return _parse(text, source)


# --- the bytes ----------------------------------------------------------------------------------------------


def _read(path: Path, source: str) -> bytes:
    """Never waits: not for who writes into a pipe, nor for the end of a device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _refused(source, f"cannot be read: {reason}", _NAMES) from error
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise _refused(source, "is a directory", "name the TOML file in it")
        if not stat.S_ISREG(mode):
            raise _refused(source, "is no plain file", "write the configuration to a file: it is read again later")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise _refused(source, f"cannot be read: {error.strerror}", _NAMES) from error
    finally:
        os.close(descriptor)
    if len(data) > FILE_MAX_BYTES:
        problem = f"is larger than {FILE_MAX_BYTES >> 20} MiB"
        raise _refused(source, problem, "name a configuration file; is this a log or a database?")
    return data


def _refused(source: str, problem: str, hint: str) -> SettingsError:
    shown = source if source.isprintable() else ascii(source)[1:-1]
    return SettingsError([SettingError(shown, problem, None, hint)])


# --- the text -----------------------------------------------------------------------------------------------


def _decode(data: bytes, source: str) -> str:
    """UTF-8; a byte order mark before it is what some editors write, and no harm."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:2]:  # with or without a mark
        raise SettingsError([SettingError("TOML", "the file is UTF-16", Span(source, 1, 1), "save it as UTF-8")])
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        before = data.removeprefix(codecs.BOM_UTF8)[: error.start]
        span = Span(source, before.count(b"\n") + 1, len(before.rpartition(b"\n")[2].decode()) + 1)
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise SettingsError([SettingError("TOML", problem, span, "save it as UTF-8")]) from error


# --- the syntax ---------------------------------------------------------------------------------------------


def _parse(text: str, source: str) -> ConfigFile:
    lines = split_lines(text)
    rest = "\n".join(lines)
    try:
        return ConfigFile(tomllib.loads(rest), index_places(rest, source=source))
    except RecursionError:
        error = SettingError("TOML", "nested too deeply", Span(source, 1, 1), _SYNTAX)
    except ValueError as mistake:
        error = _syntax_error(str(mistake), lines, source)
    raise SettingsError([error])


def _syntax_error(message: str, lines: list[str], source: str) -> SettingError:
    """What `tomllib` says, with the place that it names in its sentence only."""
    place = re.search(_PLACE, message)
    problem, hint = (message[: place.start()] if place else message), _SYNTAX
    if place is None:
        span = Span(source, 1, 1)
    elif place[1] is not None:
        span = Span(source, int(place[1]), int(place[2]))
    else:
        span = Span(source, len(lines), len(lines[-1]) + 1)
    if re.match(_TWICE, problem):
        line = lines[span.line - 1]
        begin = len(line) - len(line.lstrip())
        name = line[begin:].partition("=")[0].partition("#")[0].strip()
        span = Span(source, span.line, begin + 1, len(name))
        problem, hint = f"{name} stands here a second time", "keep one of them"
    return SettingError("TOML", problem, span, hint, excerpt(lines, span))

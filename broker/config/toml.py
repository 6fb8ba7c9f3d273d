"""
TOML with places: read the configuration file, know where each key and value is, and write values.

`tomllib` gives values without places, and an error without a line is a search. `index_places` walks a text that
`tomllib` has accepted and finds the ends of things. Lines and columns count from 1, columns in characters; CR LF counts
as one end of line, as it does for `tomllib`.

Only a plain file of a sane size is read: a pipe would wait forever, and a device has no end. The first mistake in its
bytes or its syntax ends the reading.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import stat
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from broker.errors import SettingError, SettingsError, Span, caret

FILE_MAX_BYTES = 4 << 20  # a configuration of ten thousand databases is half of it

KeyPath: TypeAlias = tuple[str | int, ...]
"""Names, with a number for each element of an array: ("endpoint", "listen", 0)."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_NAMES = "name a TOML file that exists and may be read"
_SYNTAX = "correct the syntax, then check again"
_PEM = re.compile(r"^-----BEGIN ", re.MULTILINE)
# `tomllib` reports the place of a mistake in its message only.
_PLACE = re.compile(r" \((?:at line ([0-9]+), column ([0-9]+)|at end of document)\)$")
_TWICE = re.compile(r"^Cannot (?:declare \(.*\) twice|overwrite a value|mutate immutable namespace \(.*\))$")
_UNCLOSED = re.compile(r"^(?:(?:Illegal|Found invalid) character '\\n'|Unterminated string|Expected \"('+)\")$")

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")  # between values: blanks, ends of line, comments
_KEY = re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|[A-Za-z0-9_-]+')
_DOT = re.compile(r"[ \t]*(\.)?[ \t]*")
# The long quotes first, and at their end up to two more of the same: they belong to the string.
_STRING = re.compile(
    r'"""(?:\\[\s\S]|[^\\])*?"{3,5}|\'\'\'[\s\S]*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'',
)
_SCALAR = re.compile(r"[^,\]}#\n]*")
_CLOSING = {"[": "]", "{": "}"}


# --- writing -------------------------------------------------------------------------------------------------


def dotted(path: KeyPath) -> str:
    """A key path as one text: `endpoint.listen[0]`; a name that TOML would quote is quoted."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{_render_name(step)}"
    return text


def render_value(value: Any) -> str:
    """A value as TOML writes it, on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=not value.isprintable())
        case list() | tuple():
            return f"[{', '.join(map(render_value, value))}]"
        case Mapping():
            pairs = (f"{_render_name(name)} = {render_value(one)}" for name, one in value.items())
            return f"{{{', '.join(pairs)}}}"
        case _:
            return str(value)


def _render_name(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=not name.isprintable())


# --- places --------------------------------------------------------------------------------------------------


class SettingsSource(NamedTuple):
    """
    The sources of settings, to read them again.

    Attributes:
        path: Of the file, absolute; None for none.
        environ: Only the variables that are about settings.
        overrides: Those of flags, by dotted key.
    """

    path: Path | None
    environ: Mapping[str, str] = _NOTHING
    overrides: Mapping[str, object] = _NOTHING

    @property
    def name(self) -> str:
        """As people call it."""
        return "the environment" if self.path is None else str(self.path)


class KeyPositions(NamedTuple):
    """
    Places in one TOML text, and where values came from that are not in it.

    Attributes:
        keys: By key path.
        values: By key path.
        elsewhere: The origin of a value that came from no file: the name of a variable, or `flag`.
        lines: Of the text.
        source: All that the settings were read from; None for those that a program made.
    """

    keys: dict[KeyPath, Span]
    values: dict[KeyPath, Span]
    elsewhere: dict[KeyPath, str]
    lines: list[str]
    source: SettingsSource | None = None

    def __repr__(self) -> str:
        """Without the contents of file and environment, which may be secret."""
        return f"KeyPositions(keys={self.keys!r}, values={self.values!r}, elsewhere={self.elsewhere!r})"

    def origin(self, path: KeyPath) -> str | None:
        """Return the source of a key or section: an environment variable's name, or `flag`; None if it is the file."""
        found = (self.elsewhere.get(path[:end]) for end in range(len(path), 0, -1))
        origin = next((origin for origin in found if origin is not None), None)
        if origin is None and path not in self.keys:
            origin = next((one for key, one in self.elsewhere.items() if key[: len(path)] == path), None)
        return origin

    def span(self, path: KeyPath, *, of_key: bool = False) -> Span | None:
        """Return the place of a value (or of its key), or of the nearest thing around it that has one."""
        if self.origin(path) is not None:
            return None
        if of_key and path in self.keys:
            return self.keys[path]
        found = (self.values.get(path[:end]) or self.keys.get(path[:end]) for end in range(len(path), 0, -1))
        return next((span for span in found if span is not None), None)

    def excerpt(self, span: Span | None) -> str:
        """The line of the text in which a place is, and a caret below it; empty for no place."""
        return _excerpt(self.lines, span)


NO_POSITIONS = KeyPositions({}, {}, {}, [])


def _split_lines(text: str) -> list[str]:
    """The lines of a text, as spans count them."""
    return text.replace("\r\n", "\n").split("\n")


def _excerpt(lines: Sequence[str], span: Span | None) -> str:
    """The line of a place, with what a terminal might obey made visible, and a caret; empty after the last line."""
    if span is None or not 1 <= span.line <= len(lines):
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
        RecursionError: Nested deeper than the interpreter allows; `tomllib` raises it for such a text as well.
    """
    lines = _split_lines(text)
    walk = _Walk("\n".join(lines), source)
    walk.document()
    return KeyPositions(walk.keys, walk.values, {}, lines)


class _Walk:
    """One pass over a text that `tomllib` has accepted, so it checks nothing; `at` only grows."""

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
            path = (*path, name)
            path = (*path, self._tables[path] - 1) if path in self._tables else path
        self.at += brackets
        return (*path, names[-1])

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
        """A dotted key; `at` is then after it and the blanks that follow."""
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
        if opening in _CLOSING:
            self._list(path, _CLOSING[opening])
        elif opening in "\"'":
            self.at = self._end(_STRING)
        else:
            self.at += len(self.text[start : self._end(_SCALAR)].rstrip())
        self._note(self.values, path, start)

    def _list(self, path: KeyPath, close: str) -> None:
        """The elements of an array, or the pairs of an inline table."""
        self.at += 1
        number = 0
        while self._skip() and self.text[self.at] != close:
            if self.text[self.at] == ",":
                self.at += 1
            elif close == "}":
                self._pair(path)
            else:
                self._value((*path, number))
                number += 1
        self.at += 1

    def _skip(self) -> bool:
        """Skip blanks and comments; False at the end."""
        self.at = self._end(_BLANK)
        return self.at < len(self.text)

    def _end(self, pattern: re.Pattern[str]) -> int:
        match = pattern.match(self.text, self.at)
        assert match is not None, f"no {pattern.pattern} at {self.at}: a text that tomllib refuses"
        return match.end()

    def _note(self, into: dict[KeyPath, Span], path: KeyPath, start: int) -> None:
        """Record the first place of this path, from `start` to `at` or to the end of that line."""
        line = bisect_right(self._line_starts, start)
        line_end = self.text.find("\n", start, self.at)
        length = len(self.text[start : line_end if line_end >= 0 else self.at].rstrip())
        column = start - self._line_starts[line - 1] + 1
        into.setdefault(path, Span(self.source, line, column, length))


# --- the file ------------------------------------------------------------------------------------------------


def read_config(path: Path | None) -> tuple[dict[str, Any], KeyPositions]:
    """
    Read a file, as `tomllib` does, with the places of its keys; None means no file, which is empty.

    Raises:
        SettingsError: It cannot be read, or is not TOML.
    """
    if path is None:
        return {}, KeyPositions({}, {}, {}, [])
    source = str(path)
    text = _decode(_read(path, source), source)
    if _PEM.search(text):  # an error must not show its lines
        raise _refused(source, "is a key or a certificate in PEM form", "name the TOML file that names it")
    return _parse(text, source)


def _read(path: Path, source: str) -> bytes:
    """Never waits, neither for the writer of a pipe nor for the end of a device."""
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
            raise _refused(source, "is not a plain file", "write the configuration to a file: it is read again later")
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


def _decode(data: bytes, source: str) -> str:
    """UTF-8; some editors write a byte order mark before it, which is harmless."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in data[:2]:  # with or without a mark
        raise SettingsError([SettingError("TOML", "the file is UTF-16", Span(source, 1, 1), "save it as UTF-8")])
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        before = data.removeprefix(codecs.BOM_UTF8)[: error.start]
        span = Span(source, before.count(b"\n") + 1, len(before.rpartition(b"\n")[2].decode()) + 1)
        problem = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        raise SettingsError([SettingError("TOML", problem, span, "save it as UTF-8")]) from error


def _parse(text: str, source: str) -> tuple[dict[str, Any], KeyPositions]:
    lines = _split_lines(text)
    try:
        return tomllib.loads("\n".join(lines)), index_places(text, source=source)
    except RecursionError:
        error = SettingError("TOML", "nested too deeply", Span(source, 1, 1), _SYNTAX)
    except ValueError as mistake:
        error = _syntax_error(str(mistake), lines, source)
    raise SettingsError([error])


def _syntax_error(message: str, lines: list[str], source: str) -> SettingError:
    """The message of `tomllib`, with the place that it names."""
    place = _PLACE.search(message)
    problem, hint = (message[: place.start()] if place else message), _SYNTAX
    if place is None:
        span = Span(source, 1, 1)
    elif place[1] is not None:
        span = Span(source, int(place[1]), int(place[2]))
    else:
        span = Span(source, len(lines), len(lines[-1]) + 1)
    if unclosed := _UNCLOSED.match(problem):
        problem, hint = "a string is not closed", "end it with the quote with which it begins"
        if place and place[1] is None:  # where it begins
            text = "\n".join(lines)
            before = text[: text.rindex(unclosed[1] or ('"""' if text.count('"""') % 2 else '"'))]
            span = Span(source, before.count("\n") + 1, len(before) - before.rfind("\n"))
    if _TWICE.match(problem):
        line = lines[span.line - 1]
        begin = len(line) - len(line.lstrip())
        name = line[begin:].partition("=")[0].partition("#")[0].strip()
        span = Span(source, span.line, begin + 1, len(name))
        problem, hint = f"{name} is here a second time", "keep one of them"
    return SettingError("TOML", problem, span, hint, _excerpt(lines, span))

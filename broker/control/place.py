"""
Where each key and each value of a TOML text stands.

`tomllib` gives values without places, and an error report without a line is a search. This index walks a text that
`tomllib` has already accepted, so it checks nothing: it only has to find the ends of things. A key path is a tuple
of names, with a number for each element of an array: ("endpoint", "listen", 0).

Lines and columns count from 1, columns in characters; CR LF counts as one end of line, as it does for `tomllib`.
"""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from typing import NamedTuple, TypeAlias

from broker.control.source import SettingsSource
from broker.errors import Span, caret

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

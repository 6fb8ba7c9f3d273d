"""
Reading the configuration file: its bytes, its text, its TOML, and everything that is wrong with those in one report.

Only a plain file of a sane size is read: a pipe would wait for ever, a device has no end. `tomllib` stops at the first
mistake and tells its place in a sentence only; a line that is wrong by itself is therefore left out and the rest read
on, so that one run tells of every such line. What a mistake makes of the lines behind it, nobody can know: reading ends
at a mistake that is not the line's own, and what stands whole before it is made use of.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from broker.control.place import Places, excerpt, index_places, split_lines
from broker.errors import SettingError, SettingsError, Span

FILE_MAX_BYTES = 4 << 20  # a configuration of ten thousand databases is half of it
SYNTAX_ERRORS_MAX = 20  # of one file: more are those of something else than TOML

# Compiled where they are needed, for files that are wrong.
_PLACE = r" \((?:at line ([0-9]+), column ([0-9]+)|at end of document)\)$"
_TWICE = r"^Cannot (?:declare \(.*\) twice|overwrite a value|mutate immutable namespace \(.*\))$"
_NAMES = "name a TOML file that exists and may be read"
_SYNTAX = "correct the syntax, then check again"
_PEM = re.compile(r"^-----BEGIN ", re.MULTILINE)


class ConfigFile(NamedTuple):
    """
    What is in a file. Shape: `data` as `tomllib` gives it; `errors` of syntax, whose lines are not in `data`.

    With errors in it a required key may be missing that was only written wrongly.
    """

    data: dict[str, Any]
    places: Places
    errors: list[SettingError]


def read_config(path: Path | None) -> ConfigFile:
    """
    Read a file; None is none, and empty.

    Raises:
        SettingsError: nothing in it can be made use of.
    """
    if path is None:
        return ConfigFile({}, Places({}, {}, {}, []), [])
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
    left, errors = list(lines), list[SettingError]()
    while True:
        rest = "\n".join(left)
        try:
            return ConfigFile(tomllib.loads(rest), _places(rest, source, lines), errors)
        except RecursionError:
            found = SettingError("TOML", "nested too deeply", Span(source, 1, 1), _SYNTAX)
        except ValueError as error:
            found = _syntax_error(str(error), left, source)
        errors.append(found)
        number = found.span.line if found.span is not None else 0
        if len(errors) == SYNTAX_ERRORS_MAX or not _is_its_own(left, number, found):
            before = "\n".join(left[: number - 1])
            return ConfigFile(_whole(before, errors), _places(before, source, lines), errors)
        left[number - 1] = ""


def _whole(before: str, errors: list[SettingError]) -> dict[str, Any]:
    """What stands before the mistake at which reading ends; raises SettingsError when that is nothing, or goes on."""
    try:
        found = tomllib.loads(before)
    except (ValueError, RecursionError):
        found = {}
    if not found:
        raise SettingsError(errors)
    return found


def _places(text: str, source: str, lines: list[str]) -> Places:
    """The places in what is left, and the lines as they are in the file."""
    places = index_places(text, source=source)
    return Places(places.keys, places.values, places.elsewhere, lines)


def _is_its_own(lines: list[str], number: int, error: SettingError) -> bool:
    """Whether the mistake is in this very line, so that those around it can be read without it; no head of a table."""
    if not 1 <= number <= len(lines) or lines[number - 1].lstrip().startswith("["):
        return False
    if error.hint != _SYNTAX:  # a key that is there twice: the line is fine by itself
        return "=" in lines[number - 1]
    try:
        tomllib.loads(lines[number - 1])
    except (ValueError, RecursionError):
        return True
    return False


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

"""
Reads the configuration file: its bytes, its text, its TOML. The first mistake of any of these ends it.

Only a plain file of a sane size is read: a pipe would wait for ever, a device has no end. `tomllib` reports the place
of a mistake in its sentence only, so it is read out of there.
"""

from __future__ import annotations

import codecs
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from broker.control.place import KeyPositions, excerpt, index_places, split_lines
from broker.errors import SettingError, SettingsError, Span

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

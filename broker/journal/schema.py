"""
The journal's columns as an Arrow schema, and what the metadata of a file tells.

Timestamps are in microseconds with the zone UTC and ids plain binary of 16 bytes, because that is what every reader
understands: Spark refuses nanoseconds, and ids with the logical type UUID.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from broker.flow import COLUMNS, JOURNAL_SCHEMA, Form

SCHEMA_KEY = b"journal_schema"  # the version of the columns
FILE_KEY = b"journal_file"  # 32 hexadecimal digits, another for each file: copies of a file are known by it
INSTANCE_KEY = b"journal_instance"
SAMPLE_KEY = b"journal_sample"  # the fraction of dialogs, as a decimal number
SHED_KEY = b"journal_shed"  # records lost for want of room since the file before this one

_TYPES: dict[Form, pa.DataType] = {
    Form.INSTANT: pa.timestamp("us", tz="UTC"),
    Form.WORD: pa.dictionary(pa.int32(), pa.string()),
    Form.GUID: pa.binary(16),
    Form.FLAG: pa.bool_(),
    Form.INT32: pa.int32(),
    Form.INT64: pa.int64(),
}

JOURNAL = pa.schema([pa.field(one.name, _TYPES[one.form], nullable=one.is_nullable) for one in COLUMNS])
"""One row per visit of a dialog frame to an instance."""


def file_metadata(*, file: str, instance: str, sample: float, shed: int) -> dict[bytes, bytes]:
    """What the metadata of a file tells."""
    return {
        SCHEMA_KEY: str(JOURNAL_SCHEMA).encode(),
        FILE_KEY: file.encode(),
        INSTANCE_KEY: instance.encode(),
        SAMPLE_KEY: repr(sample).encode(),
        SHED_KEY: str(shed).encode(),
    }


# --- survey ---
# The files of a journal, and what the footer of one tells about it.
#
# A directory may hold anything: a copy that broke off, files of other programs and of later versions, the same file
# twice; and files vanish while somebody looks, because old ones are removed. `judge` says of one file what it is, and
# what is wrong with it; `survey` does so for many, and knows copies by what the writer drew for each file, not by
# their
# names. Only footers are read here, a few kilobytes each.


SUFFIX = ".parquet"


class Fitness(StrEnum):
    """What a file is to somebody who wants to read the journal."""

    GOOD = "good"
    OLDER = "older"  # it lacks columns that later versions have: they are null
    NEWER = "newer"  # of a later version: what is known here can be read, the columns that it adds cannot
    COPY = "copy"  # of a file that came before: its rows count once
    DAMAGED = "damaged"  # broken off, or no Parquet
    UNREADABLE = "unreadable"  # a file or a directory that the machine does not let us read: what is in it is unknown
    FOREIGN = "foreign"  # Parquet, but no journal
    VANISHED = "vanished"  # it was there a moment ago


@dataclass(frozen=True, slots=True)
class FileState:
    """
    One file, as its footer tells.

    Shape: `problem` what is wrong with it, in words, empty where it is GOOD; `file` what copies of it have in common,
    32 hexadecimal digits; `version` of its columns; `instance` that wrote it; `sample` 0 .. 1; `shed` records lost
    since the file before it; `rows` in it, `bytes` of it; `first_us` when the first visit of it began and `last_us` the
    newest instant in it, microseconds since 1970, None where its footer does not tell. Of a file that is no journal or
    cannot be read, only path and bytes are known.
    """

    path: Path
    fitness: Fitness
    problem: str = ""
    file: str = ""
    version: int = 0
    instance: str = ""
    sample: float = 0.0
    shed: int = 0
    rows: int = 0
    bytes: int = 0
    first_us: int | None = None
    last_us: int | None = None

    @property
    def is_readable(self) -> bool:
        """Whether its rows are to be read."""
        return self.fitness in (Fitness.GOOD, Fitness.OLDER, Fitness.NEWER)

    def spoilt(self, error: Exception) -> FileState:
        """The same file, when this went wrong while its rows were read."""
        if isinstance(error, FileNotFoundError):
            return replace(self, fitness=Fitness.VANISHED, problem="it vanished while it was read")
        why = _refusal(self.path, error)
        if why:
            return replace(self, fitness=Fitness.UNREADABLE, problem=why)
        return replace(self, fitness=Fitness.DAMAGED, problem=_first_line(error))


def files(directory: Path) -> Iterator[Path]:
    """
    The finished files below a directory, in the order of their paths: by date and hour, as the writer names them.

    What begins with a dot or an underscore is unfinished, or somebody else's. What vanishes meanwhile is left out. A
    directory below it that cannot be read stands for itself, and `judge` says so.

    Raises:
        OSError: there is no such directory, or it cannot be read.
    """
    with os.scandir(directory) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.name.startswith((".", "_")):
            continue
        if _is_directory(entry):
            try:
                yield from files(Path(entry.path))
            except FileNotFoundError:
                continue  # removed with its last file
            except OSError:
                yield Path(entry.path)
        elif entry.name.endswith(SUFFIX):
            yield Path(entry.path)


def judge(path: Path) -> FileState:
    """
    What a file is, by its footer. Never raises for what is in the file.

    Cost: under a millisecond; one open, no row is read.
    """
    size = 0
    try:
        size = path.stat().st_size
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except FileNotFoundError:
        return FileState(path, Fitness.VANISHED, "it is there no more")
    except (pa.ArrowException, OSError, ValueError) as error:
        why = _refusal(path, error)
        if why:
            return FileState(path, Fitness.UNREADABLE, why, bytes=size)
        return FileState(path, Fitness.DAMAGED, _first_line(error) if size else "it is empty", bytes=size)
    try:
        state = _understand(path, size, footer.num_rows, footer.metadata or {}, schema)
        _check_nulls(footer, schema)
    except _ForeignError as error:
        return FileState(path, Fitness.FOREIGN, str(error), bytes=size)
    first_us, last_us = _span(footer)
    return replace(state, first_us=first_us, last_us=last_us)


def survey(paths: Iterable[Path]) -> Iterator[FileState]:
    """Judge files one after the other; of files that are copies of each other, the first is read. Memory: their ids."""
    first: dict[str, Path] = {}
    for path in paths:
        state = judge(path)
        if state.is_readable:
            other = first.setdefault(state.file, path)
            if other != path:
                state = replace(state, fitness=Fitness.COPY, problem=f"a copy of {other}")
        yield state


class _ForeignError(Exception):
    """The file is no journal; says why."""


def _understand(path: Path, size: int, rows: int, told: Mapping[bytes, bytes], schema: pa.Schema) -> FileState:
    """What the footer tells of a file that can be opened."""
    missing = [key.decode() for key in (SCHEMA_KEY, FILE_KEY, INSTANCE_KEY, SAMPLE_KEY, SHED_KEY) if key not in told]
    if missing:
        why = f"its footer does not tell {', '.join(missing)}"
        raise _ForeignError(why)
    try:
        version, sample, shed = int(told[SCHEMA_KEY]), float(told[SAMPLE_KEY]), int(told[SHED_KEY])
        file, instance = told[FILE_KEY].decode(), told[INSTANCE_KEY].decode()
    except ValueError as error:
        why = f"its footer cannot be understood: {_first_line(error)}"
        raise _ForeignError(why) from None
    lacking = _check(schema, version)
    fitness, problem = Fitness.GOOD, ""
    if lacking:
        fitness, problem = Fitness.OLDER, f"it has no column {', '.join(lacking)}: null"
    if version > JOURNAL_SCHEMA:
        fitness = Fitness.NEWER
        problem = f"version {version}, known here is {JOURNAL_SCHEMA}: columns that it adds are not read"
    return FileState(path, fitness, problem, file, version, instance, sample, shed, rows, size)


def _span(footer: pq.FileMetaData) -> tuple[int | None, int | None]:
    """From when to when the visits are, by the statistics of all row groups: microseconds."""
    entered: list[tuple[int, int]] = []
    newest: list[int] = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        told = {
            name: column.statistics
            for column in map(group.column, range(group.num_columns))
            if (name := column.path_in_schema) in {"entered_at", "left_at"} and column.statistics is not None
        }
        begun, left = told.get("entered_at"), told.get("left_at")
        if begun is None or not begun.has_min_max:
            return None, None
        entered.append((begun.min_raw, begun.max_raw))
        if left is not None and left.has_min_max:
            newest.append(left.max_raw)
    newest += [last for _, last in entered]
    return min((first for first, _ in entered), default=None), max(newest, default=None)


def _check(schema: pa.Schema, version: int) -> list[str]:
    """The columns that are missing, which only those may that can be null: later versions add no others."""
    if version < 1:
        why = f"there is no version {version} of the journal"
        raise _ForeignError(why)
    lacking = []
    for field in JOURNAL:
        index = schema.get_field_index(field.name)
        if index >= 0 and _plain(schema.field(index).type) != _plain(field.type):
            why = f"its column {field.name} is {schema.field(index).type}, not {_plain(field.type)}"
            raise _ForeignError(why)
        if index < 0 and not field.nullable:
            why = f"it has no column {field.name}"
            raise _ForeignError(why)
        if index < 0:
            lacking.append(field.name)
    return lacking


def _check_nulls(footer: pq.FileMetaData, schema: pa.Schema) -> None:
    """
    See that no row lacks what every row has, where the file allows it: our own writer does not.

    Visits without a message id would be taken for those of one message.
    """
    loose = {field.name for field in JOURNAL if not field.nullable and schema.field(field.name).nullable}
    if not loose:
        return
    nulls: Counter[str] = Counter()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            name, told = column.path_in_schema, column.statistics
            if name in loose and (told is None or not told.has_null_count):
                why = f"its column {name} may be null, and its footer does not tell whether it is"
                raise _ForeignError(why)
            nulls[name] += told.null_count if name in loose else 0
    for name in sorted(loose):
        if nulls[name]:
            why = f"its column {name} is null in {nulls[name]:,} rows"
            raise _ForeignError(why)


def _plain(form: Any) -> Any:
    """A type whatever its encoding: writers may choose one for words."""
    if pa.types.is_dictionary(form):
        form = form.value_type
    return pa.string() if pa.types.is_large_string(form) else form


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere
        return False


def _refusal(path: Path, error: Exception) -> str:
    """Why the machine lets nobody read this, "" when that is not what is wrong."""
    try:
        if path.is_dir():
            os.scandir(path).close()
            return "it is a directory"
    except OSError as refused:
        error = refused
    number = error.errno if isinstance(error, OSError) else None  # the library's own have none
    return "" if number is None else os.strerror(number)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

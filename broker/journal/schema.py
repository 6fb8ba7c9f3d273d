"""
The columns of a journal as an Arrow schema, the metadata of its files, and a check of files by their footers.

Timestamps are in microseconds with the zone UTC, and ids are binary of 16 bytes: Spark refuses nanoseconds and the
logical type UUID.

A directory may hold anything: broken copies, files of other programs or later versions, the same file twice; and old
files are removed while it is read. `judge` classifies one file, `survey` many; copies are recognised by an id that the
writer draws for each file. Both read footers only, a few kilobytes each.
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
FILE_KEY = b"journal_file"  # 32 hexadecimal digits, drawn for each file: copies have the same
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
    """Return the key-value metadata of a file."""
    return {
        SCHEMA_KEY: str(JOURNAL_SCHEMA).encode(),
        FILE_KEY: file.encode(),
        INSTANCE_KEY: instance.encode(),
        SAMPLE_KEY: repr(sample).encode(),
        SHED_KEY: str(shed).encode(),
    }


# --- the files of a directory ---

SUFFIX = ".parquet"


class Fitness(StrEnum):
    """Whether a file can be read, and how it differs."""

    GOOD = "good"
    OLDER = "older"  # it lacks columns of later versions: they are null
    NEWER = "newer"  # of a later version: the columns that it adds are not read
    COPY = "copy"  # of another file: its rows count once
    DAMAGED = "damaged"  # truncated, or not Parquet
    UNREADABLE = "unreadable"  # the system refuses to read the file or directory
    FOREIGN = "foreign"  # Parquet, but not of a journal
    VANISHED = "vanished"  # removed a moment ago


@dataclass(frozen=True, slots=True)
class FileState:
    """
    One file, described by its footer.

    `problem` is a sentence, empty if the file is GOOD; `file` is the id that copies share, 32 hexadecimal digits;
    `version` is that of its columns; `instance` wrote it; `sample` is 0 .. 1; `shed` counts records lost since the file
    before; `first_us` and `last_us` are the first and the last instant, `first_left_us` is when the first visit ended,
    microseconds since 1970, None if the footer has none. Of a file that cannot be read or is not of a journal, only
    `path` and `bytes` are known.
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
    first_left_us: int | None = None

    @property
    def is_readable(self) -> bool:
        """True if its rows are to be read."""
        return self.fitness in (Fitness.GOOD, Fitness.OLDER, Fitness.NEWER)

    def failed(self, error: Exception) -> FileState:
        """Return the state of the file after an error while its rows were read."""
        if isinstance(error, FileNotFoundError):
            return replace(self, fitness=Fitness.VANISHED, problem="it was removed while it was read")
        why = _refusal(self.path, error)
        if why:
            return replace(self, fitness=Fitness.UNREADABLE, problem=why)
        return replace(self, fitness=Fitness.DAMAGED, problem=_first_line(error))


def files(directory: Path) -> Iterator[Path]:
    """
    Yield the finished files below a directory, in the order of their paths: by date and hour, as the writer names them.

    Names that begin with a dot or an underscore are skipped: unfinished files, or those of other programs. A directory
    that cannot be read is yielded itself, so that `judge` reports it.

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
    Classify a file by its footer. Never raises for the content of a file.

    Cost: under a millisecond; one open, no row is read.
    """
    size = 0
    try:
        size = path.stat().st_size
        footer = pq.read_metadata(path)
        schema = footer.schema.to_arrow_schema()
    except FileNotFoundError:
        return FileState(path, Fitness.VANISHED, "it was removed")
    except (pa.ArrowException, OSError, ValueError) as error:
        why = _refusal(path, error)
        if why:
            return FileState(path, Fitness.UNREADABLE, why, bytes=size)
        return FileState(path, Fitness.DAMAGED, _first_line(error) if size else "it is empty", bytes=size)
    try:
        return _understand(path, size, footer, schema)
    except _ForeignError as error:
        return FileState(path, Fitness.FOREIGN, str(error), bytes=size)


def survey(paths: Iterable[Path]) -> Iterator[FileState]:
    """Judge files one after the other; of copies, the first is readable. Keeps the ids of all files in memory."""
    return without_copies(map(judge, paths))


def without_copies(states: Iterable[FileState]) -> Iterator[FileState]:
    """Yield the states of files; those after the first with the same id are copies."""
    first: dict[str, Path] = {}
    for state in states:
        other = first.setdefault(state.file, state.path) if state.is_readable else state.path
        is_copy = other != state.path
        yield replace(state, fitness=Fitness.COPY, problem=f"a copy of {other}") if is_copy else state


class _ForeignError(Exception):
    """The file is not of a journal; the message is the reason."""


def _understand(path: Path, size: int, footer: pq.FileMetaData, schema: pa.Schema) -> FileState:
    """Return the state of a file from its footer."""
    given: Mapping[bytes, bytes] = footer.metadata or {}
    missing = [key.decode() for key in (SCHEMA_KEY, FILE_KEY, INSTANCE_KEY, SAMPLE_KEY, SHED_KEY) if key not in given]
    if missing:
        raise _ForeignError(f"its footer lacks {', '.join(missing)}")
    try:
        version, sample, shed = int(given[SCHEMA_KEY]), float(given[SAMPLE_KEY]), int(given[SHED_KEY])
        file, instance = given[FILE_KEY].decode(), given[INSTANCE_KEY].decode()
    except ValueError as error:
        raise _ForeignError(f"its footer cannot be understood: {_first_line(error)}") from None
    lacking = _check(schema, version)
    _check_nulls(footer, schema)
    fitness, problem = Fitness.GOOD, ""
    if lacking:
        fitness, problem = Fitness.OLDER, f"it has no column {', '.join(lacking)}: null"
    if version > JOURNAL_SCHEMA:
        fitness = Fitness.NEWER
        problem = f"version {version}, known here is {JOURNAL_SCHEMA}: columns that it adds are not read"
    facts = file, version, instance, sample, shed, footer.num_rows, size
    return FileState(path, fitness, problem, *facts, *_span(footer))


def instants(group: pq.RowGroupMetaData) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest `entered_at` and `left_at` of a row group, by name, as far as it says so."""
    given = {column.path_in_schema: column.statistics for column in map(group.column, range(group.num_columns))}
    known = {name: given.get(name) for name in ("entered_at", "left_at")}
    return {name: (one.min_raw, one.max_raw) for name, one in known.items() if one is not None and one.has_min_max}


def _span(footer: pq.FileMetaData) -> tuple[int | None, int | None, int | None]:
    """Return the first instant, the last, and the first `left_at`, by all row groups: microseconds since 1970."""
    groups = [instants(footer.row_group(number)) for number in range(footer.num_row_groups)]
    if not all("entered_at" in group for group in groups):
        return None, None, None
    first = min((group["entered_at"][0] for group in groups), default=None)
    left = min((group.get("left_at", group["entered_at"])[0] for group in groups), default=None)
    return first, max((last for group in groups for _, last in group.values()), default=None), left


def _check(schema: pa.Schema, version: int) -> list[str]:
    """Return the columns that are missing. Only nullable ones may be: later versions add no others."""
    if version < 1:
        raise _ForeignError(f"there is no version {version} of the journal")
    lacking = []
    for field in JOURNAL:
        index = schema.get_field_index(field.name)
        if index >= 0 and _plain(schema.field(index).type) != _plain(field.type):
            raise _ForeignError(f"its column {field.name} is {schema.field(index).type}, not {_plain(field.type)}")
        if index < 0 and not field.nullable:
            raise _ForeignError(f"it has no column {field.name}")
        if index < 0:
            lacking.append(field.name)
    return lacking


def _check_nulls(footer: pq.FileMetaData, schema: pa.Schema) -> None:
    """
    Check that no required column is null, in files whose schema allows it; our own writer's does not.

    Visits without a message id would be counted as those of one message.
    """
    loose = {field.name for field in JOURNAL if not field.nullable and schema.field(field.name).nullable}
    if not loose:
        return
    nulls: Counter[str] = Counter()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            name, given = column.path_in_schema, column.statistics
            if name in loose and (given is None or not given.has_null_count):
                raise _ForeignError(f"its column {name} may be null, and its footer does not say whether it is")
            nulls[name] += given.null_count if name in loose else 0
    for name in sorted(loose):
        if nulls[name]:
            raise _ForeignError(f"its column {name} is null in {nulls[name]:,} rows")


def _plain(form: Any) -> Any:
    """Return a type without its encoding, which a writer may choose."""
    if pa.types.is_dictionary(form):
        form = form.value_type
    return pa.string() if pa.types.is_large_string(form) else form


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a broken symbolic link
        return False


def _refusal(path: Path, error: Exception) -> str:
    """Return why the system refuses to read a path; "" if it does not."""
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

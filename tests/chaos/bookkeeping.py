"""The books behind a fault run: the ledger of each database, and the journals of all instances."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from broker.journal.reader import UNREADABLE, FileReader
from broker.journal.schema import FileState, Fitness, files, survey
from broker.store.sqlite.inspect import read_balance

BUSY_SECONDS = 20.0
FRAME = ("conversation_id", "from_target", "sequence_number", "fragment_number", "outcome", "kind")
DELIVERED = ("delivered", "message")  # an acknowledgement has an outcome too


def ledger_faults(name: str, path: Path, *, is_over: bool) -> Iterator[str]:
    """
    What of a database's ledger does not add up.

    Args:
        name: Of the database.
        path: Of its file.
        is_over: Whether everything that was sent had the time to be acknowledged.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
        balance = read_balance(db)
    told = (
        f"{balance.sent} sent, {balance.acknowledged} acknowledged, {balance.held} held, {dict(balance.failed)} failed"
    )
    if balance.unaccounted:
        yield f"ledger of {name}: {balance.unaccounted} unaccounted: {told}"
    elif balance.held and is_over:
        yield f"ledger of {name}: {balance.held} held: {told}"


def read_sent(path: Path) -> int:
    """How many messages were sent in a database since its file was made, as its ledger says."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
        return read_balance(db).sent


def delivered(directory: Path) -> set[tuple[bytes, bool, int]] | None:
    """
    Messages that a journal says were delivered: conversation id, whether the target sent it, sequence number. None
    where it says itself that it has lost records, or cannot be read, which `journal_faults` tells.
    """
    found = delivered_frames(directory)
    return None if found is None else {frame[:3] for frame in found}


def delivered_frames(directory: Path) -> set[tuple[bytes, bool, int, int]] | None:
    """The same of each fragment of a message, with its number."""
    found: set[tuple[bytes, bool, int, int]] = set()
    for state in survey(files(directory)) if directory.exists() else ():
        if state.shed or state.fitness is not Fitness.GOOD:
            return None
        with FileReader(state.path) as reading:
            for piece in (piece for group in reading.groups for piece in reading.pieces(group, FRAME)):
                rows = zip(*piece.to_pydict().values(), strict=True)
                found |= {
                    (one, is_from, *place) for one, is_from, *place, how, kind in rows if (how, kind) == DELIVERED
                }
    return found


def journal_faults(directory: Path, *, is_used: bool) -> Iterator[str]:
    """What cannot be read of a journal, from footer to last row; and when it `is_used`, that there is nothing in it."""
    rows = 0
    for state in survey(files(directory)) if directory.exists() else ():
        if state.fitness is Fitness.GOOD:
            problem, count = _read(state)
            rows += count
        else:
            problem = f"{state.fitness}: {state.problem}"
        if problem:
            yield f"journal: {state.path.relative_to(directory.parent)}: {problem}"
    if is_used and not rows:
        yield f"journal: {directory.name}: no record"


def _read(state: FileState) -> tuple[str, int]:
    """What is wrong with the rows of a file, "" for nothing; how many were read."""
    try:
        with FileReader(state.path) as reading:
            rows = sum(piece.num_rows for group in reading.groups for piece in reading.pieces(group))
    except UNREADABLE as error:
        return str(error), 0
    return "" if rows == state.rows else f"{rows} rows, and {state.rows} by its footer", rows

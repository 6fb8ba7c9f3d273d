"""
What the applications did, counted, and what ledgers and journals say, which has to be that.

The ledger of a database counts each message that was sent in it, and each end of a dialog that was told to the far
side. The journal of a host has a row for each message that was delivered there; not so where something may have been
lost before it was written (`LOSSY`), or where it is removed in the meantime. What one partner of a pair has taken is
received at the other one when they have changed their roles.
"""

import sqlite3
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from broker.journal.reader import UNREADABLE, pieces
from broker.journal.schema import FileState, Fitness, files, survey
from broker.store.sqlite.inspect import read_balance
from tests.chaos.configuration import Home, journal_of
from tests.chaos.fleet import Fleet
from tests.chaos.history import Entry, What

BUSY_SECONDS = 20.0
FRAME = ("conversation_id", "from_target", "sequence_number", "fragment_number", "outcome", "kind")
DELIVERED = ("delivered", "message")  # an acknowledgement has an outcome too


def delivered_frames(directory: Path) -> set[tuple[bytes, bool, int, int]] | None:
    """
    Fragments that a journal says were delivered: conversation id, whether the target sent it, sequence number and its
    own. None where it says itself that it has lost records, or cannot be read, which `journal_faults` tells.
    """
    found: set[tuple[bytes, bool, int, int]] = set()
    for state in survey(files(directory)) if directory.exists() else ():
        if state.shed or state.fitness is not Fitness.GOOD:
            return None
        with pq.ParquetFile(state.path) as file:
            for piece in (piece for group in range(file.num_row_groups) for piece in pieces(file, group, FRAME)):
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
        with pq.ParquetFile(state.path) as file:
            rows = sum(piece.num_rows for group in range(file.num_row_groups) for piece in pieces(file, group))
    except UNREADABLE as error:
        return str(error), 0
    return "" if rows == state.rows else f"{rows} rows, and {state.rows} by its footer", rows


LOSSY = frozenset({"kill", "memory", "lost-principal", "descriptors", "failover-frozen", "failover-overtaken"})
KEPT_SECONDS = 2400.0  # journals are kept for an hour, and 256 MiB of them

Key = tuple[bytes, bool, int]
"""Conversation id, whether its target sent it, sequence number; of a message."""


class Accounts:
    """Of all phases of a run."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sent: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._received: defaultdict[str, dict[Key, float]] = defaultdict(dict)
        self._lossy: set[str] = set()

    def add(self, entries: Iterable[Entry], faults: Mapping[str, Collection[str]]) -> None:
        """What was done in a phase; hosts that a fault befell in it by the fault's name."""
        for name in LOSSY & faults.keys():
            self._lossy.update(faults[name])
        for entry in entries:
            event, home = entry.event, self._fleet.copies.get(entry.database, entry.database)
            self._sent[home] += event.what is What.SENT
            self._ended[home] += event.what is What.ENDED
            if event.what is What.RECEIVED:
                key = (uuid.UUID(event.conversation).bytes, event.is_initiator, event.number)
                self._received[home][key] = entry.at

    def ledger_faults(self) -> Iterator[str]:
        """What of the ledgers does not add up, or is another number; everything has to be over."""
        for home in self._fleet.homes:
            path = self._fleet.file(home, self._fleet.serving(home))
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as db:
                balance = read_balance(db)
            told = f"ledger of {home.name}: {balance.sent} sent, {balance.acknowledged} acknowledged"
            if balance.unaccounted or balance.held:
                rest = f"{balance.held} held, {dict(balance.failed)} failed, {balance.unaccounted} unaccounted"
                yield f"{told}, {rest}"
            least, ends = self._sent[home.name], self._ended[home.name]
            if not least <= balance.sent <= least + ends:
                yield f"{told}, and {least} sent by its applications, who ended {ends} dialogs"

    def journal_faults(self) -> Iterator[str]:
        """Databases of which no journal knows a message that was received there; everything has to have ended."""
        oldest = time.monotonic() - KEPT_SECONDS
        for home in self._fleet.homes:
            wanted = {key for key, at in self._received[home.name].items() if at > oldest}
            known = self._delivered(home) if wanted else None
            if known is not None and (missing := wanted - known):
                conversation, _, number = min(missing)
                yield (
                    f"journal: {home.name}: {len(missing)} of {len(wanted)} messages that were received"
                    f" are not delivered there, such as {number} of dialog {uuid.UUID(bytes=conversation)}"
                )

    def twice(self) -> Iterator[str]:
        """Fragments that both partners of a pair with one file have delivered; one of them was a mirror then."""
        for home in self._fleet.homes if self._fleet.has_lock else ():
            told = [delivered_frames(journal_of(self._fleet, name)) for name in home.hosts]
            if len(told) > 1 and (both := set.intersection(*(one or set() for one in told))):
                conversation, _, number, _ = min(both)
                yield (
                    f"journal: {home.name}: both partners have delivered {len(both)} frames,"
                    f" such as {number} of dialog {uuid.UUID(bytes=conversation)}"
                )

    def _delivered(self, home: Home) -> set[Key] | None:
        """What the journals of its hosts know; None where one may have lost something."""
        told = [None if name in self._lossy else delivered_frames(journal_of(self._fleet, name)) for name in home.hosts]
        known = [one for one in told if one is not None]
        return {frame[:3] for frames in known for frame in frames} if len(known) == len(told) else None

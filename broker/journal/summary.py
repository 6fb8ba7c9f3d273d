"""
What a journal holds: files, instances, times, what became of the frames, and what could not be read.

Footers are read, and of the rows only what became of them. Memory does not grow with the rows. Rows of a file that
cannot be read to its end count nowhere; it is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.journal.kernel import converted, counts_of, first_known, pair_numbers, size_of, with_numbers
from broker.journal.reading import UNREADABLE, Reading
from broker.journal.survey import FileState, Fitness, files, survey

Times = tuple[int, int]
"""The first and the last instant, microseconds since 1970."""


@dataclass(slots=True)
class Written:
    """What one instance has written. Shape: `samples` fractions of dialogs that its files name; `shed` records."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    shed: int = 0
    samples: set[float] = field(default_factory=set)
    times: Times | None = None


@dataclass(slots=True)
class Summary:
    """
    What was found.

    Shape: `files` by what they are; `troubled` those that are not good; `instances` by name; `outcomes` rows by outcome
    and reason; `versions` files by version; `untimed` files of which the footer does not tell when their rows were.
    """

    files: Counter[Fitness] = field(default_factory=Counter)
    troubled: list[FileState] = field(default_factory=list)
    instances: dict[str, Written] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)
    untimed: int = 0

    @property
    def times(self) -> Times | None:
        """Of all instances."""
        found = [one.times for one in self.instances.values() if one.times is not None]
        return (min(one[0] for one in found), max(one[1] for one in found)) if found else None

    @property
    def total(self) -> Written:
        """All instances together."""
        every = self.instances.values()
        return Written(
            sum(one.files for one in every),
            sum(one.rows for one in every),
            sum(one.bytes for one in every),
            sum(one.shed for one in every),
            set().union(*(one.samples for one in every)),
            self.times,
        )


def summarize(directory: Path, tell: Callable[[FileState], None] = lambda _: None) -> Summary:
    """
    Look through a journal.

    Args:
        directory: Of the journal.
        tell: Hears of each file that was looked at.

    Raises:
        OSError: there is no such directory, or it cannot be read.
    """
    summary = Summary()
    for found in survey(files(directory)):
        state = found
        if state.is_readable:
            try:
                _add(summary, state)
            except UNREADABLE as error:
                state = state.spoilt(error)
        summary.files[state.fitness] += 1
        if state.fitness is not Fitness.GOOD:
            summary.troubled.append(state)
        tell(state)
    return summary


def _add(summary: Summary, state: FileState) -> None:
    """Count one file, when all of it can be read."""
    outcomes: Counter[tuple[str, str | None]] = Counter()
    times: list[Times | None] = []
    with Reading(state.path) as reading:
        for group in reading.groups:
            times.append(reading.bounds(group))
            for piece in reading.pieces(group, ("outcome", "reason")):
                _count(piece, outcomes)
    summary.outcomes += outcomes
    summary.versions[state.version] += 1
    one = summary.instances.setdefault(state.instance, Written())
    one.files += 1
    one.rows += state.rows
    one.bytes += state.bytes
    one.shed += state.shed
    one.samples.add(state.sample)
    known = [each for each in [*times, one.times] if each is not None]
    if known:
        one.times = min(each[0] for each in known), max(each[1] for each in known)
    summary.untimed += None in times


def _count(piece: pa.Table, outcomes: Counter[tuple[str, str | None]]) -> None:
    """
    Add its rows by outcome and reason.

    Each pair becomes one number, and the numbers are counted: `group_by` imports what asks data sets, and pandas where
    that is installed, for a third of a second; so does a number of Python's among Arrow's.
    """
    (words, first, _), (reasons, second, size) = _numbered(piece["outcome"]), _numbered(piece["reason"])
    for one in counts_of(pair_numbers(first, second, size)):
        outcome, reason = divmod(one["values"], len(reasons))
        outcomes[words[outcome], reasons[reason]] += one["counts"]


def _numbered(column: pa.ChunkedArray) -> tuple[list[Any], pa.Array, pa.Scalar]:
    """The words that a column has, the number of the word in each row, and how many words; no word is one of them."""
    encoded = with_numbers(column.combine_chunks())
    words = pa.concat_arrays([encoded.dictionary, pa.nulls(1, encoded.dictionary.type)])
    missing = converted(size_of(encoded.dictionary), encoded.indices.type)
    return words.to_pylist(), converted(first_known(encoded.indices, missing), pa.int64()), size_of(words)

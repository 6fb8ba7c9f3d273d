"""
The truth of instances in a synthetic history: what passed by which route in each window, and what was held at once.

What was held is found from all intervals of an instance at once, by sorting arrivals and departures; they wait for that
in a file for each instance, so that memory is bounded by the busiest one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from broker.flow import VisitOutcome
from tests.support.histories.rows import Rows, words_of
from tests.support.histories.sending import Frames
from tests.support.histories.transit import NOWHERE, OUTCOMES, REASONS, Visits, code_of
from tests.support.histories.world import SECOND, Longs, World

WINDOW = 300 * SECOND
_IN_POOL = [code_of(word) for word in (VisitOutcome.FORWARDED, VisitOutcome.DROPPED)]
_WIDTHS = (2, 1 << 8, 1 << 6, 1 << 12, 1 << 12)  # of has_route, outcome, reason, service and node in a key


class Load:
    """Shape: `_counted` keys with frames and bytes, one entry for each stretch."""

    def __init__(self, directory: Path, rows: Rows, world: World) -> None:
        self._directory, self._rows, self._world = directory, rows, world
        self._counted: list[tuple[Longs, Longs, Longs]] = []

    def add(self, visits: Visits, frames: Frames) -> None:
        """Take in visits that are journalled."""
        entered, left = self._rows.observed(visits.node, visits.entered), self._rows.observed(visits.node, visits.left)
        size = frames.size[visits.transmission]
        service = self._rows.dialogs.to_service(frames.flow[visits.transmission])
        has_route = self._rows.has_route(visits).astype(np.int64)
        numbers = (visits.node, service, visits.reason - NOWHERE, visits.outcome, has_route)
        key = left // WINDOW
        for number, width in zip(numbers, reversed(_WIDTHS), strict=True):
            key = key * width + number
        self._counted.append(_grouped(key, np.ones(key.size, np.int64), size))
        held = np.isin(visits.outcome, _IN_POOL)
        order = np.flatnonzero(held)[np.argsort(visits.node[held], kind="stable")]
        intervals = np.stack((entered, left, size), axis=1)[order]
        ends = np.searchsorted(visits.node[order], np.arange(len(self._world.names) + 1))
        for node in range(len(self._world.names)):
            with self._spill(node).open("ab") as file:
                intervals[ends[node] : ends[node + 1]].tofile(file)

    def write(self) -> None:
        """Write both tables, and remove what waited for that."""
        parts = (np.concatenate(column) for column in zip(*self._counted, strict=True))
        pq.write_table(self._routes(*_grouped(*parts)), self._directory / "routes.parquet")
        tables = []
        for node, name in enumerate(self._world.names):
            file = self._spill(node)
            intervals = np.fromfile(file, np.int64).reshape(-1, 3)
            tables.append(_peaks(intervals, name))
            file.unlink()
        pq.write_table(pa.concat_tables(tables), self._directory / "capacity.parquet")

    def _routes(self, key: Longs, frames: Longs, size: Longs) -> pa.Table:
        numbers = []
        for width in _WIDTHS:
            numbers.append(key % width)
            key = key // width
        has_route, outcome, reason, service, node = numbers
        reason, no_route = reason + NOWHERE, has_route == 0
        return pa.table(
            {
                "instance": words_of(self._rows.words["instance"], node),
                "route_table": words_of(self._rows.words["route_table"], node, no_route),
                "route": words_of(self._rows.words["route"], service, no_route),
                "window_start": pa.array(key * WINDOW).cast(pa.timestamp("us", tz="UTC")),
                "to_service": words_of(self._rows.words["service"], service),
                "outcome": words_of(pa.array([str(one) for one in OUTCOMES]), outcome),
                "reason": words_of(pa.array([str(one) for one in REASONS]), reason, reason == NOWHERE),
                "frames": pa.array(frames),
                "bytes": pa.array(size),
            }
        )

    def _spill(self, node: int) -> Path:
        return self._directory / f".{node}.intervals"


def _grouped(key: Longs, frames: Longs, size: Longs) -> tuple[Longs, Longs, Longs]:
    keys, place = np.unique(key, return_inverse=True)
    total = [np.bincount(place, column, keys.size).astype(np.int64) for column in (frames, size)]
    return keys, total[0], total[1]


def _peaks(intervals: Longs, name: str) -> pa.Table:
    """The most that one instance held at once in each window in which anything was held, entered or left."""
    entered, left, size = intervals.T
    is_held = (left > entered).astype(np.int64)
    held = np.flatnonzero(is_held)
    # A window ends before the instant at which the next one begins: what leaves then was not in that one.
    window = np.concatenate((entered // WINDOW, (left[held] - 1) // WINDOW))
    at = np.concatenate((entered, left[held]))
    frames, sizes = np.concatenate((is_held, -is_held[held])), np.concatenate((is_held * size, -size[held]))
    order = np.lexsort((sizes, frames, at, window))
    level = np.stack((np.cumsum(frames[order]), np.cumsum(sizes[order])), axis=1)
    begun, first = np.unique(window[order], return_index=True)
    windows = np.arange(begun[0], begun[-1] + 1) if begun.size else begun
    place = np.searchsorted(begun, windows, side="right") - 1
    last = np.append(first[1:], order.size) - 1
    before = np.concatenate((np.zeros((1, 2), np.int64), level))[first]
    peak = np.maximum(np.maximum.reduceat(level, first), before) if first.size else level
    is_own = begun[place] == windows
    peaks = np.where(is_own[:, None], peak[place], level[last[place]])
    counts = is_own | (peaks[:, 0] > 0)
    return pa.table(
        {
            "instance": pa.array([name] * int(counts.sum()), pa.string()),
            "window_start": pa.array(windows[counts] * WINDOW).cast(pa.timestamp("us", tz="UTC")),
            "peak_frames": pa.array(peaks[counts, 0]),
            "peak_bytes": pa.array(peaks[counts, 1]),
        }
    )

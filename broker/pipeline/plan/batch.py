"""
Keys of a history in, what becomes of them out: Arrow batches for `mapInArrow`, or for any other engine that has them.

The tables are in the function's closure. An executor needs the packages broker (its routing, which needs msgspec) and
pyarrow. A batch is grouped once more without the conversation, in Arrow, so that Python sees each key once and those
conversations only that have a say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from broker.pipeline.plan.ruling import Judge, Key, Ruling, Way
from broker.pipeline.plan.site import Change
from broker.wire.layout import NO_GUID

COUNTS = ("conversations", "frames", "bytes")
KEPT_MAX = 10_000  # keys and classes remembered in a task; some kB each
_KEY = list(Key._fields)
_ROUTES = pa.list_(pa.struct([("route_table", pa.string()), ("route", pa.string())]))


def _way(when: str) -> list[tuple[str, pa.DataType]]:
    return [
        (f"outcome_{when}", pa.string()),
        (f"route_{when}", pa.string()),
        (f"next_{when}", pa.list_(pa.string())),
        (f"hop_{when}", pa.string()),
        (f"is_here_{when}", pa.bool_()),
        (f"used_{when}", _ROUTES),
        (f"standby_{when}", _ROUTES),
    ]


DECIDED = pa.schema(
    [
        ("instance", pa.string()),
        ("database", pa.binary()),
        ("to_service", pa.string()),
        ("to_broker_instance", pa.binary()),
        ("from_target", pa.bool_()),
        ("conversation_id", pa.binary()),
        *((name, pa.int64()) for name in COUNTS),
        ("unplanned", pa.string()),
        ("fate", pa.string()),
        ("is_changed", pa.bool_()),
        ("is_harm", pa.bool_()),
        ("is_loop", pa.bool_()),
        *_way("before"),
        *_way("after"),
    ]
)
"""
One row per class of conversations that fare alike, and one per conversation whose way changes where it has a say.

A class may come in several rows: add up COUNTS. `unplanned` says why nothing else is known; `is_changed` when the way
changes; the columns of a way are those of `plan_ruling.Way`, `next` its places and `hop` its next hop.
"""

_Class = tuple[Any, ...]


def decider(change: Change) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function from batches of `plan_key.KEYED` to batches of DECIDED."""

    def decide_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = _Task(Judge(change))
        for batch in batches:
            task.take(batch)
            if len(task.counts) >= KEPT_MAX:
                yield task.told()
        yield task.told()

    return decide_batches


class _Task:
    """What one task has decided and not yet told."""

    def __init__(self, judge: Judge) -> None:
        self.counts: dict[_Class, list[int]] = {}
        self._judge = judge
        self._known: dict[Key, Ruling | None] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Decide a batch."""
        rows = pa.Table.from_batches([batch])
        grouped = rows.group_by(_KEY, use_threads=False).aggregate(
            [("frames", "sum"), ("bytes", "sum"), ([], "count_all")]
        )
        sums = (grouped[name].to_pylist() for name in ("count_all", "frames_sum", "bytes_sum"))
        single: set[Key] = set()
        for key, *counts in zip(_keys(grouped), *sums, strict=True):
            ruling = self._ruling(key)
            if ruling is None:
                continue
            if ruling.is_by_conversation:
                single.add(key)
            else:
                self._add(key, None, ruling, counts)
        if single:
            self._take_single(rows, single)

    def _take_single(self, rows: pa.Table, single: set[Key]) -> None:
        """Decide the conversations that have a say."""
        for name in ("instance", "to_service"):
            values = pa.array({getattr(key, name) for key in single}, pa.string())
            rows = rows.filter(pc.is_in(rows[name].cast(pa.string()), values))
        columns = (rows[name].to_pylist() for name in ("conversation_id", "frames", "bytes"))
        for key, conversation_id, frames, size in zip(_keys(rows), *columns, strict=True):
            if key in single:
                ruling = self._judge.rule(key, conversation_id)
                self._add(key, conversation_id if ruling.is_changed else None, ruling, [1, frames, size])

    def _ruling(self, key: Key) -> Ruling | None:
        """Of any conversation with a key, which also tells whether that has a say; None when it is told already."""
        if key in self._known:
            return self._known[key]
        ruling = None if self._judge.is_told(key) else self._judge.rule(key, NO_GUID)
        if len(self._known) < KEPT_MAX:
            self._known[key] = ruling
        return ruling

    def _add(self, key: Key, conversation_id: bytes | None, ruling: Ruling, counts: list[int]) -> None:
        place = (
            *(key.instance, self._judge.sender(key), key.to_service, key.to_broker_instance, key.from_target),
            *(conversation_id, ruling),
        )
        known = self.counts.setdefault(place, [0, 0, 0])
        for number, count in enumerate(counts):
            known[number] += count or 0

    def told(self) -> pa.RecordBatch:
        """What was decided since the last time."""
        rows = [(*place[:-1], *counts, *_ruled(place[-1])) for place, counts in self.counts.items()]
        self.counts = {}
        columns = zip(*rows, strict=True) if rows else ([] for _ in DECIDED)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, DECIDED, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=DECIDED)


def _keys(rows: pa.Table) -> Iterator[Key]:
    return map(Key, *(rows[name].to_pylist() for name in _KEY))


def _ruled(ruling: Ruling) -> tuple[Any, ...]:
    fate = None if ruling.fate is None else str(ruling.fate)
    told = ruling.unplanned, fate, ruling.is_changed, ruling.is_harm, ruling.is_loop
    return (*told, *_columns(ruling.before), *_columns(ruling.after))


def _columns(way: Way | None) -> tuple[Any, ...]:
    if way is None:
        return (None,) * len(Way._fields)
    routes = ([{"route_table": table, "route": name} for table, name in some] for some in (way.used, way.standby))
    return (way.outcome, way.route, list(way.places), way.next_hop, way.is_here, *routes)

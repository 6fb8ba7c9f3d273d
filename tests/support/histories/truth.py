"""
What is true of a synthetic history, known from how it was made and not from what was written.

`Truth` is told of each stretch what was sent, what became of it and which visits were journalled, and writes beside the
history:

- `transmissions/*.parquet`: one row per transmission of which something is journalled, the columns of `PATHS`, and
  `fate`, which says what nobody can see: `lost`, or `cut` off by the end of the history; `last_left_at` of its last
  visit;
- `flows.parquet`: one row per dialog and direction, messages only (`synthetic_flows`);
- `undelivered.parquet`: the places that were sent and not delivered;
- `routes.parquet` and `capacity.parquet`: counts and peaks (`synthetic_load`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.flow import NUMBER, VisitOutcome
from tests.support.histories.flows import Flows
from tests.support.histories.load import Load
from tests.support.histories.rows import Rows, guids, words_of
from tests.support.histories.sending import Sent
from tests.support.histories.transit import NOWHERE, OUTCOMES, REASONS, Kind, Visits, chosen_of, code_of
from tests.support.histories.world import SECOND, Flags, Longs, Scenario, World

GRACE = 60 * SECOND  # so late in a history nobody knows whether a frame is lost or under way
TOLERANCE = 10_000  # microseconds by which clocks may differ without contradicting each other
_ENDS = pa.array(["delivered", "duplicate", "dropped", "acknowledged", "lost", "under way"])
_FATES = pa.array(["ended", "lost", "cut"])
_LOST, _UNDER_WAY, _ACKNOWLEDGED = 4, 5, 3
_END_OF = {code_of(VisitOutcome.DELIVERED): 0, code_of(VisitOutcome.DUPLICATE): 1, code_of(VisitOutcome.DROPPED): 2}


@dataclass(frozen=True, slots=True)
class Known:
    """
    What is journalled of transmissions, in order of transmission and step.

    Shape: `visits` without those that tell of acknowledgements; `first` and `last` of them by transmission; instants
    `entered` and `left` as the clocks of the instances show them.
    """

    visits: Visits
    first: Longs
    last: Longs
    entered: Longs
    left: Longs


class Truth:
    """Shape: `latest` the latest instant of the history, as clocks show it; what may be under way waits for it."""

    def __init__(self, directory: Path, rows: Rows, world: World, scenario: Scenario) -> None:
        self._directory, self._rows, self._world, self._scenario = directory, rows, world, scenario
        self._transmissions = directory / "transmissions"
        self._transmissions.mkdir(parents=True)
        self.flows = Flows(rows, scenario)
        self.load = Load(directory, rows, world)
        self.latest = 0
        self.count = 0
        self._waiting: list[pa.Table] = []
        self._clock_apart = int(np.ptp(world.clock_us))
        self._addresses = pa.array([world.address(one) for one in range(len(world.names))])
        self._apart: set[tuple[int, int]] = set()  # instances whose clocks are seen to contradict each other

    def add(self, sent: Sent, journalled: Visits) -> None:
        """Take in what was begun in one stretch. Shape: `journalled` the visits of it that are written."""
        if not journalled.node.size:
            return
        observed = self._rows.observed(journalled.node, journalled.left)
        self.latest = max(self.latest, int(observed.max()))
        self.load.add(journalled, sent.frames)
        on_way = np.flatnonzero(journalled.step >= 0)
        order = on_way[np.lexsort((journalled.step[on_way], journalled.transmission[on_way]))]
        known = known_in_order(chosen_of(journalled, order), self._rows)
        acknowledged = np.zeros(sent.frames.flow.size, np.bool_)
        acknowledged[journalled.transmission[journalled.step < 0]] = True
        self._note(known)
        table = self._table(known, sent, acknowledged)
        self.flows.add(sent, known, self._scenario.duration)
        is_open = self._is_open(table)
        self._waiting.append(table.filter(pa.array(is_open)))
        self._write(table.filter(pa.array(~is_open)))

    def finish(self) -> None:
        """Write the rest."""
        for table in self._waiting:
            left = np.asarray(table["last_left_at"].cast(pa.int64()))
            end = table["end"].combine_chunks().indices.to_numpy()
            end = np.where((end == _LOST) & (left >= self.latest - GRACE), _UNDER_WAY, end)
            given_to = table["lost_to"].combine_chunks()
            no_more = pa.array(end != _LOST)
            settled = _with(table, "lost_to", pc.if_else(no_more, None, given_to.cast(pa.string())))
            self._write(_with(settled, "end", words_of(_ENDS, end)))
        if self._apart:
            for path in self._transmissions.iterdir():
                pq.write_table(self._hidden(pq.read_table(path)), path, compression="zstd")
        self.flows.write(self._directory, self.latest - GRACE)
        self.load.write()

    def _note(self, known: Known) -> None:
        """Remember the instances between which a frame seems to have taken less than no time."""
        visits, first, last = known.visits, known.first, known.last
        at = np.setdiff1d(np.arange(visits.node.size), first)
        is_next = visits.step[at] == visits.step[at - 1] + 1
        link = at[is_next & (known.entered[at] - known.left[at - 1] < -TOLERANCE)]
        way = np.flatnonzero((visits.step[first] == 0) & (known.left[last] - known.left[first] < -TOLERANCE))
        ones = np.concatenate([visits.node[link - 1], visits.node[first[way]]])
        others = np.concatenate([visits.node[link], visits.node[last[way]]])
        pairs = zip(np.minimum(ones, others).tolist(), np.maximum(ones, others).tolist(), strict=True)
        self._apart |= {(one, other) for one, other in pairs if one != other}

    def _hidden(self, table: pa.Table) -> pa.Table:
        """The table without the times between instances whose clocks contradict each other."""
        names = pa.array(self._world.names)
        apart = np.zeros((len(names), len(names)), np.bool_)
        for one, other in self._apart:
            apart[one, other] = apart[other, one] = True
        path, links = table["path"].combine_chunks(), table["link_us"].combine_chunks()
        node = pc.index_in(path.values.cast(pa.string()), value_set=names).to_numpy(zero_copy_only=False)
        first, last = path.offsets.to_numpy()[:-1], path.offsets.to_numpy()[1:] - 1
        at = np.setdiff1d(np.arange(node.size), first)
        is_apart = apart[node[at - 1], node[at]]
        is_hidden = is_apart & links.values.is_valid().to_numpy(zero_copy_only=False)
        unknown, crossing = np.zeros(node.size, np.int64), np.zeros(node.size, np.int64)
        unknown[at], crossing[at] = is_hidden, is_apart
        crosses = apart[node[first], node[last]] | (np.add.reduceat(crossing, first) > 0)
        more = np.add.reduceat(unknown, first) + table["unknown_links"].to_numpy()
        shown = pc.if_else(pa.array(is_hidden), None, links.values)
        total = pc.if_else(pa.array(crosses), None, table["total_us"].combine_chunks())
        table = _with(table, "link_us", pa.ListArray.from_arrays(links.offsets, shown))
        table = _with(table, "unknown_links", pa.array(more.astype(np.int32)))
        return _with(table, "total_us", total)

    def _is_open(self, table: pa.Table) -> Flags:
        """Which transmissions may be under way, once the latest instant is known."""
        from_here = self._rows.observed(np.zeros(1, np.int64), np.array([self._scenario.duration]))[0]
        horizon = from_here - 2 * GRACE - 2 * self._clock_apart
        is_late = np.asarray(table["last_left_at"].cast(pa.int64())) > horizon
        is_open: Flags = is_late & (table["end"].combine_chunks().indices.to_numpy() == _LOST)
        return is_open

    def _write(self, table: pa.Table) -> None:
        if table.num_rows:
            pq.write_table(table, self._transmissions / f"{self.count:09d}.parquet", compression="zstd")
            self.count += table.num_rows

    def _table(self, known: Known, sent: Sent, acknowledged: Flags) -> pa.Table:
        """One row per transmission, the columns of PATHS and what nobody can see."""
        visits, frames, first, last = known.visits, sent.frames, known.first, known.last
        frame, names = visits.transmission[last], pa.array(self._world.names)
        flow, node = frames.flow[frame], visits.node[last]
        end, fate = self._ends(known, sent.visits, acknowledged)
        has_sender = visits.step[first] == 0
        links, link_offsets, unknown = _links(known)
        given_to = words_of(self._addresses, visits.after, visits.after == NOWHERE)
        total = known.left[last] - known.left[first]
        started = np.where(has_sender, known.left[first], np.minimum.reduceat(known.entered, first))
        ended = np.maximum(
            np.maximum.reduceat(known.left, first),
            np.maximum.reduceat(np.where(visits.step == 0, known.left, known.entered), first),
        )
        offsets = pa.array(np.append(first, visits.node.size).astype(np.int32))
        reason, is_dropped = visits.reason[last], visits.reason[last] != NOWHERE
        services, dialogs = pa.array(self._world.services), self._rows.dialogs
        columns = {
            "message_id": guids(frames.ids[frame]),
            "conversation_id": guids(dialogs.ids[flow // 2]),
            "from_target": pa.array(flow % 2 == 1),
            "kind": words_of(pa.array([kind.name.lower() for kind in Kind]), frames.kind[frame]),
            "sequence_number": pa.array(frames.sequence[frame]),
            "fragment_number": pa.array(frames.fragment[frame].astype(np.int32)),
            "from_service": words_of(services, dialogs.from_service(flow)),
            "to_service": words_of(services, dialogs.to_service(flow)),
            "bytes": pa.array(frames.size[frame].astype(np.int32)),
            "is_resend": pa.array(frames.is_resend[frame] != 0, mask=~has_sender),
            "started_at": _instants(started),
            "ended_at": _instants(ended),
            "path": pa.ListArray.from_arrays(offsets, words_of(names, visits.node)),
            "next_hops": pa.ListArray.from_arrays(offsets, given_to),
            "residence_us": pa.ListArray.from_arrays(offsets, pa.array(visits.left - visits.entered)),
            "link_us": pa.ListArray.from_arrays(link_offsets, links),
            "total_us": pa.array(total, mask=~(has_sender & (total >= 0))),
            "end": words_of(_ENDS, end),
            "end_instance": words_of(names, node, end == _ACKNOWLEDGED),
            "lost_to": words_of(self._addresses, visits.after[last], end != _LOST),
            "reason": words_of(pa.array([str(one) for one in REASONS]), reason, ~is_dropped),
            "code": pa.array(
                np.array([NUMBER.get(one, 0) for one in REASONS])[reason].astype(np.int32), mask=~is_dropped
            ),
            "has_loop": pa.array(_has_loop(visits, first, len(self._world.names))),
            "missing_hops": pa.array((visits.step[last] - (last - first)).astype(np.int32)),
            "unknown_links": pa.array(unknown.astype(np.int32)),
            "fate": words_of(_FATES, fate),
            "last_left_at": _instants(known.left[last]),
        }
        return pa.table(columns)

    def _ends(self, known: Known, every: Visits, acknowledged: Flags) -> tuple[Longs, Longs]:
        """How each ended as far as journals tell, and in truth."""
        visits, last = known.visits, known.last
        end = np.full(len(OUTCOMES), _LOST)
        for outcome, number in _END_OF.items():
            end[outcome] = number
        ends = end[visits.outcome[last]]
        frame = visits.transmission[last]
        steps = np.full(acknowledged.size, NOWHERE)
        np.maximum.at(steps, every.transmission, every.step)
        fate = np.where(ends != _LOST, 0, np.where(steps[frame] > visits.step[last], 2, 1))
        return np.where((ends == _LOST) & acknowledged[frame], _ACKNOWLEDGED, ends), fate


def known_in_order(visits: Visits, rows: Rows) -> Known:
    """Visits, in order of transmission and step, with where transmissions begin and end."""
    starts = np.append(True, visits.transmission[1:] != visits.transmission[:-1])
    first = np.flatnonzero(starts)
    last = np.append(first[1:], visits.node.size) - 1
    entered, left = rows.observed(visits.node, visits.entered), rows.observed(visits.node, visits.left)
    return Known(visits, first, last, entered, left)


def _with(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """The table with another column of that name."""
    return table.set_column(table.schema.get_field_index(name), name, column)


def _links(known: Known) -> tuple[pa.Array, pa.Array, Longs]:
    """Times on links, one less than visits of each transmission; the offsets of that; and how many are negative."""
    visits = known.visits
    is_inner = np.ones(visits.node.size, np.bool_)
    is_inner[known.first] = False
    at = np.flatnonzero(is_inner)
    took = known.entered[at] - known.left[at - 1]
    is_next = visits.step[at] == visits.step[at - 1] + 1
    is_negative = is_next & (took < 0)
    counts = known.last - known.first
    offsets = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
    unknown = np.zeros(visits.node.size, np.int64)
    unknown[at] = is_negative
    return pa.array(took, mask=~is_next | is_negative), offsets, np.add.reduceat(unknown, known.first)


def _has_loop(visits: Visits, first: Longs, nodes: int) -> Flags:
    """Whether a transmission visited an instance twice."""
    of = np.repeat(np.arange(first.size), np.diff(np.append(first, visits.node.size)))
    different = np.bincount(np.unique(of * nodes + visits.node) // nodes, minlength=first.size)
    has_loop: Flags = different < np.bincount(of, minlength=first.size)
    return has_loop


def _instants(micros: Longs) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))

"""
What is true of a synthetic history, known from how it was made and not from what was written.

`Truth` is told of each stretch what was sent, what became of it and which visits were journalled, and writes beside the
history:

- `transmissions/*.parquet`: one row per transmission of which something is journalled, with the columns of `PATHS`
  except times of links, and `last_left_at` of its last visit;
- `flows.parquet`: one row per dialog and direction, messages only;
- `undelivered.parquet`: the places that were sent and not delivered.
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
from tests.support.histories.rows import Rows, guids, words_of
from tests.support.histories.sending import Sent
from tests.support.histories.transit import NOWHERE, OUTCOMES, REASONS, Kind, Visits, chosen_of, code_of
from tests.support.histories.world import SECOND, Flags, Longs, Scenario, World

GRACE = 60 * SECOND  # so late in a history nobody knows whether a frame is lost or under way
_ENDS = pa.array(["delivered", "duplicate", "dropped", "acknowledged", "lost", "under way"])
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
        self.latest = 0
        self.count = 0
        self._waiting: list[pa.Table] = []
        self._clock_apart = int(np.ptp(world.clock_us))
        self._addresses = pa.array([world.address(one) for one in range(len(world.names))])

    def add(self, sent: Sent, journalled: Visits) -> None:
        """Take in what was begun in one stretch. Shape: `journalled` the visits of it that are written."""
        if not journalled.node.size:
            return
        observed = self._rows.observed(journalled.node, journalled.left)
        self.latest = max(self.latest, int(observed.max()))
        on_way = np.flatnonzero(journalled.step >= 0)
        order = on_way[np.lexsort((journalled.step[on_way], journalled.transmission[on_way]))]
        known = known_in_order(chosen_of(journalled, order), self._rows)
        acknowledged = np.zeros(sent.frames.flow.size, np.bool_)
        acknowledged[journalled.transmission[journalled.step < 0]] = True
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
        self.flows.write(self._directory, self.latest - GRACE)

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
        end = _ends(known, acknowledged)
        has_sender = visits.step[first] == 0
        given_to = words_of(self._addresses, visits.after, visits.after == NOWHERE)
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
            "end": words_of(_ENDS, end),
            "end_instance": words_of(names, node, end == _ACKNOWLEDGED),
            "lost_to": words_of(self._addresses, visits.after[last], end != _LOST),
            "reason": words_of(pa.array([str(one) for one in REASONS]), reason, ~is_dropped),
            "code": pa.array(
                np.array([NUMBER.get(one, 0) for one in REASONS])[reason].astype(np.int32), mask=~is_dropped
            ),
            "has_loop": pa.array(_has_loop(visits, first, len(self._world.names))),
            "missing_hops": pa.array((visits.step[last] - (last - first)).astype(np.int32)),
            "last_left_at": _instants(known.left[last]),
        }
        return pa.table(columns)


def _ends(known: Known, acknowledged: Flags) -> Longs:
    """How each ended as far as journals tell."""
    visits, last = known.visits, known.last
    end = np.full(len(OUTCOMES), _LOST)
    for outcome, number in _END_OF.items():
        end[outcome] = number
    ends = end[visits.outcome[last]]
    return np.where((ends == _LOST) & acknowledged[visits.transmission[last]], _ACKNOWLEDGED, ends)


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


def _has_loop(visits: Visits, first: Longs, nodes: int) -> Flags:
    """Whether a transmission visited an instance twice."""
    of = np.repeat(np.arange(first.size), np.diff(np.append(first, visits.node.size)))
    different = np.bincount(np.unique(of * nodes + visits.node) // nodes, minlength=first.size)
    has_loop: Flags = different < np.bincount(of, minlength=first.size)
    return has_loop


def _instants(micros: Longs) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))

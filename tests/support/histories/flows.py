"""
The truth of dialogs in a synthetic history: by direction, how much was sent and what became of it.

Counted are messages only, and of them what is journalled: a transmission that left before the history ended. What was
sent and not delivered is `under_way` when anything of it was seen within the grace at the end, else `missing`; a
transmission without an end is `lost` likewise. Of dialogs that are not sampled nothing is known as sent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from broker.flow import VisitOutcome
from tests.support.histories.rows import Rows, guids, words_of
from tests.support.histories.sending import Sent
from tests.support.histories.transit import NOWHERE, Kind, code_of
from tests.support.histories.world import NEVER, Longs, Scenario

if TYPE_CHECKING:
    from tests.support.histories.truth import Known

COUNTS = (
    "messages",
    "sent",
    "delivered",
    "acknowledged",
    "doubled",
    "transmissions",
    "resends",
    "duplicates",
    "drops",
    "lost",
    "bytes",
)
_DELIVERED, _DUPLICATE, _DROPPED = (
    code_of(word) for word in (VisitOutcome.DELIVERED, VisitOutcome.DUPLICATE, VisitOutcome.DROPPED)
)


class Flows:
    """
    Sums up what became of messages.

    Shape: `counts` by name and flow; `first` and `last` instants by flow; `_open` places that were not delivered;
    `_unended` flow and last instant of each transmission of which no end is known.
    """

    def __init__(self, rows: Rows, scenario: Scenario) -> None:
        self._rows, self._scenario = rows, scenario
        flows = 2 * rows.dialogs.count
        self.counts = {name: np.zeros(flows, np.int64) for name in COUNTS}
        self.first, self.last = np.full(flows, NEVER, np.int64), np.zeros(flows, np.int64)
        self._open: list[tuple[Longs, ...]] = []
        self._unended: list[tuple[Longs, Longs]] = []

    def add(self, sent: Sent, known: Known, duration: int) -> None:
        """Take in what was begun in one stretch."""
        frames, places, visits = sent.frames, sent.places, known.visits
        is_message = frames.kind[visits.transmission[known.last]] == int(Kind.MESSAGE)
        frame, last = visits.transmission[known.last][is_message], known.last[is_message]
        flow, outcome = frames.flow[frame], visits.outcome[last]
        self._count("transmissions", flow)
        has_sender = visits.step[known.first][is_message] == 0
        self._count("resends", flow[has_sender & (frames.is_resend[frame] != 0)])
        self._count("duplicates", flow[outcome == _DUPLICATE])
        self._count("drops", flow[outcome == _DROPPED])
        self.counts["bytes"] += np.bincount(flow, frames.size[frame], self.first.size).astype(np.int64)
        earliest, latest = np.minimum.reduceat(known.entered, known.first), np.maximum.reduceat(known.left, known.first)
        np.minimum.at(self.first, flow, earliest[is_message])
        np.maximum.at(self.last, flow, latest[is_message])
        place = frames.place[frame]
        is_seen = np.bincount(place[outcome == _DELIVERED], minlength=places.flow.size)[place] > 0
        is_told = (frame == places.newest[place]) & (places.acked[place] < duration) & ~is_seen
        unended = ~np.isin(outcome, (_DELIVERED, _DUPLICATE, _DROPPED)) & ~is_told
        self._unended.append((flow[unended], latest[is_message][unended]))
        seen = np.zeros(places.flow.size, np.int64)
        np.maximum.at(seen, place, latest[is_message])
        self._count_places(sent, seen, place[outcome == _DELIVERED], duration)

    def _count_places(self, sent: Sent, seen: Longs, delivered: Longs, duration: int) -> None:
        """Shape: `seen` by place the latest instant, 0 for what was not sent; `delivered` a place for each delivery."""
        places = sent.places
        times = np.bincount(delivered, minlength=seen.size)
        is_sent = (seen > 0) & self._rows.dialogs.is_sampled[places.flow // 2]
        self._count("sent", places.flow[is_sent])
        self._count("delivered", places.flow[times > 0])
        self._count("doubled", places.flow[times > 1])
        starts = np.flatnonzero(is_sent)
        key_changes = np.ones(starts.size, np.bool_)
        key_changes[1:] = (np.diff(places.flow[starts]) != 0) | (np.diff(places.sequence[starts]) != 0)
        self._count("messages", places.flow[starts[key_changes]])
        is_open = is_sent & (times == 0)
        is_acked = is_open & (places.acked < duration) & (places.newest != NOWHERE)
        self._count("acknowledged", places.flow[is_acked])
        left = np.flatnonzero(is_open & ~is_acked)
        self._open.append((places.flow[left], places.sequence[left], places.fragment[left], seen[left]))

    def write(self, directory: Path, since: int) -> None:
        """Write both tables. Shape: what was seen later than `since`, microseconds since 1970, is under way."""
        dialogs, services = self._rows.dialogs, pa.array(self._rows.services)
        flow, sequence, fragment, seen = (np.concatenate(column) for column in zip(*self._open, strict=True))
        is_missing = seen <= since
        unended, unended_seen = (np.concatenate(column) for column in zip(*self._unended, strict=True))
        self._count("lost", unended[unended_seen <= since])
        rows = np.flatnonzero(self.counts["transmissions"])
        columns = {
            "conversation_id": guids(dialogs.ids[rows // 2]),
            "from_target": pa.array(rows % 2 == 1),
            "from_service": words_of(services, dialogs.from_service(rows)),
            "to_service": words_of(services, dialogs.to_service(rows)),
            "is_sampled": pa.array(dialogs.is_sampled[rows // 2]),
            **{name: pa.array(counts[rows]) for name, counts in self.counts.items()},
            "missing": pa.array(np.bincount(flow[is_missing], minlength=self.first.size)[rows]),
            "under_way": pa.array(np.bincount(flow[~is_missing], minlength=self.first.size)[rows]),
            "first_at": _instants(self.first[rows]),
            "last_at": _instants(self.last[rows]),
        }
        pq.write_table(pa.table(columns), directory / "flows.parquet")
        columns = {
            "conversation_id": guids(dialogs.ids[flow // 2]),
            "from_target": pa.array(flow % 2 == 1),
            "sequence_number": pa.array(sequence),
            "fragment_number": pa.array(fragment.astype(np.int32)),
            "is_missing": pa.array(is_missing),
            "seen_at": _instants(seen),
        }
        pq.write_table(pa.table(columns), directory / "undelivered.parquet")

    def _count(self, name: str, flow: Longs) -> None:
        self.counts[name] += np.bincount(flow, minlength=self.first.size)


def _instants(micros: Longs) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))

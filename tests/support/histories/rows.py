"""Visits of a synthetic history as rows of the journal: names for numbers, and each instance's own clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from broker.flow import NUMBER
from broker.journal.schema import JOURNAL
from tests.support.histories.dialogs import Dialogs
from tests.support.histories.sending import Frames
from tests.support.histories.transit import (
    BEFORE_ROUTE,
    HOP_LIMIT,
    LIFETIME_MS,
    NOWHERE,
    OUTCOMES,
    REASONS,
    Kind,
    Visits,
    code_of,
)
from tests.support.histories.world import Flags, Longs, World

START = datetime(2026, 3, 1, 8, tzinfo=UTC)
"""When every synthetic history begins."""
START_US = int(START.timestamp()) * 1_000_000
GATEWAY_TABLE = "msdb"

_NUMBERS = np.array([NUMBER.get(reason, 0) for reason in REASONS])
_ROUTELESS = np.array([code_of(reason) for reason in BEFORE_ROUTE])
_KINDS = [kind.name.lower() for kind in Kind]


class Rows:
    """Makes rows of visits. Shape: the same dictionaries in every table that it makes."""

    def __init__(self, dialogs: Dialogs, world: World) -> None:
        self.dialogs, self._world = dialogs, world
        self.words = {
            "instance": pa.array(world.names),
            "outcome": pa.array([str(one) for one in OUTCOMES]),
            "reason": pa.array([str(one) for one in REASONS]),
            "kind": pa.array(_KINDS),
            "service": pa.array(world.services),
            "route": pa.array([route_of(service) for service in world.services]),
            "route_table": pa.array([table_of(name) for name in world.names]),
            "address": pa.array([world.address(node) for node in range(len(world.names))]),
        }
        self._guids = np.random.default_rng(len(world.names)).integers(1, 2**62, (len(world.names), 2))

    @property
    def services(self) -> list[str]:
        """By number."""
        return self._world.services

    def observed(self, node: Longs, at: Longs) -> Longs:
        """What the clock of an instance shows then, microseconds since 1970."""
        return START_US + at + self._world.clock_us[node]

    def has_route(self, visits: Visits) -> Flags:
        """Whether a route was taken: not at the target, and not by what was dropped before."""
        is_on = (visits.after != NOWHERE) | ((visits.reason != NOWHERE) & ~np.isin(visits.reason, _ROUTELESS))
        has_route: Flags = is_on & ~self.is_at_target(visits)
        return has_route

    def is_at_target(self, visits: Visits) -> Flags:
        """Whether a visit is at an endpoint, and not at the sender."""
        is_there: Flags = (visits.node < self._world.gateways[0]) & (visits.step > 0)
        return is_there

    def table(self, visits: Visits, frames: Frames) -> pa.Table:
        """Rows in the order of the visits."""
        frame = visits.transmission
        flow = frames.flow[frame]
        count = frame.size
        receiver, sender = self.dialogs.receiver(flow), self.dialogs.sender(flow)
        to_service, has_route = self.dialogs.to_service(flow), self.has_route(visits)
        no_reason = visits.reason == NOWHERE
        columns: dict[str, Any] = {
            "entered_at": _instants(self.observed(visits.node, visits.entered)),
            "left_at": _instants(self.observed(visits.node, visits.left)),
            "instance": self._word("instance", visits.node),
            "outcome": self._word("outcome", visits.outcome),
            "reason": self._word("reason", visits.reason, no_reason),
            "code": pa.array(_NUMBERS[visits.reason].astype(np.int32), mask=no_reason),
            "kind": self._word("kind", frames.kind[frame]),
            "message_id": guids(frames.ids[frame]),
            "conversation_id": guids(self.dialogs.ids[flow // 2]),
            "from_target": pa.array(flow % 2 == 1),
            "sequence_number": pa.array(frames.sequence[frame]),
            "fragment_number": _ints(frames.fragment[frame]),
            "hop_count": _ints(np.maximum(visits.step - 1, 0)),
            "hop_limit": _ints(np.full(count, HOP_LIMIT)),
            "time_to_live_ms": pa.array(np.full(count, LIFETIME_MS, np.int64)),
            "time_consumed_ms": pa.array(visits.consumed_ms),
            "bytes": _ints(frames.size[frame]),
            "to_service": self._word("service", to_service),
            "from_service": self._word("service", self.dialogs.from_service(flow)),
            "to_broker_instance": guids(self._guids[receiver], frames.is_open[frame] != 0),
            "from_broker_instance": guids(self._guids[sender]),
            "route": self._word("route", to_service, ~has_route),
            "route_table": self._word("route_table", visits.node, ~has_route),
            "adjacent_in": self._word("instance", visits.before, visits.before == NOWHERE),
            "adjacent_out": self._word("address", visits.after, visits.after == NOWHERE),
        }
        return pa.Table.from_arrays([columns[name] for name in JOURNAL.names], schema=JOURNAL)

    def _word(self, words: str, numbers: Longs, is_null: Flags | None = None) -> pa.Array:
        return words_of(self.words[words], numbers, is_null)


def words_of(words: pa.Array, numbers: Longs, is_null: Flags | None = None) -> pa.Array:
    """Numbers as entries of a dictionary."""
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32), mask=is_null), words)


def guids(words: Longs, is_null: Flags | None = None) -> pa.Array:
    """Ids of 16 bytes. Shape: `words` [n, 2], big-endian once written."""
    count = words.shape[0]
    mask = None
    if is_null is not None and is_null.any():
        mask = pa.py_buffer(np.packbits(~is_null, bitorder="little").tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), count, [mask, pa.py_buffer(np.ascontiguousarray(words).byteswap())]
    )


def route_of(service: str) -> str:
    """The route that leads to a service."""
    return "To" + "".join(
        part.capitalize() for part in service.removeprefix("//synthetic/").replace("/", "-").split("-")
    )


def table_of(name: str) -> str:
    """The database whose routes an instance follows: a gateway's own, else that of the application."""
    return GATEWAY_TABLE if name.startswith("gateway") else name.split("-", maxsplit=1)[0]


def _instants(micros: Longs) -> pa.Array:
    return pa.array(micros).cast(pa.timestamp("us", tz="UTC"))


def _ints(numbers: Longs) -> pa.Array:
    return pa.array(numbers.astype(np.int32))

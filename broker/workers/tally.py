"""
Adding up what workers tell of themselves. Pure functions of values.

Counters and amounts are added, of what is late the latest counts, of an address the best that any worker knows. What a
worker counted before it died is added from its last report, so no counter of the gateway goes down. What it held then
counts as dropped, `lost with a worker`: the senders still have these messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from broker.observe.label import Labels
from broker.observe.metrics import METRICS
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.routing.route import MirroredPair
from broker.workers.message import PairKnown, Reached, WorkerReport

LAG = "broker_event_loop_lag_seconds"
COUNTERS = frozenset(metric.name for metric in METRICS if metric.is_counter)
_BEST_FIRST = tuple(one.name for one in (Health.CONNECTED, Health.LEAVING, Health.SUPPRESSED, Health.UNTRIED))
# What of the forwarding part of a status is counted since the start; the rest is as it is now.
_COUNTED = ("received", "forwarded", "delivered", "dropped")
_NOT_ADDED = frozenset({"enabled", "pool_limit_bytes", "unaccounted"})
_DROPPED = "broker_messages_dropped_total"
LOST = "lost with a worker"
"""The reason under which frames are counted as dropped that a worker held when it died."""

Samples = Mapping[str, Iterable[tuple[Labels, float]]]


class Retired:
    """
    What dead workers counted.

    Shape: `samples` of counters by metric; `forwarding` as in a status; `lost` frames that they held; `uncounted_s`
    seconds before their deaths after which nobody has heard of their counters.
    """

    def __init__(self) -> None:
        self.samples: dict[str, Counter[Labels]] = {}
        self.forwarding: dict[str, Any] = {}
        self.lost = 0
        self.uncounted_s = 0.0

    def add(self, report: WorkerReport | None, *, uncounted_s: float) -> int:
        """One more has died; this was the last it told, so many seconds ago. Returns the frames that it held."""
        self.uncounted_s += uncounted_s
        if report is None:
            return 0
        for name in COUNTERS & report.samples.keys():
            counter = self.samples.setdefault(name, Counter())
            for labels, value in report.samples[name]:
                counter[labels] += value  # type: ignore[assignment]  # typeshed: counts of a Counter are whole
        forwarding = report.status["forwarding"]
        self.forwarding = _added(self.forwarding, {name: forwarding[name] for name in _COUNTED})
        held: int = forwarding["held"]
        if held:
            self.lost += held
            self.forwarding["dropped"] = _added(self.forwarding["dropped"], {LOST: held})
            self.samples.setdefault(_DROPPED, Counter())[(LOST,)] += held
        return held

    def told(self) -> dict[str, list[tuple[Labels, float]]]:
        """Its samples in the form of a report."""
        return {name: list(counter.items()) for name, counter in self.samples.items()}


def add_samples(
    parts: Iterable[Samples], own: Mapping[str, list[tuple[Labels, float]]]
) -> dict[str, list[tuple[Labels, float]]]:
    """
    The metrics of the gateway.

    Args:
        parts: Of each worker, and of the dead ones.
        own: What the supervisor tells itself instead of them; of the lag of the loops the worst is told.
    """
    added: dict[str, list[tuple[Labels, float]]] = {name: list(some) for name, some in own.items()}
    for samples in parts:
        for name, some in samples.items():
            if name not in own:
                added.setdefault(name, []).extend(some)  # equal labels are added up when they are rendered
            elif name == LAG:
                added[name] = [((), max(value for _, value in [*added[name], *some]))]
    return added


def add_forwarding(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """
    The forwarding parts of several statuses as one, without what a gateway has one of.

    `unaccounted` is the difference of the sums, so it tells of dead workers as well.
    """
    total: dict[str, Any] = {}
    for part in parts:
        total = _added(total, {name: value for name, value in part.items() if name not in _NOT_ADDED})
    told = sum(total["dropped"].values()) + total["forwarded"] + total["delivered"] + total["held"]
    return total | {"unaccounted": sum(total["received"].values()) - told}


def add_addresses(parts: Iterable[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """
    The address parts of several statuses as one.

    Returns:
        By address, in order: the best health, the first problem unless somebody is connected, what is held added up.
    """
    total: dict[str, dict[str, Any]] = {}
    for part in parts:
        for address, facts in part.items():
            known = total.get(address)
            if known is None:
                total[address] = dict(facts)
                continue
            for name, value in facts.items():
                if name == "health":
                    known[name] = min(known[name], value, key=lambda health: _BEST_FIRST.index(health.upper()))
                else:
                    known[name] = known[name] or value if isinstance(value, str) else known[name] + value
    for facts in total.values():
        facts["problem"] = "" if facts["health"] == Health.CONNECTED.name.lower() else facts["problem"]
    return dict(sorted(total.items()))


def add_journals(parts: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """The journals of several workers as one: they write into one directory, each its own files."""
    told = [part for part in parts if part is not None]
    if not told:
        return None
    one_of = {"directory": told[0]["directory"], "sample": told[0]["sample"]}
    counts = {name: sum(part[name] for part in told) for name in told[0] if name not in {*one_of, "problem"}}
    return one_of | counts | {"problem": next((part["problem"] for part in told if part["problem"]), "")}


def merge_reached(parts: Iterable[Iterable[Reached]]) -> dict[NetworkAddress, tuple[Health, str]]:
    """Of each address the best health that any worker knows, and the first problem; an address served has none."""
    best: dict[NetworkAddress, tuple[str, str]] = {}
    for part in parts:
        for one in part:
            health, problem = best.get(one.address, (one.health, ""))
            health = min(health, one.health, key=_BEST_FIRST.index)
            best[one.address] = health, problem or one.problem
    connected = Health.CONNECTED.name
    return {
        address: (Health[health], "" if health == connected else problem) for address, (health, problem) in best.items()
    }


def merge_pairs(parts: Iterable[Iterable[PairKnown]]) -> dict[MirroredPair, PairKnown]:
    """Of each mirrored pair what the worker tells that knows its principal with the highest epoch."""
    best: dict[MirroredPair, PairKnown] = {}
    for one in (one for part in parts for one in part):
        known = best.get(one.pair)
        if known is None or (one.principal is not None, one.epoch) > (known.principal is not None, known.epoch):
            best[one.pair] = one
    return best


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers added by name, and so are those below."""
    total = dict(one)
    for name, value in other.items():
        if isinstance(value, Mapping):
            total[name] = _added(total.get(name, {}), value)
        else:
            total[name] = total.get(name, 0) + value
    return total

"""
What waits for each next hop, since when, why, and when it is tried again: `waiting` of a status.

`next_hop_status` reads what belongs to the loop; `add_next_hops` adds up what several workers tell.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from broker.forwarding.outbox import Outbox
from broker.observe.instance import Running
from broker.observe.waiting import next_hop, why_held
from broker.routing.address import NetworkAddress

NEXT_HOPS_MAX = 100  # told in a status, those with the most frames


def next_hop_status(instance: Running, now: float) -> list[dict[str, Any]]:
    """Those for which frames wait, the most first, at this monotonic instant. Loop-only. Cost: the next hops."""
    holding = [outbox for outbox in instance.forwarder.every_outbox() if outbox.held]
    most = heapq.nlargest(NEXT_HOPS_MAX, holding, key=lambda outbox: len(outbox.held))
    return [_told(outbox, instance, now) for outbox in most]


def add_next_hops(parts: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """
    Those of several statuses as one.

    Returns:
        By next hop: frames and bytes added up, the oldest age, and the reason and next attempt of whoever has most.
    """
    total: dict[str, dict[str, Any]] = {}
    for one in sorted((one for part in parts for one in part), key=lambda one: -one["held"]):
        known = total.setdefault(one["next_hop"], {**one, "held": 0, "held_bytes": 0})
        known["held"] += one["held"]
        known["held_bytes"] += one["held_bytes"]
        known["oldest_s"] = max(known["oldest_s"], one["oldest_s"])
    return heapq.nlargest(NEXT_HOPS_MAX, total.values(), key=lambda one: one["held"])


def _told(outbox: Outbox, instance: Running, now: float) -> dict[str, Any]:
    hop = next_hop(outbox, instance.mirrors)
    attempts = instance.peers.attempts.get(hop) if isinstance(hop, NetworkAddress) else None
    wait = (
        None if attempts is None or outbox.outlet is not None else round(max(0.0, attempts.suppressed_until - now), 3)
    )
    return {
        "next_hop": str(hop),
        "held": len(outbox.held),
        "held_bytes": outbox.share.used_bytes,
        "oldest_s": round(now - next(iter(outbox.held)).since, 3),
        "why": why_held(outbox, instance.peers, instance.mirrors),
        "next_attempt_s": wait,
    }

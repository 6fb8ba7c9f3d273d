"""What waits for each next hop, since when, why, and when it is tried again: `waiting` of a status."""

from __future__ import annotations

import heapq
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

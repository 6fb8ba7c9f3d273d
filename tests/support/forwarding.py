"""Outboxes and forwarding tables without the forwarder that owns them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker.forwarding.entry import raise_error
from broker.forwarding.fib import ForwardingTable, RequestLink
from broker.forwarding.forwarder import ignore
from broker.forwarding.held_frames import DialogAffinity
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox import OutboxContext
from broker.forwarding.pool import Pool


def outbox_context(**changes: Any) -> OutboxContext:
    """A context that ignores what it is told, but for these fields."""
    plain = OutboxContext(
        drop=ignore,
        report_waiting=ignore,
        continue_later=ignore,
        report=raise_error,
        affinity=DialogAffinity(),
        hop=HopTimes(),
    )
    return replace(plain, **changes)


def forwarding_table(
    pool: Pool | None = None, *, request_link: RequestLink = ignore, request_principal: Any = ignore
) -> ForwardingTable:
    """A table that delivers nowhere."""
    return ForwardingTable(
        pool or Pool(0),
        outbox_context(),
        request_link=request_link,
        request_principal=request_principal,
        deliver=ignore,
    )

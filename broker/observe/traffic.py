"""
The metrics of what passes: frames that come, leave, wait and end here, and the connections that bring them.

Read on the loop from plain integers that the pass, the links and the databases count on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from broker.dialog.send_queue import MICROSECONDS
from broker.flow import Disposition
from broker.forwarding.outbox import Destination
from broker.observe.connection import CONNECTION_METRICS, connection_samples, flow_samples
from broker.observe.described import MetricDefinition, Reader, Samples, single
from broker.observe.dropped_counts import dropped_by_reason
from broker.observe.histogram import histogram_samples
from broker.observe.instance import Running
from broker.observe.label import OTHER
from broker.observe.mirror import forwarded_samples
from broker.observe.status import kind_name

FORWARDED = "broker_messages_forwarded_total"

TRAFFIC_METRICS = (
    *CONNECTION_METRICS,
    MetricDefinition(
        "broker_messages_received_total",
        "Dialog frames that came in: from an adjacent instance, or, with an empty peer, from a database here.",
        ("peer", "kind"),
    ),
    MetricDefinition(
        FORWARDED,
        "Dialog frames handed to the connection to a next hop.",
        ("route", "peer"),
    ),
    MetricDefinition(
        "broker_messages_delivered_total",
        "Whole messages put into the queue of a service here.",
        ("service",),
    ),
    MetricDefinition(
        "broker_messages_dropped_total",
        "Dialog frames that ended here without arriving; their senders still have each message.",
        ("reason",),
    ),
    MetricDefinition(
        "broker_peer_faults_total",
        "Connections that ended because the peer broke a rule of the protocol.",
        ("error",),
    ),
    MetricDefinition("broker_forward_pool_bytes", "Memory taken by frames that wait for their next hop."),
    MetricDefinition("broker_forward_pool_limit_bytes", "What broker_forward_pool_bytes never exceeds."),
    MetricDefinition("broker_forward_pool_messages", "Dialog frames that wait for their next hop."),
    MetricDefinition(
        "broker_forward_share_exceeded_total",
        "Dialog frames dropped because their next hop had its share of the pool; also counted as pool limit exceeded.",
    ),
    MetricDefinition(
        "broker_hop_duration_seconds",
        "How long dialog frames of adjacent instances were here: from the read that brought a frame until it was handed"
        " to the connection to its next hop, or to a database here. One that had to wait counts with that time.",
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_ack_roundtrip_seconds",
        "From the sending of a message by a database here to the acknowledgement of the far side, by next hop; of"
        " messages that were sent once.",
        ("peer",),
        is_histogram=True,
    ),
    MetricDefinition(
        "broker_retransmits_total",
        "Messages sent again because no acknowledgement came in time, or their path broke.",
        ("peer",),
    ),
    MetricDefinition(
        "broker_duplicates_total", "Dialog frames that had been stored before: acknowledged again, not delivered again."
    ),
)


def traffic_readers() -> Mapping[str, Reader]:
    """What reads each of them on the loop."""
    return {
        "broker_connections": lambda instance: connection_samples(instance.peers.links.values()),
        "broker_connection_flows": lambda instance: flow_samples(
            instance.peers.links.values(), asyncio.get_running_loop().time()
        ),
        "broker_messages_received_total": _received,
        FORWARDED: _forwarded,
        "broker_messages_delivered_total": _delivered,
        "broker_messages_dropped_total": _dropped,
        "broker_peer_faults_total": _faults,
        "broker_forward_pool_bytes": single(lambda instance: instance.forwarder.pool.used_bytes),
        "broker_forward_pool_limit_bytes": single(lambda instance: instance.forwarder.pool.limit_bytes),
        "broker_forward_pool_messages": single(lambda instance: instance.forwarder.pool.frames),
        "broker_forward_share_exceeded_total": single(lambda instance: instance.forwarder.pool.over_share),
        "broker_hop_duration_seconds": _hops,
        "broker_ack_roundtrip_seconds": _round_trips,
        "broker_retransmits_total": _retransmits,
        "broker_duplicates_total": _duplicates,
    }


def _received(instance: Running) -> Samples:
    for peer, counts in instance.peers.received().items():
        yield from (((peer, kind_name(kind)), count) for kind, count in counts.items())
    received = instance.past.received.copy()
    for endpoint in instance.endpoints.values():
        received.update(endpoint.transmitter.received)
    yield from ((("", kind_name(kind)), count) for kind, count in received.items())


def _forwarded(instance: Running) -> Samples:
    retired = instance.forwarder.retired_frames  # of the moment that `forwarded_samples` is as of
    yield from forwarded_samples(instance.forwarder)
    if retired:
        yield (OTHER, OTHER), retired


def _delivered(instance: Running) -> Samples:
    delivered = instance.past.delivered.copy()
    for endpoint in instance.endpoints.values():
        delivered.update(endpoint.delivered)
    yield from (((service,), count) for service, count in delivered.items())


def _dropped(instance: Running) -> Samples:
    dropped = dropped_by_reason(instance)
    arrived = (Disposition.FORWARDED, Disposition.DELIVERED)
    # Every reason is told from the start, so that the first drop is a change from 0 and not a new series.
    return [((disposition.value,), dropped[disposition]) for disposition in Disposition if disposition not in arrived]


def _hops(instance: Running) -> Samples:
    times = instance.forwarder.hop
    times.settle()
    return histogram_samples((), dict(enumerate(times.counts)), times.seconds)


def _round_trips(instance: Running) -> Samples:
    trips = instance.past.round_trips.copy()
    for endpoint in instance.endpoints.values():
        trips.update(endpoint.transmitter.round_trips)
    by_hop: dict[Destination | None, dict[int, int]] = {}
    for (next_hop, place), count in trips.items():
        by_hop.setdefault(next_hop, {})[place] = count
    for next_hop, counts in by_hop.items():
        peer = "" if next_hop is None else str(next_hop)
        yield from histogram_samples((peer,), counts, counts.get(MICROSECONDS, 0) / 1e6)


def _retransmits(instance: Running) -> Samples:
    resent = instance.past.resent_to.copy()
    for endpoint in instance.endpoints.values():
        resent.update(endpoint.transmitter.resent_to)
    return [((peer,), count) for peer, count in resent.items() if count]


def _duplicates(instance: Running) -> Samples:
    here = sum(endpoint.dropped[Disposition.DUPLICATE] for endpoint in instance.endpoints.values())
    yield (), here + instance.past.dropped[Disposition.DUPLICATE]


def _faults(instance: Running) -> Samples:
    return [((error,), count) for error, count in instance.peers.faults.items()]

"""
A connection to an adjacent instance, as `sys.dm_broker_connections`, the status and the metrics show it.

On the loop; the parts are plain values.

Source: Service Broker documentation, "sys.dm_broker_connections".
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from broker.net.link import Link
from broker.net.link_state import LinkState
from broker.observe.described import MetricDefinition
from broker.observe.label import Labels
from broker.observe.slowed import slowed_by

_STATES = {LinkState.CONNECTED: 3, LinkState.LOGGED_IN: 4, LinkState.DRAINING: 4}
_CLOSED = 5
_LOGIN_STATES = {True: (12, "ONLINE"), False: (1, "WAIT LOGIN NEGOTIATE")}

CONNECTION_METRICS = (
    MetricDefinition(
        "broker_connections",
        "Connections to adjacent instances now.",
        ("peer", "direction", "state"),
    ),
    MetricDefinition(
        "broker_connection_flows",
        "The same connections by what has really moved: flowing, idle, blocked, stalled, opening, leaving or down.",
        ("peer", "direction", "flow"),
    ),
)


def connection_values(link: Link, arbitration: bytes, at: datetime, now: float) -> dict[str, Any]:
    """
    The columns of a row that have a value.

    Args:
        link: The connection.
        arbitration: What names this process.
        at: When the loop's clock said 0.
        now: Loop time.
    """
    last_activity = max(link.connection.last_heard, link.connection.last_sent)
    # Unique for as long as the process lives, and the same row after row: this process and the link's number.
    connection_id = uuid.UUID(int=int.from_bytes(arbitration, "big") ^ link.number)
    flow = link.flow.look(link, now)
    return {
        **_who(link),
        "connection_id": connection_id,
        "state": _STATES.get(link.state, _CLOSED),
        "state_desc": link.state.value,
        "connect_time": at + timedelta(seconds=link.opened_at),
        "login_time": None if link.online_at is None else at + timedelta(seconds=link.online_at),
        "last_activity_time": at + timedelta(seconds=last_activity),
        "is_accept": link.is_accept,
        "is_receive_flow_controlled": link.is_paused,
        "is_send_flow_controlled": link.is_blocked,
        "total_bytes_sent": link.bytes_sent,
        "total_bytes_received": link.bytes_received,
        "total_fragments_received": link.received.total(),
        "total_sends": link.sends,
        "total_receives": link.receives,
        "total_frames_rejected": link.frames_rejected,
        "flow_state": flow.state.value,
        "flow_reason": flow.why or None,
        "flow_since_time": at + timedelta(seconds=flow.since),
        "last_progress_time": at + timedelta(seconds=flow.progress_at),
        "round_trip_ms": None if link.connection.round_trip is None else round(link.connection.round_trip * 1000, 3),
    }


def _who(link: Link) -> dict[str, Any]:
    """The columns that tell of the peer, and how it is known."""
    peer = link.agreement.peer if link.agreement is not None else None
    login_state, login_state_desc = _LOGIN_STATES[peer is not None]
    identity = link.transport.identity
    algorithm, algorithm_desc = _algorithm(link.transport.cipher)
    return {
        "login_state": login_state,
        "login_state_desc": login_state_desc,
        "authentication_method": None if identity is None else "CERTIFICATE",
        "principal_name": None if identity is None else identity.principal_name,
        "peer_certificate_id": None if identity is None else identity.fingerprint,
        "peer_certificate_expiry_date": None if identity is None else identity.not_after,
        "encryption_algorithm": algorithm,
        "encryption_algorithm_desc": algorithm_desc,
        "peer_arbitration_id": None if peer is None else uuid.UUID(bytes=peer.arbitration),
        "peer_name": None if peer is None else link.peer_name,
        "peer_address": link.address,
        "peer_instance": None if peer is None else uuid.UUID(bytes=peer.instance),
    }


def connection_status(link: Link, at: datetime, now: float) -> dict[str, Any]:
    """What a status tells; arguments as of `connection_values`."""
    flow, round_trip = link.flow.look(link, now), link.connection.round_trip
    return {
        "name": link.peer_name,
        "address": link.address,
        "direction": direction(link),
        "state": link.state.value,
        "flow": flow.state.value,
        "flow_reason": flow.why,
        "flow_since": _instant(at, flow.since),
        "last_progress": _instant(at, flow.progress_at),
        "round_trip_ms": None if round_trip is None else round(round_trip * 1000, 3),
        "encryption": "TLS" if link.transport.cipher else "none",
        "principal": "" if link.transport.identity is None else link.transport.identity.principal_name,
        "slowed_by": slowed_by(link),
        "bytes_received": link.bytes_received,
        "bytes_sent": link.bytes_sent,
        "frames_received": link.received.total(),
        "frames_rejected": link.frames_rejected,
    }


def direction(link: Link) -> str:
    """Who opened a connection: `in` is the peer, `out` is this instance."""
    return "in" if link.is_accept else "out"


def connection_samples(links: Iterable[Link]) -> Iterable[tuple[Labels, float]]:
    """Connections by the state of their protocol."""
    return Counter((link.label, direction(link), link.state.value) for link in links).items()


def flow_samples(links: Iterable[Link], now: float) -> Iterable[tuple[Labels, float]]:
    """Connections by what has really moved."""
    return Counter((link.label, direction(link), link.flow.look(link, now).state.value) for link in links).items()


def _instant(at: datetime, seconds: float) -> str:
    return (at + timedelta(seconds=seconds)).isoformat(timespec="milliseconds")


def _algorithm(cipher: str) -> tuple[int | None, str]:
    """The original's number and word for a cipher suite; it has none for a cipher that it did not know."""
    if not cipher:
        return 0, "NONE"
    return (2, "AES") if "_AES_" in cipher else (None, cipher)

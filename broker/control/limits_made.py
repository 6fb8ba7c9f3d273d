"""Part of `broker.control.limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.net.limits import PeerLimits, Timeouts

if TYPE_CHECKING:
    from broker.control.config import Settings
    from broker.forwarding.limits import Limits


def peer_limits(settings: Settings) -> PeerLimits:
    """The same as the links take them."""
    limits = settings.limits
    return PeerLimits(
        connections=limits.connections,
        connections_per_peer=limits.connections_per_peer,
        reserved_connections=limits.reserved_connections,
        handshakes=limits.handshakes,
        bytes_per_second=limits.bytes_per_second,
        messages_per_second=limits.messages_per_second,
        pool_share=limits.pool_share,
    )


def pass_limits(settings: Settings, largest: int) -> Limits:
    """What bounds the pass; `largest` bytes of a frame that any peer was told it may send."""
    from broker.forwarding.limits import Limits  # noqa: PLC0415 - slow to import: see broker.cli.group

    endpoint = settings.endpoint
    return Limits(
        pool_bytes=endpoint.message_forward_size,
        max_frame=largest,
        max_hops=endpoint.max_hops,
        share_percent=endpoint.message_forward_share,
        hold_seconds=endpoint.message_lifetime_max,
    )


def timeouts_of(settings: Settings) -> Timeouts:
    """How long a peer may take for what."""
    endpoint = settings.endpoint
    return Timeouts(endpoint.handshake_timeout, endpoint.connect_timeout, endpoint.backpressure)

"""
Other settings for links: what new connections begin with, and what holds at once for all.

What the two sides of a connection have agreed on (largest frame, heartbeat, addresses) stays as it is until it is made
anew; rates, shares of the pool, pauses and numbers of connections hold for those that are there as well. Nobody is
closed for any of it. Loop-only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from broker.net.descriptors import room_for_connections

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.net.limits import PeerLimits, Timeouts
    from broker.net.link import Link
    from broker.net.peers import Peers
    from broker.net.tls import Security


@dataclass(frozen=True, slots=True)
class Tuning:
    """Shape: `max_frame` bytes, `heartbeat_ms` and `addresses` as each peer is told when it connects."""

    max_frame: int
    heartbeat_ms: int
    addresses: tuple[str, ...]
    timeouts: Timeouts
    limits: PeerLimits


def retune(peers: Peers, tuning: Tuning, security: Security) -> None:
    """Links have these settings from now on, beside what is brought to TLS."""
    timeouts, limits = tuning.timeouts, tuning.limits
    peers.hello = msgspec.structs.replace(
        peers.hello, max_frame=tuning.max_frame, heartbeat_ms=tuning.heartbeat_ms, addresses=tuning.addresses
    )
    peers.timeouts = timeouts
    peers.entrance.timeout = timeouts.handshake
    peers.dialling.seconds = timeouts.connect
    peers.backpressure.pause_for(timeouts.backpressure)
    peers.entrance.handshakes.most = limits.handshakes
    shaking = 0 if security.server is None else limits.handshakes
    peers.admission.change(limits, room_for_connections(shaking), peers.forwarder.pool)


def largest_frame(links: Iterable[Link], told: int) -> int:
    """The largest frame that may come: what new peers are told, or any that is connected was, in bytes."""
    return max([told, *(link.connection.max_frame for link in links)])


def narrow(links: Iterable[Link], largest: int) -> None:
    """Frames of up to so many bytes may be for these links; whose peer takes less has them looked at one by one."""
    for link in links:
        if link.agreement is not None:
            link.is_narrow = link.max_frame < largest

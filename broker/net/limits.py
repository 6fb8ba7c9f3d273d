"""What peers may take of an instance: time, connections, handshakes, messages a second, and its forward pool."""

from __future__ import annotations

from typing import NamedTuple

from broker.control.handshakes import HANDSHAKES


class Timeouts(NamedTuple):
    """
    Shape: seconds for HELLO to be complete, for a connection to come about, and for which a link that finds no room for
    what it brings is not read at most.
    """

    handshake: float
    connect: float
    backpressure: float = 0.25


class PeerLimits(NamedTuple):
    """
    The bounds; 0 stands for none.

    Shape: `connections` in all, of which `reserved_connections` are for known peers; `connections_per_peer` that it
    opened; `handshakes` of TLS at one time, 1 or more; `bytes_per_second` and `messages_per_second` that are read from
    one peer; `pool_share` percent of the forward pool that frames of one peer may take.
    """

    connections: int = 0
    connections_per_peer: int = 0
    reserved_connections: int = 0
    handshakes: int = HANDSHAKES
    bytes_per_second: int = 0
    messages_per_second: int = 0
    pool_share: int = 0

    @property
    def are_paced(self) -> bool:
        """Whether it matters how much one peer brings."""
        return bool(self.bytes_per_second or self.messages_per_second or self.pool_share)


NO_LIMITS = PeerLimits()

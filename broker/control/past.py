"""Part of `broker.control.databases`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from broker.dialog.endpoint import Endpoint
from broker.dialog.send_queue import Trips
from broker.flow import Disposition


@dataclass(slots=True)
class EndpointTotals:
    """What databases counted that are not here any more; so no sum over all of them ever shrinks."""

    received: Counter[int] = field(default_factory=Counter)
    delivered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[Disposition] = field(default_factory=Counter)
    resent_to: Counter[str] = field(default_factory=Counter)
    round_trips: Trips = field(default_factory=Counter)

    def add(self, endpoint: Endpoint) -> None:
        """What one that goes has counted."""
        self.received += endpoint.transmitter.received
        self.delivered += endpoint.delivered
        self.dropped += endpoint.dropped
        self.resent_to += endpoint.transmitter.resent_to
        self.round_trips += endpoint.transmitter.round_trips

"""How many dialog frames came from whom since the start, those of closed links among them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from broker.net.link import Link

PEER_NAMES_MAX = 1000  # whose frames are counted by name; the peers choose their names, so there must be an end
OTHER_PEERS = "other"


class Heard:
    """Counts by name of the peer and kind; past a bound of names, by "other". Loop-only."""

    def __init__(self) -> None:
        self._closed: dict[str, Counter[int]] = {}

    def counts(self, links: Iterable[Link]) -> dict[str, dict[int, int]]:
        """Those of closed links, and of these, which are open. Cost: 1 us for each name and each link."""
        received = {name: dict(counts) for name, counts in self._closed.items()}  # a copy as a counter takes 3 us
        for link in links:
            if link.agreement is not None:
                counts = received.setdefault(self._counted_as(link), {})
                for kind, frames in link.received.items():
                    counts[kind] = counts.get(kind, 0) + frames
        return received

    def greet(self, link: Link) -> None:
        """A link is online: its name is taken, while there are any."""
        self._closed.setdefault(self._counted_as(link), Counter())

    def close(self, link: Link) -> None:
        """Nothing more comes from a link that was online; keep what did."""
        if link.received:
            self._closed[self._counted_as(link)].update(link.received)

    def _counted_as(self, link: Link) -> str:
        name = link.peer_name
        return name if name in self._closed or len(self._closed) < PEER_NAMES_MAX else OTHER_PEERS

"""
Under which name metrics count a peer, and how many dialog frames came from it since the start.

Peers choose their names, and each is a series that the scraper keeps. So there is a bound on all of them and one on
those of a principal, and a name belongs to the principal that came with it first: a peer cannot use up the names of
others, nor be counted as one of them. Where peers prove nothing only the first bound holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from broker.net.link import Link

PEER_NAMES_MAX = 1000
NAMES_EACH_MAX = 64  # of one principal: instances may share a certificate
OTHER_PEERS = "other"


class PeerFrameCounts:
    """Labels of links, and counts by label and kind. Loop-only."""

    def __init__(self) -> None:
        self._closed: dict[str, Counter[int]] = {}
        self._principals: dict[str, str] = {}  # by name; empty where none was proved
        self._names: Counter[str] = Counter()  # how many each principal has

    def counts(self, links: Iterable[Link]) -> dict[str, dict[int, int]]:
        """Those of closed links, and of these, which are open. Cost: 1 us for each name and each link."""
        received = {label: dict(counts) for label, counts in self._closed.items()}  # a copy as a counter takes 3 us
        for link in links:
            if link.label:
                counts = received.setdefault(link.label, {})
                for kind, frames in link.received.items():
                    counts[kind] = counts.get(kind, 0) + frames
        return received

    def greet(self, link: Link) -> None:
        """A link is online: give it its label."""
        identity = link.transport.identity
        is_free = self._take(link.peer_name, "" if identity is None else identity.principal_name)
        link.label = link.peer_name if is_free else OTHER_PEERS
        self._closed.setdefault(link.label, Counter())

    def close(self, link: Link) -> None:
        """Nothing more comes from a link; keep what did."""
        if link.label and link.received:
            self._closed[link.label].update(link.received)

    def _take(self, name: str, principal: str) -> bool:
        """Whether a principal has a name from now on; one that was proved takes it over from peers that prove none."""
        owner = self._principals.get(name)
        if owner == principal:
            return True
        if not name or owner or (owner is None and len(self._principals) >= PEER_NAMES_MAX):
            return False
        if principal and self._names[principal] >= NAMES_EACH_MAX:
            return False
        self._principals[name] = principal
        self._names[principal] += 1
        return True

"""
This instance leaves: what it has told its peers, and what of its work is left.

Every peer is told GOAWAY, also one whose HELLO comes later. A peer that has moved away ends its direction, and reads
on; one that does not know of this falls silent. Until then what it sends is passed on, and what is for it leaves on the
same link. Loop-only.

Source: docs/protocol.md, "GOAWAY".
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from broker.forwarding.outbox import Outbox
from broker.net.link import Link
from broker.net.link_state import LinkState
from broker.protocol.frame import GoAway, encode_link

HOPS_MAX = 20  # next hops that are named
QUIET_SECONDS = 2.0  # without a dialog frame after which a peer counts as moved that has not said so


@dataclass(frozen=True, slots=True)
class Left:
    """
    What has not left yet.

    Shape: `held` frames, in `by_hop` those of the next hops with most; `unserved` how many of them no link takes now;
    `peers` connections whose peers may still send; `busy` databases that have yet to store or acknowledge what came.
    """

    held: int = 0
    unserved: int = 0
    peers: int = 0
    by_hop: dict[str, int] = field(default_factory=dict)
    busy: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether all is done."""
        return not (self.held or self.peers or self.busy)

    @property
    def is_stuck(self) -> bool:
        """Whether all that is left waits for next hops that nobody reaches."""
        return self.held == self.unserved and not (self.peers or self.busy)

    @property
    def fields(self) -> dict[str, Any]:
        """For a line of the log."""
        return {"held": self.held, "peers": self.peers, "by_hop": self.by_hop, "busy": list(self.busy)}

    def __str__(self) -> str:
        peers = f"{self.peers} peer{'' if self.peers == 1 else 's'} left"
        busy = f", busy: {', '.join(self.busy)}" if self.busy else ""
        return f"{self.held} held, {peers}{busy}"


class OwnDeparture:
    """Shape: `is_said` once the peers were told."""

    def __init__(self) -> None:
        self.is_said = False
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._until = 0.0
        self._heard: dict[Link, tuple[int, float]] = {}  # frames received, and since when there are so many

    def say(self, links: Iterable[Link], *, reason: str, seconds: float) -> None:
        """From now on every peer knows that this instance leaves in so many seconds."""
        self.is_said = True
        self._reason, self._until = reason, self._loop.time() + seconds
        for link in links:
            self.greet(link)

    def greet(self, link: Link) -> None:
        """The same to a peer whose HELLO has come; nothing before that, and nothing while this instance stays."""
        if self.is_said and link.agreement is not None:
            left_ms = max(0, int((self._until - self._loop.time()) * 1000))
            link.say(encode_link(GoAway(reason=self._reason, deadline_ms=left_ms)))

    def left(self, links: Iterable[Link], outboxes: Iterable[Outbox]) -> Left:
        """What has not left yet, of all links and outboxes that there are."""
        boxes = [outbox for outbox in outboxes if outbox.held]
        by_hop = Counter[str]()
        for outbox in boxes:
            by_hop[str(outbox.address)] += len(outbox.held)
        unserved = sum(len(outbox.held) for outbox in boxes if outbox.outlet is None)
        return Left(by_hop.total(), unserved, self._staying(links), dict(by_hop.most_common(HOPS_MAX)))

    def _staying(self, links: Iterable[Link]) -> int:
        """How many of these links have peers that may still send."""
        now = self._loop.time()
        heard, self._heard = self._heard, {}
        staying = 0
        for link in links:
            if link.state is not LinkState.LOGGED_IN or link.has_moved:
                continue
            count = link.received.total()
            known, since = heard.get(link, (count, now))
            self._heard[link] = count, since if known == count else now
            staying += now - self._heard[link][1] < QUIET_SECONDS
        return staying

"""Links by the process at their other end, and which two of them are one too many. Loop-only."""

from __future__ import annotations

from broker.net.link import Link
from broker.net.link_state import LinkState
from broker.wire.layout import NO_GUID

_Key = tuple[bytes, bool]


class Processes:
    """The links whose HELLO is complete, by their peer's `arbitration` and by who opened them."""

    def __init__(self) -> None:
        self._links: dict[_Key, dict[Link, None]] = {}

    def add(self, link: Link) -> None:
        """A link is online."""
        assert link.agreement is not None
        self._links.setdefault((link.agreement.peer.arbitration, link.is_accept), {})[link] = None

    def remove(self, link: Link) -> None:
        """A link is lost, which may have been here or not."""
        if link.agreement is None:
            return
        key = (link.agreement.peer.arbitration, link.is_accept)
        links = self._links.get(key, {})
        links.pop(link, None)
        if not links:
            self._links.pop(key, None)

    def rival_of(self, link: Link) -> Link | None:
        """The link to the same process that was opened from the other side, if there is one."""
        assert link.agreement is not None
        arbitration = link.agreement.peer.arbitration
        if arbitration == NO_GUID:
            return None
        for other in self._links.get((arbitration, not link.is_accept), ()):
            if other.state is LinkState.LOGGED_IN:
                return other
        return None

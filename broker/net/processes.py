"""
Links by the process at their other end, and which two of them are one too many. Loop-only.

A HELLO says what it likes, so the process is told by its `arbitration` and by what the peer has proved: whoever shows
another certificate is another, and takes nothing over. Two links that differ in that because a certificate was renewed
between them both stay.
"""

from __future__ import annotations

from broker.net.link import Link
from broker.net.link_state import LinkState
from broker.protocol.layout import NO_GUID

_Key = tuple[bytes, str, bool]
"""Arbitration, fingerprint of the peer's certificate or "", and whether the peer opened the link."""


class Processes:
    """The links whose HELLO is complete, by their peer's `arbitration` and by who opened them."""

    def __init__(self) -> None:
        self._links: dict[_Key, dict[Link, None]] = {}

    def add(self, link: Link) -> None:
        """A link is online."""
        self._links.setdefault(_key(link, is_accept=link.is_accept), {})[link] = None

    def remove(self, link: Link) -> None:
        """A link is lost, which may have been here or not."""
        if link.agreement is None:
            return
        key = _key(link, is_accept=link.is_accept)
        links = self._links.get(key, {})
        links.pop(link, None)
        if not links:
            self._links.pop(key, None)

    def rival_of(self, link: Link) -> Link | None:
        """The link to the same process that was opened from the other side, if there is one."""
        key = _key(link, is_accept=not link.is_accept)
        if key[0] == NO_GUID:
            return None
        for other in self._links.get(key, ()):
            if other.state is LinkState.LOGGED_IN:
                return other
        return None


def _key(link: Link, *, is_accept: bool) -> _Key:
    assert link.agreement is not None
    identity = link.transport.identity
    return link.agreement.peer.arbitration, "" if identity is None else identity.fingerprint, is_accept

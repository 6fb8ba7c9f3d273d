"""What a link asks of whoever keeps it; `broker.net.peers.Peers` is the one there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from broker.protocol.link_state import Event

if TYPE_CHECKING:
    from broker.net.link import Link


class Owner(Protocol):
    """Who is told what happens on a link."""

    def on_online(self, link: Link) -> None:
        """HELLO is complete; the link can send."""

    def on_writable(self, link: Link) -> None:
        """The link can send again."""

    def on_heard(self, link: Link) -> None:
        """Something was read, for the first time since the link was made or `renew` called; see to that it is."""

    def on_event(self, link: Link, event: Event) -> None:
        """The peer said something that is not for the link itself."""

    def on_ended(self, link: Link) -> None:
        """Nothing more comes: `link.wind_up` is due, now or soon."""

    def on_failed(self, link: Link, error: Exception) -> None:
        """A bug: the link is to be closed, though not in this call."""

    def on_lost(self, link: Link) -> None:
        """Nothing new leaves through the link any more; `link.reason` says why. Once, before `on_closed`."""

    def on_closed(self, link: Link) -> None:
        """The socket is closed."""

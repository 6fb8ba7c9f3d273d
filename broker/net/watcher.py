"""The port to whoever has to know which addresses are reached, and what their peers say of principals."""

from __future__ import annotations

from typing import Protocol

from broker.net.link import Link
from broker.protocol.frame import ProbeReply, Rejected
from broker.routing.address import NetworkAddress


class Watcher(Protocol):
    """None of it may fail; it is never called in the middle of a pass."""

    def on_served(self, address: NetworkAddress, link: Link) -> None:
        """Frames for this address leave by this link, from now on or as before."""

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        """The address could not be reached, or its last link is of no use any more."""

    def on_answered(self, link: Link, reply: ProbeReply) -> None:
        """A PROBE_REPLY came, asked for or not."""

    def on_rejected(self, link: Link, rejected: Rejected) -> None:
        """A peer did not take a frame."""

    def on_role(self, broker_instance: bytes) -> None:
        """What this very instance is for a broker instance has changed."""


class Nobody:
    """Whoever has no mirrored pairs."""

    def on_served(self, address: NetworkAddress, link: Link) -> None:
        """Nothing follows."""

    def on_unserved(self, address: NetworkAddress, problem: str) -> None:
        """Nothing follows."""

    def on_answered(self, link: Link, reply: ProbeReply) -> None:
        """Nothing follows."""

    def on_rejected(self, link: Link, rejected: Rejected) -> None:
        """Nothing follows."""

    def on_role(self, broker_instance: bytes) -> None:
        """Nothing follows."""

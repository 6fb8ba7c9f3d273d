"""Whose connection it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.net.link import Link


def peer_of(link: Link) -> str:
    """Whose connection it is: the principal that it has proved, else its host."""
    identity = link.transport.identity
    return host_of(link.address) if identity is None else identity.principal_name


def host_of(address: str) -> str:
    """The host of a socket's end, as `render_endpoint` writes it."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")

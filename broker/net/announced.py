"""The addresses that a peer announced in its HELLO; whether they are believed is decided by who uses them."""

from __future__ import annotations

from broker.routing.address import NetworkAddress, parse_address
from broker.wire.handshake import Agreement


def announced(agreement: Agreement) -> frozenset[NetworkAddress]:
    """The addresses under which a peer says it can be reached, those that are none left out."""
    addresses = set()
    for text in agreement.peer.addresses:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if isinstance(address, NetworkAddress):
            addresses.add(address)
    return frozenset(addresses)

"""The addresses that a peer announced in its HELLO, as far as they are to be believed."""

from __future__ import annotations

from broker.net.certificate import Identity
from broker.protocol.layout import ADDRESSES_MAX
from broker.protocol.link_state import Agreement
from broker.routing.address import NetworkAddress, parse_address


def announced(
    agreement: Agreement, identity: Identity | None = None, *, is_authenticating: bool = False
) -> frozenset[NetworkAddress]:
    """
    The addresses under which a peer says it can be reached: of the first `ADDRESSES_MAX`, those that are addresses.

    Args:
        agreement: With the peer's HELLO.
        identity: What its certificate says; None when it has shown none.
        is_authenticating: Whether only hosts that the certificate covers are believed.
    """
    addresses = set()
    for text in agreement.peer.addresses[:ADDRESSES_MAX]:
        try:
            address = parse_address(text)
        except ValueError:
            continue
        if isinstance(address, NetworkAddress):
            addresses.add(address)
    if is_authenticating:
        return frozenset(one for one in addresses if identity is not None and identity.covers(one.host))
    return frozenset(addresses)

"""Under which addresses a port of this machine is certainly reached, without asking a resolver."""

from __future__ import annotations

import os
from ipaddress import ip_address

from broker.routing.address import NetworkAddress


def own_addresses(host: str, port: int) -> set[NetworkAddress]:
    """The addresses that certainly lead to a port bound on this IP address."""
    address = ip_address(host)
    hosts = {host}
    if address.is_unspecified:
        hosts = {"127.0.0.1", "localhost", os.uname().nodename.lower()} | ({"::1"} if address.version == 6 else set())
    elif address.is_loopback:
        hosts |= {"localhost"}
    return {NetworkAddress(name, port) for name in hosts}

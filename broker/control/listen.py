"""
Where a listener of this instance listens: a host and a port, written "host:port".

Unlike a route's address it has no scheme, its port is never left out, and port 0 stands for any free port. What a
valid host is, is decided by `broker.routing.address` alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address

from broker.routing.address import NetworkAddress, parse_address

_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """
    Where a listener listens.

    Shape: `host` in lower case, an IPv6 address without its brackets; `port` 0 .. 65535, 0 = any free port.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_listen(text: str) -> ListenAddress:
    """
    Read "host:port"; an IPv6 host in brackets.

    Raises:
        ValueError: no host, no valid host, or no port from 0 to 65535; its text says which.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ValueError("has no port from 0 to 65535")
    try:
        address = parse_address(f"tcp://{host}:1")
    except ValueError:
        raise ValueError("names no host to listen on") from None
    assert isinstance(address, NetworkAddress), "what begins with tcp:// is no keyword"
    return ListenAddress(address.host, int(port))


def clash(one: ListenAddress, other: ListenAddress) -> bool:
    """Both cannot be bound at once: same port, and one host, or one of them all interfaces, of IPv4 or of both."""
    if one.port != other.port or not one.port:
        return False
    hosts = {one.host, other.host}
    return len(hosts) == 1 or "::" in hosts or ("0.0.0.0" in hosts and not any(":" in host for host in hosts))  # noqa: S104

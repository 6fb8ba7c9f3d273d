"""What the partners of a mirrored pair have said of their principal, in words."""

from __future__ import annotations

from broker.routing.address import NetworkAddress
from broker.routing.mirrored import AddressState, MirroredRoute


def tell(route: MirroredRoute[NetworkAddress]) -> str:
    """Both of them, in the order of the route, and what is alarming."""
    said = ", ".join(f"{address} {_said(route.seen[address])}" for address in route.addresses)
    return f"{said}; {route.alarm}" if route.alarm else said


def _said(seen: AddressState) -> str:
    if seen.problem:
        return f"({seen.problem})"
    if seen.role is None:
        return "has not answered yet"
    return f"says {seen.role}" if seen.epoch is None else f"says {seen.role}, epoch {seen.epoch}"

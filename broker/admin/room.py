"""
Who gives way when all places of a listener are taken, so that nobody who merely sits there locks others out.

A place is free for whoever comes as long as there is one. When there is none, somebody who is waited for loses theirs:
one who has not said what they want, has not finished TLS, or does not take what they were given. First those of whoever
has most of them, and then who has done nothing the longest. Who is being served is never disturbed. On top of that
nobody has more than half of all places, but on loopback, where everybody has one address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Protocol, TypeVar

GRACE_SECONDS = 2.0  # in which a client sends the head of its request; until then it gives way to the fewer only
_IPV6_PREFIX = 64  # what one customer has


class Taken(Protocol):
    """Somebody who has a place."""

    @property
    def source(self) -> str:
        """Whose it is, as `source_of` tells."""

    @property
    def idle_since(self) -> float | None:
        """Monotonic seconds since when it is waited for; None while it is served."""


_Place = TypeVar("_Place", bound=Taken)


def source_of(address: str) -> str:
    """
    Whom connections are counted by: the address, of IPv6 the network, else one machine would be 2**64 of them.

    Returns:
        Something that is no IP address, such as a user, as it is.
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    if isinstance(parsed, IPv6Address) and not parsed.is_loopback:
        return str(ip_network((parsed, _IPV6_PREFIX), strict=False))
    return str(parsed)


def has_share(taken: Collection[Taken], source: str, *, most: int) -> bool:
    """Whether one more place is too much for this source, however many are free."""
    try:
        is_everybody = ip_address(source).is_loopback
    except ValueError:
        is_everybody = False
    return not is_everybody and sum(one.source == source for one in taken) >= max(1, most // 2)


def gives_way(taken: Collection[_Place], source: str, *, now: float) -> _Place | None:
    """
    Who loses its place to somebody of this source; None when nobody does.

    Cost: O(places), and only where all are taken.
    """
    counts = Counter(one.source for one in taken)

    def idle_s(one: _Place) -> float:
        return -1.0 if one.idle_since is None else now - one.idle_since

    def may_go(one: _Place) -> bool:
        return idle_s(one) >= (0.0 if counts[one.source] > counts[source] + 1 else GRACE_SECONDS)

    return max(filter(may_go, taken), key=lambda one: (counts[one.source], idle_s(one)), default=None)

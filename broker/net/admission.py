"""
Who may have a connection here: so many in all, so many of one peer, and room that strangers never get.

A peer is its principal where it has proved one, else the host it comes from. Known is who has proved who it is, and
whoever comes from a host that a route names by its address, that was reached by dialling, or from which somebody has
proved who it is. When there is no room, a connection that has not said HELLO makes some, a stranger's and the longest
first; else the new one is told why and closed. What this instance dials is counted and never refused.

In all there are never more than the file descriptors allow, those kept for others left out (`broker.net.listener`),
so that no crowd of strangers has accepting paused, which would lock out everybody. Loop-only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from itertools import islice

from broker.errors import HandshakeRefusedError
from broker.forwarding.pool import Pool
from broker.net.link import Link
from broker.net.quotas import Meters, PeerLimits, host_of
from broker.routing.address import NetworkAddress
from broker.routing.table import RouteTable

KNOWN_MAX = 10_000  # hosts that are remembered beside those of routes
ROUTES_MAX = 2000  # of a table, whose addresses are looked at; that takes some 10 ms
TURNED_AWAY_MAX = 64  # refused connections that may hear why; they last a second. The others are closed at once


class Admission:
    """
    Args:
        limits: What peers may take.
        room: Connections that the file descriptors allow.

    Shape: `refused` connections by the limit that refused them; `most` connections in all; `meters` of what the
    admitted bring.
    """

    def __init__(self, limits: PeerLimits, room: int) -> None:
        self.refused: Counter[str] = Counter()
        self.meters = Meters(limits)
        self._bound(limits, room)
        self._count = 0
        self._peers: dict[Link, str] = {}  # who opened each of the admitted
        self._of_peer: Counter[str] = Counter()
        self._waiting: dict[Link, None] = {}  # accepted, and no HELLO yet, the longest first
        self._turned_away: set[Link] = set()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._tables: tuple[RouteTable, ...] = ()
        self._named: frozenset[str] | None = frozenset()  # hosts that routes name; None when nobody has looked yet

    def change(self, limits: PeerLimits, room: int, pool: Pool) -> None:
        """These limits hold from now on; nobody who is connected is closed for them."""
        self._bound(limits, room)
        self.meters.apply(limits, self._peers, pool)

    def _bound(self, limits: PeerLimits, room: int) -> None:
        self._limits = limits
        self.most = min(limits.connections or room, room)
        self._reserved = min(limits.reserved_connections, self.most // 2)

    def is_known(self, host: str) -> bool:
        """Whether a known peer is at this host. Cost: O(1), but for the first time after a change of routes."""
        if host in self._known:
            return True
        if self._named is None:
            self._named = frozenset(_hosts_of(self._tables))
        return host in self._named

    def on_routes(self, tables: Iterable[RouteTable]) -> None:
        """Routes are new, these of all databases."""
        self._tables, self._named = tuple(tables), None

    def enter(self, link: Link, pool: Pool) -> str:
        """Count a connection that was made; why it is refused instead, empty when it is not. May close another one."""
        problem = self._maybe_refuse(link)
        if not problem:
            self.meters.add(link, pool)
        return problem

    def turn_away(self, link: Link, problem: str) -> None:
        """Tell a peer why it is refused, while there are not too many of those; else only close."""
        if len(self._turned_away) > TURNED_AWAY_MAX:
            link.close(problem)
        else:
            link.fail(HandshakeRefusedError(problem))

    def greeted(self, link: Link) -> None:
        """A connection has said HELLO."""
        self._waiting.pop(link, None)
        if link.transport.identity is not None:
            self._know(host_of(link.address))

    def leave(self, link: Link, pool: Pool) -> None:
        """A connection is closed."""
        self.meters.remove(link, pool)
        self._waiting.pop(link, None)
        self._turned_away.discard(link)
        peer = self._peers.pop(link, None)
        if peer is None:
            return
        self._count -= 1
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def _maybe_refuse(self, link: Link) -> str:
        if not link.is_accept:
            self._know(host_of(link.address))
            self._admit(link, "")
            return ""
        peer, most = link.peer_id, self._limits.connections_per_peer
        if most and self._of_peer[peer] >= most:
            return self._refuse(link, "connections_per_peer", f"{peer} has {most} connections here already, the most")
        if self._is_full_for(link) and not self._make_room():
            return self._refuse(link, "connections", "there are as many connections here as there may be; try later")
        self._admit(link, peer)
        self._waiting[link] = None
        return ""

    def _admit(self, link: Link, peer: str) -> None:
        self._count += 1
        self._peers[link] = peer
        self._of_peer[peer] += 1

    def _refuse(self, link: Link, limit: str, problem: str) -> str:
        self.refused[limit] += 1
        self._turned_away.add(link)
        return f"{problem} (limits.{limit})"

    def _make_room(self) -> bool:
        """Close the longest that has not said HELLO; whether there is one."""
        link = next((link for link in self._waiting if not self._is_known_link(link)), None)
        if link is None:
            return False
        self.refused["connections"] += 1
        link.close("it has said no HELLO, and another connection needs its place (limits.connections)")
        return True

    def _is_full_for(self, link: Link) -> bool:
        """Whether there is no room, or none but what is kept for those who are known, and it is not."""
        free = self.most - self._count
        return free <= 0 or (free <= self._reserved and not self._is_known_link(link))

    def _is_known_link(self, link: Link) -> bool:
        return link.transport.identity is not None or self.is_known(host_of(link.address))

    def _know(self, host: str) -> None:
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _hosts_of(tables: Iterable[RouteTable]) -> Iterator[str]:
    """The IP addresses that routes name."""
    for table in tables:
        for route in islice(table, ROUTES_MAX):
            for address in (route.address, route.mirror_address):
                if isinstance(address, NetworkAddress) and _is_ip(address.host):
                    yield address.host


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

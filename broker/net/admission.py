"""
Admission of connections: a limit on all, a limit for each peer, and slots that unknown peers never get.

A peer is identified by the principal that it has proved. A peer that has proved none is identified by its host. Known
are peers that have proved a principal, and hosts that a route names by their IP address, that were reached by dialling,
or from which a principal was proved. When all slots are taken, the oldest connection of an unknown peer without HELLO
is evicted. If there is none, the new connection is closed with the reason. Connections that this instance dials are
counted and never refused.

There are never more connections than the file descriptors allow, apart from the reserve of `broker.net.listener`.
Therefore many unknown peers cannot cause the listener to pause, which would lock out every peer. Loop-only.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from broker.config.settings import LimitSettings
from broker.errors import HandshakeRefusedError
from broker.forwarding.pool import Pool
from broker.net.link import Link
from broker.net.quotas import Meters, host_of
from broker.net.tls import is_ip
from broker.routing.table import RouteTable

KNOWN_MAX = 10_000  # hosts that are remembered along with those of routes
ROUTES_MAX = 2000  # of each table, whose addresses are read; that takes some 10 ms
TURNED_AWAY_MAX = 64  # refused connections that are sent the reason; they last a second. Others are closed at once


class Admission:
    """
    The slots for connections.

    Args:
        limits: The limits for peers.
        descriptors: The number of connections that the file descriptors allow.

    Attributes:
        refused: Numbers of refused connections, by the limit that refused them.
        most: The largest number of connections in all.
        meters: The meters of what the admitted peers send.
    """

    def __init__(self, limits: LimitSettings, descriptors: int) -> None:
        self.refused: Counter[str] = Counter()
        self.meters = Meters(limits)
        self._set_limits(limits, descriptors)
        self._peers: dict[Link, str] = {}  # the admitted, with the peer that opened each; "" for ours
        self._of_peer: Counter[str] = Counter()
        self._without_hello: dict[Link, None] = {}  # accepted, the longest first
        self._turned_away: set[Link] = set()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._tables: tuple[RouteTable, ...] = ()
        self._named: frozenset[str] | None = frozenset()  # IP addresses that routes name; None until asked for

    def apply(self, limits: LimitSettings, descriptors: int, pool: Pool) -> None:
        """Use these limits from now on; no connection is closed for them."""
        self._set_limits(limits, descriptors)
        self.meters.apply(limits, self._peers, pool)

    def _set_limits(self, limits: LimitSettings, descriptors: int) -> None:
        self._limits = limits
        self.most = min(limits.connections or descriptors, descriptors)
        self._reserved = min(limits.reserved_connections, self.most // 2)

    def is_known(self, host: str) -> bool:
        """Whether a known peer is at this host. Cost: O(1), but for the first time after a change of routes."""
        if host in self._known:
            return True
        if self._named is None:
            hosts = {address.host for table in self._tables for address in table.addresses(ROUTES_MAX)}
            self._named = frozenset(filter(is_ip, hosts))
        return host in self._named

    def on_routes(self, tables: Iterable[RouteTable]) -> None:
        """Routes have changed; these are the tables of all databases."""
        self._tables, self._named = tuple(tables), None

    def admit(self, link: Link, pool: Pool) -> str:
        """Count a new connection, or return the reason for its refusal; "" if it is admitted. May close another one."""
        problem = self._maybe_refuse(link)
        if not problem:
            self.meters.add(link, pool)
        return problem

    def turn_away(self, link: Link, problem: str) -> None:
        """Close a refused connection; the peer is sent the reason unless too many refused connections are open."""
        if len(self._turned_away) > TURNED_AWAY_MAX:
            link.close(problem)
        else:
            link.fail(HandshakeRefusedError(problem))

    def on_hello(self, link: Link) -> None:
        """HELLO of a connection is complete."""
        self._without_hello.pop(link, None)
        if link.transport.identity is not None:
            self._remember(host_of(link.address))

    def release(self, link: Link, pool: Pool) -> None:
        """A connection is closed."""
        self.meters.remove(link, pool)
        self._without_hello.pop(link, None)
        self._turned_away.discard(link)
        peer = self._peers.pop(link, None)
        if peer is None:
            return
        self._of_peer[peer] -= 1
        if not self._of_peer[peer]:
            del self._of_peer[peer]

    def _maybe_refuse(self, link: Link) -> str:
        if not link.is_accept:
            self._remember(host_of(link.address))
            self._count(link, "")
            return ""
        peer, most = link.peer_id, self._limits.connections_per_peer
        if most and self._of_peer[peer] >= most:
            return self._refuse(link, "connections_per_peer", f"{peer} has {most} connections here already, the most")
        if self._is_full_for(link) and not self._evict_oldest():
            return self._refuse(link, "connections", "there are as many connections here as there may be; try later")
        self._count(link, peer)
        self._without_hello[link] = None
        return ""

    def _count(self, link: Link, peer: str) -> None:
        self._peers[link] = peer
        self._of_peer[peer] += 1

    def _refuse(self, link: Link, limit: str, problem: str) -> str:
        self.refused[limit] += 1
        self._turned_away.add(link)
        return f"{problem} (limits.{limit})"

    def _evict_oldest(self) -> bool:
        """Close the connection of an unknown peer that has waited longest for HELLO; whether there is one."""
        link = next((link for link in self._without_hello if not self._is_known_link(link)), None)
        if link is None:
            return False
        self.refused["connections"] += 1
        link.close("it has said no HELLO, and another connection needs its place (limits.connections)")
        return True

    def _is_full_for(self, link: Link) -> bool:
        """Whether no slot is free, or none but those reserved for known peers, and it is not one."""
        free = self.most - len(self._peers)
        return free <= 0 or (free <= self._reserved and not self._is_known_link(link))

    def _is_known_link(self, link: Link) -> bool:
        return link.transport.identity is not None or self.is_known(host_of(link.address))

    def _remember(self, host: str) -> None:
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

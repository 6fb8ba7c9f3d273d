"""
Limits of peers on this instance: connections, bytes and messages a second, a part of the forwarding pool, and the
permissions of msdb.

A peer is identified by the principal that it has proved. A peer that has proved none is identified by its host. Known
are peers that have proved a principal, and hosts that a route names by their IP address, that were reached by dialling,
or from which a principal was proved. When all slots for connections are taken, the oldest connection of an unknown peer
without HELLO is evicted. If there is none, the new connection is closed with the reason. Connections that this instance
dials are counted and never refused.

There are never more connections than the file descriptors allow, apart from the reserve of `broker.net.listener`.
Therefore many unknown peers cannot cause the listener to pause, which would lock out every peer.

A peer that sends more than its rate is read less: its connections are paused until the excess is paid off, so nothing
is dropped. All connections of a peer share one meter, which outlives them until a new meter would not allow more.
A peer has a part of the forwarding pool (`PoolQuota`). Near the limit of that part the peer is paused as by
back-pressure; above the limit its frames are dropped.

CONNECT is checked as soon as a peer has proved its identity, whichever side dialled, and a refused peer learns only
that it is refused. SEND is checked while forwarding, by the `Profile` of the link's permit. Loop-only.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from broker.config.settings import LimitSettings
from broker.errors import ConnectDeniedError, HandshakeRefusedError
from broker.forwarding.pool import Pool, PoolQuota, forget_feeders
from broker.net.tls import Identity, is_ip
from broker.ratelimit import TokenBucket
from broker.routing.table import RouteTable
from broker.security.grants import Grants, Permission, Profile
from broker.security.principal import NOBODY, Who

if TYPE_CHECKING:
    from broker.net.link import Link

BURST_SECONDS = 1.0  # worth of its rate that an idle peer may bring at once
SHORT_SECONDS = 0.001  # a pause that would be shorter is left out, and stays owed
KNOWN_MAX = 10_000  # hosts that are remembered along with those of routes
ROUTES_MAX = 2000  # of each table, whose addresses are read; that takes some 10 ms
TURNED_AWAY_MAX = 64  # refused connections that are sent the reason; they last a second. Others are closed at once
NOBODY_CONNECTS = "no peer may connect: "
REFUSALS_MAX = 64  # of frames, that are remembered
REASON_MAX = 4096  # characters of a refusal that a peer is sent; a link body has 16 KiB

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

log = structlog.get_logger(__name__)


class Meter:
    """
    A meter of what one peer sends, on all its connections.

    Attributes:
        pool_quota: The peer's part of the pool, in force where that has a limit.
        free_at: Loop time from which a new meter would not allow more than this one.
    """

    def __init__(self, limits: LimitSettings, pool: Pool, pauses: Counter[str]) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        rates = {"bytes_per_second": limits.bytes_per_second, "messages_per_second": limits.messages_per_second}
        self._buckets = {limit: TokenBucket(rate, rate * BURST_SECONDS, now) for limit, rate in rates.items()}
        self._pauses = pauses
        self._counted: dict[Link, tuple[int, int]] = {}  # bytes and messages that are paid
        self.pool_quota = PoolQuota(pool, limits.pool_share)
        self.free_at = now

    def __len__(self) -> int:
        return len(self._counted)

    def apply(self, limits: LimitSettings) -> None:
        """Use these limits from now on; a debt stays, and is paid at the new rate."""
        for limit, bucket in self._buckets.items():
            bucket.rate = getattr(limits, limit)
            bucket.burst = bucket.rate * BURST_SECONDS
        self.pool_quota.percent = limits.pool_share

    def add(self, link: Link) -> None:
        """Measure one more connection; what it brought before is free."""
        self._counted[link] = (link.bytes_received, link.received.total())

    def remove(self, link: Link) -> None:
        """Remove a connection that is closed, or no longer measured."""
        del self._counted[link]
        now = self._loop.time()
        self.free_at = now + BURST_SECONDS + max(bucket.charge(0, now) for bucket in self._buckets.values())

    def on_read(self, link: Link) -> None:
        """Charge what was read, and pause the connection while its peer is in debt."""
        bytes_before, messages_before = self._counted[link]
        bytes_now, messages_now = self._counted[link] = link.bytes_received, link.received.total()
        now = self._loop.time()
        brought = (bytes_now - bytes_before, messages_now - messages_before)
        seconds, limit = max(
            (bucket.charge(count, now), limit)
            for (limit, bucket), count in zip(self._buckets.items(), brought, strict=True)
        )
        if seconds > SHORT_SECONDS:
            self._pauses[limit] += 1
            link.pause(f"limits.{limit}")
            self._loop.call_later(seconds, link.resume, f"limits.{limit}")


class Meters:
    """
    The meters of all peers; none while nothing is limited.

    Attributes:
        pauses: How often a connection was not read for a while, by the limit.
    """

    def __init__(self, limits: LimitSettings) -> None:
        self.pauses: Counter[str] = Counter()
        self._limits = limits
        self._meters: dict[str, Meter] = {}

    def add(self, link: Link, pool: Pool) -> None:
        """A connection was admitted; what it brings is measured where that is limited."""
        limits = self._limits
        if not (limits.bytes_per_second or limits.messages_per_second or limits.pool_share):
            return
        meter = link.meter = self._meters.get(link.peer_id)
        if meter is None:
            meter = link.meter = self._meters[link.peer_id] = Meter(limits, pool, self.pauses)
        meter.add(link)
        if limits.pool_share:
            pool.quotas[link] = meter.pool_quota

    def apply(self, limits: LimitSettings, links: Iterable[Link], pool: Pool) -> None:
        """Use these limits from now on, for these connections too; what a peer holds of the pool stays its own."""
        self._limits = limits
        for meter in self._meters.values():
            meter.apply(limits)
        for link in links:
            self.remove(link, pool)
            self.add(link, pool)

    def remove(self, link: Link, pool: Pool) -> None:
        """A connection is closed; what its frames take of the pool is still charged to its peer."""
        if link.meter is not None:
            pool.quotas.pop(link, None)
            link.meter.remove(link)
            link.meter = None

    def prune(self, now: float) -> None:
        """Forget peers that have gone, owe nothing and have nothing in the pool."""
        for name, meter in list(self._meters.items()):
            forget_feeders(meter.pool_quota, now)
            if not meter and now >= meter.free_at and not meter.pool_quota.used_bytes:
                del self._meters[name]


# --- connections ---


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
        keep_latest(self._known, host, None, KNOWN_MAX)


# --- permissions ---


@dataclass(frozen=True, slots=True, eq=False)
class Permit:
    """The permissions of one peer: `who` it has proved to be, and the `profile` with its SEND permissions."""

    who: Who
    profile: Profile
    permissions: Permissions

    def why_refused(self, service: str) -> str:
        """Why this peer may not send to a service; remembered among the refusals."""
        why, refusals = self.permissions.grants.send(self.who, service).why[:REASON_MAX], self.permissions.refusals
        refusal = time.monotonic(), f"{self.who.name} may not send: {why}"
        keep_latest(refusals, (self.who.name, service), refusal, REFUSALS_MAX)
        return why


class Permissions:
    """
    The grants of msdb, as links use them.

    Args:
        config_option: Names the configuration in commands, after a blank; empty where there is none.

    Attributes:
        grants: In force.
        refusals: Of frames, by peer and service: instant of the loop, and the reason, for people. The last one is last.
        refused: Connections since the start.
    """

    def __init__(self, config_option: str = "") -> None:
        check = f"broker check{config_option} names the statement"
        self._check = f"{check}, and with a -c for each instance all that are missing"
        self.grants = Grants()
        self.refusals: dict[tuple[str, str], tuple[float, str]] = {}
        self.refused = 0

    @property
    def warning(self) -> str:
        """The warning that no peer may connect, and what to do about it; empty while a peer may."""
        grants = self.grants
        if grants.has_granted(Permission.CONNECT) if grants.is_default_deny else grants.is_for_all(Permission.CONNECT):
            return ""
        if grants.is_default_deny:
            return f"{NOBODY_CONNECTS}no GRANT CONNECT in msdb; {self._check}"
        why = grants.connect(NOBODY).why
        return f"{NOBODY_CONNECTS}{why} in msdb, and without authentication every peer is public"

    def permit_of(self, identity: Identity | None) -> Permit:
        """Return the permit of a peer that has proved this identity."""
        who = NOBODY if identity is None else identity.who
        return Permit(who, self.grants.profile(who), self)

    def refuse(self, permit: Permit) -> ConnectDeniedError | None:
        """Why a peer may not connect, and count it; None when it may."""
        ruling = self.grants.connect(permit.who)
        if ruling.is_permitted:
            return None
        self.refused += 1
        return ConnectDeniedError(permit.who.name, ruling.why[:REASON_MAX])

    def apply(self, grants: Grants) -> bool:
        """Use these grants from now on; returns whether they differ, so that links have to be judged again."""
        if grants == self.grants:
            return False
        self.grants = grants
        if self.warning:
            problem = self.warning.removeprefix(NOBODY_CONNECTS).partition("; ")[0]
            log.warning("nobody may connect", problem=problem, hint=self._check)
        return True


EVERYTHING = Permissions().permit_of(None)  # of a link before its peer was judged


def keep_latest(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Remember something as the latest; above so many, the oldest is forgotten."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


def host_of(address: str) -> str:
    """The host of a socket's end, as `render_endpoint` writes it."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")

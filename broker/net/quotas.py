"""
Quotas of peers on this instance: time, connections, handshakes, bytes and messages a second, a part of the forwarding
pool, and the permissions of msdb.

A peer that sends more than its rate is read less: its connections are paused until the excess is paid off, so nothing
is dropped. All connections of a peer share one meter, which outlives them until a new meter would not allow more.
A peer has a part of the forwarding pool (`PoolQuota`). Near the limit of that part the peer is paused as by
back-pressure; above the limit its frames are dropped.

CONNECT is checked as soon as a peer has proved its identity, whichever side dialled, and a refused peer learns only
that it is refused. SEND is checked while forwarding, by the `Profile` of the link's permit. Loop-only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

import structlog

from broker.config.settings import LimitSettings
from broker.errors import ConnectDeniedError
from broker.forwarding.entry import FrameOrigin
from broker.forwarding.pool import Pool, PoolQuota, forget_feeders
from broker.net.tls import Identity
from broker.ratelimit import TokenBucket
from broker.security.grants import OPEN, Grants, Permission, Profile
from broker.security.principal import NOBODY, Who

BURST_SECONDS = 1.0  # worth of its rate that an idle peer may bring at once
SHORT_SECONDS = 0.001  # a pause that would be shorter is left out, and stays owed
REASON_MAX = 4096  # characters of a refusal that a peer is sent; a link body has 16 KiB

log = structlog.get_logger(__name__)


def are_metered(limits: LimitSettings) -> bool:
    """Whether what one peer brings has to be measured."""
    return bool(limits.bytes_per_second or limits.messages_per_second or limits.pool_share)


class MeteredLink(FrameOrigin, Protocol):
    """A link, as far as its meter goes; see `broker.net.link.Link`."""

    bytes_received: int
    slowed_by: set[str]
    meter: Meter | None

    @property
    def peer_id(self) -> str:
        """The peer of the connection: its proved principal, or its host."""

    def pause(self) -> None:
        """Stop reading."""

    def resume(self) -> None:
        """Read on."""


class Meter:
    """
    A meter of what one peer sends, on all its connections.

    Attributes:
        pool_quota: The peer's part of the pool, None where that has no limit.
        free_at: Loop time from which a new meter would not allow more than this one.
    """

    def __init__(self, limits: LimitSettings, quota: PoolQuota | None, pauses: Counter[str]) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        rates = {"bytes_per_second": limits.bytes_per_second, "messages_per_second": limits.messages_per_second}
        self._buckets = {limit: TokenBucket(rate, rate * BURST_SECONDS, now) for limit, rate in rates.items()}
        self._pauses = pauses
        self._counted: dict[MeteredLink, tuple[int, int]] = {}  # bytes and messages that are paid
        self._paused: dict[MeteredLink, str] = {}
        self.pool_quota = quota
        self.free_at = now

    def __len__(self) -> int:
        return len(self._counted)

    def apply(self, limits: LimitSettings, quota: PoolQuota | None) -> None:
        """Use these limits from now on; a debt stays, and is paid at the new rate."""
        for limit, bucket in self._buckets.items():
            bucket.rate = getattr(limits, limit)
            bucket.burst = bucket.rate * BURST_SECONDS
        self.pool_quota = quota

    def add(self, link: MeteredLink) -> None:
        """Measure one more connection; what it brought before is free."""
        self._counted[link] = (link.bytes_received, link.received.total())

    def remove(self, link: MeteredLink) -> None:
        """Remove a connection that is closed, or no longer measured."""
        del self._counted[link]
        now = self._loop.time()
        self.free_at = now + BURST_SECONDS + max(bucket.charge(0, now) for bucket in self._buckets.values())

    def on_read(self, link: MeteredLink) -> None:
        """Charge what was read, and pause the connection while its peer is in debt."""
        bytes_before, messages_before = self._counted[link]
        bytes_now, messages_now = self._counted[link] = link.bytes_received, link.received.total()
        now = self._loop.time()
        brought = (bytes_now - bytes_before, messages_now - messages_before)
        seconds, limit = max(
            (bucket.charge(count, now), limit)
            for (limit, bucket), count in zip(self._buckets.items(), brought, strict=True)
        )
        if seconds > SHORT_SECONDS and not self._paused.get(link):
            self._pauses[limit] += 1
            self._paused[link] = reason = f"limits.{limit}"
            link.slowed_by.add(reason)
            link.pause()
            self._loop.call_later(seconds, self._resume, link)

    def _resume(self, link: MeteredLink) -> None:
        link.slowed_by.discard(self._paused.pop(link))
        link.resume()


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

    def add(self, link: MeteredLink, pool: Pool) -> None:
        """A connection was admitted."""
        if not are_metered(self._limits):
            return
        meter = link.meter = self._meters.get(link.peer_id)
        if meter is None:
            quota = PoolQuota(pool, self._limits.pool_share) if self._limits.pool_share else None
            meter = link.meter = self._meters[link.peer_id] = Meter(self._limits, quota, self.pauses)
        meter.add(link)
        if meter.pool_quota is not None:
            pool.quotas[link] = meter.pool_quota

    def apply(self, limits: LimitSettings, links: Iterable[MeteredLink], pool: Pool) -> None:
        """Use these limits from now on, for these connections too; what a peer holds of the pool stays its own."""
        before, self._limits = self._limits, limits
        if are_metered(before) != are_metered(limits):
            for link in list(links):
                (self.add if are_metered(limits) else self.remove)(link, pool)
        for meter in self._meters.values():
            quota = meter.pool_quota
            if quota is None and limits.pool_share:
                quota = PoolQuota(pool, limits.pool_share)
            elif quota is not None:
                quota.percent = limits.pool_share
            meter.apply(limits, quota if limits.pool_share else None)
        for link in links:
            quota = None if link.meter is None else link.meter.pool_quota
            if quota is None:
                pool.quotas.pop(link, None)
            else:
                pool.quotas[link] = quota

    def remove(self, link: MeteredLink, pool: Pool) -> None:
        """A connection is closed; what its frames take of the pool is still charged to its peer."""
        if link.meter is not None:
            pool.quotas.pop(link, None)
            link.meter.remove(link)
            link.meter = None

    def prune(self, now: float) -> None:
        """Forget peers that have gone, owe nothing and have nothing in the pool."""
        for name, meter in list(self._meters.items()):
            if meter.pool_quota is not None:
                forget_feeders(meter.pool_quota, now)
            if not meter and now >= meter.free_at and (meter.pool_quota is None or not meter.pool_quota.used_bytes):
                del self._meters[name]


# --- permissions ---


class Permit:
    """The permissions of one peer: `who` it has proved to be, and the `profile` with its SEND permissions."""

    __slots__ = ("_permissions", "profile", "who")

    def __init__(self, who: Who, profile: Profile, permissions: Permissions | None = None) -> None:
        self.who = who
        self.profile = profile
        self._permissions = permissions

    def why_refused(self, service: str) -> str:
        """Why this peer may not send to a service; remembered as the last refusal."""
        if self._permissions is None:
            return ""
        why = self._permissions.grants.send(self.who, service).why[:REASON_MAX]
        self._permissions.last_refusal = f"{self.who.name} may not send: {why}"
        return why


EVERYTHING = Permit(NOBODY, OPEN)  # of a link before its peer was judged


class Permissions:
    """
    The grants of msdb, as links use them.

    Args:
        config_option: Names the configuration in commands, after a blank; empty where there is none.

    Attributes:
        grants: In force.
        last_refusal: Of a frame, for people; empty while there was none.
        refused: Connections since the start.
    """

    def __init__(self, config_option: str = "") -> None:
        self._check = f"broker check{config_option} names the statement"
        self.grants = Grants()
        self.last_refusal = ""
        self.refused = 0

    @property
    def warning(self) -> str:
        """The warning that no peer may connect, and what to do about it; empty while a peer may."""
        if self.grants.is_open(Permission.CONNECT) or self.grants.has_granted(Permission.CONNECT):
            return ""
        return f"no peer may connect: no GRANT CONNECT in msdb; {self._check}"

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
            log.warning("nobody may connect", problem="no GRANT CONNECT in msdb", hint=self._check)
        return True


def host_of(address: str) -> str:
    """The host of a socket's end, as `render_endpoint` writes it."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")

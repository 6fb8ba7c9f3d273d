"""What peers may take of an instance: time, connections, handshakes, messages a second, and its forward pool."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

from broker.config.settings import HANDSHAKES
from broker.errors import ConnectDeniedError
from broker.forwarding.pool import Payer, Pool, forget_feeders
from broker.security.grants import OPEN, Grants, Permission, Profile
from broker.security.principal import NOBODY, Who

if TYPE_CHECKING:
    from broker.net.link import Link
    from broker.net.tls import Identity


class Timeouts(NamedTuple):
    """
    Shape: seconds for HELLO to be complete, for a connection to come about, and for which a link that finds no room for
    what it brings is not read at most.
    """

    handshake: float
    connect: float
    backpressure: float = 0.25


class PeerLimits(NamedTuple):
    """
    The bounds; 0 stands for none.

    Shape: `connections` in all, of which `reserved_connections` are for known peers; `connections_per_peer` that it
    opened; `handshakes` of TLS at one time, 1 or more; `bytes_per_second` and `messages_per_second` that are read from
    one peer; `pool_share` percent of the forward pool that frames of one peer may take.
    """

    connections: int = 0
    connections_per_peer: int = 0
    reserved_connections: int = 0
    handshakes: int = HANDSHAKES
    bytes_per_second: int = 0
    messages_per_second: int = 0
    pool_share: int = 0

    @property
    def are_paced(self) -> bool:
        """Whether it matters how much one peer brings."""
        return bool(self.bytes_per_second or self.messages_per_second or self.pool_share)


NO_LIMITS = PeerLimits()


# --- principal ---
# Whose connection it is.


def peer_of(link: Link) -> str:
    """Whose connection it is: the principal that it has proved, else its host."""
    identity = link.transport.identity
    return host_of(link.address) if identity is None else identity.principal_name


def host_of(address: str) -> str:
    """The host of a socket's end, as `render_endpoint` writes it."""
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


# --- meter ---
# How much one peer brings: bytes and messages a second, and what of the forward pool its frames take.
#
# A peer that brings more than it may is read less: its connections are paused until what it brought has been paid
# for,
# so nothing is dropped. A peer that was idle may bring as much as a second allows at once. All connections of a peer
# have one meter, which outlives them until a new one would allow no more. Of the forward pool a peer has its part
# (`Payer`): near its end it is paused as by back-pressure, above it its frames are dropped as those are that find no
# room. Loop-only.
#
# Source: the token bucket of RFC 2697, with a debt instead of a refusal.


BURST_SECONDS = 1.0  # worth of what a peer may bring at once
SHORT_SECONDS = 0.001  # a pause that would be shorter is left out, and stays owed


@dataclass(slots=True)
class _Bucket:
    """Tokens of one kind. Shape: `rate` a second, 0 for no limit; `tokens` below 0 are owed; `at` loop time."""

    limit: str
    rate: int
    tokens: float
    at: float

    def take(self, count: int, now: float) -> float:
        """Pay for so much; the seconds until it is paid."""
        if not self.rate:
            return 0.0
        self.tokens = min(self.rate * BURST_SECONDS, self.tokens + (now - self.at) * self.rate) - count
        self.at = now
        return max(0.0, -self.tokens / self.rate)


class Meter:
    """
    One peer's.

    Shape: `payer` its part of the pool, None where it has no limit; `free_at` from when on a new one allows no more.
    """

    def __init__(self, limits: PeerLimits, payer: Payer | None, pauses: Counter[str]) -> None:
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        rates = {"bytes_per_second": limits.bytes_per_second, "messages_per_second": limits.messages_per_second}
        self._buckets = [_Bucket(name, rate, rate * BURST_SECONDS, now) for name, rate in rates.items()]
        self._pauses = pauses
        self._seen: dict[Link, tuple[int, int]] = {}
        self._paused: dict[Link, str] = {}
        self.payer = payer
        self.free_at = now

    def __len__(self) -> int:
        return len(self._seen)

    def change(self, limits: PeerLimits, payer: Payer | None) -> None:
        """These limits hold from now on; what was owed by a rate is owed by the new one."""
        for bucket in self._buckets:
            bucket.rate = getattr(limits, bucket.limit)
        self.payer = payer

    def enter(self, link: Link) -> None:
        """One more connection of this peer; what it brought before is not counted."""
        self._seen[link] = (link.bytes_received, link.received.total())

    def leave(self, link: Link) -> None:
        """A connection is closed."""
        del self._seen[link]
        now = self._loop.time()
        self.free_at = now + BURST_SECONDS + max(bucket.take(0, now) for bucket in self._buckets)

    def spend(self, link: Link) -> None:
        """A connection was read."""
        bytes_before, messages_before = self._seen[link]
        bytes_now, messages_now = self._seen[link] = link.bytes_received, link.received.total()
        now = self._loop.time()
        brought = (bytes_now - bytes_before, messages_now - messages_before)
        waits = [(bucket.take(count, now), bucket.limit) for bucket, count in zip(self._buckets, brought, strict=True)]
        seconds, limit = max(waits)
        reason = f"limits.{limit}"
        if seconds > SHORT_SECONDS and not self._paused.get(link):
            self._pauses[limit] += 1
            self._paused[link] = reason
            link.slowed_by.add(reason)
            link.pause()
            self._loop.call_later(seconds, self._resume, link)

    def _resume(self, link: Link) -> None:
        link.slowed_by.discard(self._paused.pop(link))
        link.resume()


class Meters:
    """
    The meters of all peers; none where nothing is limited.

    Shape: `pauses` how often a connection was not read for a while, by the limit.
    """

    def __init__(self, limits: PeerLimits) -> None:
        self.pauses: Counter[str] = Counter()
        self._limits = limits
        self._meters: dict[str, Meter] = {}
        self._names: dict[Link, str] = {}

    def enter(self, link: Link, pool: Pool) -> None:
        """A connection was made."""
        if not self._limits.are_paced:
            return
        name = self._names[link] = peer_of(link)
        meter = self._meters.get(name)
        if meter is None:
            payer = Payer(pool, self._limits.pool_share) if self._limits.pool_share else None
            meter = self._meters[name] = Meter(self._limits, payer, self.pauses)
        meter.enter(link)
        link.meter = meter
        if meter.payer is not None:
            pool.payers[link] = meter.payer

    def change(self, limits: PeerLimits, links: Iterable[Link], pool: Pool) -> None:
        """These limits hold from now on, for all connections there are; what a peer holds of the pool stays its own."""
        before, self._limits = self._limits, limits
        if before.are_paced != limits.are_paced:
            for link in list(links):
                (self.enter if limits.are_paced else self.leave)(link, pool)
        for meter in self._meters.values():
            payer = meter.payer
            if payer is None and limits.pool_share:
                payer = Payer(pool, limits.pool_share)
            elif payer is not None:
                payer.percent = limits.pool_share
            meter.change(limits, payer if limits.pool_share else None)
        for link, name in self._names.items():
            payer = self._meters[name].payer
            if payer is None:
                pool.payers.pop(link, None)
            else:
                pool.payers[link] = payer

    def leave(self, link: Link, pool: Pool) -> None:
        """A connection is closed; what its frames take of the pool is still that of its peer."""
        name = self._names.pop(link, None)
        if name is None:
            return
        pool.payers.pop(link, None)
        link.meter = None
        self._meters[name].leave(link)

    def look(self, now: float) -> None:
        """Now and then: of a peer that has gone, owes nothing and has nothing in the pool, nothing is kept."""
        for name, meter in list(self._meters.items()):
            if meter.payer is not None:
                forget_feeders(meter.payer, now)
            if not meter and now >= meter.free_at and (meter.payer is None or not meter.payer.used_bytes):
                del self._meters[name]


# --- permissions ---
# Who of our neighbours may connect, and send to which service: the grants of msdb, asked for links.
#
# CONNECT is asked as soon as a peer has proved who it is, whoever has dialled, and a peer that may not is told only
# that.
# One that shows our own certificate is asked when it has said HELLO: it may be this very instance, dialled by an
# address
# of its own. SEND is asked by the pass; what a link may send is its profile. When grants change, links whose peers
# may
# not connect any more are closed, and the others get the profile that holds now. Loop-only.


log = structlog.get_logger(__name__)

REASON_MAX = 4096  # characters of what a peer is told; a link body has 16 KiB


class Permit:
    """
    What one peer may do.

    Shape: `who` it has proved to be; `profile` of what it may send.
    """

    __slots__ = ("_owner", "profile", "who")

    def __init__(self, who: Who, profile: Profile, owner: Permissions | None = None) -> None:
        self.who = who
        self.profile = profile
        self._owner = owner

    def why_not(self, service: str) -> str:
        """Why this peer may not send to a service; it is remembered as the last refusal."""
        if self._owner is None:
            return ""
        why = self._owner.grants.send(self.who, service).why[:REASON_MAX]
        self._owner.last_refusal = f"{self.who.name} may not send: {why}"
        return why


EVERYTHING = Permit(NOBODY, OPEN)  # of links that nobody asks about


class Permissions:
    """
    Shape: `grants` those of msdb; `last_refusal` of a frame, for people, empty while there was none; `refused`
    connections since the start.
    """

    def __init__(self) -> None:
        self.grants = Grants()
        self.last_refusal = ""
        self.refused = 0

    @property
    def warning(self) -> str:
        """That nobody may connect, and what to do; empty while somebody may."""
        if self.grants.is_open(Permission.CONNECT) or self.grants.has_granted(Permission.CONNECT):
            return ""
        return "nobody may connect: no GRANT CONNECT in msdb; see broker check"

    def admit(self, link: Link) -> ConnectDeniedError | None:
        """Give a link its permit; why its peer may not connect, if it may not."""
        who = _who_at(link)
        link.permit = Permit(who, self.grants.profile(who), self)
        return self._maybe_refuse(who)

    def admit_first(self, link: Link, own: Identity | None) -> ConnectDeniedError | None:
        """The same, before HELLO; of a peer with our own certificate it is asked again when it has said HELLO."""
        refused = self.admit(link)
        identity = link.transport.identity
        if own is not None and identity is not None and identity.fingerprint == own.fingerprint:
            return None
        return refused

    def change(self, grants: Grants, links: Iterable[Link]) -> None:
        """These hold from now on."""
        if grants == self.grants:
            return
        self.grants = grants
        if self.warning:
            log.warning(
                "nobody may connect", problem="no GRANT CONNECT in msdb", hint="broker check names the statement"
            )
        for link in list(links):
            refused = self.admit(link)
            if refused is not None:
                link.fail(refused)

    def _maybe_refuse(self, who: Who) -> ConnectDeniedError | None:
        ruling = self.grants.connect(who)
        if ruling.is_permitted:
            return None
        self.refused += 1
        return ConnectDeniedError(who.name, ruling.why[:REASON_MAX])


def _who_at(link: Link) -> Who:
    identity = link.transport.identity
    return NOBODY if identity is None else identity.who

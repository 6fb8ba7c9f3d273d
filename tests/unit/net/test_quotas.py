"""What peers may take: what stands for no limit."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.config.settings import LimitSettings
from broker.errors import ConnectDeniedError
from broker.flow import Disposition
from broker.forwarding.pool import HELD_OVERHEAD
from broker.net.link import Link
from broker.net.quotas import EVERYTHING, REASON_MAX, Admission, Permissions
from broker.net.tls import Identity
from broker.protocol.frame import encode_dialog
from broker.security.grants import OPEN, Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import NOBODY, Who, parse_principal
from tests.support.peers import NORTH, PLAIN, Neighbourhood, sent
from tests.support.played import PlayedLoop, PlayedSocket

# --- meter ---


RATE = 100_000


class Source:
    """Neighbours that send, and a next hop that takes everything or nothing."""

    def __init__(self, near: Neighbourhood) -> None:
        self.near = near
        self.number = 0

    def limit(self, **limits: int) -> None:
        self.near.peers.admission = Admission(LimitSettings(**limits), 1000)
        self.hop = self.near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)

    def come(self, host: str = "10.1.0.1") -> tuple[PlayedSocket, Link]:
        sock: Any = PlayedSocket(self.near.loop)
        self.near.peers.accept(sock, f"tcp://{host}:40000")
        self.near.greet(sock, arbitration=bytes([10 + len(self.near.links)]) * 16)
        return sock, self.near.links[-1]

    def frames(self, count: int, size: int = 1000) -> bytes:
        self.number += count
        header = replace(PLAIN, to_service=f"{NORTH}/x")
        numbers = range(self.number - count, self.number)
        return b"".join(encode_dialog(replace(header, sequence_number=number), bytes(size)) for number in numbers)


@pytest.fixture
def source(near: Neighbourhood) -> Source:
    return Source(near)


async def test_peer_that_brings_more_than_it_may_is_not_read_until_it_has_paid(source: Source) -> None:
    source.limit(bytes_per_second=RATE)
    sock, link = source.come()

    sock.feed(source.frames(150))

    assert (True, {"limits.bytes_per_second"}) == (link.is_paused, link.slowed_by)
    owed = (link.bytes_received - RATE) / RATE
    await asyncio.sleep(owed - 0.01)
    assert link.is_paused
    await asyncio.sleep(0.02)
    assert (False, set()) == (link.is_paused, link.slowed_by)
    assert {"bytes_per_second": 1} == dict(source.near.peers.admission.meters.pauses)


async def test_nothing_is_lost_by_it_and_the_rate_is_kept(source: Source, loop: PlayedLoop) -> None:
    source.limit(bytes_per_second=RATE)
    sock, link = source.come()
    data = source.frames(1000)

    sock.feed(data, piece=20_000)
    while link.bytes_received < len(data):
        await asyncio.sleep(0.01)
        sock.read()

    assert len(data) == len(sent(source.hop))
    assert (len(data) - RATE) / RATE - 0.5 <= loop.time() <= len(data) / RATE
    assert 0 == source.near.forwarder.unaccounted


async def test_small_messages_are_counted_as_well(source: Source) -> None:
    source.limit(messages_per_second=100)
    sock, link = source.come()

    sock.feed(source.frames(100, size=1))
    assert not link.is_paused
    sock.feed(source.frames(50, size=1))

    assert (True, {"limits.messages_per_second"}) == (link.is_paused, link.slowed_by)
    await asyncio.sleep(0.55)
    assert not link.is_paused


async def test_all_connections_of_a_peer_share_what_it_may_bring_and_others_do_not(source: Source) -> None:
    source.limit(bytes_per_second=RATE)
    hosts = ("10.1.0.1", "10.1.0.1", "10.1.0.2")
    (one, first), (other, second), (foreign, third) = (source.come(host) for host in hosts)

    one.feed(source.frames(80))
    assert not first.is_paused
    other.feed(source.frames(80))
    foreign.feed(source.frames(80))

    assert (False, True, False) == (first.is_paused, second.is_paused, third.is_paused)


async def test_peer_that_comes_again_still_owes_and_is_forgotten_when_it_owes_nothing(source: Source) -> None:
    source.limit(bytes_per_second=RATE, pool_share=50)
    sock, link = source.come()
    sock.feed(source.frames(250))
    link.close("the test")

    again, link = source.come()
    again.feed(source.frames(1))
    assert link.is_paused
    link.close("the test")
    meters = source.near.peers.admission.meters
    assert "10.1.0.1" in meters._meters
    await asyncio.sleep(5.0)

    assert {"10.9.9.9"} == set(meters._meters)
    assert {source.near.links[0]} == set(source.near.forwarder.pool.quotas)


# --- the forward pool ---


@pytest.fixture
async def full(source: Source) -> Source:
    """A next hop that takes nothing, and a peer that may have a quarter of the pool: room for ten frames."""
    source.limit(pool_share=25)
    pool, cost = source.near.forwarder.pool, len(source.frames(1)) + HELD_OVERHEAD
    pool.limit_bytes, pool.share_percent, pool.read_cost = 40 * cost, 100, cost
    source.hop.room = 0
    return source


async def test_frames_of_one_peer_take_their_part_of_the_pool_and_not_more(full: Source) -> None:
    pool = full.near.forwarder.pool
    full.near.peers.backpressure._seconds = 0.0
    sock, link = full.come()

    sock.feed(full.frames(20))

    quota = pool.quotas[link]
    assert pool.used_bytes == quota.used_bytes <= quota.limit_bytes
    assert {Disposition.POOL_LIMIT: 10} == dict(full.near.forwarder.dropped)
    assert (10, 10) == (pool.over_quota, link.frames_rejected)


async def test_peer_near_its_part_is_paused_before_anything_is_dropped(full: Source) -> None:
    sock, link = full.come()

    for _ in range(30):
        sock.feed(full.frames(1))

    assert (True, {"limits.pool_share"}) == (link.is_paused, link.slowed_by)
    assert {} == dict(full.near.forwarder.dropped)
    full.hop.breathe()
    await asyncio.sleep(0.1)
    for _ in range(100):
        sock.read()
    assert (30, set()) == (link.received.total(), link.slowed_by)
    assert (0, 0) == (full.near.forwarder.pool.used_bytes, full.near.forwarder.unaccounted)


async def test_what_is_held_is_its_peers_until_it_has_left(full: Source) -> None:
    full.near.peers.backpressure._seconds = 0.0
    sock, link = full.come()
    sock.feed(full.frames(10))
    quota = full.near.forwarder.pool.quotas[link]
    link.close("the test")
    again, link = full.come()

    again.feed(full.frames(1))
    assert quota is full.near.forwarder.pool.quotas[link]
    assert 1 == link.frames_rejected
    full.hop.breathe()

    assert 0 == quota.used_bytes


async def test_limits_that_come_later_or_go_hold_for_who_is_connected(source: Source) -> None:
    """Nothing of before is charged, and nobody stays paused."""
    source.limit()
    sock, link = source.come()
    sock.feed(source.frames(150))
    admission, pool = source.near.peers.admission, source.near.forwarder.pool

    admission.apply(LimitSettings(bytes_per_second=RATE, pool_share=20), 1000, pool)
    assert not link.is_paused
    sock.feed(source.frames(150))
    assert (True, True) == (link.is_paused, link in pool.quotas)
    admission.apply(LimitSettings(), 1000, pool)
    await asyncio.sleep(1.0)
    sock.feed(source.frames(300))

    assert (False, None, {}) == (link.is_paused, link.meter, pool.quotas)


# --- permissions ---


ORDERS = Who("CN=orders", "orders", (), "0a" * 32)


def identity(who: Who = ORDERS) -> Identity:
    now = datetime.now(UTC)
    return Identity("shown", who.fingerprint, (), now, now, who=who)


def grants(*names: str, permission: Permission = Permission.CONNECT) -> Grants:
    rules = [PermissionRule(permission, "*", parse_principal(name), PermissionState.GRANT) for name in names]
    return Grants(rules, is_default_deny=True, endpoint="gw")


@pytest.fixture
def permissions() -> Permissions:
    return Permissions(" -c x.toml")


def test_nothing_is_asked_before_there_are_grants(permissions: Permissions) -> None:
    permit = permissions.permit_of(None)

    assert (None, NOBODY, OPEN) == (permissions.refuse(permit), permit.who, permit.profile)
    assert "" == EVERYTHING.why_refused("//a")


def test_refusal_names_who_and_the_missing_statement(permissions: Permissions) -> None:
    assert permissions.apply(grants("billing"))

    refused = permissions.refuse(permissions.permit_of(identity()))

    missing = "no GRANT CONNECT ON ENDPOINT::[gw] TO [CN=orders] or public"
    assert ConnectDeniedError("CN=orders", missing) == refused
    assert (1, False) == (permissions.refused, permissions.apply(grants("billing")))


def test_reason_of_a_refused_frame_has_a_bound(permissions: Permissions) -> None:
    permissions.apply(grants("orders"))
    permit = permissions.permit_of(identity())

    assert (None, False) == (permissions.refuse(permit), permit.profile.is_open)
    assert REASON_MAX == len(permit.why_refused("s" * 2 * REASON_MAX))


def test_endpoint_that_lets_nobody_in_is_worth_a_warning(permissions: Permissions) -> None:
    warnings = [permissions.warning]
    for known in (grants(), grants("orders"), Grants(is_default_deny=False)):
        permissions.grants = known
        warnings.append(permissions.warning)

    told = "no peer may connect: no GRANT CONNECT in msdb; broker check -c x.toml names the statement"
    assert ["", told, "", ""] == warnings

"""What peers may take: connections and the room that strangers never get, rates, a part of the pool, permissions."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.config.settings import LimitSettings
from broker.errors import ConnectDeniedError
from broker.flow import Disposition
from broker.forwarding.pool import HELD_OVERHEAD
from broker.net.handshake import Opening
from broker.net.link import Link, LinkState
from broker.net.quotas import REASON_MAX, TURNED_AWAY_MAX, Admission, Permissions
from broker.net.tls import Identity
from broker.net.transport import PlainTransport
from broker.protocol.frame import Fatal, encode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.route import Route
from broker.routing.table import build_table
from broker.security.grants import OPEN, Grants, Permission, PermissionRule, PermissionState
from broker.security.principal import NOBODY, Who, parse_principal
from tests.support.peers import NORTH, PLAIN, Neighbourhood, said, sent
from tests.support.played import PlayedLoop, PlayedSocket

# --- connections ---

NOW = datetime.now(UTC)
LIMITS = LimitSettings(connections=6, reserved_connections=2)


class Door:
    """Peers with limits; whoever comes is `come`."""

    def __init__(self, near: Neighbourhood) -> None:
        self.near = near

    def limit(self, limits: LimitSettings = LIMITS) -> Admission:
        self.near.peers.admission = Admission(limits, 1000)
        return self.near.peers.admission

    def come(self, *hosts: str, is_greeting: bool = True) -> list[PlayedSocket]:
        socks = [PlayedSocket(self.near.loop) for _ in hosts]
        for host, sock in zip(hosts, socks, strict=True):
            self.near.socks.append(sock)
            self.near.peers.accept(sock, f"tcp://{host}:40000")  # type: ignore[arg-type]
            if is_greeting and not sock.is_closed:
                self.near.greet(sock, arbitration=bytes([len(self.near.socks)]) * 16)
        return socks

    @property
    def hosts(self) -> list[str]:
        """Of those that are here, in the order in which they came."""
        here = (link for link in self.near.links if link.state is not LinkState.LINGERING)
        return [link.address.removeprefix("tcp://").removesuffix(":40000") for link in here]


@pytest.fixture
def door(near: Neighbourhood) -> Door:
    return Door(near)


STRANGERS = [f"10.1.0.{number}" for number in range(5)]


def fatal(sock: PlayedSocket) -> Fatal:
    [found] = [one for one in said(sock) if isinstance(one, Fatal)]
    return found


async def test_stranger_never_gets_the_room_of_those_who_are_known(door: Door) -> None:
    admission = door.limit()

    socks = door.come(*STRANGERS)

    assert STRANGERS[:4] == door.hosts
    assert (28034, True) == (fatal(socks[4]).code, "(limits.connections)" in fatal(socks[4]).text)
    assert {"connections": 1} == dict(admission.refused)
    assert {"HandshakeRefusedError": 1} == dict(door.near.peers.protocol_errors)


async def test_host_that_a_route_names_finds_room_when_strangers_do_not(door: Door) -> None:
    """As the address or the mirror address; a name is not looked up."""
    name, mirror = NetworkAddress("name.example"), NetworkAddress("10.9.9.9")
    admission = door.limit()
    admission.on_routes([build_table([Route("m", name, remote_service_name="//m", mirror_address=mirror)], now=NOW)])
    door.come(*STRANGERS)

    door.come("10.9.9.9", "10.9.9.9", "10.9.9.9")

    assert ["10.9.9.9", "10.9.9.9"] == door.hosts[4:]
    assert not admission.is_known("name.example")


async def test_host_that_was_reached_by_dialling_is_known(door: Door) -> None:
    admission = door.limit()
    door.near.reachable.add(NORTH)
    door.near.send(NORTH)
    await asyncio.sleep(0)
    door.near.greet(door.near.socks[-1])

    assert (True, False) == (admission.is_known(NORTH.host), admission.is_known("10.0.0.7"))


async def test_who_has_proved_who_it_is_finds_room_and_makes_its_host_known(door: Door) -> None:
    admission = door.limit()
    door.come(*STRANGERS[:4])

    sock: Any = PlayedSocket(door.near.loop)
    transport = PlainTransport(sock)
    transport.identity = Identity("CN=orders", "ab", (), NOW, NOW)
    door.near.peers._open_link(Opening(transport, "tcp://10.3.0.1:1", 0.0), None)
    door.near.greet(sock, arbitration=b"x" * 16)

    assert (5, True) == (len(door.hosts), admission.is_known("10.3.0.1"))


async def test_who_has_said_no_hello_makes_room_the_longest_first(door: Door) -> None:
    admission = door.limit()
    for number, host in enumerate(STRANGERS[:4]):
        door.come(host, is_greeting=number % 2 == 0)

    door.come("10.2.0.1", "10.2.0.2", "10.2.0.3")

    assert ["10.1.0.0", "10.1.0.2", "10.2.0.1", "10.2.0.2"] == door.hosts
    assert {"connections": 3} == dict(admission.refused)


async def test_peer_has_so_many_connections_and_no_more(door: Door) -> None:
    admission = door.limit(LimitSettings(connections_per_peer=2))

    socks = door.come("10.1.0.1", "10.1.0.1", "10.1.0.1", "10.1.0.2")

    assert ["10.1.0.1", "10.1.0.1", "10.1.0.2"] == door.hosts
    assert "10.1.0.1 has 2 connections here already" in fatal(socks[2]).text
    assert {"connections_per_peer": 1} == dict(admission.refused)
    socks[0].end()
    door.come("10.1.0.1", "10.1.0.1")
    assert ["10.1.0.1", "10.1.0.2", "10.1.0.1"] == door.hosts


async def test_crowd_that_is_refused_is_not_told_one_by_one(door: Door) -> None:
    door.limit(LIMITS.replace(connections=2, reserved_connections=1))
    door.come("10.1.0.0")

    socks = door.come(*(f"10.2.0.{number}" for number in range(TURNED_AWAY_MAX + 10)), is_greeting=False)

    assert TURNED_AWAY_MAX == sum(not sock.is_closed for sock in socks)
    assert TURNED_AWAY_MAX + 1 == len(door.near.links)
    await asyncio.sleep(2.0)
    [late] = door.come("10.2.0.99", is_greeting=False)
    assert not late.is_closed


async def test_no_more_hosts_are_remembered_than_may_be(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.quotas.KNOWN_MAX", 2)
    admission = door.limit()

    for number in (0, 1, 0, 2):
        admission._remember(STRANGERS[number])

    assert [True, False, True] == [admission.is_known(host) for host in STRANGERS[:3]]


# --- meter ---


RATE = 100_000


class Source(Door):
    """Neighbours that send, and a next hop that takes everything or nothing."""

    number = 0

    def bound(self, **limits: int) -> None:
        self.limit(LimitSettings(**limits))
        self.hop = self.near.accept(addresses=[str(NORTH)], arbitration=b"1" * 16)

    def one(self, host: str = "10.1.0.1") -> tuple[PlayedSocket, Link]:
        [sock] = self.come(host)
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
    source.bound(bytes_per_second=RATE)
    sock, link = source.one()

    sock.feed(source.frames(150))

    assert (True, {"limits.bytes_per_second": 1}) == (link.is_paused, link.slowed_by)
    owed = (link.bytes_received - RATE) / RATE
    await asyncio.sleep(owed - 0.01)
    assert link.is_paused
    await asyncio.sleep(0.02)
    assert (False, {}) == (link.is_paused, link.slowed_by)
    assert {"bytes_per_second": 1} == dict(source.near.peers.admission.meters.pauses)


async def test_nothing_is_lost_by_it_and_the_rate_is_kept(source: Source, loop: PlayedLoop) -> None:
    source.bound(bytes_per_second=RATE)
    sock, link = source.one()
    data = source.frames(1000)

    sock.feed(data, piece=20_000)
    while link.bytes_received < len(data):
        await asyncio.sleep(0.01)
        sock.read()

    assert len(data) == len(sent(source.hop))
    assert (len(data) - RATE) / RATE - 0.5 <= loop.time() <= len(data) / RATE
    assert 0 == source.near.forwarder.unaccounted


async def test_small_messages_are_counted_as_well(source: Source) -> None:
    source.bound(messages_per_second=100)
    sock, link = source.one()

    sock.feed(source.frames(100, size=1))
    assert not link.is_paused
    sock.feed(source.frames(50, size=1))

    assert (True, {"limits.messages_per_second": 1}) == (link.is_paused, link.slowed_by)
    await asyncio.sleep(0.55)
    assert not link.is_paused


async def test_all_connections_of_a_peer_share_what_it_may_bring_and_others_do_not(source: Source) -> None:
    source.bound(bytes_per_second=RATE)
    hosts = ("10.1.0.1", "10.1.0.1", "10.1.0.2")
    (one, first), (other, second), (foreign, third) = (source.one(host) for host in hosts)

    one.feed(source.frames(80))
    assert not first.is_paused
    other.feed(source.frames(80))
    foreign.feed(source.frames(80))

    assert (False, True, False) == (first.is_paused, second.is_paused, third.is_paused)


async def test_peer_that_comes_again_still_owes_and_is_forgotten_when_it_owes_nothing(source: Source) -> None:
    source.bound(bytes_per_second=RATE, pool_share=50)
    sock, link = source.one()
    sock.feed(source.frames(250))
    link.close("the test")
    await asyncio.sleep(1.1)

    again, link = source.one()
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
    source.bound(pool_share=25)
    pool, cost = source.near.forwarder.pool, len(source.frames(1)) + HELD_OVERHEAD
    pool.limit_bytes, pool.share_percent, pool.read_cost = 40 * cost, 100, cost
    source.hop.room = 0
    return source


async def test_frames_of_one_peer_take_their_part_of_the_pool_and_not_more(full: Source) -> None:
    pool = full.near.forwarder.pool
    full.near.peers.backpressure._seconds = 0.0
    sock, link = full.one()

    sock.feed(full.frames(20))

    quota = pool.quotas[link]
    assert pool.used_bytes == quota.used_bytes <= quota.limit_bytes
    assert {Disposition.POOL_LIMIT: 10} == dict(full.near.forwarder.dropped)
    assert (10, 10) == (pool.over_quota, link.frames_rejected)


async def test_peer_near_its_part_is_paused_before_anything_is_dropped(full: Source) -> None:
    sock, link = full.one()

    for _ in range(30):
        sock.feed(full.frames(1))

    assert (True, {"limits.pool_share": 1}) == (link.is_paused, link.slowed_by)
    assert {} == dict(full.near.forwarder.dropped)
    full.hop.breathe()
    await asyncio.sleep(0.1)
    for _ in range(100):
        sock.read()
    assert (30, {}) == (link.received.total(), link.slowed_by)
    assert (0, 0) == (full.near.forwarder.pool.used_bytes, full.near.forwarder.unaccounted)


async def test_what_is_held_is_its_peers_until_it_has_left(full: Source) -> None:
    full.near.peers.backpressure._seconds = 0.0
    sock, link = full.one()
    sock.feed(full.frames(10))
    quota = full.near.forwarder.pool.quotas[link]
    link.close("the test")
    again, link = full.one()

    again.feed(full.frames(1))
    assert quota is full.near.forwarder.pool.quotas[link]
    assert 1 == link.frames_rejected
    full.hop.breathe()

    assert 0 == quota.used_bytes


async def test_limits_that_come_later_or_go_hold_for_who_is_connected(source: Source) -> None:
    """Nothing of before is charged, and nobody stays paused."""
    source.bound()
    sock, link = source.one()
    sock.feed(source.frames(150))
    admission, pool = source.near.peers.admission, source.near.forwarder.pool

    admission.apply(LimitSettings(bytes_per_second=RATE, pool_share=20), 1000, pool)
    assert not link.is_paused
    sock.feed(source.frames(150))
    assert (True, True) == (link.is_paused, link in pool.quotas)
    admission.apply(LimitSettings(bytes_per_second=RATE, pool_share=30), 1000, pool)
    assert 30 == pool.quotas[link].percent
    admission.apply(LimitSettings(), 1000, pool)
    await asyncio.sleep(1.0)
    sock.feed(source.frames(300))

    assert (False, None, {}) == (link.is_paused, link.meter, pool.quotas)


# --- permissions ---


ORDERS = Who("CN=orders", "orders", (), "0a" * 32)


def identity(who: Who = ORDERS) -> Identity:
    return Identity("shown", who.fingerprint, (), NOW, NOW, who=who)


def grants(*names: str, permission: Permission = Permission.CONNECT) -> Grants:
    rules = [PermissionRule(permission, "*", parse_principal(name), PermissionState.GRANT) for name in names]
    return Grants(rules, is_default_deny=True, endpoint="gw")


@pytest.fixture
def permissions() -> Permissions:
    return Permissions(" -c x.toml")


def test_nothing_is_asked_before_there_are_grants(permissions: Permissions) -> None:
    permit = permissions.permit_of(None)

    assert (None, NOBODY, OPEN) == (permissions.refuse(permit), permit.who, permit.profile)


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
    for known in (grants(), grants("orders"), Grants(), Grants(grants("orders").rules)):
        permissions.grants = known
        warnings.append(permissions.warning)

    told = "no peer may connect: no GRANT CONNECT in msdb; broker check -c x.toml names the statement,"
    told += " and with a -c for each instance all that are missing"
    to_public = "no peer may connect: no GRANT CONNECT ON ENDPOINT::[Broker] TO [public] in msdb, and without"
    to_public += " authentication every peer is public"
    assert ["", told, "", "", to_public] == warnings

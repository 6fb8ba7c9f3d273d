"""Who may have a connection: in all, of one peer, and the room that strangers never get."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from broker.config.settings import LimitSettings
from broker.net.handshake import Opening
from broker.net.link import LinkState
from broker.net.quotas import TURNED_AWAY_MAX, Admission
from broker.net.tls import Identity
from broker.net.transport import PlainTransport
from broker.protocol.frame import Fatal
from broker.routing.address import NetworkAddress
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.peers import NORTH, Neighbourhood, said
from tests.support.played import PlayedSocket

NOW = datetime.now(UTC)
ORDERS = Identity("CN=orders", "ab", (), NOW, NOW)
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
    transport.identity = ORDERS
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


async def test_crowd_that_is_refused_is_not_told_one_by_one(door: Door) -> None:
    door.limit(LIMITS.replace(connections=2, reserved_connections=1))
    door.come("10.1.0.0")

    socks = door.come(*(f"10.2.0.{number}" for number in range(TURNED_AWAY_MAX + 10)), is_greeting=False)

    assert TURNED_AWAY_MAX == sum(not sock.is_closed for sock in socks)
    assert TURNED_AWAY_MAX + 1 == len(door.near.links)


async def test_no_more_hosts_are_remembered_than_may_be(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.quotas.KNOWN_MAX", 2)
    admission = door.limit()

    for host in STRANGERS[:3]:
        admission._remember(host)

    assert [False, True, True] == [admission.is_known(host) for host in STRANGERS[:3]]

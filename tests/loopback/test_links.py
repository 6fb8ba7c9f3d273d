"""Links between instances on real sockets: HELLO, forwarding, arbitration, reuse, drain and stop."""

from __future__ import annotations

import asyncio
import socket

import pytest

from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from tests.support.loopback import instance, message, numbers, raw, until

pytestmark = pytest.mark.usefixtures("guard")

LOWER, HIGHER = b"\x01" * 16, b"\xfe" * 16


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_frames_cross_an_instance_in_order_and_whole() -> None:
    async with (
        instance(pool_bytes=1 << 24) as near,
        instance(service="//far") as far,
        raw(near.address, name="raw") as peer,
    ):
        near.route(far=far.address)
        frames = [message("//far", n, b"x" * (n * 37 % 4000)) for n in range(2000)]

        await peer.say(*frames)
        await until(lambda: len(far.delivered) == len(frames))

        assert list(range(2000)) == numbers(far.delivered)
        assert {2} == {decode_dialog(frame)[0].hop_count for frame in far.delivered}
        assert [frame[16:] for frame in frames] == [frame[16:] for frame in far.delivered]
        assert (2000, 2000) == (near.forwarder.forwarded, far.forwarder.delivered)


@pytest.mark.parametrize("is_lower", [True, False])
async def test_both_sides_dial_at_once_and_one_link_stays(*, is_lower: bool) -> None:
    async with (
        instance(service="//a", arbitration=LOWER if is_lower else HIGHER, is_announcing=False) as a,
        instance(service="//b", arbitration=HIGHER if is_lower else LOWER, is_announcing=False) as b,
        raw(a.address, name="raw", addresses=[]) as to_a,
        raw(b.address, name="raw", addresses=[]) as to_b,
    ):
        a.route(b=b.address)
        b.route(a=a.address)
        await until(lambda: a.states() == b.states() == ["LOGGED_IN"])

        for number in range(50):
            await asyncio.gather(
                to_a.say(message("//b", number, b"x" * 2000)), to_b.say(message("//a", number, b"x" * 2000))
            )

        await until(lambda: len(a.delivered) == len(b.delivered) == 50)
        assert sorted(numbers(a.delivered)) == sorted(numbers(b.delivered)) == list(range(50))
        await until(lambda: a.states() == b.states() == ["LOGGED_IN"] * 2)
        between = [link for link in a.peers.links.values() if link.peer_name == ""]
        assert [not is_lower] == [link.is_accept for link in between]


@pytest.mark.promise("A next hop is back, and nothing flows")
async def test_address_that_refuses_is_reached_once_somebody_listens() -> None:
    port = free_port()
    async with instance() as near, raw(near.address, name="raw") as peer:
        gone = NetworkAddress("127.0.0.1", port)
        near.route(far=gone)
        await peer.say(message("//far", 7))
        await until(lambda: near.peers.table.histories.get(gone) and near.peers.table.histories[gone].failures >= 2)
        assert (AddressHealth.SUPPRESSED, "Connection refused") == (
            near.peers.table.health_of(gone),
            near.peers.table.problem_of(gone),
        )

        async with instance(service="//far", port=port) as far:
            await until(lambda: far.delivered)

            assert [7] == numbers(far.delivered)
            assert decode_dialog(far.delivered[0])[0].time_consumed >= 100
            assert near.peers.table.histories[gone].failures == 0


@pytest.mark.promise("A next hop is back, and nothing flows")
async def test_address_that_nobody_needs_is_reached_again() -> None:
    """What is told of it is what is: after a restart of the peer without any traffic as well."""
    port = free_port()
    async with instance() as near:
        gone = NetworkAddress("127.0.0.1", port)
        near.route(far=gone)
        near.peers.dialer.on_routes([near.forwarder.routing_context.table])
        near.peers.request_link(gone)
        await until(lambda: near.peers.table.histories[gone].failures >= 2)

        async with instance(service="//far", port=port):
            await until(lambda: near.peers.table.health_of(gone) is AddressHealth.CONNECTED)

            assert ("", 0) == (near.peers.table.problem_of(gone), near.peers.table.histories[gone].failures)

"""Links between instances on real sockets: HELLO, forwarding, arbitration, reuse, drain and stop."""

from __future__ import annotations

import asyncio
import socket

import pytest

from broker.flow import Disposition
from broker.net.dialer import BACKOFF_CAP
from broker.routing.address import NetworkAddress
from broker.routing.choose import Health
from broker.wire.frame import GoAway, Hello, Ping, Pong, decode_dialog
from tests.support.loopback import HERE, instance, message, numbers, raw, until

pytestmark = pytest.mark.usefixtures("guard")

LOWER, HIGHER = b"\x01" * 16, b"\xfe" * 16


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def test_each_side_says_hello_at_once() -> None:
    async with instance() as one, raw(one.address) as peer:
        hello = await peer.hear(Hello)
        assert (one.peers.hello, ["CONNECTED"]) == (hello, one.states())

        await peer.greet(name="raw")
        await peer.say(Ping(b"12345678"))

        assert Pong(b"12345678") == await peer.hear(Pong)
        assert ["raw"] == [link.peer_name for link in one.peers.links.values()]


async def test_frames_cross_two_instances_in_order_and_whole() -> None:
    async with instance() as near, instance() as far, raw(near.address, name="raw") as peer:
        near.route(far=far.address)
        frames = [
            message("//here", n, b"x" * (n * 37 % 4000), to_broker_instance=HERE).replace(b"//here", b"//far_")
            for n in range(2000)
        ]
        near.route(far_=far.address)
        far.route()
        far.forwarder.surround(
            table=far.forwarder.here.table, hosted=_hosted("//far_"), is_forwarding=False
        )

        await peer.say(*frames)
        await until(lambda: len(far.delivered) == len(frames))

        assert list(range(2000)) == numbers(far.delivered)
        assert {2} == {decode_dialog(frame)[0].hop_count for frame in far.delivered}
        assert [frame[114:] for frame in frames] == [frame[114:] for frame in far.delivered]
        assert (2000, 2000) == (near.forwarder.forwarded, far.forwarder.delivered)

"""Addresses that nobody answers at, on real sockets, until somebody does."""

from __future__ import annotations

import pytest

from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from examples.demo.topology import free_port
from tests.support.loopback import instance, message, numbers, raw, until

pytestmark = pytest.mark.usefixtures("guard")

LOWER, HIGHER = b"\x01" * 16, b"\xfe" * 16


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

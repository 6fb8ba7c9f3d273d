"""Peers on real sockets that stall or vanish, or do not answer yet: what becomes of their links, and of all others."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from broker.protocol.frame import Hello, Ping, Pong, decode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth
from examples.demo.topology import free_port
from tests.support.loopback import Instance, instance, message, numbers, raw, until

pytestmark = pytest.mark.usefixtures("guard")


@asynccontextmanager
async def served(near: Instance) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A good neighbour, and a check that it is served: what it asks is answered, what it sends arrives."""
    async with raw(near.address, name="good") as good:
        count = 0

        async def check() -> None:
            nonlocal count
            count += 1
            before = len(near.delivered)
            await good.say(message("//here", count), Ping(count.to_bytes(8, "big")))
            while await good.hear(Pong) != Pong(count.to_bytes(8, "big")):
                pass
            await until(lambda: len(near.delivered) > before)

        await check()
        yield check


async def test_peers_that_reset_in_the_middle_of_every_part_of_a_frame_leave_nothing_behind() -> None:
    frame = message("//here", 1)
    async with instance() as near, served(near) as check:
        delivered = len(near.delivered)
        for cut in range(0, len(frame), 7):
            async with raw(near.address, name="resetting") as peer:
                await peer.hear(Hello)
                await peer.say(frame[:cut])
                peer.reset()
        await until(lambda: near.states() == ["LOGGED_IN"])
        await check()

        assert (delivered + 1, 0) == (len(near.delivered), near.forwarder.unfinished.kept_bytes)


async def test_strangers_that_park_unfinished_frames_do_not_shut_out_who_finishes_them() -> None:
    parked = message("//here", 1, bytes(60_000))[:59_000]
    async with instance() as near, AsyncExitStack() as stack:
        near.forwarder.unfinished._max_bytes = 20 * len(parked)
        for _ in range(20):
            stranger = await stack.enter_async_context(raw(near.address, name="parked"))
            await stranger.say(parked)
        await until(lambda: near.forwarder.unfinished.kept_bytes == 20 * len(parked))
        sender = await stack.enter_async_context(raw(near.address, name="sender"))
        frame = message("//here", 2, bytes(60_000))

        for count in range(1, 6):
            await sender.say(frame[:59_500])
            await until(lambda: any(link.kept_bytes == 59_500 for link in near.peers.links.values()))
            await sender.say(frame[59_500:])
            await until(lambda count=count: len(near.delivered) == count)  # type: ignore[misc]

        assert 19 == len(near.peers.links)  # two of those that parked had to go


async def test_peer_that_vanishes_while_it_is_written_to_loses_nothing_untold() -> None:
    async with (
        instance(pool_bytes=1 << 22) as near,
        raw(near.address, is_reading_little=True, addresses=["tcp://127.0.0.1:1"]) as stuck,
        raw(near.address, name="sender") as sender,
    ):
        await stuck.hear(Hello)
        await until(lambda: near.peers.table.known_addresses)
        (address,) = near.peers.table.known_addresses
        near.route(stuck=address)
        while not near.forwarder.pool.frames:
            await sender.say(message("//stuck", near.forwarder.received.total(), b"x" * 20_000))

        stuck.reset()
        await until(lambda: near.states() == ["LOGGED_IN"])

        assert near.forwarder.unaccounted == 0
        assert near.forwarder.table.outboxes[address].outlet is None


# --- addresses that nobody answers at, until somebody does ---


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

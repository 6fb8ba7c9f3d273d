"""Peers that break the rules, stall, stammer or vanish: their link ends, and everybody else is served on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from broker.flow import Disposition
from broker.forwarding.pool import HELD_OVERHEAD, READ_BYTES
from broker.net.link import LinkState
from broker.protocol.frame import Fatal, Hello, Ping, Pong, Probe, encode_link
from tests.support.loopback import Instance, instance, message, numbers, raw, until

pytestmark = pytest.mark.usefixtures("guard")

HTTP = b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n"
TLS = bytes.fromhex("1603010200010001fc0303") + bytes(501)
HELLO = encode_link(Hello(name="raw"))


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


@pytest.mark.parametrize(
    "data",
    [HTTP, TLS, b"\x00" * 8, b"\xff" * 100, message("//here"), encode_link(Ping(b"12345678")), HELLO * 2],
    ids=["http", "tls", "zeros", "ones", "dialog frame", "ping", "two hellos"],
)
async def test_stranger_is_told_and_closed_while_others_are_served(data: bytes) -> None:
    async with instance() as near, served(near) as check, raw(near.address) as stranger:
        await stranger.say(data)

        fatal = await stranger.hear(Fatal)
        await check()
        await stranger.end()

        assert fatal.text
        assert 1 == near.peers.protocol_errors.total()


async def test_random_bytes_never_disturb_anybody() -> None:
    async with instance() as near, served(near) as check, AsyncExitStack() as stack:
        for size in range(1, 200, 7):
            stranger = await stack.enter_async_context(raw(near.address))
            await stranger.say(*([HELLO] if size % 2 else []), os.urandom(size))

        await check()

        assert near.forwarder.unaccounted == 0


@pytest.mark.parametrize("cut", [1, 4, 5, 8, 100, 129])
async def test_half_a_frame_is_waited_for(cut: int) -> None:
    frame = message("//here", 5)
    async with instance() as near, served(near) as check, raw(near.address, name="slow") as peer:
        await peer.say(frame[:cut])
        await check()
        before = len(near.delivered)

        await peer.say(frame[cut:])
        await until(lambda: len(near.delivered) > before)

        assert 5 == numbers(near.delivered)[-1]


async def test_frames_cut_at_every_boundary_arrive() -> None:
    ping = Ping(b"12345678")
    data = message("//here", 1) + encode_link(ping) + message("//here", 2) + encode_link(ping)
    async with instance() as near, raw(near.address, name="good") as good, raw(near.address, name="cutting") as peer:
        for cut in range(1, len(data)):
            await peer.say(data[:cut])
            await good.say(ping)
            await good.hear(Pong)  # so the first part was read by itself
            await peer.say(data[cut:])
            await peer.hear(Pong)
            await peer.hear(Pong)

        assert [1, 2] * (len(data) - 1) == numbers(near.delivered)


@pytest.mark.parametrize("size", [READ_BYTES - 1, READ_BYTES, READ_BYTES + 1, 2 * READ_BYTES])
async def test_bursts_of_exactly_what_one_read_takes_arrive(size: int) -> None:
    one = message("//here", 0, b"x" * 1000)
    rest = message("//here", 0, b"x" * (len(one) + size % len(one) - len(message("//here", 0, b""))))
    async with instance() as near, raw(near.address, name="exact") as peer:
        data = one * (size // len(one) - 1) + rest
        assert size == len(data)

        await peer.say(data)
        await until(lambda: len(near.delivered) == size // len(one))

        assert data == b"".join(frame[:6] + b"\0" + frame[7:] for frame in near.delivered)


async def test_frame_of_exactly_the_largest_size_arrives_and_one_byte_more_ends_the_link() -> None:
    largest = message("//here", 1, b"x" * (65536 - len(message("//here", 1, b""))))
    too_large = message("//here", 2, b"x" * (65537 - len(message("//here", 2, b""))))
    async with instance() as near, served(near) as check, raw(near.address, name="large") as peer:
        await peer.say(largest)
        await until(lambda: largest[8:] in [frame[8:] for frame in near.delivered])

        await peer.say(too_large)
        await peer.hear(Fatal)
        await check()

        assert {"FrameTooLargeError": 1} == near.peers.protocol_errors


async def test_frames_in_one_byte_pieces_arrive() -> None:
    data = HELLO + message("//here", 1) + encode_link(Ping(b"12345678")) + message("//here", 2)
    async with instance() as near, raw(near.address) as peer:
        for at in range(len(data)):
            await peer.say(data[at : at + 1])
            await asyncio.sleep(0)

        assert Pong(b"12345678") == await peer.hear(Pong)
        await until(lambda: len(near.delivered) == 2)
        assert [1, 2] == numbers(near.delivered)


async def test_frame_that_never_ends_takes_no_more_than_a_frame() -> None:
    frame = message("//here", 1, b"x" * 60_000)
    async with instance() as near, served(near) as check, raw(near.address, name="endless") as peer:
        for at in range(0, len(frame) - 1, 1000):
            await peer.say(frame[at : min(at + 1000, len(frame) - 1)])
        await check()

        (kept,) = [link.kept_bytes for link in near.peers.links.values() if link.peer_name == "endless"]

        assert kept == len(frame) - 1


async def test_silence_before_hello_is_closed_in_time() -> None:
    async with instance(handshake=0.2) as near, served(near) as check:
        async with raw(near.address) as silent, raw(near.address) as halting:
            await halting.say(HELLO[:20])

            for peer in (silent, halting):
                assert "no HELLO within 0.2 s" in (await peer.hear(Fatal)).text
                await peer.end()
        await check()

        assert {"HandshakeRefusedError": 2} == near.peers.protocol_errors


async def test_peer_that_falls_silent_is_closed_and_one_that_answers_is_not() -> None:
    async with (
        instance(heartbeat_ms=100) as near,
        raw(near.address, heartbeat_ms=100) as silent,
        raw(near.address, name="alive", heartbeat_ms=100) as alive,
    ):
        begin = asyncio.get_running_loop().time()
        fatal = asyncio.ensure_future(silent.hear(Fatal))
        while not fatal.done() or asyncio.get_running_loop().time() < begin + 1.0:
            ping = await alive.hear(Ping)
            await alive.say(Pong(ping.payload))

        assert "nothing received from the peer" in (await fatal).text
        await silent.end()
        assert ["alive"] == [link.peer_name for link in near.peers.links.values() if link.can_send]


async def test_peer_that_never_reads_fills_the_pool_and_not_the_memory() -> None:
    limit = 256 * 1024
    async with (
        instance(pool_bytes=limit) as near,
        served(near) as check,
        raw(near.address, is_reading_little=True, addresses=["tcp://10.0.0.1"]) as stuck,
        raw(near.address, name="sender") as sender,
    ):
        await stuck.hear(Hello)
        await until(lambda: near.peers.table.known_addresses)
        (address,) = near.peers.table.known_addresses
        near.route(stuck=address)
        number = 0

        while not near.forwarder.dropped[Disposition.POOL_LIMIT]:
            number += 1
            await sender.say(message("//stuck", number, b"x" * 20_000))
            assert near.forwarder.pool.used_bytes <= limit
        await check()
        held = near.forwarder.pool.frames

        assert 0 < held <= limit // (20_000 + HELD_OVERHEAD)
        await until(lambda: near.forwarder.received.total() >= number)
        left = near.forwarder.forwarded - near.forwarder.delivered
        arrived = numbers(await stuck.dialog_frames(left + held))
        assert list(range(1, len(arrived) + 1)) == arrived


async def test_peer_that_vanishes_in_the_middle_of_a_frame_is_forgotten() -> None:
    async with instance() as near, served(near) as check:
        async with raw(near.address, addresses=["tcp://10.0.0.1"]) as peer:
            await peer.say(message("//here", 1), message("//here", 2)[:60])
            await until(lambda: len(near.delivered) == 2)

            peer.reset()
            await until(lambda: near.states() == ["LOGGED_IN"])
        await check()

        assert set() == near.peers.table.known_addresses


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


@pytest.mark.parametrize("data", [b"\0\0\0", HELLO, HELLO + message("//here", 1, bytes(5000))[:3000]])
async def test_peers_that_reset_right_behind_what_they_said_leave_nothing_behind(data: bytes) -> None:
    async with instance() as near, served(near) as check:
        for _ in range(20):
            async with raw(near.address) as peer:
                await peer.hear(Hello)
                peer.reset_behind(data)
        await until(lambda: near.states() == ["LOGGED_IN"])
        await check()

        assert near.forwarder.unfinished.kept_bytes == 0


async def test_peers_that_reset_behind_more_than_one_read_brings_leave_nothing_behind() -> None:
    async with instance() as near, served(near) as check:
        async with raw(near.address, name="resetting") as peer:
            await peer.hear(Hello)
            (link,) = [link for link in near.peers.links.values() if link.peer_name == "resetting"]
            link.pause()
            await peer.say(message("//here", 1, bytes(60_000)) * 6)
            peer.reset()
            link.resume()
        await until(lambda: near.states() == ["LOGGED_IN"])
        await check()


async def test_link_that_can_be_neither_read_nor_written_harms_nobody_when_it_is_its_turn() -> None:
    async with instance(heartbeat_ms=100) as near, served(near) as check:
        async with raw(near.address, heartbeat_ms=100) as peer:
            await peer.hear(Hello)
            (link,) = [link for link in near.peers.links.values() if link.peer_name == ""]
            peer.reset_behind(message("//here", 1)[:60])
            await until(lambda: link.kept_bytes == 60 or link.state is LinkState.CLOSED)

            link.tick(link.connection.last_sent + 0.1)  # its heartbeat, which nobody takes

        await until(lambda: near.states() == ["LOGGED_IN"])
        await check()


async def test_bug_of_one_link_ends_that_link_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with instance(heartbeat_ms=200) as near, served(near) as check, raw(near.address, name="cursed") as peer:
        await until(lambda: near.states() == ["LOGGED_IN"] * 2)
        (link,) = [link for link in near.peers.links.values() if link.peer_name == "cursed"]

        def fail(_now: float) -> None:
            raise AssertionError("a bug")

        monkeypatch.setattr(link, "tick", fail)
        await peer.end()
        await check()

        assert ["LOGGED_IN"] == near.states()
        assert "a bug of this program: AssertionError: a bug" == link.reason


async def test_probes_of_a_peer_that_never_reads_are_answered_within_a_bound() -> None:
    async with instance() as near, raw(near.address, name="flood", is_reading_little=True) as peer:
        await until(lambda: near.states() == ["LOGGED_IN"])
        (link,) = near.peers.links.values()
        probe = encode_link(Probe(id=1))
        while not link.is_blocked:
            await peer.say(probe * 1000)
        for _ in range(20):
            await peer.say(probe * 1000)
        await until(lambda: link.bytes_received >= 20 * 1000 * len(probe))

        assert len(link._control) <= 65 * 1024


async def test_frame_that_is_not_complete_in_time_ends_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.link.FRAME_SECONDS", 0.3)
    frame = message("//here", 1, bytes(3000))
    async with (
        instance(heartbeat_ms=200) as near,
        served(near) as check,
        raw(near.address, name="trickling", heartbeat_ms=60_000) as peer,
    ):
        at = 0

        async def trickle() -> None:
            nonlocal at
            while True:
                await peer.say(frame[at : at + 1])
                at += 1
                await asyncio.sleep(0.05)

        trickling = asyncio.ensure_future(trickle())
        fatal = await peer.hear(Fatal)
        trickling.cancel()
        await asyncio.gather(trickling, return_exceptions=True)
        await check()

        assert "not complete within" in fatal.text
        assert {"FrameMalformedError": 1} == near.peers.protocol_errors


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


async def test_peers_that_end_in_a_crowd_are_all_gone_soon() -> None:
    async with instance() as near, served(near) as check, AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(raw(near.address, name="crowd")) for _ in range(150)]
        await until(lambda: near.states() == ["LOGGED_IN"] * 151)

        for number, peer in enumerate(crowd):
            if number % 3 == 0:
                peer.reset()
            elif number % 3 == 1:
                peer.reset_behind(message("//here")[:50])
            else:
                peer.close()
        await until(lambda: near.states() == ["LOGGED_IN"])
        await check()


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


async def test_flood_of_connections_does_not_keep_others_waiting() -> None:
    async with instance() as near, served(near) as check, AsyncExitStack() as stack:
        strangers = await asyncio.gather(*(stack.enter_async_context(raw(near.address)) for _ in range(200)))

        await check()
        for stranger in strangers:
            stranger.reset()
        await until(lambda: near.states() == ["LOGGED_IN"])
        await check()


async def test_flood_of_pings_by_a_peer_that_never_reads_is_bounded() -> None:
    async with (
        instance() as near,
        served(near) as check,
        raw(near.address, name="flood", is_reading_little=True) as peer,
    ):
        await until(lambda: near.states() == ["LOGGED_IN"] * 2)
        (link,) = [link for link in near.peers.links.values() if link.peer_name == "flood"]
        ping = encode_link(Ping(b"12345678"))
        while len(link._control) <= 32 * 1024:
            await peer.say(ping * 4000)
        for _ in range(20):
            await peer.say(ping * 4000)
        await check()

        assert len(link._control) <= 65 * 1024

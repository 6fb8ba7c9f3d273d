"""What time does to links, and how an instance stops: told, drained within a bound, and nothing left."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from broker.flow import Disposition
from broker.net import dialer as module
from broker.net.link import LINGER_SECONDS
from broker.protocol.frame import GoAway, Ping, encode_link
from broker.routing.address import NetworkAddress
from tests.support.peers import NORTH, OWN, SOUTH, Neighbourhood, said, sent
from tests.support.played import PlayedLoop, PlayedSocket

GOAWAY = GoAway(reason="upgrade", deadline_ms=5000)


@pytest.fixture
async def near(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> Neighbourhood:
    near = Neighbourhood(loop, monkeypatch)
    near.start()
    return near


def _is_ticking(near: Neighbourhood) -> bool:
    ticking = near.peers._ticks
    return ticking is not None and ticking.is_running


async def stop(near: Neighbourhood, seconds: float = 5.0) -> float:
    """Stop; virtual seconds that it took."""
    begin = near.loop.time()
    await near.peers.close(reason="upgrade", seconds=seconds)
    assert (False, {}, {}, []) == (_is_ticking(near), near.loop.readers, near.loop.writers, near.links)
    assert all(sock.is_closed for sock in near.socks)
    assert (0, 0) == (near.forwarder.pool.used_bytes, near.forwarder.unaccounted)
    return near.loop.time() - begin


# --- time ---


async def test_idle_link_is_kept_alive_and_a_silent_peer_is_not(near: Neighbourhood) -> None:
    alive, silent = near.accept(), near.accept(arbitration=b"q" * 16)

    for _ in range(20):
        await asyncio.sleep(5)
        alive.feed(encode_link(Ping(b"12345678")))

    assert (False, True) == (alive.is_closed, silent.is_closed)
    assert 2 <= sum(isinstance(frame, Ping) for frame in said(silent)) <= 4
    assert near.peers.protocol_errors == {"PeerSilentError": 1}


async def test_heartbeat_shorter_than_a_tick_is_kept(loop: PlayedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    near = Neighbourhood(loop, monkeypatch, heartbeat_ms=200)
    near.start()
    sock = near.accept()

    await asyncio.sleep(3)

    assert sum(isinstance(frame, Ping) for frame in said(sock)) >= 3 / 0.3 - 1


async def test_our_own_standstill_is_not_taken_for_the_peers_silence(near: Neighbourhood, loop: PlayedLoop) -> None:
    sock = near.accept()
    await asyncio.sleep(0.5)

    loop._advance(60)
    await asyncio.sleep(0.6)
    sock.feed(encode_link(Ping(b"12345678")))
    await asyncio.sleep(5)

    assert not sock.is_closed


async def test_held_frames_expire_without_anybody_asking(near: Neighbourhood) -> None:
    near.send(NORTH, time_to_live=1500)

    await asyncio.sleep(3)

    assert ({Disposition.EXPIRED_HERE: 1}, 0) == (near.forwarder.dropped, near.forwarder.pool.frames)


async def test_addresses_remembered_have_a_bound(near: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.peer_table.HISTORIES_MAX", 5)
    monkeypatch.setattr("broker.net.peer_table.SPREAD", 0.0)
    near.reachable.add(SOUTH)
    near.send(SOUTH)
    await asyncio.sleep(0)
    near.greet(near.socks[0])
    for number in range(20):
        near.send(NetworkAddress(f"10.1.0.{number}"), time_to_live=100)

    await asyncio.sleep(10)

    assert {SOUTH} == set(near.peers.table.histories)


async def test_link_that_takes_more_is_given_what_is_held_and_dialogs_are_told(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH), str(SOUTH)])
    sock.room = 10
    frames = near.send(NORTH, 1), near.send(NORTH, 2)
    rooms = near.rooms

    sock.breathe(len(frames[0]))
    assert rooms == near.rooms
    sock.breathe()

    assert (b"".join(frames), rooms + 1) == (sent(sock), near.rooms)


async def test_link_that_takes_more_serves_only_what_is_its_own(near: Neighbourhood) -> None:
    first = near.accept(addresses=[str(NORTH)])
    second = near.accept(addresses=[str(NORTH)], arbitration=b"q" * 16)
    second.room = 0
    near.links[1].send_control(encode_link(GOAWAY))
    first.room = 0
    near.send(NORTH)

    second.breathe()

    assert (b"", 1) == (sent(second), near.forwarder.pool.frames)


# --- the end ---


async def test_peers_are_told_and_close_and_so_do_we(near: Neighbourhood) -> None:
    sock = near.accept()
    stranger = near.accept(is_greeting=False)

    closing = asyncio.ensure_future(stop(near))
    await asyncio.sleep(0.1)
    assert ([OWN, GOAWAY], [OWN], True) == (said(sock), said(stranger), sock.shut)
    sock.end()

    assert await closing < 0.2


async def test_what_is_held_for_a_link_leaves_before_the_end(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH)])
    sock.room = 0
    frame = near.send(NORTH)

    closing = asyncio.ensure_future(stop(near))
    await asyncio.sleep(2)
    assert not sock.shut
    sock.breathe()
    await asyncio.sleep(0.1)
    assert (frame, True) == (sent(sock), sock.shut)
    sock.end()

    assert await closing < 2.5
    assert near.forwarder.dropped == {}


async def test_peer_that_never_takes_what_is_held_is_waited_for_so_long(near: Neighbourhood) -> None:
    sock = near.accept(addresses=[str(NORTH)])
    sock.room = 0
    near.send(NORTH)

    seconds = await stop(near)

    assert 5.0 <= seconds <= 5.0 + LINGER_SECONDS + 0.1
    assert near.forwarder.dropped == {Disposition.SHUTDOWN: 1}


async def test_frames_that_nobody_can_take_are_not_waited_for(near: Neighbourhood) -> None:
    near.send(NORTH)
    await asyncio.sleep(0)

    assert await stop(near) < 0.1
    assert near.forwarder.dropped == {Disposition.SHUTDOWN: 1}


async def test_peer_that_never_closes_is_waited_for_a_moment(near: Neighbourhood) -> None:
    near.accept()

    assert LINGER_SECONDS <= await stop(near) <= LINGER_SECONDS + 0.1


async def test_no_time_to_stop_closes_at_once(near: Neighbourhood) -> None:
    near.accept()

    assert await stop(near, seconds=0) < 0.01


async def test_link_that_lingers_is_closed_too(near: Neighbourhood) -> None:
    near.accept().feed(b"\xff" * 8)

    assert 1 == len(near.links)
    await stop(near)


async def test_nobody_is_accepted_or_dialled_any_more(near: Neighbourhood, loop: PlayedLoop) -> None:
    await stop(near)
    sock = PlayedSocket(loop)

    near.peers.accept(sock, "tcp://10.9.9.9:40001")  # type: ignore[arg-type]
    near.peers.request_link(NORTH)
    await asyncio.sleep(1)

    assert (True, [], False) == (sock.is_closed, near.dialled, _is_ticking(near))


async def test_attempt_under_way_is_given_up(near: Neighbourhood, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(_address: NetworkAddress, *, timeout: float) -> None:  # noqa: ASYNC109
        await asyncio.Event().wait()

    monkeypatch.setattr(module, "connect", hang)
    near.send(NORTH)
    await asyncio.sleep(0.1)

    assert await stop(near) < 0.1


async def test_bug_in_a_task_is_logged_and_the_address_dialled_again(
    near: Neighbourhood, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_address: NetworkAddress, *, timeout: float) -> None:  # noqa: ASYNC109
        raise AssertionError("a bug")

    monkeypatch.setattr(module, "connect", broken)

    with capture_logs() as logs:
        near.send(NORTH)
        await asyncio.sleep(0.1)

    assert ["dial tcp://10.0.0.1:4022"] == [entry["task"] for entry in logs if entry["event"] == "task failed"]
    attempts = near.peers.table.histories[NORTH]
    assert ("a fault of this program, which the log tells", True) == (attempts.problem, attempts.is_dialling)

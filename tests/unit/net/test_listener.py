"""A listener hands on who connects, one a turn, and outlives a shortage; a port that cannot be had is told."""

import asyncio
import errno
import os
import resource
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from broker.config.values import ListenAddress
from broker.errors import ListenFailedError
from broker.net.listener import (
    OWN,
    RESERVED,
    RESERVED_SHARE,
    SHORTAGE_PAUSE,
    Listener,
    are_short,
    bind,
    is_reserved,
    own_addresses,
    raise_limit,
    room_for_connections,
)
from tests.support.played import PlayedLoop, PlayedSocket

# --- descriptors ---


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limit_to(soft: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_limit_becomes_what_the_system_allows() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit_to(hard - 1)

    assert hard == raise_limit() == raise_limit()
    assert (hard, hard) == resource.getrlimit(resource.RLIMIT_NOFILE)


def test_shortage_is_seen_before_anything_fails() -> None:
    limit_to(4096)
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        assert not are_short(opened[0])
        limit_to(max(512, 2 * opened[0]))
        while not is_reserved(opened[-1]):
            assert not are_short(opened[0]) or is_reserved(opened[-1] + 1)
            opened.append(os.dup(opened[0]))
        assert are_short(opened[0])
    finally:
        for descriptor in opened:
            os.close(descriptor)

    limit_to(4096)
    assert not are_short(0)


def test_where_there_is_no_limit_nothing_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    assert not is_reserved(1 << 30)


@pytest.mark.parametrize(
    ("limit", "besides", "expected"),
    [(4096, 256, 4096 - RESERVED - OWN - 256), (200, 20, 200 - 2 * (200 // RESERVED_SHARE) - 20), (400, 1000, 1)],
)
def test_connections_have_what_is_not_in_reserve(limit: int, besides: int, expected: int) -> None:
    limit_to(limit)

    assert expected == room_for_connections(besides)


class Guest(str):
    """Whoever was accepted; as a socket it has a descriptor."""

    __slots__ = ()

    def fileno(self) -> int:
        return 9


class Port(PlayedSocket):
    """A played listening socket. Shape: `waiting` who connects next, or an errno that accepting fails with."""

    def __init__(self, loop: PlayedLoop) -> None:
        super().__init__(loop)
        self.waiting: deque[str | int] = deque()

    def getsockname(self) -> tuple[str, int, int, int]:
        return ("::1", 4022, 0, 0)

    def fileno(self) -> int:
        return -1 if self.is_closed else 1  # one that is open, whatever it is

    def accept(self) -> tuple[Guest, tuple[str, int]]:
        if not self.waiting:
            raise BlockingIOError
        who = self.waiting.popleft()
        if isinstance(who, int):
            raise OSError(who, os.strerror(who))
        return Guest(who), (who, 40000)


class Door:
    """A listener on a played port; `came` is who was handed on."""

    def __init__(self, loop: PlayedLoop) -> None:
        self.came: list[tuple[Any, str]] = []
        self.port = Port(loop)
        sock: Any = self.port
        self.listener = Listener(
            sock, lambda sock, address: self.came.append((sock, address)), ListenAddress("127.0.0.1", 0)
        )


@pytest.fixture
async def door(loop: PlayedLoop) -> Door:
    door = Door(loop)
    door.listener.start()
    return door


async def test_who_connects_is_handed_on_one_a_turn(door: Door) -> None:
    door.port.waiting += ["10.0.0.1", "fe80::1"]

    door.port.read()
    assert [("10.0.0.1", "tcp://10.0.0.1:40000")] == door.came
    door.port.read()
    door.port.read()

    assert [("fe80::1", "tcp://[fe80::1]:40000")] == door.came[1:]
    assert ("::1", 4022) == (door.listener.host, door.listener.port)


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_shortage_pauses_accepting_for_a_moment(problem: int, door: Door) -> None:
    door.port.waiting += [problem, "10.0.0.1"]

    door.port.read()
    door.port.read()
    assert [] == door.came
    await asyncio.sleep(SHORTAGE_PAUSE)
    door.port.read()

    assert 1 == len(door.came)


async def test_nobody_is_accepted_while_only_the_reserve_is_left(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.listener.is_reserved", lambda descriptor: descriptor >= 9)
    monkeypatch.setattr("broker.net.listener.are_short", lambda _: True)
    door.port.waiting += ["10.0.0.1", "10.0.0.2"]

    with capture_logs() as logs:
        door.port.read()
        for _ in range(5):
            await asyncio.sleep(SHORTAGE_PAUSE)
            door.port.read()
        assert 1 == len(door.came)
        monkeypatch.setattr("broker.net.listener.are_short", lambda _: False)
        await asyncio.sleep(SHORTAGE_PAUSE)
        door.port.read()

    assert 2 == len(door.came)
    assert ["accepting paused", "accepting again", "accepting paused"] == [entry["event"] for entry in logs]


@pytest.mark.parametrize("problem", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN])
async def test_connection_that_has_gone_again_concerns_nobody_else(problem: int, door: Door) -> None:
    door.port.waiting += [problem, "10.0.0.1"]

    door.port.read()
    door.port.read()

    assert 1 == len(door.came)


@pytest.mark.parametrize("is_short", [True, False])
async def test_closed_listener_accepts_nobody(*, is_short: bool, door: Door, loop: PlayedLoop) -> None:
    if is_short:
        door.port.waiting.append(errno.EMFILE)
        door.port.read()

    door.listener.release()
    door.listener.release()
    await asyncio.sleep(2 * SHORTAGE_PAUSE)

    assert (True, {}) == (door.port.is_closed, loop.readers)


def test_port_zero_is_any_free_port_that_is_then_taken() -> None:
    with bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert not sock.getblocking()
        with pytest.raises(ListenFailedError, match="stop what listens there") as caught:
            bind("127.0.0.1", port)

    assert f"127.0.0.1:{port}" == caught.value.address


def test_port_is_shared_by_those_that_set_reuse_port_alone() -> None:
    with bind("127.0.0.1", 0, reuse_port=True) as one:
        port = one.getsockname()[1]
        with bind("127.0.0.1", port, reuse_port=True) as other:
            assert port == other.getsockname()[1]
        with pytest.raises(ListenFailedError, match="Address already in use"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("name", ["socket.socket.listen", "socket.socket"])
def test_socket_that_cannot_be_made_or_listen_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name, Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))

    with pytest.raises(ListenFailedError, match=r"127\.0\.0\.1:0: Too many open files"):
        bind("127.0.0.1", 0)


@pytest.mark.parametrize(("waiting", "came"), [(["10.0.0.1", "10.0.0.2"], 2), ([errno.EMFILE, "10.0.0.1"], 0)])
async def test_listener_that_finishes_takes_those_who_have_connected_and_nobody_else(
    waiting: list[str | int], came: int, door: Door
) -> None:
    """Without another try where it is short of descriptors."""
    door.port.waiting += waiting

    door.listener.finish()

    assert (came, True) == (len(door.came), door.port.is_closed)
    door.listener.finish()


# --- own address ---


HERE = {"127.0.0.1", "localhost", socket.gethostname().lower()}


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", {"127.0.0.1", "localhost"}),
        ("::1", {"::1", "localhost"}),
        ("0.0.0.0", HERE),
        ("::", {*HERE, "::1"}),
        ("192.0.2.1", {"192.0.2.1"}),
    ],
)
def test_a_port_is_reached_by_every_name_of_this_machine(host: str, hosts: set[str]) -> None:
    assert {(one, 4022) for one in hosts} == {(one.host, one.port) for one in own_addresses(host, 4022)}

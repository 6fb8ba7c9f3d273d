"""Where namespaces cannot be made: the same network of addresses of loopback and proxies, as far as that goes."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.network.host import Host
from tests.chaos.network.impairment import CUT, Fault, Impairment, ImpossibleError, NetworkError
from tests.chaos.network.loopback import LoopbackNetwork
from tests.chaos.network.opening import open_network
from tests.chaos.network.wires import PORT, connection, has_nothing, receive

BULK = random.Random(1).randbytes(300_000)
PROXIED = {Fault.CUT, Fault.DELAY, Fault.RATE, Fault.RESET, Fault.DESCRIPTORS}


@pytest.fixture
def net(tmp_path: Path) -> Iterator[LoopbackNetwork]:
    with LoopbackNetwork(tmp_path, seed=7) as made:
        made.host("near")
        made.host("far")
        yield made


@pytest.fixture
def near(net: LoopbackNetwork) -> Host:
    return net.hosts["near"]


@pytest.fixture
def far(net: LoopbackNetwork) -> Host:
    return net.hosts["far"]


def is_broken(end: socket.socket) -> bool:
    """A proxy ends a connection before it resets it; whichever is felt first."""
    try:
        return end.recv(1) == b""
    except ConnectionError:
        return True


def test_it_is_chosen_where_tools_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BROKER_TEST_COMPLETE", raising=False)

    with open_network(tmp_path) as net:
        assert ("loopback", True) == (net.kind, bool(net.reason))
    with pytest.raises(NetworkError):
        open_network(tmp_path, kind="namespaces")


def test_it_is_not_chosen_where_nothing_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("BROKER_TEST_COMPLETE", "1")

    with pytest.raises(NetworkError):
        open_network(tmp_path)
    with open_network(tmp_path, kind="loopback") as net:
        assert "loopback" == net.kind


def test_it_says_what_it_cannot_do(net: LoopbackNetwork, near: Host, far: Host) -> None:
    assert [fault for fault in Fault if fault in PROXIED] == [
        fault for fault in Fault if fault is not Fault.CLOCK and net.can(fault)
    ]
    with pytest.raises(ImpossibleError, match="not with loopback: loss, small MTU"):
        net.impair(near, far, Impairment(loss=0.1, mtu=600, delay=0.1))
    with pytest.raises(ImpossibleError, match="not with loopback: full disk"):
        net.host("small", disk_bytes=1 << 20)
    with pytest.raises(ImpossibleError, match="the memory of near cannot be limited"):
        near.memory.limit(1)
    with pytest.raises(ImpossibleError, match="not packets"):
        net.counts(near, far)


def test_hosts_have_addresses_of_their_own_and_reach_themselves_directly(net: LoopbackNetwork, near: Host) -> None:
    assert 2 == len({host.address for host in net.hosts.values()})
    assert f"{near.address}:{PORT}" == net.address(near, near, PORT)


def test_the_address_of_a_host_stays_the_same(net: LoopbackNetwork, near: Host, far: Host) -> None:
    assert net.address(near, far, PORT) == net.address(near, far, PORT)
    assert net.address(near, far, PORT) != net.address(near, far, PORT + 1)


def test_a_cut_is_felt_one_way_and_mended(net: LoopbackNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.cut(near, far, is_both_ways=False)

        here.sendall(b"later")
        there.sendall(b"now")

        assert b"now" == receive(here, 3)
        assert has_nothing(there)
        net.mend(near, far)
        assert b"later" == receive(there, 5)


def test_a_cut_holds_for_bytes_under_way(net: LoopbackNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.impair(near, far, Impairment(delay=0.1))
        here.sendall(b"under way")
        net.impair(near, far, CUT)
        net.impair(far, near, Impairment(delay=0.2))
        there.sendall(b"after that")

        assert b"after that" == receive(here, 10)
        assert has_nothing(there)


def test_delay_and_rate_are_kept_and_bytes_stay_whole(net: LoopbackNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.impair(near, far, Impairment(delay=0.1, jitter=0.05, rate=3_000_000))
        began = time.monotonic()

        here.sendall(BULK)

        assert BULK == receive(there, len(BULK))
        assert time.monotonic() - began >= 0.1 + len(BULK) / 3_000_000


def test_an_end_is_passed_on_behind_all_bytes(net: LoopbackNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.impair(near, far, Impairment(delay=0.05))

        here.sendall(b"last words")
        here.close()

        assert b"last words" == receive(there, 10)
        assert b"" == there.recv(1)


def test_a_reset_breaks_both_ends_and_new_connections_are_whole(net: LoopbackNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        here.sendall(b"x")
        receive(there, 1)

        net.reset(far, near)

        assert is_broken(here)
        assert is_broken(there)
    with connection(net, near, far) as (here, there):
        here.sendall(b"x")
        assert b"x" == receive(there, 1)

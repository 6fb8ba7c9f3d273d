"""Each fault of the way between two hosts, felt by real sockets in their namespaces."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time

import pytest

from examples.demo.topology import wait_for
from tests.chaos.network.host import Host
from tests.chaos.network.impairment import CUT, Fault, Impairment
from tests.chaos.network.namespaces import NamespaceNetwork
from tests.chaos.network.wires import PORT, SECONDS, connection, datagrams, has_nothing, numbers, receive

LOSSY = Impairment(loss=0.05)
PACKETS = 400
BULK = random.Random(1).randbytes(300_000)


@pytest.fixture
def near(net: NamespaceNetwork) -> Host:
    return net.hosts["near"]


@pytest.fixture
def far(net: NamespaceNetwork) -> Host:
    return net.hosts["far"]


def send_numbers(end: socket.socket, count: int = PACKETS) -> None:
    for number in range(count):
        end.send(number.to_bytes(4, "big"))


def passes_bulk(here: socket.socket, there: socket.socket) -> bool:
    sender = threading.Thread(target=here.sendall, args=(BULK,))
    sender.start()
    data = receive(there, len(BULK))
    sender.join()
    return hashlib.sha256(data).digest() == hashlib.sha256(BULK).digest()


def test_everything_is_possible(net: NamespaceNetwork) -> None:
    assert [] == [fault for fault in Fault if fault is not Fault.CLOCK and not net.can(fault)]


def test_hosts_meet_under_their_own_addresses(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        assert (near.address, far.address) == (here.getsockname()[0], there.getsockname()[0])
        assert passes_bulk(here, there)


def test_a_cut_is_felt_one_way_and_not_the_other(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with datagrams(near, far) as (here, there):
        cut = net.counts(near, far).cut
        net.cut(near, far, is_both_ways=False)

        here.send(b"lost")
        there.send(b"\5")

        assert [5] == numbers(here, 1)
        wait_for(lambda: net.counts(near, far).cut > cut, seconds=SECONDS, what="a packet at the switch")
        assert has_nothing(there)


def test_a_cut_is_silent_and_the_connection_goes_on_after_it(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        cut = net.counts(near, far).cut
        net.cut(near, far)
        here.sendall(b"later")
        wait_for(lambda: net.counts(near, far).cut > cut, seconds=SECONDS, what="a packet at the switch")
        assert has_nothing(there)

        net.mend(near, far)

        assert b"later" == receive(there, 5)


def test_delay_is_added_to_each_way_alone(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with datagrams(near, far) as (here, there):
        net.impair(near, far, Impairment(delay=0.15, jitter=0.01))
        began = time.monotonic()

        here.send(b"\1")
        there.send(b"\2")

        assert [2] == numbers(here, 1)
        assert has_nothing(there)
        assert [1] == numbers(there, 1)
        assert time.monotonic() - began >= 0.15


def test_lost_packets_are_those_that_are_counted(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with datagrams(near, far) as (here, there):
        net.impair(near, far, LOSSY)
        before = net.counts(near, far)

        send_numbers(here)
        wait_for(lambda: counted(net, near, far) == PACKETS + before.carried + before.lost, seconds=SECONDS, what="all")
        lost = net.counts(near, far).lost - before.lost
        came = numbers(there, PACKETS - lost)

        assert 0 < lost < PACKETS / 2
        assert sorted(set(came)) == came
        assert has_nothing(there)


def counted(net: NamespaceNetwork, near: Host, far: Host) -> int:
    counts = net.counts(near, far)
    return counts.carried + counts.lost


def test_loss_does_not_hurt_a_connection(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.impair(near, far, LOSSY, is_both_ways=True)
        lost = net.counts(near, far).lost

        assert passes_bulk(here, there)
        assert net.counts(near, far).lost > lost


def test_duplicates_come_twice(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with datagrams(near, far) as (here, there):
        net.impair(near, far, Impairment(duplication=1.0))

        send_numbers(here, 3)

        assert [0, 0, 1, 1, 2, 2] == numbers(there, 6)


def test_reordered_packets_all_come_and_a_connection_puts_them_right(
    net: NamespaceNetwork, near: Host, far: Host
) -> None:
    net.impair(near, far, Impairment(reordering=0.1))
    with datagrams(near, far) as (here, there):
        send_numbers(here)
        came = numbers(there, PACKETS)
    with connection(net, near, far) as (here, there):
        whole = passes_bulk(here, there)

    assert list(range(PACKETS)) != came
    assert list(range(PACKETS)) == sorted(came)
    assert whole


def test_a_slow_link_takes_its_time(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.impair(near, far, Impairment(rate=1_000_000))
        began = time.monotonic()

        assert passes_bulk(here, there)
        assert time.monotonic() - began >= len(BULK) / 1_000_000


def test_a_black_hole_swallows_large_packets_alone(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        too_large = net.counts(near, far).too_large
        net.impair(near, far, Impairment(mtu=600))

        here.sendall(b"small")
        assert b"small" == receive(there, 5)
        here.sendall(BULK[:2000])
        wait_for(
            lambda: net.counts(near, far).too_large > too_large, seconds=SECONDS, what="a large packet at the switch"
        )
        assert has_nothing(there)
        net.mend(near, far)

        assert BULK[:2000] == receive(there, 2000)


def test_a_link_that_tells_its_mtu_passes_everything(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        too_large = net.counts(near, far).too_large
        net.impair(near, far, Impairment(mtu=600, is_mtu_told=True))

        assert passes_bulk(here, there)
        assert net.counts(near, far).too_large > too_large


def test_what_a_host_was_told_of_an_mtu_is_forgotten_when_the_link_is_mended(
    net: NamespaceNetwork, near: Host, far: Host
) -> None:
    with connection(net, near, far) as (here, there):
        net.impair(near, far, Impairment(mtu=600, is_mtu_told=True))
        assert passes_bulk(here, there)
        net.mend(near, far)

        too_large = net.counts(near, far).too_large
        net.impair(near, far, Impairment(mtu=1400, is_mtu_told=True))

        assert passes_bulk(here, there)
        assert net.counts(near, far).too_large > too_large


def test_a_connection_lives_through_changes_under_way(net: NamespaceNetwork, near: Host, far: Host) -> None:
    data = b"".join(number.to_bytes(4, "big") for number in range(2_000_000))
    with connection(net, near, far) as (here, there):
        sender = threading.Thread(target=here.sendall, args=(data,))
        sender.start()
        came = receive(there, 100_000)
        for how in (Impairment(delay=0.001), CUT, Impairment(rate=5e7), Impairment(loss=0.01), Impairment()) * 2:
            net.impair(near, far, how, is_both_ways=True)
            came += there.recv(1) if how != CUT else b""
        came += receive(there, len(data) - len(came))
        sender.join()

        assert hashlib.sha256(data).digest() == hashlib.sha256(came).digest()


def test_a_reset_breaks_both_ends(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with connection(net, near, far) as (here, there):
        net.reset(near, far)

        for end in (here, there):
            with pytest.raises(ConnectionError):
                end.recv(1)


def test_an_isolated_host_is_cut_off_and_others_are_not(net: NamespaceNetwork, near: Host, far: Host) -> None:
    third = net.hosts.get("third") or net.host("third")
    net.isolate(third)

    with datagrams(near, far) as (here, there):
        here.send(b"\1")
        assert [1] == numbers(there, 1)
    with datagrams(near, third) as (here, there):
        for source, end, destination in ((near, here, third), (third, there, near)):
            cut = net.counts(source, destination).cut
            end.send(b"\1")
            wait_for(lambda: net.counts(source, destination).cut > cut, seconds=SECONDS, what="cut")  # noqa: B023 - at once


def test_each_host_has_all_ports_to_itself(net: NamespaceNetwork, near: Host, far: Host) -> None:
    with near.inside(), socket.create_server(("127.0.0.1", PORT)), far.inside():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT), SECONDS)
        with socket.create_server(("127.0.0.1", PORT)):
            pass

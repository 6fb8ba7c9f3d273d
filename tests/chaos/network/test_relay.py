"""What the relay does to packets, on made-up frames under a clock that the test holds."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from tests.chaos.network import relay as module
from tests.chaos.network.impairment import CUT, WHOLE, Counts, Impairment
from tests.chaos.network.relay import HELD_BACK, QUEUE_SECONDS, Relay

HERE, THERE = "10.66.0.1", "10.66.0.2"


def frame(number: int, *, size: int = 100, source: str = HERE, destination: str = THERE) -> bytes:
    """Shape: `size` bytes of the IP packet; its last four bytes are the number."""
    addresses = IPv4Address(source).packed + IPv4Address(destination).packed
    ip = bytes([0x45, 0]) + size.to_bytes(2, "big") + bytes(8) + addresses
    return bytes(12) + b"\x08\x00" + ip + bytes(size - 24) + number.to_bytes(4, "big")


def read(frames: list[bytes]) -> list[int]:
    return [int.from_bytes(one[-4:], "big") for one in frames]


def relay_with(how: Impairment, *, seed: int = 1) -> Relay:
    relay = Relay(seed)
    relay.impair(HERE, THERE, how)
    return relay


def test_a_way_that_nobody_impaired_passes_everything() -> None:
    relay = relay_with(CUT)

    back = relay.take(frame(1, source=THERE, destination=HERE), 0.0)

    assert [1] == read(back)
    assert Counts() == relay.counts(THERE, HERE)


def test_a_cut_way_passes_nothing_and_counts_it() -> None:
    relay = relay_with(CUT)

    passed = relay.take(frame(1), 0.0)

    assert [] == passed
    assert Counts(cut=1) == relay.counts(HERE, THERE)


def test_a_mended_way_passes_everything() -> None:
    relay = relay_with(CUT)
    relay.impair(HERE, THERE, WHOLE)

    assert [1] == read(relay.take(frame(1), 0.0))


def test_a_delayed_frame_comes_at_its_time() -> None:
    relay = relay_with(Impairment(delay=0.5))

    at_once = relay.take(frame(1), 10.0)

    assert [] == at_once
    assert 10.5 == relay.next_due
    assert [] == relay.due(10.4999)
    assert [1] == read(relay.due(10.5))
    assert None is relay.next_due
    assert 0 == relay.pending_bytes


def test_jitter_keeps_the_order() -> None:
    relay = relay_with(Impairment(delay=0.01, jitter=1.0))

    for number in range(50):
        relay.take(frame(number), number / 1000)

    assert list(range(50)) == read(relay.due(2.0))


def test_frames_under_way_are_cut_as_well() -> None:
    relay = relay_with(Impairment(delay=0.5))
    relay.take(frame(1), 0.0)

    relay.impair(HERE, THERE, CUT)

    assert [] == relay.due(1.0)
    assert Counts(cut=1) == relay.counts(HERE, THERE)


def test_frames_under_way_outlive_the_mending() -> None:
    relay = relay_with(Impairment(delay=0.5))
    relay.take(frame(1), 0.0)

    relay.impair(HERE, THERE, WHOLE)

    assert [1] == read(relay.due(0.5))


def test_losses_are_as_many_as_asked_for_and_the_same_for_a_seed() -> None:
    first, again, other = (relay_with(Impairment(loss=0.3), seed=seed) for seed in (1, 1, 2))

    passed = [[one for n in range(1000) for one in read(relay.take(frame(n), 0.0))] for relay in (first, again, other)]

    assert passed[0] == passed[1] != passed[2]
    assert 250 < first.counts(HERE, THERE).lost < 350
    assert 1000 == first.counts(HERE, THERE).lost + len(passed[0])


def test_the_dice_of_a_way_do_not_depend_on_other_ways() -> None:
    alone, beside = relay_with(Impairment(loss=0.3)), relay_with(Impairment(loss=0.3))
    beside.impair(THERE, HERE, Impairment(loss=0.3))

    for number in range(100):
        beside.take(frame(number, source=THERE, destination=HERE), 0.0)

    assert [alone.take(frame(n), 0.0) for n in range(100)] == [beside.take(frame(n), 0.0) for n in range(100)]


def test_a_duplicated_frame_comes_twice() -> None:
    relay = relay_with(Impairment(duplication=1.0))

    passed = relay.take(frame(1), 0.0)

    assert [1, 1] == read(passed)
    assert Counts(carried=2, duplicated=1) == relay.counts(HERE, THERE)


def test_a_reordered_frame_is_overtaken() -> None:
    relay = relay_with(Impairment(reordering=1.0))
    held = relay.take(frame(1), 0.0)
    relay.impair(HERE, THERE, Impairment(delay=HELD_BACK / 2))
    relay.take(frame(2), 0.0)

    assert [] == held
    assert [2, 1] == read(relay.due(HELD_BACK))
    assert 1 == relay.counts(HERE, THERE).reordered


def test_a_slow_link_passes_its_rate() -> None:
    relay = relay_with(Impairment(rate=1140.0))  # ten of these frames a second: 14 bytes of Ethernet and 100 of IP

    for number in range(10):
        relay.take(frame(number), 0.0)

    assert [0, 1, 2, 3, 4] == read(relay.due(0.501))
    assert [5, 6, 7, 8, 9] == read(relay.due(1.001))


def test_what_does_not_fit_in_front_of_a_slow_link_is_dropped() -> None:
    relay = relay_with(Impairment(rate=1140.0))

    for number in range(100):
        relay.take(frame(number), 0.0)

    passed = relay.due(1000.0)
    assert 10 * QUEUE_SECONDS + 1 == len(passed)
    assert 100 - len(passed) == relay.counts(HERE, THERE).overflowed


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PENDING_BYTES", 1000)
    relay = relay_with(Impairment(delay=1.0))

    for number in range(100):
        relay.take(frame(number), 0.0)

    assert 8 * 114 == relay.pending_bytes
    assert 92 == relay.counts(HERE, THERE).overflowed


@pytest.mark.parametrize("is_told", [False, True])
def test_packets_larger_than_the_mtu_are_dropped_silently_or_not(*, is_told: bool) -> None:
    relay = relay_with(Impairment(mtu=600, is_mtu_told=is_told))

    fits, does_not = relay.take(frame(1, size=600), 0.0), relay.take(frame(2, size=601), 0.0)

    assert [1] == read(fits)
    assert is_told == bool(does_not)
    assert all(IPv4Address(HERE).packed == answer[30:34] for answer in does_not)
    assert 1 == relay.counts(HERE, THERE).too_large

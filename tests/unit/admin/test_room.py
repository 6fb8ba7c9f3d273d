from __future__ import annotations

from dataclasses import dataclass

import pytest

from broker.admin.room import GRACE_SECONDS, gives_way, has_share, source_of

NOW = 100.0


@dataclass(frozen=True)
class Somebody:
    source: str
    idle_since: float | None


def waiting(source: str, seconds: float) -> Somebody:
    return Somebody(source, NOW - seconds)


def served(source: str) -> Somebody:
    return Somebody(source, None)


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("user 1000", "user 1000"),
    ],
)
def test_whom_a_connection_is_counted_by(address: str, source: str) -> None:
    assert source == source_of(address)


def test_who_has_waited_longest_gives_way_to_its_own_kind() -> None:
    taken = [waiting("a", 3), waiting("a", 9), waiting("a", 5), served("a")]

    assert taken[1] is gives_way(taken, "a", now=NOW)


def test_who_has_just_come_is_given_the_time_to_say_something() -> None:
    taken = [waiting("a", GRACE_SECONDS / 2), served("a"), served("b")]

    assert gives_way(taken, "a", now=NOW) is None
    assert gives_way(taken, "b", now=NOW) is None


def test_who_has_most_gives_way_at_once_to_who_has_few() -> None:
    crowd = [waiting("crowd", 0) for _ in range(5)]
    taken = [waiting("other", 1), *crowd, served("crowd")]

    found = gives_way(taken, "admin", now=NOW)

    assert found in crowd


def test_who_is_served_is_never_disturbed() -> None:
    assert gives_way([served("crowd") for _ in range(5)], "admin", now=NOW) is None


@pytest.mark.parametrize(
    ("source", "count", "expected"),
    [
        ("192.0.2.7", 3, False),
        ("192.0.2.7", 4, True),
        ("user 1000", 4, True),
        ("127.0.0.1", 8, False),  # everybody on this machine
        ("::1", 8, False),
    ],
)
def test_nobody_has_more_than_half_of_all_places(source: str, count: int, *, expected: bool) -> None:
    taken = [waiting(source, 0)] * count

    assert expected == has_share(taken, source, most=8)


def test_where_there_is_one_place_somebody_has_it() -> None:
    assert not has_share([], "192.0.2.7", most=1)

"""As many descriptors as there may be, and some of them in reserve."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from broker.net.listener import (
    OWN,
    RESERVED,
    RESERVED_SHARE,
    UNLIMITED,
    are_short,
    is_reserved,
    raise_limit,
    room_for_connections,
)


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


@pytest.mark.parametrize(("limit", "first"), [(4096, 4096 - RESERVED), (400, 400 - 400 // RESERVED_SHARE)])
def test_last_ones_are_in_reserve(limit: int, first: int) -> None:
    limit_to(limit)

    assert (False, True) == (is_reserved(first - 1), is_reserved(first))


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


def test_no_descriptor_at_all_is_a_shortage(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "dup", refuse)

    assert are_short(0)


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


def test_without_a_limit_there_is_room_for_any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    assert UNLIMITED == room_for_connections(256)

"""As many descriptors as idle connections need; the connections themselves are in tests/loopback."""

from __future__ import annotations

import resource

import pytest

from broker.bench.load.idle import SPARE, TooFewDescriptorsError, allow_descriptors


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the limits were set to; they are 100 and 1000."""
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: seen.append(both))
    return seen


def test_the_soft_limit_is_raised_as_far_as_is_needed(limits: list[tuple[int, int]]) -> None:
    allow_descriptors(500)

    assert [(500 + SPARE, 1000)] == limits


def test_a_limit_that_is_high_enough_stays(limits: list[tuple[int, int]]) -> None:
    allow_descriptors(100 - SPARE)

    assert [] == limits


def test_a_hard_limit_that_is_too_low_is_told_with_what_to_do(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(
        TooFewDescriptorsError, match=r"^10,000 connections need 10,064 .* and 1,000 are allowed: raise"
    ):
        allow_descriptors(10_000)

    assert [] == limits


def test_no_hard_limit_is_high_enough(monkeypatch: pytest.MonkeyPatch, limits: list[tuple[int, int]]) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, resource.RLIM_INFINITY))

    allow_descriptors(10_000)

    assert [(10_000 + SPARE, resource.RLIM_INFINITY)] == limits

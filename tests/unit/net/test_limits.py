"""What peers may take: what stands for no limit."""

from __future__ import annotations

import pytest

from broker.net.quotas import NO_LIMITS, PeerLimits, Timeouts


def test_without_limits_only_handshakes_are_bounded() -> None:
    assert PeerLimits(handshakes=256) == NO_LIMITS
    assert not NO_LIMITS.are_paced


@pytest.mark.parametrize("limit", ["bytes_per_second", "messages_per_second", "pool_share"])
def test_what_a_peer_brings_matters_as_soon_as_one_limit_says_so(limit: str) -> None:
    assert PeerLimits(**{limit: 1}).are_paced


def test_pause_for_want_of_room_is_a_quarter_of_a_second() -> None:
    assert 0.25 == Timeouts(handshake=1.0, connect=1.0).backpressure

"""How much memory a gateway may have under overload; the overload itself is in tests/loopback."""

from __future__ import annotations

import pytest

from broker.bench.load.overload import ALLOWANCE_MIB, memory_limit_mib

MIB = 1 << 20


def test_memory_is_what_it_was_and_all_that_messages_may_take() -> None:
    without = memory_limit_mib(70, links=0, pool_bytes=0, max_frame=MIB)
    with_links = memory_limit_mib(70, links=18, pool_bytes=64 * MIB, max_frame=MIB)

    assert 70 + 32 + 2.25 + ALLOWANCE_MIB == pytest.approx(without)
    assert 18 * (1 + 1 / 16) + 64 == pytest.approx(with_links - without)

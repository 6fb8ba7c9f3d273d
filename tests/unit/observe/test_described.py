"""A counter is known by its name."""

from __future__ import annotations

from broker.observe.described import Described


def test_counter_ends_in_total() -> None:
    assert [True, False] == [Described(name, "help").is_counter for name in ("a_total", "a_bytes")]

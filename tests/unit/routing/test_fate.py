"""What becomes of a conversation is harm, no change, or neither."""

from __future__ import annotations

from broker.routing.plan import HARMFUL, UNCHANGED, Fate


def test_nothing_is_harmful_and_unchanged() -> None:
    assert set() == HARMFUL & UNCHANGED
    assert {Fate.FINDS, Fate.OTHER_PATHS} == set(Fate) - HARMFUL - UNCHANGED


def test_the_harmless_come_first() -> None:
    assert [False] * 4 + [True] * 3 == [fate in HARMFUL for fate in Fate]

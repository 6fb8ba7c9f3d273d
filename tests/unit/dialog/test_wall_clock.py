"""A clock that jumps forward is not believed for a while; every other one is."""

from __future__ import annotations

import pytest

from broker.dialog.endpoint import JUMP_SECONDS, SETTLE_SECONDS, WallClock

WALL = 1_750_000_000.0


def watched() -> WallClock:
    clock = WallClock()
    clock.look(WALL, 100.0)
    return clock


def test_clock_that_goes_on_is_believed() -> None:
    clock = watched()

    assert [0.0] * 50 == [clock.look(WALL + second, 100.0 + second) for second in range(50)]
    assert clock.is_settled(150.0)


@pytest.mark.parametrize("step", [JUMP_SECONDS - 0.1, -JUMP_SECONDS + 0.1])
def test_correction_is_no_jump(step: float) -> None:
    clock = watched()

    assert 0.0 == clock.look(WALL + 1 + step, 101.0)
    assert clock.is_settled(101.0)


def test_jump_forward_is_believed_when_it_stays() -> None:
    clock = watched()

    assert 86_400.0 == clock.look(WALL + 86_401.0, 101.0)
    assert 0.0 == clock.look(WALL + 86_402.0, 102.0)

    assert not clock.is_settled(101.0 + SETTLE_SECONDS - 0.1)
    assert clock.is_settled(101.0 + SETTLE_SECONDS)


def test_jump_that_is_undone_has_done_no_harm() -> None:
    clock = watched()
    clock.look(WALL + 86_401.0, 101.0)

    assert -86_400.0 == clock.look(WALL + 2.0, 102.0)
    assert clock.is_settled(102.0)


def test_first_look_cannot_tell() -> None:
    clock = WallClock()

    assert 0.0 == clock.look(WALL, 5.0)
    assert clock.is_settled(5.0)

"""The pool is a counter with a bound: nothing it admits brings it over, and what is refused is not charged."""

from __future__ import annotations

import pytest

from broker.forwarding.pool import HELD_OVERHEAD, Pool


@pytest.mark.parametrize(
    ("limit", "sizes", "admitted"),
    [
        (HELD_OVERHEAD + 100, [100], [True]),
        (HELD_OVERHEAD + 100, [101], [False]),
        (0, [0], [False]),
        (2 * (HELD_OVERHEAD + 50), [50, 50, 0], [True, True, False]),
        (2 * (HELD_OVERHEAD + 50), [50, 51, 50], [True, False, True]),
    ],
)
def test_frame_is_admitted_while_it_fits_with_its_overhead(limit: int, sizes: list[int], admitted: list[bool]) -> None:
    pool = Pool(limit)

    assert admitted == [pool.admit(size) for size in sizes]

    charged = [size for size, is_in in zip(sizes, admitted, strict=True) if is_in]
    assert (sum(charged) + HELD_OVERHEAD * len(charged), len(charged)) == (pool.used_bytes, pool.frames)


def test_released_frame_makes_room_for_another_of_its_size() -> None:
    pool = Pool(HELD_OVERHEAD + 100)
    pool.admit(100)

    pool.release(100)

    assert (pool.used_bytes, pool.frames) == (0, 0)
    assert pool.admit(100)

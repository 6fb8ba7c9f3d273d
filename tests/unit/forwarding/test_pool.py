"""The pool is a counter with a bound: nothing it admits brings it over, and what is refused is not charged."""

from __future__ import annotations

import pytest

from broker.forwarding.pool import HELD_OVERHEAD, TIGHT_BYTES, Pool, Share, is_roomy, is_tight


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
    share = Share(pool)

    assert admitted == [share.admit(size) for size in sizes]

    charged = [size for size, is_in in zip(sizes, admitted, strict=True) if is_in]
    assert (sum(charged) + HELD_OVERHEAD * len(charged), len(charged)) == (pool.used_bytes, pool.frames)
    assert (pool.used_bytes, 0, 0) == (share.used_bytes, share.refused, pool.over_share)


def test_released_frame_makes_room_for_another_of_its_size() -> None:
    pool = Pool(HELD_OVERHEAD + 100)
    share = Share(pool)
    share.admit(100)

    share.release(100)

    assert (pool.used_bytes, share.used_bytes, pool.frames) == (0, 0, 0)
    assert share.admit(100)


def test_one_next_hop_has_its_share_and_leaves_the_rest_to_others() -> None:
    pool = Pool(4 * (HELD_OVERHEAD + 100), share_percent=50)
    dead, other = Share(pool), Share(pool)

    admitted = [dead.admit(100) for _ in range(3)] + [other.admit(100) for _ in range(2)]

    assert [True, True, False, True, True] == admitted
    assert (1, 0, 1) == (dead.refused, other.refused, pool.over_share)
    assert dead.limit_bytes == pool.share_bytes == 2 * (HELD_OVERHEAD + 100)


def test_full_pool_is_not_laid_at_the_door_of_a_share() -> None:
    pool = Pool(2 * (HELD_OVERHEAD + 100), share_percent=50)
    shares = [Share(pool) for _ in range(3)]

    assert [True, True, False] == [share.admit(100) for share in shares]

    assert (0, 0) == (pool.over_share, shares[2].refused)


@pytest.mark.parametrize("is_own", [True, False], ids=["the share", "the pool"])
def test_room_is_tight_before_it_is_gone_and_comes_back_later_than_it_went(*, is_own: bool) -> None:
    limit = 64 * TIGHT_BYTES
    pool = Pool(limit)
    share = Share(pool)
    bound = share if is_own else pool

    def states(used: int) -> tuple[bool, bool]:
        assert share.admit(used - HELD_OVERHEAD)
        found = is_tight(bound), is_roomy(bound)
        share.release(used - HELD_OVERHEAD)
        return found

    assert [(True, False), (False, False), (False, False), (False, True)] == [
        states(limit - TIGHT_BYTES + 1),
        states(limit - TIGHT_BYTES),
        states(limit - 2 * TIGHT_BYTES + 1),
        states(limit - 2 * TIGHT_BYTES),
    ]


def test_small_pool_is_tight_in_proportion() -> None:
    pool = Pool(80_000, share_percent=50)
    share = Share(pool)

    assert share.admit(35_000 - HELD_OVERHEAD)
    assert not is_tight(share)
    assert share.admit(0)
    assert is_tight(share)


def test_bottleneck_is_the_share_before_the_pool() -> None:
    pool = Pool(100_000, share_percent=50)
    one, other, third = (Share(pool) for _ in range(3))
    assert (None, None) == (one.bottleneck, other.bottleneck)

    assert one.admit(49_000)
    assert (one, None) == (one.bottleneck, other.bottleneck)
    assert other.admit(40_000)
    assert (one, pool, pool) == (one.bottleneck, other.bottleneck, third.bottleneck)

"""The pool is a counter with a bound: nothing it admits brings it over, and what is refused is not charged."""

import pytest

from broker.forwarding.entry import UnknownOrigin
from broker.forwarding.pool import (
    FED_SECONDS,
    FULL_BYTES,
    HELD_OVERHEAD,
    Bound,
    Limits,
    PartialFrames,
    Pool,
    PoolQuota,
    Share,
    cost_of_read,
    forget_feeders,
    free_in,
    has_room_for_one,
    is_tight,
)
from broker.protocol.layout import MIN_DIALOG_FRAME

# --- limits ---
# Bounds of the pass, as they are given and as they change while it runs.


def test_a_smaller_bound_drops_nothing_and_lets_nothing_in() -> None:
    """What is held when the bound falls stays charged; the next frame fits once there is room below the new bound."""
    pool = Pool(1 << 20)
    share = Share(pool)
    assert share.admit(2000)

    pool.limit(Limits(pool_bytes=2000, max_frame=65_536, max_hops=16, share_percent=100, hold_seconds=9.0))
    is_let_in = share.admit(100)
    share.release(2000)

    assert (False, True) == (is_let_in, share.admit(100))
    assert (100 + HELD_OVERHEAD, 9.0) == (pool.used_bytes, pool.hold_seconds)


READ_COST = 10_000


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
@pytest.mark.promise("forwarding 13")
def test_frame_is_admitted_while_it_fits_with_its_overhead(limit: int, sizes: list[int], admitted: list[bool]) -> None:
    pool = Pool(limit)
    share = Share(pool)

    assert admitted == [share.admit(size) for size in sizes]

    charged = [size for size, is_in in zip(sizes, admitted, strict=True) if is_in]
    assert (sum(charged) + HELD_OVERHEAD * len(charged), len(charged)) == (pool.used_bytes, pool.frames)
    assert (pool.used_bytes, 0, 0) == (share.used_bytes, share.refused, pool.over_share)


@pytest.mark.parametrize(("frames", "is_admitted"), [(2, True), (3, False)])
def test_frames_are_admitted_all_or_none_and_room_tells_before(frames: int, *, is_admitted: bool) -> None:
    pool = Pool(4 * (HELD_OVERHEAD + 100), share_percent=50)
    share, payer = Share(pool), PoolQuota(pool, 75)
    cost = frames * (HELD_OVERHEAD + 100)
    assert (share.limit_bytes, share.limit_bytes) == (share.free_bytes(), share.free_bytes(payer))

    assert is_admitted == share.admit(frames * 100, payer, frames=frames)

    if is_admitted:
        assert (cost, cost, frames) == (pool.used_bytes, payer.used_bytes, pool.frames)
        assert 0 == share.free_bytes(payer)
        share.release(frames * 100, payer, frames=frames)
    else:
        assert frames == share.refused
    assert (0, 0, 0, 0) == (pool.used_bytes, share.used_bytes, payer.used_bytes, pool.frames)


def test_a_read_costs_at_worst_frames_of_the_smallest_size_behind_the_largest() -> None:
    read = 10 * MIN_DIALOG_FRAME

    pool = Pool(cost_of_read(read, 5000))
    share = Share(pool)

    assert all(share.admit(size) for size in [5000] + 10 * [MIN_DIALOG_FRAME])
    assert not share.admit(0)


def fed(bound: Bound, feeders: int) -> None:
    for _ in range(feeders):
        bound.feeders[UnknownOrigin()] = 0.0


@pytest.mark.parametrize("is_own", [True, False], ids=["the share", "the pool"])
@pytest.mark.parametrize(("feeders", "paused", "active"), [(0, 0, 1), (1, 0, 1), (5, 0, 5), (5, 3, 2), (5, 5, 1)])
def test_room_is_tight_when_those_who_feed_it_may_bring_more(
    feeders: int, paused: int, active: int, *, is_own: bool
) -> None:
    pool = Pool(100 * READ_COST, read_cost=READ_COST)
    share = Share(pool)
    bound: Bound = share if is_own else pool
    fed(bound, feeders)

    assert share.admit(pool.limit_bytes - active * READ_COST - HELD_OVERHEAD)
    assert not is_tight(bound, paused)
    assert share.admit(0)

    assert is_tight(bound, paused)


def test_small_bound_is_tight_at_a_quarter_and_has_room_again_at_an_eighth() -> None:
    pool = Pool(80_000, read_cost=1 << 20)
    share = Share(pool)

    assert share.admit(20_000 - HELD_OVERHEAD)
    assert (False, False) == (is_tight(pool, 0), has_room_for_one(pool, 1, 0))
    assert share.admit(0)
    assert is_tight(pool, 0)
    share.release(0)
    share.release(20_000 - HELD_OVERHEAD)

    assert share.admit(10_000 - HELD_OVERHEAD)
    assert (True, False) == (has_room_for_one(pool, 1, 0), has_room_for_one(pool, 1, 1))
    assert share.admit(0)
    assert not has_room_for_one(pool, 1, 0)


@pytest.mark.parametrize("granted", range(3))
def test_there_is_room_for_one_more_beside_those_who_were_let_go_before(granted: int) -> None:
    pool = Pool(100 * READ_COST, read_cost=READ_COST)
    share = Share(pool)
    fed(pool, 4)

    # Two of four are paused, so two may bring something; room is for them, the one, and those before it.
    assert share.admit((100 - 3 - granted) * READ_COST - HELD_OVERHEAD)
    assert has_room_for_one(pool, 2, granted)
    assert share.admit(0)

    assert not has_room_for_one(pool, 2, granted)


def test_who_feeds_a_share_feeds_the_pool_and_its_payers_part_and_is_forgotten_after_a_while() -> None:
    pool, early, late = Pool(1000), UnknownOrigin(), UnknownOrigin()
    share, payer = Share(pool), PoolQuota(pool, 50)
    pool.quotas[late] = payer
    share.fed_by(early, 1.0)
    share.fed_by(late, 1.5)

    for bound in (share, pool):
        forget_feeders(bound, 1.0 + FED_SECONDS)

    assert {late: 1.5} == share.feeders == pool.feeders == payer.feeders


def test_full_means_that_next_to_nothing_finds_room_here_or_in_the_pool() -> None:
    pool = Pool(16 * FULL_BYTES, share_percent=50)
    one, other, third = (Share(pool) for _ in range(3))

    assert one.admit(free_in(one) - FULL_BYTES - HELD_OVERHEAD)
    assert (False, False) == (one.is_full, other.is_full)
    assert one.admit(0)
    assert (True, False) == (one.is_full, other.is_full)
    assert other.admit(free_in(other) - HELD_OVERHEAD)

    assert third.is_full


def test_payer_has_its_part_of_the_pool_whatever_the_shares() -> None:
    pool = Pool(1000 + 4 * HELD_OVERHEAD)
    payer, shares = PoolQuota(pool, 50), [Share(pool), Share(pool)]

    admitted = [share.admit(100, payer) for share in (*shares, *shares)]

    assert [True, True, False, False] == admitted
    assert (2 * (100 + HELD_OVERHEAD), 2) == (payer.used_bytes, pool.over_quota)
    assert (pool.used_bytes, pool.frames) == (payer.used_bytes, 2)
    assert shares[0].admit(100)


# --- unfinished ---
# What all links together may keep of frames that have not wholly arrived.


class Link:
    """Keeps what it is told to, until it is closed."""

    def __init__(self, unfinished: PartialFrames, *, is_accept: bool = True) -> None:
        self.is_accept = is_accept
        self.unfinished = unfinished
        self.closed = ""

    def keep(self, size: int) -> None:
        self.unfinished.keep(self, size)

    def close(self, reason: str) -> None:
        self.closed = reason
        self.unfinished.keep(self, 0)


@pytest.fixture
def unfinished() -> PartialFrames:
    return PartialFrames(max_bytes=100)


def test_at_the_bound_those_go_that_have_waited_the_longest_however_little_they_keep(unfinished: PartialFrames) -> None:
    slow, slower, busy = Link(unfinished), Link(unfinished), Link(unfinished)
    slower.keep(10)
    slow.keep(20)
    slower.keep(30)

    for _ in range(10):
        busy.keep(60)
        busy.keep(0)
    busy.keep(51)

    assert (True, False, False) == (bool(slower.closed), bool(slow.closed), bool(busy.closed))
    assert 71 == unfinished.kept_bytes


def test_whom_we_have_dialled_goes_last(unfinished: PartialFrames) -> None:
    known, stranger = Link(unfinished, is_accept=False), Link(unfinished)
    known.keep(60)
    stranger.keep(40)

    known.keep(70)
    assert (False, True) == (bool(known.closed), bool(stranger.closed))
    Link(unfinished, is_accept=False).keep(40)

    assert known.closed
    assert 40 == unfinished.kept_bytes

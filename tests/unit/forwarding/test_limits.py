"""Bounds of the pass, as they are given and as they change while it runs."""

from broker.forwarding.pool import HELD_OVERHEAD, READ_BYTES, Limits, Share, cost_of_read


def test_the_slab_has_room_for_the_largest_frame_and_one_read_behind_it() -> None:
    """A frame that was begun is complete after one more read, however long it is."""
    limits = Limits(pool_bytes=1 << 20, max_frame=65_536, max_hops=16)

    assert 65_536 + READ_BYTES == limits.slab_bytes


def test_a_pool_is_made_with_the_bounds() -> None:
    """Bytes, share of one next hop, what one read may be charged, and how long a frame waits."""
    pool = Limits(pool_bytes=1 << 20, max_frame=65_536, max_hops=16, share_percent=25, hold_seconds=7.0).make_pool()

    assert (1 << 20, 1 << 18, cost_of_read(READ_BYTES, 65_536)) == (pool.limit_bytes, pool.share_bytes, pool.read_cost)
    assert 7.0 == pool.hold_seconds


def test_a_smaller_bound_drops_nothing_and_lets_nothing_in() -> None:
    """What is held when the bound falls stays charged; the next frame fits once there is room below the new bound."""
    pool = Limits(pool_bytes=1 << 20, max_frame=65_536, max_hops=16, share_percent=100).make_pool()
    share = Share(pool)
    assert share.admit(2000)

    Limits(pool_bytes=2000, max_frame=65_536, max_hops=16, share_percent=100, hold_seconds=9.0).bound(pool)
    is_let_in = share.admit(100)
    share.release(2000)

    assert (False, True) == (is_let_in, share.admit(100))
    assert (100 + HELD_OVERHEAD, 9.0) == (pool.used_bytes, pool.hold_seconds)

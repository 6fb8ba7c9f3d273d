"""What all links together may keep of frames that have not wholly arrived."""

import pytest

from broker.forwarding.pool import PartialFrames


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


def test_what_is_kept_follows_what_every_link_says(unfinished: PartialFrames) -> None:
    one, other = Link(unfinished), Link(unfinished, is_accept=False)

    one.keep(10)
    other.keep(20)
    one.keep(5)
    other.keep(0)

    assert 5 == unfinished.kept_bytes


def test_the_bound_itself_closes_nobody(unfinished: PartialFrames) -> None:
    one, other = Link(unfinished), Link(unfinished)

    one.keep(40)
    other.keep(60)

    assert ("", "") == (one.closed, other.closed)


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


def test_a_link_that_alone_is_above_the_bound_is_closed_itself(unfinished: PartialFrames) -> None:
    alone = Link(unfinished)

    alone.keep(101)

    assert alone.closed
    assert 0 == unfinished.kept_bytes

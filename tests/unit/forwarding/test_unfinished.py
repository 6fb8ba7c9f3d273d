"""What all links together may keep of frames that have not wholly arrived."""

import pytest

from broker.forwarding.unfinished import Unfinished


class Link:
    """Keeps what it is told to, until it is closed."""

    def __init__(self, unfinished: Unfinished) -> None:
        self.unfinished = unfinished
        self.closed = ""

    def keep(self, size: int) -> None:
        self.unfinished.keep(self, size)

    def close(self, reason: str) -> None:
        self.closed = reason
        self.unfinished.keep(self, 0)


@pytest.fixture
def unfinished() -> Unfinished:
    return Unfinished(max_bytes=100)


def test_what_is_kept_follows_what_every_link_says(unfinished: Unfinished) -> None:
    one, other = Link(unfinished), Link(unfinished)

    one.keep(10)
    other.keep(20)
    one.keep(5)
    other.keep(0)

    assert 5 == unfinished.kept_bytes


def test_the_bound_itself_closes_nobody(unfinished: Unfinished) -> None:
    one, other = Link(unfinished), Link(unfinished)

    one.keep(40)
    other.keep(60)

    assert ("", "") == (one.closed, other.closed)


def test_at_the_bound_the_link_that_keeps_the_most_is_closed(unfinished: Unfinished) -> None:
    patient, greedy, late = Link(unfinished), Link(unfinished), Link(unfinished)

    patient.keep(30)
    greedy.keep(60)
    late.keep(20)

    assert ("", "") == (patient.closed, late.closed)
    assert greedy.closed
    assert 50 == unfinished.kept_bytes


def test_a_link_that_alone_is_above_the_bound_is_closed_itself(unfinished: Unfinished) -> None:
    alone = Link(unfinished)

    alone.keep(101)

    assert alone.closed
    assert 0 == unfinished.kept_bytes

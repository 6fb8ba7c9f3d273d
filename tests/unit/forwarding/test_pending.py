"""A queue that moves is looked at from its front, each frame once, with what comes meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from broker.forwarding.held_frames import Held, hold
from broker.forwarding.outbox_queue import HeldQueue, Pending
from tests.support.pack import WAY, pack_of

MakeFrame = Callable[..., bytes]

NOW = 1000.0


class Row:
    """A queue of a frame, a pack of three, and a frame; `frames` in order."""

    def __init__(self, make_frame: MakeFrame) -> None:
        self.frames = [make_frame(sequence_number=n) for n in range(5)]
        self.queue = HeldQueue()
        self.queue.add(hold(self.frames[0], NOW, WAY))
        self.queue.add(pack_of(self.frames[1:4], NOW, name=self.queue.new_name()))
        self.queue.add(hold(self.frames[4], NOW, WAY))
        self.pending = Pending(self.queue)

    def held(self, number: int) -> Held:
        return next(held for held in self.queue if held.frame == self.frames[number])

    def looked_at(self) -> Iterator[bytes]:
        while (held := self.pending.first()) is not None:
            if self.queue.has(held):
                yield held.frame
            self.pending.pop()


@pytest.fixture
def row(make_frame: MakeFrame) -> Row:
    return Row(make_frame)


def test_every_frame_has_its_turn(row: Row) -> None:
    assert 5 == len(row.pending)
    assert row.frames == list(row.looked_at())
    assert (0, None) == (len(row.pending), row.pending.first())


def test_what_has_left_meanwhile_is_not_looked_at(row: Row) -> None:
    for number in (0, 2):
        row.queue.remove(row.held(number))

    assert [row.frames[number] for number in (1, 3, 4)] == list(row.looked_at())
    assert 0 == len(row.pending)


def test_pack_that_has_left_meanwhile_is_not_looked_at(row: Row) -> None:
    pack = list(row.queue.pieces())[1]
    row.queue.remove_first(pack, 3)

    assert [row.frames[0], row.frames[4]] == list(row.looked_at())
    assert 0 == len(row.pending)


def test_what_comes_meanwhile_has_its_turn_at_the_end(row: Row, make_frame: MakeFrame) -> None:
    more = [make_frame(sequence_number=number) for number in range(5, 8)]
    for piece in (hold(more[0], NOW, WAY), pack_of(more[1:], NOW, name=row.queue.new_name())):
        row.queue.add(piece)
        row.pending.add(piece)

    assert 8 == len(row.pending)
    assert [*row.frames, *more] == list(row.looked_at())


def test_later_copy_of_what_has_left_keeps_its_own_turn(row: Row) -> None:
    row.queue.remove(row.held(0))
    copy = hold(row.frames[0], NOW + 1, WAY)
    row.queue.add(copy)
    row.pending.add(copy)

    assert [*row.frames[1:], row.frames[0]] == list(row.looked_at())

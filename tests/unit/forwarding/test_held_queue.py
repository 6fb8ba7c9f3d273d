"""Held frames keep their order, each copy once, and are taken out exactly when their lifetime ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.forwarding.held_frames import TIME_MAX, Held, Pack, copy_key, hold
from broker.forwarding.outbox_queue import HeldQueue
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import NO_GUID, FrameKind
from tests.support.pack import WAY, pack_of
from tests.support.tiers import examples

MakeFrame = Callable[..., bytes]

NOW = 1000.0


def keep(queue: HeldQueue, frame: bytes, now: float = NOW) -> Held:
    held = hold(frame, now, WAY)
    queue.add(held)
    return held


def test_what_is_due_comes_out_the_earliest_first_and_the_rest_stays_in_order(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    lives = [3000, 1000, 60_000, 2000, 50_000]
    helds = [keep(queue, make_frame(sequence_number=n, time_to_live=life)) for n, life in enumerate(lives)]

    assert [] == queue.take_due(NOW + 0.999, 9)[0]
    assert [helds[1], helds[3], helds[0]] == queue.take_due(NOW + 3.0, 9)[0]

    assert ([helds[2], helds[4]], 2) == (list(queue), len(queue))


def test_of_what_is_due_no_more_comes_out_than_was_asked_for(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    helds = [keep(queue, make_frame(sequence_number=n, time_to_live=1000 + n)) for n in range(5)]

    assert [helds[:2], helds[2:4], helds[4:], []] == [queue.take_due(NOW + 2, 2)[0] for _ in range(4)]


def test_one_that_is_replaced_keeps_its_place_and_its_deadline(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    first, second = (keep(queue, make_frame(sequence_number=n, time_to_live=1000)) for n in range(2))
    other = first._replace(since=first.since + 0.5)

    queue.replace(first, other)

    assert ([other, second], False, True) == (list(queue), queue.has(first), queue.has(other))
    assert [other, second] == queue.take_due(NOW + 1, 9)[0]


def test_deadline_of_a_frame_that_left_is_not_that_of_its_copy(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    for n in range(10):
        keep(queue, make_frame(sequence_number=n))
    first = keep(queue, make_frame(sequence_number=10, time_to_live=1000))
    queue.remove(first)
    second = keep(queue, make_frame(sequence_number=10, time_to_live=1000), NOW + 0.5)

    assert [] == queue.take_due(NOW + 1.25, 9)[0]
    assert [second] == queue.take_due(NOW + 1.5, 9)[0]


def test_what_has_left_leaves_little_behind(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    stays = keep(queue, make_frame(sequence_number=0))

    for n in range(1, 1000):
        queue.remove(keep(queue, make_frame(sequence_number=n, time_to_live=TIME_MAX)))
        assert 2 * len(queue._deadlines) <= 3 * len(queue) + 2
    queue.remove(stays)

    assert (0, []) == (len(queue), queue._deadlines)


def keep_together(queue: HeldQueue, frames: list[bytes], now: float = NOW) -> Pack:
    pack = pack_of(frames, now, name=queue.new_name())
    queue.add(pack)
    return pack


def test_pack_is_its_frames(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    frames = [make_frame(sequence_number=n) for n in range(4)]
    first = keep(queue, frames[0])
    pack = keep_together(queue, frames[1:3])
    last = keep(queue, frames[3])

    assert [first, *pack.helds(), last] == list(queue)
    assert ([True] * 4, 4) == ([copy_key(frame) in queue for frame in frames], len(queue))
    assert [first, pack, last] == list(queue.pieces())


def test_frame_leaves_the_middle_of_a_pack_and_the_others_stay_where_they_are(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    frames = [make_frame(sequence_number=n) for n in range(5)]
    keep_together(queue, frames[:3])
    keep_together(queue, frames[3:])

    queue.remove(list(queue)[1])

    assert [frames[n] for n in (0, 2, 3, 4)] == [held.frame for held in queue]
    assert (False, 4) == (copy_key(frames[1]) in queue, len(queue))


def test_pack_of_which_a_part_has_left_is_shorter_and_in_its_place(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    frames = [make_frame(sequence_number=n) for n in range(4)]
    pack = keep_together(queue, frames[:3])
    keep(queue, frames[3])

    queue.remove_first(pack, 2)

    assert frames[2:] == [held.frame for held in queue]
    assert [False, False, True] == [copy_key(frame) in queue for frame in frames[:3]]
    [rest, _] = queue.pieces()
    assert len(frames[2]) == len(rest.data)


def test_pack_is_taken_apart_for_what_cannot_leave_and_only_then(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    pack = keep_together(queue, [make_frame(sequence_number=n, time_to_live=1000 + n) for n in range(3)])

    assert [pack] == list(queue.leaving(NOW + 0.999, pack.longest))
    assert list(pack.helds()) == list(queue.leaving(NOW + 1, pack.longest))
    other = HeldQueue()
    other.add(pack)
    assert list(pack.helds()) == list(other.leaving(NOW, pack.longest - 1))


def test_packs_are_taken_apart_for_what_is_due_only_so_far(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    for number in range(0, 30, 10):
        lives = [1000, *[60_000] * 9]
        keep_together(
            queue, [make_frame(sequence_number=number + n, time_to_live=life) for n, life in enumerate(lives)]
        )

    taken = [queue.take_due(NOW + 1, 11) for _ in range(4)]

    assert 3 == sum(len(due) for due, _ in taken)
    assert [1] * 27 == [1 for held in queue if held.deadline > NOW + 1]
    assert all(looked <= 20 for _, looked in taken)


def test_last_of_a_large_pack_needs_little_memory(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    pack = keep_together(queue, [make_frame(sequence_number=n) for n in range(500)])

    for held in list(queue)[:-1]:
        queue.remove(held)

    assert 1 == len(queue)
    assert sys.getsizeof(queue.apart(pack.name)) < sys.getsizeof(dict.fromkeys(pack.keys)) / 10


def test_frame_of_a_pack_that_is_replaced_keeps_its_place(make_frame: MakeFrame) -> None:
    queue = HeldQueue()
    pack = keep_together(queue, [make_frame(sequence_number=n) for n in range(3)])
    helds = list(queue.apart(pack.name).values())
    other = helds[1]._replace(since=helds[1].since + 0.5)

    queue.replace(helds[1], other)

    assert [helds[0], other, helds[2]] == list(queue)
    assert (False, True) == (queue.has(helds[1]), queue.has(other))


PLAIN = Header(
    kind=FrameKind.MESSAGE,
    flags=0,
    message_id=NO_GUID,
    conversation_id=NO_GUID,
    to_service="//to",
    from_service="//from",
    from_broker_instance=NO_GUID,
)


class Queue(RuleBasedStateMachine):
    """The queue does what a list does that is looked through from end to end; time moves in exact eighths."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = HeldQueue()
        self.model: list[Held] = []
        self.now = NOW

    @rule(coming=st.dictionaries(st.integers(0, 19), st.integers(1, 40), min_size=1, max_size=6))
    def frames_come(self, coming: dict[int, int]) -> None:
        frames = [
            encode_dialog(replace(PLAIN, sequence_number=number, time_to_live=eighths * 125), b"x" * number)
            for number, eighths in coming.items()
        ]
        here = {copy_key(held.frame) for held in self.model}
        assert [copy_key(frame) in here for frame in frames] == [copy_key(frame) in self.queue for frame in frames]
        frames = [frame for frame in frames if copy_key(frame) not in here]
        self.model += [hold(frame, self.now, WAY) for frame in frames]
        if len(frames) == 1:
            keep(self.queue, frames[0], self.now)
        elif frames:
            keep_together(self.queue, frames, self.now)

    @rule(data=st.data())
    def frame_leaves(self, data: st.DataObject) -> None:
        if self.model:
            held = self.model.pop(data.draw(st.integers(0, len(self.model) - 1)))
            self.queue.remove(held)

    @rule(data=st.data(), longest=st.integers(110, 160))
    def front_leaves(self, data: st.DataObject, longest: int) -> None:
        piece = next(self.queue.leaving(self.now, longest), None)
        if piece is not None:
            frames = data.draw(st.integers(1, piece.frames))
            self.queue.remove_first(piece, frames)
            del self.model[:frames]

    @rule(data=st.data())
    def frame_changes(self, data: st.DataObject) -> None:
        for name, _ in list(self.queue.names()):
            if isinstance(name, bytes) and data.draw(st.booleans()):
                held = data.draw(st.sampled_from(list(self.queue.apart(name).values())))
                other = held._replace(since=held.since - 0.125)
                self.queue.replace(held, other)
                self.model[self.model.index(held)] = other

    @rule(eighths=st.integers(1, 12), most=st.integers(1, 40))
    def time_passes(self, eighths: int, most: int) -> None:
        self.now += eighths / 8
        due = [held for held in self.model if held.deadline <= self.now]
        self.model = [held for held in self.model if held.deadline > self.now]
        taken: list[Held] = []
        looked = most
        while looked >= most:
            some, looked = self.queue.take_due(self.now, most)
            assert [held.deadline for held in some] == sorted(held.deadline for held in some)
            taken += some
        assert {copy_key(held.frame) for held in due} == {copy_key(held.frame) for held in taken}
        assert len(due) == len(taken)

    @invariant()
    def both_hold_the_same_in_the_same_order(self) -> None:
        assert (self.model, len(self.model)) == (list(self.queue), len(self.queue))
        assert sum(frames for _, frames in self.queue.names()) == len(self.queue)
        assert 2 * len(self.queue._deadlines) <= 3 * len(self.queue) + 2 * 20


Queue.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
TestQueue = Queue.TestCase

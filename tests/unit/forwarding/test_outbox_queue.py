"""Held frames keep their order, each copy once, and are taken out exactly when their lifetime ends."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker.flow import Disposition
from broker.forwarding import outbox_queue as packing
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, UnknownOrigin
from broker.forwarding.held_frames import DialogAffinity, Held, Pack, Piece, affinity_key_of, copy_key, hold
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox_queue import PACK_BYTES, HeldQueue, Packer, UnvisitedFrames
from broker.forwarding.pool import HELD_OVERHEAD, Pool, PoolQuota, Share
from broker.forwarding.ring import Ring
from broker.protocol.layout import HOP_COUNT_AT, FrameKind
from tests.support.forwarding import make_frame
from tests.support.kernel import Shelf
from tests.support.pack import WAY, pack_of
from tests.support.tiers import examples

NOW = 1000.0


def keep(queue: HeldQueue, frame: bytes, now: float = NOW) -> Held:
    held = hold(frame, now, WAY)
    queue.add(held)
    return held


def keep_together(queue: HeldQueue, frames: list[bytes], now: float = NOW) -> Pack:
    pack = pack_of(frames, now, name=queue.new_name())
    queue.add(pack)
    return pack


def test_pack_is_taken_apart_for_what_cannot_leave_and_only_then() -> None:
    queue = HeldQueue()
    pack = keep_together(queue, [make_frame(sequence_number=n, time_to_live=1000 + n) for n in range(3)])

    assert [pack] == list(queue.leaving(NOW + 0.999, pack.longest))
    assert list(pack.helds()) == list(queue.leaving(NOW + 1, pack.longest))
    other = HeldQueue()
    other.add(pack)
    assert list(pack.helds()) == list(other.leaving(NOW, pack.longest - 1))


def test_packs_are_taken_apart_for_what_is_due_only_so_far() -> None:
    queue = HeldQueue()
    lives = [1000, *[60_000] * 9]
    for first in range(0, 30, 10):
        keep_together(queue, [make_frame(sequence_number=first + n, time_to_live=life) for n, life in enumerate(lives)])

    taken = [queue.pop_due(NOW + 1, 11) for _ in range(4)]

    assert (3, 27) == (sum(len(due) for due, _ in taken), sum(held.deadline > NOW + 1 for held in queue))
    assert all(looked <= 20 for _, looked in taken)


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
            make_frame(b"x" * number, sequence_number=number, time_to_live=eighths * 125)
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
                held = data.draw(st.sampled_from(list(self.queue.split(name).values())))
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
            some, looked = self.queue.pop_due(self.now, most)
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


# --- packing ---
# What has to wait is held or refused as if each frame were looked at by itself, in as few pieces as there may be.


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_FRAMES", 2)


class Station:
    """A queue and all that surrounds it; each kind has a way, which counts frames as the kernel does."""

    def __init__(self, pool_bytes: int = 1 << 30, *, share_percent: int = 100, ring: Ring | None = None) -> None:
        self.pool = Pool(pool_bytes, share_percent=share_percent)
        self.share, self.queue, self.places, self.hop = Share(self.pool), HeldQueue(), DialogAffinity(), HopTimes()
        self.shelf, self.sender = Shelf("here"), UnknownOrigin()
        self.ways = {
            kind: ForwardingEntry(self.shelf, Disposition.FORWARDED, kind=kind)
            for kind in (FrameKind.MESSAGE, FrameKind.ACK)
        }
        self.asked = 0
        self.refused: list[tuple[bytes, ForwardingEntry, Disposition, float, FrameOrigin]] = []
        self.packing = Packer(
            self.shelf,
            self.queue,
            self.share,
            affinity=self.places,
            hop=self.hop,
            ring=ring,
            refuse=lambda frame, *rest: self.refused.append((bytes(frame), *rest)),
        )

    def way_of(self, frame: Buffer) -> ForwardingEntry:
        self.asked += 1
        return self.ways[FrameKind(frame[4])]

    def hold(self, *runs: Sequence[bytes], is_retry: bool = False) -> list[Piece]:
        for frame in (frame for run in runs for frame in run):
            self.ways[FrameKind(frame[4])].frames += 1
            self.hop.pending += 1
        joined = [memoryview(b"".join(run)) for run in runs]
        return list(self.packing.hold(joined, NOW, self.sender, self.way_of, is_retry=is_retry))

    @property
    def why_refused(self) -> list[Disposition]:
        return [why for _, _, why, _, _ in self.refused]


def test_frames_of_a_run_wait_as_one_piece_and_a_lone_one_by_itself() -> None:
    station = Station()
    frames = [make_frame(sequence_number=n, hop_count=1) for n in range(4)]

    pack, alone = station.hold(frames[:3], frames[3:])

    assert (Pack, Held) == (type(pack), type(alone))
    assert [b"".join(frames[:3]), frames[3]] == [pack.data, alone.data]
    assert (frames, 1) == ([held.frame for held in station.queue], station.asked)
    assert (0, 0, 4) == (station.ways[FrameKind.MESSAGE].frames, station.hop.pending, station.pool.frames)


def test_pack_is_no_longer_than_it_may_be_and_one_frame() -> None:
    station = Station()
    frames = [make_frame(b"x" * 9000, sequence_number=n) for n in range(20)]

    pieces = station.hold(frames)

    assert all(PACK_BYTES <= len(piece.data) < PACK_BYTES + len(frames[0]) for piece in pieces[:-1])
    assert b"".join(frames) == b"".join(piece.data for piece in pieces)


def test_deadline_of_a_pack_is_the_earliest_and_its_longest_the_longest() -> None:
    station = Station()
    frames = [make_frame(b"x" * n, sequence_number=n, time_to_live=9000 - n * 1000) for n in (0, 3, 2)]

    [pack] = station.hold(frames)

    assert isinstance(pack, Pack)
    assert (NOW + 6, len(frames[1])) == (pack.deadline, pack.longest)


def test_what_is_held_already_is_no_copy_the_second_time() -> None:
    station = Station()
    frames = [make_frame(sequence_number=n) for n in range(3)]
    station.hold(frames[:2])

    station.hold(frames, is_retry=True)
    assert ([], frames) == (station.refused, [held.frame for held in station.queue])
    station.hold(frames)

    assert [Disposition.ALREADY_HELD] * 3 == station.why_refused


def test_payer_is_charged_and_its_part_holds() -> None:
    station = Station(10 * (HELD_OVERHEAD + 200))
    payer = station.pool.quotas[station.sender] = PoolQuota(station.pool, 20)
    frames = [make_frame(sequence_number=n) for n in range(4)]

    station.hold(frames)

    assert [payer] * 2 == [held.quota for held in station.queue]
    assert (sum(map(len, frames[:2])) + 2 * HELD_OVERHEAD, 2) == (payer.used_bytes, station.pool.over_quota)


def test_records_of_what_waits_are_taken_back_and_its_arrival_kept() -> None:
    ring = Ring(1 << 16, sample=1.0)
    station = Station(ring=ring)
    frames = [make_frame(sequence_number=n, hop_count=0) for n in range(3)]
    ring.begin(NOW, cast("FrameOrigin", station.sender), is_from_here=True)
    for frame in frames:
        ring.enter(frame, 0, station.ways[FrameKind.MESSAGE], 0)
    arrival = ring.arrival

    station.hold(frames)

    assert [arrival] * 3 == [held.arrival for held in station.queue]
    assert 3 == bytes(ring.take().data).count(b"\xff\xff\xff\xff")


# --- against one that looks at each frame by itself ---

FRAMES = st.builds(
    lambda kind, dialog, number, hops, to, life, body: make_frame(
        b"x" * body,
        kind=kind,
        flags=dialog & 1,
        conversation_id=bytes([dialog]) * 16,
        to_service=to,
        sequence_number=number,
        hop_count=hops,
        time_to_live=life,
    ),
    st.sampled_from([FrameKind.MESSAGE, FrameKind.MESSAGE, FrameKind.ACK]),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 1),
    st.sampled_from(["//to", "//elsewhere"]),
    st.sampled_from([1000, 2000, 60_000]),
    st.sampled_from([0, 10, 300]),
)


@settings(max_examples=examples(200))
@given(
    batches=st.lists(st.lists(st.lists(FRAMES, min_size=1, max_size=12), max_size=3), max_size=4),
    pool_frames=st.integers(0, 30),
    percent=st.sampled_from([100, 50]),
)
def test_frames_are_held_and_refused_as_one_by_one(
    batches: list[list[list[bytes]]], pool_frames: int, percent: int
) -> None:
    station = Station(pool_frames * (HELD_OVERHEAD + 150), share_percent=percent)
    limit, used = station.pool.share_bytes, 0
    held: dict[bytes, Held] = {}
    refused: list[tuple[bytes, Disposition]] = []
    for batch in batches:
        station.hold(*batch)
        for frame in (frame for run in batch for frame in run):
            if copy_key(frame) in held:
                refused.append((frame, Disposition.ALREADY_HELD))
            elif used + len(frame) + HELD_OVERHEAD > limit:
                refused.append((frame, Disposition.POOL_LIMIT))
            else:
                used += len(frame) + HELD_OVERHEAD
                held[copy_key(frame)] = hold(frame, NOW, station.ways[FrameKind(frame[4])])

    assert [one._replace(placement=None) for one in station.queue] == list(held.values())
    assert refused == [(frame, why) for frame, _, why, _, _ in station.refused]
    assert (used, len(held)) == (station.pool.used_bytes, station.pool.frames)
    waiting = Counter(affinity_key_of(one.frame) for one in held.values() if one.frame[HOP_COUNT_AT])
    assert waiting == {one.placement.key: one.placement.count for one in station.queue if one.placement is not None}
    for kind, way in station.ways.items():
        assert way.frames == sum(frame[4] == kind for frame, _ in refused)  # `refuse` is to take these back


# --- pending ---
# A queue that moves is looked at from its front, each frame once, with what comes meanwhile.


class Row:
    """A queue of a frame, a pack of three, a frame and a pack of two; `frames` in order."""

    def __init__(self) -> None:
        self.frames = [make_frame(sequence_number=n) for n in range(7)]
        self.queue = HeldQueue()
        for first, last in ((0, 1), (1, 4), (4, 5), (5, 7)):
            self.queue.add(self.piece(self.frames[first:last]))
        self.pending = UnvisitedFrames(self.queue)

    def piece(self, frames: list[bytes]) -> Piece:
        if len(frames) == 1:
            return hold(frames[0], NOW, WAY)
        return pack_of(frames, NOW, name=self.queue.new_name())

    def looked_at(self) -> Iterator[bytes]:
        while (held := self.pending.first()) is not None:
            if self.queue.has(held):
                yield held.frame
            self.pending.pop()


@pytest.fixture
def row() -> Row:
    return Row()


def test_what_has_left_meanwhile_is_not_looked_at(row: Row) -> None:
    row.queue.remove_first(list(row.queue.pieces())[3], 2)
    for held in list(row.queue)[0:3:2]:
        row.queue.remove(held)

    assert [row.frames[number] for number in (1, 3, 4)] == list(row.looked_at())
    assert 0 == len(row.pending)


def test_what_comes_meanwhile_has_its_turn_at_the_end(row: Row) -> None:
    more = [make_frame(sequence_number=number) for number in range(7, 10)]
    for frames in (more[:1], more[1:]):
        piece = row.piece(frames)
        row.queue.add(piece)
        row.pending.add(piece)

    assert 10 == len(row.pending)
    assert [*row.frames, *more] == list(row.looked_at())

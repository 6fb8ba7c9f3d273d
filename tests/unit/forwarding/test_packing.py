"""What has to wait is held or refused as if each frame were looked at by itself, in as few pieces as there may be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.flow import Disposition
from broker.forwarding import outbox_queue as packing
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, UnknownOrigin
from broker.forwarding.held_frames import DialogAffinity, Held, Pack, Piece, copy_key, hold, place_key
from broker.forwarding.latency import HopTimes
from broker.forwarding.outbox_queue import PACK_BYTES, HeldQueue, Packing
from broker.forwarding.pool import HELD_OVERHEAD, Payer, Pool, Share
from broker.forwarding.ring import Ring
from broker.protocol.frame import Header, encode_dialog
from broker.protocol.layout import HOP_COUNT_AT, NO_GUID, FrameKind
from tests.support.kernel import Shelf
from tests.support.tiers import examples

MakeFrame = Callable[..., bytes]

NOW = 1000.0


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
        self.packing = Packing(
            self.shelf,
            self.queue,
            self.share,
            places=self.places,
            hop=self.hop,
            ring=ring,
            refuse=lambda frame, *rest: self.refused.append((bytes(frame), *rest)),
        )

    def way_of(self, frame: Buffer) -> ForwardingEntry:
        self.asked += 1
        return self.ways[FrameKind(frame[4])]

    def hold(self, *runs: Sequence[bytes], is_again: bool = False) -> list[Piece]:
        for frame in (frame for run in runs for frame in run):
            self.ways[FrameKind(frame[4])].frames += 1
            self.hop.pending += 1
        joined = [memoryview(b"".join(run)) for run in runs]
        return list(self.packing.hold(joined, NOW, self.sender, self.way_of, is_again=is_again))

    @property
    def why_refused(self) -> list[Disposition]:
        return [why for _, _, why, _, _ in self.refused]


def test_frames_of_a_run_wait_as_one_piece_and_a_lone_one_by_itself(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(sequence_number=n, hop_count=1) for n in range(4)]

    pack, alone = station.hold(frames[:3], frames[3:])

    assert (Pack, Held) == (type(pack), type(alone))
    assert [b"".join(frames[:3]), frames[3]] == [pack.data, alone.data]
    assert (frames, 1) == ([held.frame for held in station.queue], station.asked)
    assert (0, 0, 4) == (station.ways[FrameKind.MESSAGE].frames, station.hop.pending, station.pool.frames)


def test_few_frames_are_held_by_themselves(make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PACK_FRAMES", 4)
    station = Station()
    frames = [make_frame(sequence_number=n, hop_count=1) for n in range(7)]

    pieces = station.hold(frames[:3], frames[3:])

    assert [Held, Held, Held, Pack] == [type(piece) for piece in pieces]
    assert (frames, 7, len(frames)) == ([held.frame for held in station.queue], station.pool.frames, len(station.queue))


def test_pack_is_no_longer_than_it_may_be_and_one_frame(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(b"x" * 9000, sequence_number=n) for n in range(20)]

    pieces = station.hold(frames)

    assert all(PACK_BYTES <= len(piece.data) < PACK_BYTES + len(frames[0]) for piece in pieces[:-1])
    assert b"".join(frames) == b"".join(piece.data for piece in pieces)


def test_each_dialog_direction_and_kind_has_its_way_and_place(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [
        make_frame(hop_count=1),
        make_frame(hop_count=1, kind=FrameKind.ACK),
        make_frame(hop_count=1, conversation_id=b"d" * 16),
        make_frame(hop_count=1, to_service="//other", sequence_number=1),
        make_frame(hop_count=0, conversation_id=b"o" * 16),
        make_frame(hop_count=1, sequence_number=2),
    ]

    station.hold(frames)

    helds = list(station.queue)
    assert [station.ways[FrameKind(frame[4])] for frame in frames] == [held.way for held in helds]
    assert [place_key(f) if f[HOP_COUNT_AT] else None for f in frames] == [h.place and h.place.key for h in helds]
    [place] = {held.place for held in helds if held.frame in (frames[0], frames[5])}
    assert place is not None
    assert (3, station.shelf, 3) == (place.count, station.places.where(place.key), len(station.places))


def test_deadline_of_a_pack_is_the_earliest_and_its_longest_the_longest(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(b"x" * n, sequence_number=n, time_to_live=9000 - n * 1000) for n in (0, 3, 2)]

    [pack] = station.hold(frames)

    assert isinstance(pack, Pack)
    assert (NOW + 6, len(frames[1])) == (pack.deadline, pack.longest)


def test_what_is_held_already_is_no_copy_the_second_time(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(sequence_number=n) for n in range(3)]
    station.hold(frames[:2])

    station.hold(frames, is_again=True)
    assert ([], frames) == (station.refused, [held.frame for held in station.queue])
    station.hold(frames)

    assert [Disposition.ALREADY_HELD] * 3 == station.why_refused


def test_who_brings_something_that_is_no_copy_feeds_the_share(make_frame: MakeFrame) -> None:
    station = Station(HELD_OVERHEAD + 200)
    frames = [make_frame(sequence_number=n) for n in range(2)]
    station.hold(frames[:1])
    station.share.feeders.clear()

    station.hold(frames[:1])
    assert {} == station.share.feeders
    station.hold(frames[1:])

    assert ({station.sender: NOW}, Disposition.POOL_LIMIT) == (station.share.feeders, station.why_refused[-1])


def test_payer_is_charged_and_its_part_holds(make_frame: MakeFrame) -> None:
    station = Station(10 * (HELD_OVERHEAD + 200))
    payer = station.pool.payers[station.sender] = Payer(station.pool, 20)
    frames = [make_frame(sequence_number=n) for n in range(4)]

    station.hold(frames)

    assert [payer] * 2 == [held.payer for held in station.queue]
    assert (sum(map(len, frames[:2])) + 2 * HELD_OVERHEAD, 2) == (payer.used_bytes, station.pool.over_payer)


def test_records_of_what_waits_are_taken_back_and_its_arrival_kept(make_frame: MakeFrame) -> None:
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

PLAIN = Header(
    kind=FrameKind.MESSAGE,
    flags=0,
    message_id=NO_GUID,
    conversation_id=NO_GUID,
    to_service="//to",
    from_service="//from",
    from_broker_instance=NO_GUID,
)
FRAMES = st.builds(
    lambda kind, dialog, number, hops, to, life, body: encode_dialog(
        Header(
            kind=kind,
            flags=dialog & 1,
            message_id=NO_GUID,
            conversation_id=bytes([dialog]) * 16,
            to_service=to,
            from_service="//from",
            from_broker_instance=NO_GUID,
            sequence_number=number,
            hop_count=hops,
            time_to_live=life,
        ),
        b"x" * body,
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

    assert [one._replace(place=None) for one in station.queue] == list(held.values())
    assert refused == [(frame, why) for frame, _, why, _, _ in station.refused]
    assert (used, len(held)) == (station.pool.used_bytes, station.pool.frames)
    waiting = Counter(place_key(one.frame) for one in held.values() if one.frame[HOP_COUNT_AT])
    assert waiting == {one.place.key: one.place.count for one in station.queue if one.place is not None}
    for kind, way in station.ways.items():
        assert way.frames == sum(frame[4] == kind for frame, _ in refused)  # `refuse` is to take these back


@pytest.mark.parametrize("length", [1, 100, 512])
def test_names_of_any_length_are_read(length: int, make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(hop_count=1, to_service="n" * length, sequence_number=n) for n in range(2)]

    station.hold(frames)

    assert (1, [place_key(frames[0])]) == (station.asked, list(station.places._by_key))

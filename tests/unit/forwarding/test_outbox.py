"""An outbox writes at once what the link takes, holds the rest in order, and tells of all that does not leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from broker.flow import Disposition
from broker.forwarding.outbox import FED_SECONDS, GATHER_BYTES, Outbox
from broker.forwarding.pool import HELD_OVERHEAD, Pool
from broker.forwarding.way import Buffer, Origin, Way
from broker.routing.address import NetworkAddress
from broker.wire.frame import decode_dialog
from broker.wire.layout import Flag, Kind

MakeFrame = Callable[..., bytes]

NOW = 1000.0
ADDRESS = NetworkAddress("far.example")


class Wire:
    """An outlet that takes `room` bytes and then needs a `breath`; `written` is what the peer would see."""

    def __init__(self, room: int = 1 << 30, max_frame: int = 1 << 20, *, is_narrow: bool = False) -> None:
        self.max_frame = max_frame
        self.is_narrow = is_narrow
        self.room = room
        self.rest = b""
        self.written = b""
        self.writes = 0

    @property
    def can_send(self) -> bool:
        return self.room > 0 and not self.rest

    def send(self, data: Buffer) -> int:
        assert self.can_send
        sent = min(self.room, len(data))
        self.room -= sent
        self.writes += 1
        self.written += bytes(data[:sent])
        return sent

    def finish(self, rest: Buffer) -> None:
        assert not self.rest
        self.rest = bytes(rest)

    def breathe(self, room: int = 1 << 30) -> None:
        """The peer has read: first the end of a cut frame leaves."""
        self.written += self.rest
        self.rest, self.room = b"", room


@dataclass
class Station:
    """An outbox with all that surrounds it; `way` counts frames as the kernel does, before they are flushed."""

    pool: Pool = field(default_factory=lambda: Pool(1 << 20))
    dropped: list[tuple[bytes, Disposition, Origin | None]] = field(default_factory=list)
    wanted: list[NetworkAddress] = field(default_factory=list)
    sender: Origin = field(default_factory=lambda: cast("Origin", object()))  # the outbox only passes it on
    held_back: list[tuple[Outbox, Origin]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outbox = Outbox(
            ADDRESS,
            pool=self.pool,
            drop=lambda frame, why, origin: self.dropped.append((bytes(frame), why, origin)),
            want=lambda: self.wanted.append(ADDRESS),
            hold_back=lambda outbox, origin: self.held_back.append((outbox, origin)),
        )
        self.way = Way(self.outbox, Disposition.FORWARDED, kind=Kind.MESSAGE)

    def send(self, *runs: bytes, now: float = NOW, frames: int = 1) -> None:
        self.outbox.runs += [memoryview(run) for run in runs]
        self.way.frames += frames
        self.outbox.flush(now, self.sender, lambda _: self.way)

    @property
    def held(self) -> list[bytes]:
        return [bytes(held.frame) for held in self.outbox.held]


def test_batch_leaves_in_one_write(make_frame: MakeFrame) -> None:
    station, wire = Station(), Wire()
    station.outbox.outlet = wire
    frames = [make_frame(sequence_number=n) for n in range(3)]

    station.send(frames[0] + frames[1], frames[2], frames=3)

    assert (b"".join(frames), 1) == (wire.written, wire.writes)
    assert (station.way.frames, station.held, station.pool.frames) == (3, [], 0)
    assert station.outbox.runs == []


def test_single_run_is_handed_on_without_a_copy(make_frame: MakeFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    station, wire = Station(), Wire()
    station.outbox.outlet = wire
    seen: list[Buffer] = []

    def send(data: Buffer) -> int:
        seen.append(data)
        return len(data)

    monkeypatch.setattr(wire, "send", send)

    station.send(make_frame())

    assert [memoryview] == [type(data) for data in seen]


def test_without_a_link_frames_are_held_and_one_is_asked_for(make_frame: MakeFrame) -> None:
    station = Station()
    frame = make_frame()

    station.send(frame)

    assert ([frame], [ADDRESS], 0) == (station.held, station.wanted, station.way.frames)
    assert station.pool.frames == 1


def test_link_that_comes_when_asked_for_takes_the_frame_at_once(make_frame: MakeFrame) -> None:
    station, wire = Station(), Wire()

    def want() -> None:
        outbox.outlet = wire
        outbox.drain(NOW)

    outbox = Outbox(ADDRESS, pool=station.pool, drop=lambda *_: None, want=want)
    way = Way(outbox, Disposition.FORWARDED, kind=Kind.MESSAGE)
    frame = make_frame()

    outbox.runs.append(frame)
    way.frames += 1
    outbox.flush(NOW, station.sender, lambda _: way)

    assert (frame, 1, 0) == (wire.written, way.frames, station.pool.used_bytes)


def test_blocked_link_is_not_written_to_and_not_asked_for_again(make_frame: MakeFrame) -> None:
    station = Station()
    station.outbox.outlet = wire = Wire(room=0)
    frame = make_frame()

    station.send(frame)

    assert (b"", [frame], []) == (wire.written, station.held, station.wanted)


@pytest.mark.parametrize("cut", [1, 100, 137, 138, 139, 275, 276, 277, 413])
def test_cut_anywhere_finishes_the_frame_that_was_cut_and_holds_the_rest(cut: int, make_frame: MakeFrame) -> None:
    station = Station()
    station.outbox.outlet = wire = Wire(room=cut)
    frames = [make_frame(b"", sequence_number=n, to_service="t" * 12, from_service="f" * 12) for n in range(3)]
    begun = -(-cut // len(frames[0]))

    station.send(frames[0] + frames[1], frames[2], frames=3)
    assert (begun, frames[begun:]) == (station.way.frames, station.held)
    wire.breathe()
    station.outbox.drain(NOW)

    assert (b"".join(frames), 3) == (wire.written, station.way.frames)
    assert (station.pool.frames, station.pool.used_bytes) == (0, 0)


@pytest.mark.parametrize("room", [1, 137, 138, 139, 276, 413, 414])
def test_held_frames_leave_as_far_as_the_link_takes_them(room: int, make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(b"", sequence_number=n, to_service="t" * 12, from_service="f" * 12) for n in range(3)]
    station.send(*frames, frames=3)
    station.outbox.outlet = wire = Wire(room=room)
    begun = -(-room // len(frames[0]))

    station.outbox.drain(NOW)
    assert (begun, frames[begun:]) == (station.way.frames, station.held)
    wire.breathe()
    station.outbox.drain(NOW)

    assert (b"".join(frames), 3, 0) == (wire.written, station.way.frames, station.pool.used_bytes)


def test_frames_behind_held_ones_wait_their_turn(make_frame: MakeFrame) -> None:
    station = Station()
    first, second = make_frame(sequence_number=1), make_frame(sequence_number=2)
    station.send(first)
    station.outbox.outlet = wire = Wire()

    station.send(second)

    assert (first + second, 2, []) == (wire.written, station.way.frames, station.held)


@pytest.mark.parametrize(
    ("outlet", "is_holding", "is_ready"),
    [(None, False, False), (Wire(), False, True), (Wire(room=0), False, False), (Wire(), True, False)],
)
def test_ready_means_that_a_frame_would_leave_at_once(
    outlet: Wire | None, *, is_holding: bool, is_ready: bool, make_frame: MakeFrame
) -> None:
    station = Station()
    if is_holding:
        station.send(make_frame())
    station.outbox.outlet = outlet

    assert is_ready == station.outbox.is_ready


# --- what does not leave ---


def test_second_copy_of_a_held_frame_is_dropped(make_frame: MakeFrame) -> None:
    station = Station()
    copy = make_frame(message_id=b"n" * 16)

    station.send(make_frame() + copy, frames=2)

    assert [(copy, Disposition.ALREADY_HELD, station.sender)] == station.dropped
    assert (station.pool.frames, station.way.frames) == (1, 0)


@pytest.mark.parametrize(
    "difference",
    [
        {"conversation_id": b"d" * 16},
        {"sequence_number": 1},
        {"fragment_number": 1},
        {"kind": Kind.ACK},
        {"flags": Flag.FROM_TARGET},
    ],
    ids=str,
)
def test_frame_at_another_place_is_no_copy(difference: dict[str, object], make_frame: MakeFrame) -> None:
    station = Station()

    station.send(make_frame() + make_frame(**difference), frames=2)

    assert (station.dropped, station.pool.frames) == ([], 2)


def test_copy_of_a_frame_that_has_left_is_held_anew(make_frame: MakeFrame) -> None:
    station = Station()
    station.send(make_frame())
    station.outbox.outlet = wire = Wire()
    station.outbox.drain(NOW)
    wire.room = 0

    station.send(make_frame())

    assert (station.dropped, station.pool.frames) == ([], 1)


def test_frame_that_does_not_fit_the_pool_is_dropped(make_frame: MakeFrame) -> None:
    first, second = make_frame(sequence_number=1), make_frame(sequence_number=2)
    station = Station(pool=Pool(HELD_OVERHEAD + 200))

    station.send(first + second, frames=2)

    assert [(second, Disposition.POOL_LIMIT, station.sender)] == station.dropped
    assert ([first], 0) == (station.held, station.way.frames)


def test_link_is_asked_for_though_nothing_found_room(make_frame: MakeFrame) -> None:
    station = Station(pool=Pool(0))

    station.send(make_frame())

    assert (0, [ADDRESS]) == (station.pool.frames, station.wanted)


def test_one_next_hop_holds_no_more_than_its_share(make_frame: MakeFrame) -> None:
    pool = Pool(4 * (HELD_OVERHEAD + 200), share_percent=50)
    one, other = Station(pool=pool), Station(pool=pool)
    frames = [make_frame(sequence_number=n) for n in range(3)]

    one.send(*frames, frames=3)
    other.send(frames[2])

    assert [(frames[2], Disposition.POOL_LIMIT, one.sender)] == one.dropped
    assert (frames[:2], [frames[2]], []) == (one.held, other.held, other.dropped)
    assert (1, 0, 3) == (one.outbox.share.refused, other.outbox.share.refused, pool.frames)


# --- those who feed it ---


def test_those_who_feed_it_are_held_back_when_room_gets_tight_and_not_before(make_frame: MakeFrame) -> None:
    frames = [make_frame(sequence_number=n) for n in range(8)]
    station = Station(pool=Pool(8 * (HELD_OVERHEAD + len(frames[0]))))

    station.send(*frames[:7], frames=7)
    assert [] == station.held_back
    station.send(frames[7])

    assert ([(station.outbox, station.sender)], []) == (station.held_back, station.dropped)


def test_who_brings_only_copies_is_not_held_back(make_frame: MakeFrame) -> None:
    frame = make_frame()
    station = Station(pool=Pool(HELD_OVERHEAD + len(frame)))
    station.send(frame)
    station.held_back.clear()
    station.sender = cast("Origin", object())

    station.send(frame)

    assert ([Disposition.ALREADY_HELD], []) == ([why for _, why, _ in station.dropped], station.held_back)


def test_nobody_is_held_back_when_all_has_left(make_frame: MakeFrame) -> None:
    station = Station(pool=Pool(2 * HELD_OVERHEAD + 400))
    station.send(make_frame(sequence_number=1))
    station.outbox.outlet = Wire()

    station.send(make_frame(sequence_number=2))

    assert (0, []) == (station.pool.frames, station.held_back)


def test_who_brings_what_is_cut_or_refused_is_held_back_too(make_frame: MakeFrame) -> None:
    station = Station(pool=Pool(HELD_OVERHEAD))
    station.outbox.outlet = Wire(room=10)
    assert station.outbox.share.admit(0)

    station.send(make_frame(sequence_number=1), make_frame(sequence_number=2), frames=2)

    assert [(station.outbox, station.sender)] == station.held_back


def test_only_those_who_lately_brought_what_had_to_wait_feed_it(make_frame: MakeFrame) -> None:
    station = Station()
    station.outbox.outlet = wire = Wire()
    station.send(make_frame(sequence_number=1))
    assert {} == station.outbox.feeders

    wire.room = 0
    station.send(make_frame(sequence_number=2))
    station.outbox.expire(NOW + FED_SECONDS - 0.1)
    assert {station.sender: NOW} == station.outbox.feeders
    station.outbox.expire(NOW + FED_SECONDS)

    assert {} == station.outbox.feeders


@pytest.mark.parametrize("position", range(3))
def test_narrow_link_is_spared_frames_above_its_size(position: int, make_frame: MakeFrame) -> None:
    frames = [make_frame(sequence_number=n) for n in range(3)]
    frames[position] = large = make_frame(b"x" * 1000, sequence_number=position)
    station = Station()
    station.outbox.outlet = wire = Wire(max_frame=512, is_narrow=True)

    station.send(b"".join(frames), frames=3)

    assert [(large, Disposition.FRAME_TOO_LARGE, station.sender)] == station.dropped
    assert (b"".join(frame for frame in frames if frame != large), 2) == (wire.written, station.way.frames)


def test_narrow_link_is_written_nothing_when_nothing_fits(make_frame: MakeFrame) -> None:
    station = Station()
    station.outbox.outlet = wire = Wire(max_frame=512, is_narrow=True)

    station.send(make_frame(b"x" * 1000))

    assert (wire.writes, station.way.frames, len(station.dropped)) == (0, 0, 1)


def test_narrow_link_takes_frames_of_its_size_though_the_pool_is_full(make_frame: MakeFrame) -> None:
    station = Station(pool=Pool(0))
    station.outbox.outlet = wire = Wire(max_frame=512, is_narrow=True)
    frame = make_frame()

    station.send(frame)

    assert (frame, []) == (wire.written, station.dropped)


def test_held_frame_above_the_size_of_the_link_that_comes_is_dropped(make_frame: MakeFrame) -> None:
    station = Station()
    large, small = make_frame(b"x" * 1000), make_frame(sequence_number=1)
    station.send(large + small, frames=2)
    station.outbox.outlet = wire = Wire(max_frame=512)

    station.outbox.drain(NOW)

    assert [(large, Disposition.FRAME_TOO_LARGE, None)] == station.dropped
    assert (small, 0) == (wire.written, station.pool.used_bytes)


# --- time ---


@pytest.mark.parametrize(
    ("consumed", "waited", "expected"),
    [(0, 0.0, 0), (0, 0.0009, 0), (10, 0.25, 260), (10, 1.9999, 2009)],
)
def test_frame_leaves_with_the_time_it_waited(
    consumed: int, waited: float, expected: int, make_frame: MakeFrame
) -> None:
    station = Station()
    station.send(make_frame(time_consumed=consumed))
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW + waited)

    assert expected == decode_dialog(wire.written)[0].time_consumed


def test_frame_that_begins_to_leave_and_does_not_has_aged_only_once(make_frame: MakeFrame) -> None:
    station = Station()
    station.send(make_frame(sequence_number=1) + make_frame(sequence_number=2), frames=2)
    frame_bytes = len(make_frame())
    station.outbox.outlet = wire = Wire(room=1)

    station.outbox.drain(NOW + 0.25)
    wire.breathe()
    station.outbox.drain(NOW + 0.5)

    times = [decode_dialog(wire.written[at : at + frame_bytes])[0].time_consumed for at in (0, frame_bytes)]
    assert [250, 500] == times


def test_only_what_is_past_its_lifetime_expires(make_frame: MakeFrame) -> None:
    station = Station()
    short = make_frame(time_to_live=1000, sequence_number=1)
    long = make_frame(time_to_live=5000, sequence_number=2)
    station.send(long + short, frames=2)

    station.outbox.expire(NOW + 0.999)
    assert station.dropped == []
    station.outbox.expire(NOW + 1)

    assert [(short, Disposition.EXPIRED_HERE, None)] == station.dropped
    assert ([long], 1) == (station.held, station.pool.frames)
    station.outbox.expire(NOW + 5)
    assert (station.held, station.pool.used_bytes) == ([], 0)


def test_expired_frame_is_not_sent(make_frame: MakeFrame) -> None:
    station = Station()
    station.send(make_frame(time_to_live=1000))
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW + 1)

    assert [why for _, why, _ in station.dropped] == [Disposition.EXPIRED_HERE]
    assert (wire.writes, station.way.frames) == (0, 0)


def test_many_held_frames_leave_in_writes_of_a_socket_buffers_worth(make_frame: MakeFrame) -> None:
    station = Station(pool=Pool(1 << 30))
    frames = [make_frame(b"x" * 1000, sequence_number=n) for n in range(300)]
    station.send(b"".join(frames), frames=300)
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW)

    assert b"".join(frames) == wire.written
    per_write = -(-GATHER_BYTES // len(frames[0]))
    assert -(-len(frames) // per_write) == wire.writes


def test_frames_given_up_are_aged_in_order_and_charged_no_more(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(sequence_number=n, time_to_live=1000 if n == 1 else 60_000) for n in range(4)]
    station.send(*frames, frames=4)

    other = Way(station.outbox, Disposition.FORWARDED, kind=Kind.MESSAGE)
    given = list(station.outbox.surrender(NOW + 1, lambda held: None if held.frame == frames[3] else other))

    assert {other} == {way for _, way in given}
    headers = [decode_dialog(bytes(frame))[0] for frame, _ in given]
    assert [(0, 1000), (2, 1000)] == [(header.sequence_number, header.time_consumed) for header in headers]
    assert [(frames[1], Disposition.EXPIRED_HERE, None)] == station.dropped
    assert ([frames[3]], 1) == (station.held, station.pool.frames)
    assert station.outbox.share.used_bytes == station.pool.used_bytes == HELD_OVERHEAD + len(frames[3])


def test_end_drops_and_counts_what_is_still_held(make_frame: MakeFrame) -> None:
    station = Station()
    frames = [make_frame(sequence_number=n) for n in range(3)]
    station.send(*frames, frames=3)

    station.outbox.abandon()

    assert [(frame, Disposition.SHUTDOWN, None) for frame in frames] == station.dropped
    assert (station.held, station.pool.frames, station.pool.used_bytes) == ([], 0, 0)

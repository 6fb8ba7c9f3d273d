"""An outbox writes at once what the link takes, holds the rest in order, and tells of all that does not leave."""

from dataclasses import dataclass, field
from typing import cast

import pytest

from broker.flow import Disposition
from broker.forwarding import outbox_queue as packing
from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, Outlet, UnknownOrigin
from broker.forwarding.forwarder import ignore
from broker.forwarding.held_frames import DialogAffinity
from broker.forwarding.outbox import DRAIN_FRAMES, GATHER_BYTES, DatabaseSink, Outbox
from broker.forwarding.pool import HELD_OVERHEAD, Pool
from broker.protocol.frame import decode_dialog
from broker.protocol.layout import FrameKind
from broker.routing.address import NetworkAddress
from tests.support.forwarding import NOW, Wire, make_frame, outbox_context

ADDRESS = NetworkAddress("far.example")


@pytest.fixture(autouse=True, params=[2, 1000], ids=["together", "by themselves"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How few frames that come together also wait as one piece."""
    monkeypatch.setattr(packing, "PACK_FRAMES", request.param)


@dataclass
class Station:
    """An outbox with all that surrounds it; `way` counts frames as the kernel does, before they are flushed."""

    pool: Pool = field(default_factory=lambda: Pool(1 << 20))
    dropped: list[tuple[bytes, Disposition, FrameOrigin | None]] = field(default_factory=list)
    wanted: list[NetworkAddress] = field(default_factory=list)
    sender: FrameOrigin = field(default_factory=lambda: cast("FrameOrigin", object()))  # the outbox only passes it on
    held_back: list[tuple[Outbox, FrameOrigin]] = field(default_factory=list)
    unfinished: list[Outbox] = field(default_factory=list)
    places: DialogAffinity = field(default_factory=DialogAffinity)
    reported: list[tuple[Outlet | None, Exception]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.outbox = Outbox(
            ADDRESS,
            pool=self.pool,
            request_link=lambda: self.wanted.append(ADDRESS),
            context=outbox_context(
                drop=self.drop,
                report_waiting=lambda outbox, origin: self.held_back.append((outbox, origin)),
                continue_later=self.unfinished.append,
                report=lambda outlet, error: self.reported.append((outlet, error)),
                affinity=self.places,
            ),
        )
        self.way = ForwardingEntry(self.outbox, Disposition.FORWARDED, kind=FrameKind.MESSAGE)

    def drop(self, frame: Buffer, disposition: Disposition, origin: FrameOrigin | None) -> None:
        self.dropped.append((bytes(frame), disposition, origin))

    def send(self, *runs: bytes, now: float = NOW, frames: int = 1) -> None:
        self.outbox.runs += [memoryview(run) for run in runs]
        self.way.frames += frames
        self.outbox.flush(now, self.sender, lambda _: self.way)

    @property
    def is_served(self) -> bool:
        return self.outbox.outlet is not None

    @property
    def held(self) -> list[bytes]:
        return [bytes(held.frame) for held in self.outbox.held]


def test_batch_leaves_in_one_write() -> None:
    station, wire = Station(), Wire()
    station.outbox.outlet = wire
    frames = [make_frame(sequence_number=n) for n in range(3)]

    station.send(frames[0] + frames[1], frames[2], frames=3)

    assert (b"".join(frames), 1) == (wire.written, wire.writes)
    assert (station.way.frames, station.held, station.pool.frames) == (3, [], 0)
    assert station.outbox.runs == []


# --- those who feed it ---


def test_who_brings_what_has_to_wait_is_told_of_and_nobody_else() -> None:
    station = Station()
    station.outbox.outlet = wire = Wire()

    station.send(make_frame(sequence_number=1))
    assert [] == station.held_back
    wire.room = 0
    station.send(make_frame(sequence_number=2))

    assert ([(station.outbox, station.sender)], []) == (station.held_back, station.dropped)
    wire.breathe()
    station.send(make_frame(sequence_number=3))
    assert (1, 0) == (len(station.held_back), station.pool.frames)


@pytest.mark.parametrize("position", range(3))
def test_narrow_link_is_spared_frames_above_its_size(position: int) -> None:
    frames = [make_frame(sequence_number=n) for n in range(3)]
    frames[position] = large = make_frame(b"x" * 1000, sequence_number=position)
    station = Station()
    station.outbox.outlet = wire = Wire(max_frame=512, is_narrow=True)

    station.send(b"".join(frames), frames=3)

    assert [(large, Disposition.FRAME_TOO_LARGE, station.sender)] == station.dropped
    assert (b"".join(frame for frame in frames if frame != large), 2) == (wire.written, station.way.frames)


# --- time ---


@pytest.mark.parametrize(
    ("consumed", "waited", "expected"),
    [(0, 0.0, 0), (0, 0.0009, 0), (10, 0.25, 260), (10, 1.9999, 2009)],
)
@pytest.mark.promise(4, "R7.1")
def test_frame_leaves_with_the_time_it_waited(consumed: int, waited: float, expected: int) -> None:
    station = Station()
    station.send(make_frame(time_consumed=consumed))
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW + waited)

    assert expected == decode_dialog(wire.written)[0].time_consumed


@pytest.mark.promise(4, "case R11", "forwarding 8")
def test_expired_frame_is_not_sent() -> None:
    station = Station()
    station.send(make_frame(time_to_live=1000))
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW + 1)

    assert [why for _, why, _ in station.dropped] == [Disposition.EXPIRED_HERE]
    assert (wire.writes, station.way.frames) == (0, 0)


def test_many_held_frames_leave_in_writes_of_a_socket_buffers_worth() -> None:
    station = Station(pool=Pool(1 << 30))
    frames = [make_frame(b"x" * 1000, sequence_number=n) for n in range(300)]
    station.send(b"".join(frames), frames=300)
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW)

    assert b"".join(frames) == wire.written
    per_write = -(-GATHER_BYTES // len(frames[0]))
    assert -(-len(frames) // per_write) == wire.writes


def test_frame_given_up_is_aged_and_charged_no_more_and_one_that_is_late_is_dropped() -> None:
    station = Station()
    frames = [make_frame(sequence_number=n, time_to_live=1000 if n == 1 else 60_000) for n in range(3)]
    station.send(*frames, frames=3)

    given = [station.outbox.take_out(held, NOW + 1) for held in list(station.outbox.held)[:2]]

    assert given[0] is not None
    assert (1000, None) == (decode_dialog(bytes(given[0]))[0].time_consumed, given[1])
    assert [(frames[1], Disposition.EXPIRED_HERE, None)] == station.dropped
    assert ([frames[2]], 1) == (station.held, station.pool.frames)
    assert station.outbox.share.used_bytes == station.pool.used_bytes == HELD_OVERHEAD + len(frames[2])


# --- what must not happen ---


class Broken(Wire):
    """An outlet that fails at the call named."""

    def __init__(self, call: str, room: int = 1 << 30) -> None:
        super().__init__(room, is_narrow=True)
        self.call = call

    @property
    def can_send(self) -> bool:
        if self.call == "can_send":
            raise RuntimeError(self.call)
        return super().can_send

    def send(self, data: Buffer) -> int:
        if self.call == "send":
            raise RuntimeError(self.call)
        return super().send(data)

    def keep_rest(self, rest: Buffer) -> None:
        if self.call == "keep_rest":
            raise RuntimeError(self.call)
        super().keep_rest(rest)


@pytest.mark.parametrize("is_holding", [False, True], ids=["at once", "from the queue"])
def test_link_that_fails_is_given_nothing_more_and_the_frames_wait_for_another(*, is_holding: bool) -> None:
    station, broken, wire = Station(), Broken("send"), Wire()
    frames = [make_frame(sequence_number=n) for n in range(3)]
    if is_holding:
        station.send(frames[0])
    station.outbox.outlet = broken
    station.send(*frames[is_holding:], frames=3 - is_holding)
    station.outbox.outlet = broken  # whoever keeps links does not know yet
    assert (frames, False, 0) == (station.held, station.is_served, len(station.outbox.runs))
    assert ([(broken, "send")], [ADDRESS]) == ([(link, str(e)) for link, e in station.reported], station.wanted[:1])

    station.outbox.outlet = wire
    station.outbox.drain(NOW)

    assert (b"".join(frames), 3, 0) == (wire.written, station.way.frames, station.pool.used_bytes)


def test_link_that_cannot_finish_a_frame_has_failed() -> None:
    station = Station()
    frames = [make_frame(sequence_number=n) for n in range(3)]
    station.outbox.outlet = broken = Broken("keep_rest", room=len(frames[0]) + 10)

    station.send(*frames, frames=3)

    assert (frames[2:], False, 2) == (station.held, station.is_served, station.way.frames)
    assert [broken] == [outlet for outlet, _ in station.reported]


def test_batch_that_could_not_be_written_is_held_once_for_another_link() -> None:
    station, wire = Station(), Wire()
    frames = [make_frame(sequence_number=n) for n in range(3)]
    station.outbox.outlet = broken = Broken("can_send")

    with pytest.raises(RuntimeError):
        station.send(b"".join(frames), frames=3)
    for _ in range(2):
        station.outbox.runs[:] = [b"".join(frames)]
        station.outbox.recover(NOW, station.sender, lambda _: station.way)
        station.outbox.outlet = broken
        assert (frames, 0, 0) == (station.held, len(station.outbox.runs), station.way.frames)
        assert not station.is_served

    station.outbox.outlet = wire
    station.outbox.drain(NOW)
    assert (b"".join(frames), 3) == (wire.written, station.way.frames)


# --- what takes long ---


def test_drain_ends_after_a_turns_worth_and_asks_for_another() -> None:
    station = Station(pool=Pool(1 << 30))
    frames = [make_frame(sequence_number=n) for n in range(3 * DRAIN_FRAMES)]
    station.send(b"".join(frames), frames=len(frames))
    station.outbox.outlet = wire = Wire()

    station.outbox.drain(NOW)
    left = len(station.outbox.held)
    assert ([station.outbox], True) == (station.unfinished, DRAIN_FRAMES <= len(frames) - left < 3 * DRAIN_FRAMES)
    while station.outbox.held:
        station.outbox.drain(NOW)

    assert b"".join(frames) == wire.written


# --- sink ---
# The two ends of the pass that are no next hop take every frame once, in order, and keep nothing.


DATABASE = b"d" * 16


def test_database_gets_copies_of_its_frames_in_the_order_of_arrival() -> None:
    delivered: list[tuple[bytes, list[bytes], FrameOrigin]] = []
    frames = [make_frame(bytes([n])) for n in range(3)]
    slab, origin = bytearray(b"".join(frames)), UnknownOrigin()
    cut = len(frames[0] + frames[1])
    sink = DatabaseSink(DATABASE, lambda *what: delivered.append(what), ignore)
    sink.runs += [memoryview(slab)[:cut], memoryview(slab)[cut:]]

    sink.flush(0.0, origin, lambda _: ForwardingEntry(sink, Disposition.DELIVERED, kind=0x10))
    slab[:] = bytes(len(slab))

    assert ([(DATABASE, frames, origin)], []) == (delivered, sink.runs)

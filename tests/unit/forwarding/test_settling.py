"""Each sink takes its frames whatever becomes of the others, and what had waited is counted once."""

from __future__ import annotations

from broker.forwarding.entry import Buffer, ForwardingEntry, FrameOrigin, Outlet, PassResult, UnknownOrigin, WayOf
from broker.forwarding.forwarder import Settling
from broker.forwarding.latency import HopTimes, bucket
from broker.forwarding.outbox import Outbox, Ports
from broker.forwarding.pool import Pool
from broker.routing.address import NetworkAddress

NOW = 1000.0


class Place:
    """A sink that remembers what it took; `waiting` of its frames have to wait; it fails as often as told."""

    def __init__(self, hop: HopTimes, *, waiting: int = 0, is_flushed: bool = True, is_recovered: bool = True) -> None:
        self.runs: list[Buffer] = []
        self.taken: list[Buffer] = []
        self._hop = hop
        self._waiting = waiting
        self._is_flushed = is_flushed
        self._is_recovered = is_recovered

    def flush(self, _now: float, _origin: FrameOrigin, _way_of: WayOf) -> None:
        if not self._is_flushed:
            raise ZeroDivisionError
        self.taken += self.runs
        self._hop.pending -= self._waiting
        self.runs.clear()

    def recover(self, _now: float, _origin: FrameOrigin, _way_of: WayOf) -> None:
        if not self._is_recovered:
            raise MemoryError
        self.runs.clear()


class Station:
    def __init__(self) -> None:
        self.hop = HopTimes()
        self.reported: list[tuple[Outlet | None, type[Exception]]] = []
        self.held_back: list[tuple[Outbox, FrameOrigin, bool]] = []
        self.settling = Settling(
            lambda *who: self.held_back.append(who),
            lambda outlet, error: self.reported.append((outlet, type(error))),
            self.hop,
        )


def batch_for(*places: Place) -> PassResult:
    batch = PassResult()
    for number, place in enumerate(places):
        batch.gather(place, bytes([number]))
    return batch


def way_of(_frame: Buffer) -> ForwardingEntry:
    raise AssertionError


def test_sink_that_fails_is_reported_when_the_others_have_had_their_turn() -> None:
    station = Station()
    failing, good = Place(station.hop, is_flushed=False), Place(station.hop)

    station.settling.settle(batch_for(failing, good), NOW, UnknownOrigin(), way_of)

    assert ([], [b"\1"]) == (failing.runs, good.taken)
    assert [(None, ZeroDivisionError)] == station.reported


def test_sink_that_cannot_recover_keeps_no_part_of_the_slab() -> None:
    station = Station()
    failing, good = Place(station.hop, is_flushed=False, is_recovered=False), Place(station.hop)

    station.settling.settle(batch_for(failing, good), NOW, UnknownOrigin(), way_of)

    assert ([], [b"\1"]) == (failing.runs, good.taken)
    assert [(None, ZeroDivisionError), (None, MemoryError)] == station.reported


def test_what_leaves_after_it_waited_is_counted_with_its_time_and_what_waits_again_is_not() -> None:
    station = Station()
    station.hop.pending = 7
    since = [NOW - 1.0, NOW - 1.0, NOW - 0.1, NOW - 0.1]

    station.settling.settle_again(batch_for(Place(station.hop, waiting=1)), NOW, way_of, since)

    counts = {place: frames for place, frames in enumerate(station.hop.counts) if frames}
    assert ({bucket(1.0): 2, bucket(NOW - since[2]): 1}, 7) == (counts, station.hop.pending)


def test_it_is_told_whether_a_batch_is_for_others_as_well() -> None:
    station = Station()
    origin = UnknownOrigin()

    class Telling(Place):
        def flush(self, now: float, origin: FrameOrigin, way_of: WayOf) -> None:
            station.settling.tell_who_waits(outbox, origin)
            super().flush(now, origin, way_of)

    ports = Ports(drop=lambda *_: None)
    outbox = Outbox(NetworkAddress("west"), pool=Pool(0), want=lambda: None, ports=ports)
    station.settling.settle(batch_for(Telling(station.hop)), NOW, origin, way_of)
    station.settling.tell_who_waits(outbox, origin)

    assert [(outbox, origin, True), (outbox, origin, False)] == station.held_back

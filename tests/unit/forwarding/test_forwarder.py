"""The pass as a whole: every frame that enters is counted once, and leaves by the way that routing decides."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import pytest

from broker.flow import Disposition
from broker.forwarding import fib
from broker.forwarding import forwarder as module
from broker.forwarding.entry import Buffer, EntryOf, FrameOrigin, Outlet, PassResult, frame_bounds
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import READ_BYTES, Limits
from broker.forwarding.reroute import Rerouter, RerouteReason
from broker.protocol.frame import Rejected, decode_dialog
from broker.protocol.layout import CONVERSATION_AT, NO_GUID, Flag, FrameKind
from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.decide import AddressHealth, RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, Route
from broker.security.grants import OPEN
from tests.support.forwarding import HERE, NOW, ForwarderStation, Sender, Wire, make_frame, split
from tests.support.kernel import hopped

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
ROUTES = (
    Route("ToNorth", NORTH, remote_service_name="//north"),
    Route("AlsoToNorth", NORTH, remote_service_name="//north/too"),
    Route("ToSouth", SOUTH, remote_service_name="//south"),
    Route("Here", LOCAL, remote_service_name="//here"),
)


class Station(ForwarderStation):
    """With an open wire to each neighbour named, and no other news of them."""

    def __init__(self, *, wired: Iterable[NetworkAddress] = (NORTH, SOUTH)) -> None:
        super().__init__(*ROUTES, pool_bytes=10_000)
        self.wires = {address: Wire() for address in wired}
        for address, wire in self.wires.items():
            self.forwarder.table.outbox(address).outlet = wire


pytestmark = pytest.mark.usefixtures("kernel_name")


# --- counting ---


def test_service_name_that_is_no_text_is_malformed_and_ends_no_batch() -> None:
    station = Station()
    good = make_frame(to_service="//north")
    bad = good.replace(b"//north", b"//\xffnorth"[:7])

    station.take(bad, good, bad)

    assert station.forwarder.dropped == {Disposition.MALFORMED: 2}
    assert hopped(good) == station.wires[NORTH].written


@pytest.mark.promise("forwarding 12")
def test_end_of_the_instance_drops_what_is_held_everywhere() -> None:
    station = Station(wired=())
    station.take(make_frame(to_service="//north"), make_frame(to_service="//south"))

    station.forwarder.drop_all(NOW)

    assert station.forwarder.dropped == {Disposition.SHUTDOWN: 2}
    assert (station.forwarder.pool.used_bytes, station.forwarder.unaccounted) == (0, 0)


# --- what is sent from here ---


def test_submitted_frames_take_the_ways_given_for_them_and_keep_their_hops() -> None:
    """And have no time here, which is that of frames from outside."""
    station = Station()
    forwarder, sender = station.forwarder, Sender()
    frames = [make_frame(to_service=service, sequence_number=n) for n, service in enumerate(["//north", "//here"])]
    ways = [station.entry_of(frame, database=HERE) for frame in frames]

    forwarder.submit(zip(ways, frames, strict=True), NOW, sender)

    assert (frames[0], [(HERE, [frames[1]], sender)]) == (station.wires[NORTH].written, station.delivered)
    assert (sender.received, forwarder.unaccounted) == ({FrameKind.MESSAGE: 2}, 0)
    assert (0, 0) == (forwarder.hop.pending, sum(forwarder.hop.counts))


def test_submitted_frames_that_have_to_wait_are_counted_when_they_leave() -> None:
    station = Station(wired=())
    forwarder = station.forwarder
    services = ["//north", "//north/too", "//north"]
    frames = [
        make_frame(to_service=name, message_id=bytes([n]) * 16, sequence_number=n) for n, name in enumerate(services)
    ]
    ways = [station.entry_of(frame) for frame in frames]

    forwarder.submit(zip(ways, frames, strict=True), NOW, station.sender)
    assert ([way.frames for way in ways[:2]], forwarder.pool.frames, forwarder.unaccounted) == ([0, 0], 3, 0)
    forwarder.table.outboxes[NORTH].outlet = wire = Wire()
    forwarder.table.outboxes[NORTH].drain(NOW + 1)

    assert (3, [2, 1]) == (len(split(wire.written)), [way.frames for way in ways[:2]])
    assert (0, 0) == (forwarder.hop.pending, sum(forwarder.hop.counts))


# --- change ---


@pytest.mark.promise("R1.6")
def test_frames_that_wait_for_a_next_hop_nobody_serves_take_the_new_way() -> None:
    station = Station(wired=[SOUTH])
    came, sent = make_frame(to_service="//north"), make_frame(to_service="//north", sequence_number=1)
    way = station.entry_of(sent)
    station.take(came)
    station.forwarder.submit([(way, sent)], NOW, station.sender)

    station.lead(Route("Moved", SOUTH, remote_service_name="//north"))
    station.forwarder.reroute_waiting(NOW)

    assert station.wires[SOUTH].written == hopped(came)
    # What a database here sent goes by its own routes, so it stays where it is.
    assert [sent] == station.held(NORTH)
    assert (station.forwarder.pool.frames, station.forwarder.unaccounted) == (1, 0)


# --- a path breaks ---


WEST, EAST = NetworkAddress("west"), NetworkAddress("east")


class Crossing(ForwarderStation):
    """A forwarder with two ways to //far."""

    def __init__(self) -> None:
        self.reported: list[tuple[Outlet | None, Exception]] = []
        super().__init__(Route("West", WEST, "//far"), Route("East", EAST, "//far"), *ROUTES, pool_bytes=2_000_000)

    def report(self, outlet: Outlet | None, error: Exception) -> None:
        self.reported.append((outlet, error))

    def hold(self, address: NetworkAddress, *frames: bytes) -> None:
        """These frames come in and wait for a link that takes nothing."""
        self.connect(address, room=0)
        self.take(*frames)
        assert [hopped(frame) for frame in frames] == self.held(address)


def far_frames(count: int = 6, **fields: Any) -> list[bytes]:
    return [
        make_frame(to_service="//far", conversation_id=bytes([n % 2]) * 16, sequence_number=n, **fields)
        for n in range(count)
    ]


def test_dialog_stays_in_one_queue_while_all_its_addresses_are_dead() -> None:
    station = Crossing()
    station.health = {WEST: AddressHealth.SUPPRESSED, EAST: AddressHealth.SUPPRESSED}
    station.failed = {WEST, EAST}
    frames = [make_frame(to_service="//far", conversation_id=bytes([n % 8]) * 16, sequence_number=n) for n in range(64)]

    for at in range(0, 64, 16):
        # Now this one, now that one is preferred, as back-off ends now here and now there.
        station.health[(WEST, EAST)[at // 16 % 2]] = AddressHealth.UNTRIED
        station.health[(EAST, WEST)[at // 16 % 2]] = AddressHealth.SUPPRESSED
        station.forwarder.on_health_changed()
        station.take(*frames[at : at + 16])
        station.mend()
    station.take(*frames)

    queues = [{frame[CONVERSATION_AT] for frame in station.held(address)} for address in (WEST, EAST)]
    assert (set(), 64) == (queues[0] & queues[1], station.forwarder.pool.frames)
    assert {Disposition.ALREADY_HELD: 64} == station.forwarder.dropped
    wire = station.connect(EAST)
    station.forwarder.table.outbox(EAST).drain(NOW)
    station.mend()
    assert in_order(wire.written, 64)


def in_order(written: bytes, count: int) -> bool:
    """Whether so many frames left, those of each dialog in their order, each once."""
    frames = [written[start:stop] for start, stop in frame_bounds(written)]
    by_dialog: dict[bytes, list[int]] = {}
    for frame in frames:
        header = decode_dialog(frame)[0]
        by_dialog.setdefault(header.conversation_id, []).append(header.sequence_number)
    return len(frames) == count and all(numbers == sorted(set(numbers)) for numbers in by_dialog.values())


def test_many_frames_move_in_portions_and_in_order() -> None:
    station = Crossing()
    station.forwarder.pool.limit_bytes = 64 << 20
    frames = far_frames(30, body=bytes(30_000))
    station.connect(WEST, room=0)
    for frame in frames:
        station.take(frame)

    station.cut(WEST)
    east = station.connect(EAST)
    station.mend()

    assert hopped(*frames) == east.written


@pytest.mark.promise("R6.7")
def test_frames_for_a_mirrored_pair_are_held_until_the_routes_say_otherwise() -> None:
    station = Station()
    frame = make_frame(to_service="//pair", to_broker_instance=UUID(int=9).bytes, time_to_live=1000)
    station.lead(Route("Pair", NORTH, "//pair", UUID(int=9), mirror_address=SOUTH))

    station.take(frame)
    assert (station.forwarder.pool.frames, station.sender.rejected, station.wanted) == (1, [], [])
    station.lead(Route("Alone", NORTH, "//pair", UUID(int=9)))
    station.forwarder.reroute_waiting(NOW + 0.25)

    assert [len(wire.written) for wire in station.wires.values()] == [len(frame), 0]
    assert (station.forwarder.pool.frames, station.forwarder.table.pair_outboxes, station.forwarder.unaccounted) == (
        0,
        {},
        0,
    )


@pytest.mark.promise("R3.9")
def test_address_that_turns_out_to_be_our_own_is_routed_as_if_from_outside() -> None:
    station = Station(wired=[SOUTH])
    station.lead(*ROUTES, Route("Last", TRANSPORT))
    ours = make_frame(to_service="tcp://alias:4022/x")
    station.take(ours, make_frame(to_service="//north"))

    station.forwarder.add_own_addresses({NetworkAddress("alias"), NORTH}, NOW)

    assert station.forwarder.dropped == {Disposition.ROUTE_INVALID: 2}
    assert (station.forwarder.pool.frames, station.forwarder.unaccounted) == (0, 0)
    station.take(ours)
    assert station.forwarder.dropped == {Disposition.ROUTE_INVALID: 3}


def test_own_addresses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OWN_MAX", 2)
    station = Station()

    for n in range(4):
        station.forwarder.add_own_addresses({NetworkAddress(f"alias{n}")}, NOW)

    assert {NetworkAddress("alias0"), NetworkAddress("alias1")} == station.forwarder.routing_context.own


THERE = b"t" * 16
NOT_HERE = Disposition.INSTANCE_NOT_HERE.number


class TwoWays(Station):
    """Either neighbour leads to the service, and one of them has the broker instance."""

    def __init__(self) -> None:
        super().__init__()
        self.lead(Route("One", NORTH, "//two ways"), Route("Two", SOUTH, "//two ways"))

    def way_of(self, frame: bytes, now: float = NOW) -> NetworkAddress:
        """Where the frame leaves."""
        before = {address: len(wire.written) for address, wire in self.wires.items()}
        self.take(frame, now=now)
        (address,) = (address for address, wire in self.wires.items() if len(wire.written) > before[address])
        return address

    def refuse(self, frame: bytes, address: NetworkAddress, code: int = NOT_HERE, now: float = NOW) -> None:
        """A neighbour says why it dropped the frame."""
        conversation = decode_dialog(frame)[0].conversation_id
        self.forwarder.on_rejected(Rejected(conversation=conversation, code=code), [address], now)


def test_frames_that_name_a_broker_instance_leave_the_next_hop_that_does_not_have_it() -> None:
    station = TwoWays()
    named = make_frame(to_service="//two ways", to_broker_instance=THERE)
    unnamed, elsewhere = (make_frame(to_service="//two ways", to_broker_instance=one) for one in (NO_GUID, HERE))
    wrong = station.way_of(named)
    (right,) = {NORTH, SOUTH} - {wrong}

    station.refuse(named, wrong)

    assert [right, wrong, wrong] == [station.way_of(one) for one in (named, unnamed, elsewhere)]
    ids = [bytes([n]) * 16 for n in range(20)]
    others = [make_frame(to_service="//two ways", to_broker_instance=THERE, conversation_id=one) for one in ids]
    assert {right} == {station.way_of(one) for one in others}


@pytest.mark.parametrize("code", [NOT_HERE, Disposition.DATABASE_IS_MIRROR.number, Disposition.POOL_LIMIT.number, 0])
@pytest.mark.parametrize("is_asked", [True, False])
def test_only_a_next_hop_that_was_given_the_frame_and_lacks_the_instance_is_left(code: int, *, is_asked: bool) -> None:
    station = TwoWays()
    named = make_frame(to_service="//two ways", to_broker_instance=THERE)
    first = station.way_of(named)
    (other,) = {NORTH, SOUTH} - {first}

    station.refuse(named, first if is_asked else other, code)

    is_left = is_asked and code in module.REFUSALS
    assert (other if is_left else first) == station.way_of(named)


def test_refusals_are_forgotten_after_a_minute_bounded_and_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REFUSALS_MAX", 2)
    monkeypatch.setattr(fib, "NAMED_MAX", 2)
    station = TwoWays()

    def refused() -> list[int]:
        return [instance[0] for _, instance in station.forwarder.routing_context.refusals]

    for n in range(4):
        named = make_frame(to_service="//two ways", to_broker_instance=bytes([n]) * 16 if n else HERE)
        station.refuse(named, station.way_of(named, NOW + n), now=NOW + n)
        station.refuse(named, SOUTH, now=NOW + n + 0.1)
    assert [2, 3] == refused()
    station.forwarder.expire(NOW + 62)
    assert [3] == refused()
    station.forwarder.expire(NOW + 64)
    assert [] == refused()


def test_what_passed_lately_is_remembered_the_latest_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fib, "PASSED_MAX", 2)
    station = TwoWays()
    station.lead(*ROUTES, Route("One", NORTH, "//two ways"), Route("Two", SOUTH, "//two ways"))
    by_key = make_frame(to_service="//north")
    by_conversation = make_frame(to_service="//two ways", conversation_id=b"c" * 16, flags=Flag.FROM_TARGET)

    station.take(by_key, by_conversation, make_frame(kind=FrameKind.ACK, to_service="//north"))
    answer = RoutingFacts("//two ways", NO_GUID, b"c" * 16, is_from_target=True)
    assert [answer, RoutingFacts("//north", NO_GUID, NO_GUID)] == list(station.forwarder.passed)

    station.forwarder.forget_decisions()
    station.take(by_conversation, make_frame(to_service="//south"))
    assert [answer, RoutingFacts("//south", NO_GUID, NO_GUID)] == list(station.forwarder.passed)


# --- what peers may invent ---


def test_addresses_beyond_the_bound_are_refused_until_idle_ones_are_retired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fib, "INVENTED_MAX", 2)
    station = Station()
    forwarder = station.forwarder
    station.lead(*ROUTES, Route("Anywhere", TRANSPORT))
    invented = [make_frame(to_service=f"tcp://10.0.0.{n}/x", time_to_live=1000, sequence_number=n) for n in range(5)]

    station.take(make_frame(to_service="//north"), *invented)
    assert ({Disposition.POOL_LIMIT: 3}, 2) == (forwarder.dropped, forwarder.pool.frames)
    forwarder.expire(NOW + 0.5)
    assert len(forwarder.table.outboxes) == 4
    forwarder.expire(NOW + 1)

    outboxes = forwarder.table.outboxes
    assert {NORTH, SOUTH} == set(outboxes)
    sinks = [way.sink for way in forwarder.entries.values() if isinstance(way.sink, Outbox)]
    assert all(sink in outboxes.values() for sink in sinks)
    assert forwarder.unaccounted == 0
    station.take(invented[4])
    assert forwarder.pool.frames == 1


def test_frames_that_left_through_a_retired_outbox_stay_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fib, "INVENTED_MAX", 1)
    station = Station(wired=(NORTH,))
    station.lead(*ROUTES, Route("Anywhere", TRANSPORT))
    station.take(make_frame(to_service="//north"), make_frame(to_service=f"{EAST}/x"))
    outbox = station.forwarder.table.outbox(EAST)
    outbox.outlet = Wire()
    outbox.drain(NOW)

    outbox.outlet = None
    station.forwarder.expire(NOW)

    assert list(station.forwarder.table.outboxes) == [NORTH]
    assert (station.forwarder.forwarded, station.forwarder.unaccounted) == (2, 0)


# --- what must not happen ---


def test_port_that_fails_in_a_flush_costs_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Crossing()
    frames = [make_frame(to_service="//north", sequence_number=n) for n in range(3)]
    south = station.connect(SOUTH)
    with monkeypatch.context() as patch:
        patch.setattr(station.forwarder.table.outbox(NORTH), "_request_link", lambda: 1 / 0)
        station.take(*frames, make_frame(to_service="//south"))

    assert hopped(make_frame(to_service="//south")) == south.written
    assert [hopped(frame) for frame in frames] == station.held(NORTH)
    assert [None] == [what for what, _ in station.reported]
    station.take(make_frame(to_service="//north", sequence_number=3))
    assert 4 == len(station.held(NORTH))


def test_database_that_fails_drops_its_frames_and_harms_nobody_else() -> None:
    station = Crossing()
    north = station.connect(NORTH)
    frames = [make_frame(to_service=("//here", "//north")[n % 2], sequence_number=n) for n in range(6)]
    station.delivered = None

    station.take(*frames)

    assert ({Disposition.STORE_FAILED: 3}, 0) == (station.forwarder.dropped, station.forwarder.delivered)
    assert (hopped(*frames[1::2]), [AttributeError]) == (north.written, [type(error) for _, error in station.reported])


def test_origin_that_cannot_be_advised_is_counted_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Crossing()
    monkeypatch.setattr(station.sender, "reject", lambda *_: 1 / 0)

    station.take(*(make_frame(to_service="//nobody", sequence_number=n) for n in range(3)))

    assert ({Disposition.NO_ROUTE: 3}, 3) == (station.forwarder.dropped, len(station.reported))


def test_walk_that_fails_leaves_nothing_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Crossing()
    north = station.connect(NORTH)
    station.take(make_frame(to_service="//north"))
    kernel = station.forwarder._kernels.of(OPEN)
    walk = kernel.walk

    def fail(slab: bytearray, end: int) -> PassResult:
        walk(slab, end)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(kernel, "walk", fail)
        with pytest.raises(MemoryError):
            station.take(make_frame(b"lost", to_service="//north"))
    north.written = b""
    monkeypatch.setattr(Forwarder, "unaccounted", 0)  # what a walk that failed had counted is lost with it
    station.take(make_frame(to_service="//north"))

    assert hopped(make_frame(to_service="//north")) == north.written


def test_flush_that_fails_leaves_nothing_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Crossing()
    station.hold(WEST, *far_frames())
    north = station.connect(NORTH)
    station.forwarder._rerouter.start(station.forwarder.table.outbox(WEST), RerouteReason.ROUTES, lambda *_: None)

    with monkeypatch.context() as patch:
        patch.setattr(Rerouter, "divert", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            station.take(make_frame(b"lost", to_service="//north"))
    station.take(make_frame(to_service="//north"))

    assert hopped(make_frame(to_service="//north")) == north.written


# --- a route is asked for ---


def test_every_frame_without_a_route_is_a_reason_to_ask_and_is_dropped() -> None:
    station = Station()
    station.lead(*ROUTES, Route("Ask", NORTH, remote_service_name=BROKER_CONFIGURATION))
    asked: list[RoutingFacts] = []
    station.forwarder._resolver._ask_for_route = asked.append  # type: ignore[assignment]

    station.take(*(make_frame(to_service="//unknown", sequence_number=n) for n in range(3)))
    station.take(make_frame(to_service="//north"), make_frame(to_service=BROKER_CONFIGURATION))

    assert ["//unknown"] * 3 == [facts.to_service for facts in asked]
    assert {Disposition.ASKING_FOR_ROUTE: 3} == station.forwarder.dropped
    assert [Disposition.ASKING_FOR_ROUTE] * 3 == [why for _, why in station.sender.rejected]


def test_other_limits_hold_from_the_next_frame_on_and_nothing_is_uncounted() -> None:
    """More hops are allowed, a larger frame finds room in the slab, and what passed before is still counted."""
    station = Station()
    station.take(make_frame(to_service="//north", hop_count=0), make_frame(to_service="//north", hop_count=5))

    station.forwarder.limit(Limits(pool_bytes=20_000, max_frame=1 << 20, max_hops=3, share_percent=10))
    station.take(make_frame(to_service="//north", hop_count=0), make_frame(to_service="//north", hop_count=5))

    forwarder = station.forwarder
    assert (3, 1) == (forwarder.forwarded, forwarder.dropped[Disposition.HOPS_EXHAUSTED])
    assert (20_000, 2_000) == (forwarder.pool.limit_bytes, forwarder.pool.share_bytes)
    assert (1 << 20) + READ_BYTES == len(forwarder.slab) == len(forwarder.view)
    slab = forwarder.slab
    forwarder.limit(Limits(pool_bytes=10_000, max_frame=1024, max_hops=16))
    assert slab is forwarder.slab


# --- settling ---
# Each sink takes its frames whatever becomes of the others, and what had waited is counted once.


class Place:
    """A sink that remembers what it took, or fails whatever is asked of it."""

    def __init__(self, *, is_failing: bool) -> None:
        self.runs: list[Buffer] = []
        self.taken: list[Buffer] = []
        self._is_failing = is_failing

    def flush(self, _now: float, _origin: FrameOrigin, _entry_of: EntryOf) -> None:
        if self._is_failing:
            raise ZeroDivisionError
        self.taken += self.runs
        self.runs.clear()

    def recover(self, _now: float, _origin: FrameOrigin, _entry_of: EntryOf) -> None:
        raise MemoryError


def test_sink_that_cannot_recover_keeps_no_part_of_the_slab() -> None:
    station = Crossing()
    failing, good = Place(is_failing=True), Place(is_failing=False)
    batch = PassResult()
    for number, place in enumerate((failing, good)):
        batch.gather(place, bytes([number]))

    station.forwarder._flush(batch, NOW, station.sender, lambda frame: station.entry_of(bytes(frame)))

    assert ([], [b"\1"]) == (failing.runs, good.taken)
    assert [ZeroDivisionError, MemoryError] == [type(error) for _, error in station.reported]

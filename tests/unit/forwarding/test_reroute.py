"""Queues move in slices; a dialog keeps its order, its copies are found, and what finds no room stays."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding import outbox_queue as packing
from broker.forwarding import reroute as moving
from broker.forwarding.entry import ForwardingEntry, frame_bounds, raise_error
from broker.forwarding.fib import Resolver
from broker.forwarding.held_frames import DialogAffinity, hold
from broker.forwarding.outbox import Outbox
from broker.forwarding.pool import Pool
from broker.forwarding.reroute import Rerouter, RerouteReason
from broker.protocol.frame import decode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext
from broker.routing.route import Route
from broker.routing.table import build_table
from tests.support.forwarding import NOW, ForwarderStation, Wire, forwarding_table, make_frame
from tests.support.tiers import examples

WEST, EAST = NetworkAddress("west"), NetworkAddress("east")
SLICE = 4


class Station(ForwarderStation):
    """//far leads to the west; frames are numbered as they come, dialog by dialog."""

    def __init__(self) -> None:
        super().__init__(Route("West", WEST, "//far"))
        self.numbers: Counter[int] = Counter()

    def come(self, *dialogs: int) -> None:
        frames = []
        for dialog in dialogs:
            place = {"conversation_id": bytes([dialog]) * 16, "sequence_number": self.numbers[dialog]}
            frames.append(make_frame(b"", to_service="//far", **place))
            self.numbers[dialog] += 1
        self.take(*frames)

    def places(self, address: NetworkAddress) -> list[tuple[int, int]]:
        return [told(frame) for frame in self.held(address)]

    def turn(self) -> None:
        self.forwarder.work(NOW)
        assert self.forwarder.unaccounted == 0


def told(frame: bytes) -> tuple[int, int]:
    header, _ = decode_dialog(frame)
    return header.conversation_id[0], header.sequence_number


def left_by(wire: Wire) -> list[tuple[int, int]]:
    return [told(wire.written[start:stop]) for start, stop in frame_bounds(wire.written)]


@pytest.fixture(autouse=True, params=[2, 1000], ids=["together", "by themselves"])
def small_slices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how few frames that come together also wait as one piece."""
    monkeypatch.setattr(moving, "SLICE_FRAMES", SLICE)
    monkeypatch.setattr(packing, "PACK_FRAMES", request.param)


def test_move_ends_however_much_arrives() -> None:
    station = Station()
    station.come(*[1] * 20)
    wire = station.forwarder.table.outbox(EAST).outlet = Wire()
    station.lead(Route("East", EAST, "//far"))
    station.forwarder.reroute_waiting(NOW)

    turns = 0
    while station.places(WEST):
        station.come(*[1] * 3 * SLICE)
        station.turn()
        turns += 1
        assert turns <= 20 // SLICE

    assert [(1, n) for n in range(station.numbers[1])] == left_by(wire)


def test_what_finds_no_room_waits_without_a_turn_until_there_is() -> None:
    station = Station()
    station.come(*[1] * 10)
    outbox = station.forwarder.table.outbox(EAST)
    outbox.outlet = wire = Wire(room=0)
    frame_cost = station.forwarder.pool.used_bytes // 10
    station.forwarder.pool.limit_bytes = 20 * frame_cost
    station.forwarder.pool.share_percent = 15
    station.lead(Route("East", EAST, "//far"))

    station.forwarder.reroute_waiting(NOW)
    assert ([(1, n) for n in range(3)], 7, 0) == (station.places(EAST), len(station.places(WEST)), station.turns)
    wire.breathe()
    outbox.drain(NOW)
    while station.places(WEST):
        station.forwarder.expire(NOW)

    assert ([(1, n) for n in range(10)], {}) == (left_by(wire), station.forwarder.dropped)


def test_frame_that_stays_with_another_route_keeps_its_place() -> None:
    station = Station()
    station.come(*[1] * 10)
    station.lead(Route("Anew", WEST, "//far"))

    station.forwarder.reroute_waiting(NOW)
    station.come(1)
    while station.turns:
        station.turns = 0
        station.turn()

    assert [(1, n) for n in range(11)] == station.places(WEST)
    assert {"Anew"} == {held.entry.route for held in station.forwarder.table.outbox(WEST).held}


def test_queue_that_is_served_again_moves_no_further() -> None:
    station = Station()
    station.come(*[1] * 10)
    station.lead(Route("East", EAST, "//far"))
    station.forwarder.reroute_waiting(NOW)
    assert 4 == len(station.places(EAST))
    station.forwarder.table.outbox(WEST).outlet = Wire(room=0)

    for _ in range(3):
        station.turn()

    assert (4, 6) == (len(station.places(EAST)), len(station.places(WEST)))


@settings(max_examples=examples(100))
@given(
    before=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    steps=st.lists(st.one_of(st.just("turn"), st.lists(st.integers(1, 5), min_size=1, max_size=6)), max_size=30),
    room=st.sampled_from([1 << 30, 0, 1, 300]),
)
@pytest.mark.promise("R3.5")
def test_nothing_is_lost_and_dialogs_keep_their_order(
    before: list[int], steps: list[str | list[int]], room: int
) -> None:
    station = Station()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "SLICE_FRAMES", SLICE)
        station.come(*before)
        outbox = station.forwarder.table.outbox(EAST)
        outbox.outlet = wire = Wire(room=room)
        station.lead(Route("East", EAST, "//far"))
        station.forwarder.reroute_waiting(NOW)
        for step in steps:
            if isinstance(step, list):
                station.come(*step)
            else:
                station.turn()
        wire.breathe()
        outbox.drain(NOW)
        for _ in range(200):
            station.turn()

    left = left_by(wire)
    assert (0, {}, 0) == (
        station.forwarder.pool.frames,
        station.forwarder.dropped,
        len(station.forwarder._resolver._affinity),
    )
    assert station.numbers == Counter(dialog for dialog, _ in left)
    for dialog in station.numbers:
        assert list(range(station.numbers[dialog])) == [number for one, number in left if one == dialog]


# --- rerouting ---
# Which queues are looked at, and by which rule, when something has changed.


NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")
PAIR = Route("pair", NORTH, "//pair", UUID(int=1), mirror_address=SOUTH).pair
assert PAIR is not None


class Yard:
    """A pass without frames that come in: what waits was put there."""

    def __init__(self) -> None:
        self.wanted: list[NetworkAddress] = []
        self.health: dict[NetworkAddress, AddressHealth] = {}
        self.table = forwarding_table(Pool(1 << 20), request_link=self.wanted.append)
        affinity = DialogAffinity()
        self.resolver = Resolver(
            self.table, affinity, health_of=self.health_of, ask_for_route=lambda _: False, report=raise_error
        )
        routes = [Route("n", NORTH, "//both"), Route("s", SOUTH, "//both")]
        table = build_table(routes, now=datetime.now(UTC))
        self.resolver.context = RoutingContext(table, Hosted(), self.health_of, is_forwarding=True, msdb=table)
        self.rerouter = Rerouter(self.table, self.resolver, affinity, None, lambda *_: None)

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        return self.health.get(address, AddressHealth.UNTRIED)

    def wait(self, address: NetworkAddress, hop_count: int = 1) -> Outbox:
        """A frame for //both waits for an address."""
        outbox = self.table.outbox(address)
        entry = self.table.entry_to(outbox, Disposition.FORWARDED, "n", 0x10)
        outbox.held.add(hold(make_frame(b"", to_service="//both", hop_count=hop_count), 0.0, entry))
        return outbox

    def rule(self, outbox: Outbox) -> tuple[RerouteReason, ForwardingEntry | None]:
        """Why an outbox is rerouted, and where its only frame would go."""
        reroute = self.rerouter.under_way[outbox]
        (held,) = outbox.held
        return reroute.reason, reroute.new_entry(outbox, held)


@pytest.fixture
def yard() -> Yard:
    return Yard()


def test_change_of_routes_visits_all_that_waits(yard: Yard) -> None:
    """And only that; what a link serves, and what was sent here, stays."""
    outbox, other = yard.wait(EAST), yard.wait(NORTH, hop_count=0)
    yard.table.outbox(SOUTH)

    yard.rerouter.by_routes()

    assert {outbox, other} == yard.rerouter.under_way.keys()
    reason, entry = yard.rule(outbox)
    assert entry is not None
    assert reason is RerouteReason.ROUTES
    assert entry.sink in {yard.table.outbox(NORTH), yard.table.outbox(SOUTH)}
    assert yard.rule(other)[1] is None
    outbox.outlet = cast("Any", object())
    assert yard.rule(outbox)[1] is None


@pytest.mark.parametrize(
    ("health", "has_failed", "moves"),
    [(AddressHealth.CONNECTED, True, True), (AddressHealth.UNTRIED, False, True), (AddressHealth.UNTRIED, True, False)],
)
def test_better_address_has_what_waits_rerouted(
    yard: Yard, health: AddressHealth, *, has_failed: bool, moves: bool
) -> None:
    """One that is connected, or was not tried; while there is none, a link to each is requested."""
    outbox = yard.wait(NORTH)
    yard.resolver.entry_now(next(iter(outbox.held)).frame)  # so both are known to be alternatives
    yard.health = {NORTH: AddressHealth.SUPPRESSED, SOUTH: health}

    yard.rerouter.by_health(lambda _: has_failed)

    assert (moves, [] if moves else [SOUTH]) == (outbox in yard.rerouter.under_way, yard.wanted)
    if moves:
        reason, entry = yard.rule(outbox)
        assert entry is not None
        assert (RerouteReason.BETTER, yard.table.outbox(SOUTH)) == (reason, entry.sink)
        outbox.outlet = cast("Any", object())
        assert yard.rule(outbox)[1] is None


def test_frames_for_our_own_addresses_are_decided_again(yard: Yard) -> None:
    """Whatever link there is."""
    outbox = yard.wait(EAST)

    yard.rerouter.from_own_addresses([EAST, NORTH])

    assert [outbox] == list(yard.rerouter.under_way)
    reason, entry = yard.rule(outbox)
    assert entry is not None
    assert (RerouteReason.ITSELF, True) == (reason, entry.route in {"n", "s"})


def test_new_principal_gets_a_link_and_frames_for_ourselves_are_decided_again(yard: Yard) -> None:
    """One request for however many pairs; none while it is unknown, nor for a pair that nothing was sent to."""
    assert PAIR is not None
    other = replace(PAIR, remote_service_name="//other")
    yard.rerouter.by_principals({PAIR: NORTH})
    outbox = yard.table.pair_outbox(PAIR)
    yard.table.pair_outbox(other)
    for address in (None, NORTH):
        changes = {PAIR: address, other: address}
        yard.table.set_principals(changes)
        yard.rerouter.by_principals(changes)
    assert ([NORTH], {}) == (yard.wanted, yard.rerouter.under_way)

    yard.resolver.context = replace(yard.resolver.context, own=frozenset({SOUTH}))
    yard.rerouter.by_principals({PAIR: SOUTH})

    assert {outbox} == yard.rerouter.under_way.keys()

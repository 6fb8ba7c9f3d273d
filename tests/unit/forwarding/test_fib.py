"""What the kernel may remember: the way of now, or that of the dialog's frames which still wait here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding import fib as deciding
from broker.forwarding import fib as module
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.fib import OTHER_KIND, Decider, ForwardingTable, MirroredOutboxes
from broker.forwarding.held_frames import DialogAffinity, key_of
from broker.forwarding.outbox import Outbox, Ports
from broker.forwarding.pool import Pool
from broker.protocol.layout import FrameKind
from broker.routing.address import TRANSPORT, Keyword, NetworkAddress
from broker.routing.decide import AddressHealth, Candidate, Decision, Hosted, RoutingContext, RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, MirroredPair, Route
from broker.routing.table import build_table
from tests.unit.forwarding.test_outbox import Wire

WEST, EAST, NORTH = (NetworkAddress(name) for name in ("west", "east", "north"))
CONVERSATION = b"c" * 16


class Station:
    """Two ways to //far, one to //north; `dead` addresses do not answer."""

    def __init__(self, *more: Route) -> None:
        self.places = DialogAffinity()
        self.dead: set[NetworkAddress] = set()
        self.asked: list[RoutingFacts] = []
        self.reported: list[Exception] = []
        self.ways = ForwardingTable(Pool(0), Ports(drop=lambda *_: None), want=lambda _: None, deliver=lambda *_: None)
        self.decider = Decider(
            self.ways,
            self.places,
            health_of=self.health_of,
            ask=self.asked.append,
            report=lambda _, error: self.reported.append(error),
        )
        routes = (Route("West", WEST, "//far"), Route("East", EAST, "//far"), Route("North", NORTH, "//north"), *more)
        table = build_table(routes, now=datetime.now(UTC))
        self.decider.here = RoutingContext(table, Hosted(), self.health_of, is_forwarding=True, msdb=table)

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        return AddressHealth.SUPPRESSED if address in self.dead else AddressHealth.UNTRIED

    def resolve(self, service: str) -> tuple[Any, bool | None]:
        way, is_by_conversation = self.decider.resolve(key(service), CONVERSATION, FrameKind.MESSAGE, False)
        return getattr(way.sink, "address", way.disposition), is_by_conversation

    def wait_at(self, address: NetworkAddress, service: str = "//far") -> None:
        self.places.enter(key_of(key(service), CONVERSATION, is_from_target=False), self.ways.outbox(address))


def key(service: str) -> bytes:
    return bytes(16) + len(service.encode()).to_bytes(2, "big") + service.encode()


@pytest.mark.parametrize("dead", [WEST, EAST])
def test_dialog_takes_the_best_way_when_nothing_of_it_waits(dead: NetworkAddress) -> None:
    station = Station()
    station.dead = {dead}

    assert ({WEST, EAST} - {dead}, True) == ({station.resolve("//far")[0]}, station.resolve("//far")[1])
    assert not station.decider.is_bound


@pytest.mark.parametrize("dead", [WEST, EAST])
def test_dialog_goes_where_its_frames_wait(dead: NetworkAddress) -> None:
    station = Station()
    station.dead = {dead}
    station.wait_at(dead)

    assert ((dead, True), True) == (station.resolve("//far"), station.decider.is_bound)


def test_dialog_does_not_go_where_no_route_leads_any_more() -> None:
    station = Station()
    station.wait_at(NORTH)

    assert station.resolve("//far")[0] in {WEST, EAST}
    assert not station.decider.is_bound


def test_what_waits_itself_takes_the_best_way(make_frame: Any) -> None:
    station = Station()
    station.dead = {WEST}
    station.wait_at(WEST)

    way = station.decider.way_now(make_frame(to_service="//far", conversation_id=CONVERSATION))

    assert station.ways.outbox(EAST) is way.sink


def test_question_that_is_out_holds_for_one_frame() -> None:
    station = Station(Route("Ask", NORTH, remote_service_name=BROKER_CONFIGURATION))

    assert [(Disposition.ASKING_FOR_ROUTE, None)] * 2 == [station.resolve("//unknown") for _ in range(2)]
    assert ["//unknown"] * 2 == [facts.to_service for facts in station.asked]


def test_decision_that_fails_is_a_drop_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Station()
    monkeypatch.setattr(deciding, "decide", lambda *_: 1 / 0)

    assert (Disposition.ROUTE_INVALID, False) == station.resolve("//far")
    assert [ZeroDivisionError] == [type(error) for error in station.reported]


def test_next_hops_not_tried_are_dialled_while_the_best_one_is_about_to_leave() -> None:
    station = Station()
    wanted: list[NetworkAddress] = []
    station.ways = ForwardingTable(Pool(0), Ports(drop=lambda *_: None), want=wanted.append, deliver=lambda *_: None)
    station.decider._ways = station.ways
    health = {WEST: AddressHealth.LEAVING, EAST: AddressHealth.UNTRIED}
    station.decider.here = replace(station.decider.here, health_of=lambda address: health[address])

    assert WEST == station.resolve("//far")[0]
    assert [EAST] == wanted


def test_nobody_is_dialled_while_the_best_next_hop_stays() -> None:
    station = Station()
    wanted: list[NetworkAddress] = []
    station.ways = ForwardingTable(Pool(0), Ports(drop=lambda *_: None), want=wanted.append, deliver=lambda *_: None)
    station.decider._ways = station.ways
    health = {WEST: AddressHealth.CONNECTED, EAST: AddressHealth.UNTRIED}
    station.decider.here = replace(station.decider.here, health_of=lambda address: health[address])

    station.resolve("//far")

    assert [] == wanted


# --- test_pairs ---
# The outboxes of mirrored pairs: where they lead, and what left them for whom.


NORTH_of_pairs, SOUTH = NetworkAddress("north"), NetworkAddress("south")
ONE, TWO = (MirroredPair(name, UUID(int=1), NORTH_of_pairs, SOUTH) for name in ("//one", "//two"))


class Kept:
    """Pairs and what they ask for."""

    def __init__(self) -> None:
        self.asked: list[MirroredPair] = []
        self.wanted: list[NetworkAddress] = []
        pool, ports = Pool(1 << 20), Ports(drop=lambda *_: None)
        self.pairs = MirroredOutboxes(
            lambda pair, want: Outbox(pair, pool=pool, want=want, ports=ports),
            want=self.wanted.append,
            ask=self.asked.append,
        )


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_each_pair_has_one_outbox(kept: Kept) -> None:
    """Made when first asked for."""
    assert kept.pairs.outbox(ONE) is kept.pairs.outbox(ONE) is not kept.pairs.outbox(TWO)
    assert [ONE, TWO] == list(kept.pairs.outboxes)


def test_outbox_asks_for_the_principal_and_then_for_a_link_to_it(kept: Kept) -> None:
    """While nobody is principal there is nobody to connect to."""
    outbox = kept.pairs.outbox(ONE)

    outbox.want_link()
    kept.pairs.lead({ONE: SOUTH}, [])
    outbox.want_link()

    assert ([ONE], [SOUTH]) == (kept.asked, kept.wanted)


def test_link_of_a_former_principal_takes_nothing_more(kept: Kept) -> None:
    """Whoever is next, and also when nobody is."""
    outbox = kept.pairs.outbox(ONE)
    for address in (SOUTH, None):
        outbox.outlet = cast("Any", object())

        kept.pairs.lead({ONE: address}, [])

        assert outbox.outlet is None


def test_address_has_the_outboxes_of_those_that_it_is_principal_of(kept: Kept) -> None:
    """Of those alone that something was sent to."""
    outbox = kept.pairs.outbox(ONE)

    kept.pairs.lead({ONE: NORTH_of_pairs, TWO: NORTH_of_pairs}, [])
    assert [outbox] == list(kept.pairs.led_to(NORTH_of_pairs))
    kept.pairs.lead({ONE: SOUTH, TWO: None}, [])

    assert ([], [outbox]) == (list(kept.pairs.led_to(NORTH_of_pairs)), list(kept.pairs.led_to(SOUTH)))
    assert {ONE: SOUTH} == kept.pairs.principals


def test_what_left_is_told_by_the_principal_of_that_time(kept: Kept) -> None:
    """What nobody was principal for did not leave."""
    way = ForwardingEntry(kept.pairs.outbox(ONE), Disposition.FORWARDED, kind=0x10, route="r")
    other = ForwardingEntry(kept.pairs.outbox(TWO), Disposition.FORWARDED, kind=0x10, route="other")
    other.frames = 1
    kept.pairs.lead({ONE: NORTH_of_pairs}, [way, other])
    way.frames = 3

    kept.pairs.lead({ONE: None}, [way, other])
    kept.pairs.lead({ONE: SOUTH}, [way, other])
    way.frames = 4
    kept.pairs.lead({ONE: NORTH_of_pairs}, [way, other])

    assert {ONE: {("r", str(NORTH_of_pairs)): 3, ("r", str(SOUTH)): 4}} == kept.pairs.left
    assert (0, 1) == (way.frames, other.frames)


def test_outboxes_that_lead_nowhere_and_hold_nothing_can_be_retired(kept: Kept) -> None:
    """Their frames are still counted."""
    way = ForwardingEntry(kept.pairs.outbox(ONE), Disposition.FORWARDED, kind=0x10, route="r")
    kept.pairs.outbox(TWO)
    kept.pairs.lead({ONE: NORTH_of_pairs, TWO: NORTH_of_pairs}, [way])
    assert set() == kept.pairs.idle()
    way.frames = 3
    kept.pairs.lead({ONE: None}, [way])

    idle = kept.pairs.idle()

    assert {kept.pairs.outboxes[ONE]} == idle
    assert 3 == kept.pairs.retire(idle)
    assert ([TWO], {}) == (list(kept.pairs.outboxes), kept.pairs.left)


# --- test_ways ---
# A way for each sink, route and kind, made once; addresses that peers invent have a bound of their own.


NORTH_of_ways, SOUTH_of_ways = NetworkAddress("north"), NetworkAddress("south")


@pytest.fixture
def ways() -> ForwardingTable:
    return ForwardingTable(Pool(0), Ports(drop=lambda *_: None), want=lambda _: None, deliver=lambda *_: None)


def on(address: NetworkAddress, by: Keyword | None = None, *others: NetworkAddress) -> Decision:
    """A decision to go on, by a route that names the address, or by ADDRESS 'TRANSPORT'."""
    route = Route("R", by or address)
    candidates = tuple(Candidate(each, route, AddressHealth.UNTRIED) for each in (address, *others))
    return Decision(Disposition.FORWARDED, 1, route, candidates=candidates)


def test_there_is_one_way_for_a_sink_a_route_and_a_kind(ways: ForwardingTable) -> None:
    first = ways.of(on(NORTH_of_ways), FrameKind.MESSAGE)

    assert first is ways.of(on(NORTH_of_ways), FrameKind.MESSAGE)
    assert first is not ways.of(on(NORTH_of_ways), FrameKind.ACK)
    assert ways.of(on(NORTH_of_ways), 0x20) is ways.of(on(NORTH_of_ways), 0xFF)
    assert {("R", FrameKind.MESSAGE), ("R", FrameKind.ACK), ("R", OTHER_KIND)} == {key[1:] for key in ways.by_key}
    assert {NORTH_of_ways: first.sink} == ways.outboxes


def test_another_candidate_may_be_asked_for(ways: ForwardingTable) -> None:
    assert (
        ways.outbox(SOUTH_of_ways)
        is ways.of(on(NORTH_of_ways, None, SOUTH_of_ways), FrameKind.MESSAGE, SOUTH_of_ways).sink
    )


def test_drops_are_by_reason(ways: ForwardingTable) -> None:
    way = ways.of(Decision(Disposition.NO_ROUTE, 7), FrameKind.MESSAGE)

    assert (Disposition.NO_ROUTE, "", way) == (way.disposition, way.route, ways.drop(Disposition.NO_ROUTE, 0x10))


def test_invented_addresses_are_bounded_and_those_of_routes_are_not(
    ways: ForwardingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INVENTED_MAX", 2)
    invented = [NetworkAddress(f"10.0.0.{n}") for n in range(3)]
    named = [NetworkAddress(f"10.1.0.{n}") for n in range(5)]

    found = [ways.of(on(address, TRANSPORT), FrameKind.MESSAGE).disposition for address in invented]
    found += [ways.of(on(address), FrameKind.MESSAGE).disposition for address in named]

    assert [Disposition.FORWARDED] * 2 + [Disposition.POOL_LIMIT] + [Disposition.FORWARDED] * 5 == found
    assert {*invented[:2], *named} == set(ways.outboxes)


def test_only_invented_addresses_that_are_idle_are_retired_and_only_at_the_bound(
    ways: ForwardingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INVENTED_MAX", 2)
    invented = [NetworkAddress(f"10.0.0.{n}") for n in range(2)]
    ways.of(on(NORTH_of_ways), FrameKind.MESSAGE)
    ways.of(on(invented[0], TRANSPORT), FrameKind.MESSAGE)
    assert set() == ways.idle()
    idle = ways.of(on(invented[1], TRANSPORT), FrameKind.MESSAGE)
    ways.outboxes[invented[0]].outlet = Wire()

    assert {ways.outboxes[invented[1]]} == ways.idle()
    assert [idle] == ways.retire(ways.idle())

    assert {NORTH_of_ways, invented[0]} == set(ways.outboxes)
    assert idle not in ways.by_key.values()
    assert set() == ways.idle()

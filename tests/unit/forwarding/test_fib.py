"""What the kernel may remember: the way of now, or that of the dialog's frames which still wait here."""

from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding import fib as module
from broker.forwarding.entry import ForwardingEntry
from broker.forwarding.fib import OTHER_KIND, Resolver
from broker.forwarding.held_frames import DialogAffinity, affinity_key
from broker.forwarding.pool import Pool
from broker.protocol.layout import FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Candidate, Decision, Hosted, RoutingContext, RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, MirroredPair, Route
from broker.routing.table import build_table
from tests.support.forwarding import forwarding_table

WEST, EAST, NORTH = (NetworkAddress(name) for name in ("west", "east", "north"))
CONVERSATION = b"c" * 16


class Station:
    """Two ways to //far, one to //north; `dead` addresses do not answer."""

    def __init__(self, *more: Route) -> None:
        self.places = DialogAffinity()
        self.dead: set[NetworkAddress] = set()
        self.asked: list[RoutingFacts] = []
        self.pending: set[str] = set()  # services of which another conversation has asked
        self.reported: list[Exception] = []
        self.ways = forwarding_table()
        self.decider = Resolver(
            self.ways,
            self.places,
            health_of=self.health_of,
            ask_for_route=self.ask,
            report=lambda _, error: self.reported.append(error),
        )
        routes = (Route("West", WEST, "//far"), Route("East", EAST, "//far"), Route("North", NORTH, "//north"), *more)
        table = build_table(routes, now=datetime.now(UTC))
        self.decider.context = RoutingContext(table, Hosted(), self.health_of, is_forwarding=True, msdb=table)

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        return AddressHealth.SUPPRESSED if address in self.dead else AddressHealth.UNTRIED

    def ask(self, facts: RoutingFacts) -> bool:
        self.asked.append(facts)
        return facts.to_service in self.pending

    def resolve(self, service: str) -> tuple[Any, bool | None]:
        way, is_by_conversation = self.decider.resolve(key(service), CONVERSATION, FrameKind.MESSAGE, False)
        return getattr(way.sink, "address", way.disposition), is_by_conversation

    def wait_at(self, address: NetworkAddress) -> None:
        self.places.enter(affinity_key(key("//far"), CONVERSATION, is_from_target=False), self.ways.outbox(address))


def key(service: str) -> bytes:
    return bytes(16) + len(service.encode()).to_bytes(2, "big") + service.encode()


@pytest.mark.parametrize("dead", [WEST, EAST])
def test_dialog_goes_where_its_frames_wait(dead: NetworkAddress) -> None:
    station = Station()
    station.dead = {dead}
    station.wait_at(dead)

    assert (dead, None) == station.resolve("//far")  # not to be remembered: they will have left


def test_dialog_does_not_go_where_no_route_leads_any_more() -> None:
    station = Station()
    station.wait_at(NORTH)

    assert station.resolve("//far")[0] in {WEST, EAST}


@pytest.mark.promise("routing 12")
def test_what_is_matched_while_a_request_is_pending_takes_the_last_resort_and_is_not_cached() -> None:
    ask, last = Route("Ask", NORTH, remote_service_name=BROKER_CONFIGURATION), Route("Last", WEST)
    station = Station(ask, last)

    assert (Disposition.ASKING_FOR_ROUTE, None) == station.resolve("//unknown")
    station.pending = {"//unknown"}
    assert (WEST, None) == station.resolve("//unknown")
    station.pending = set()
    assert (Disposition.ASKING_FOR_ROUTE, None) == station.resolve("//unknown")


def test_next_hops_not_tried_are_dialled_while_the_best_one_is_about_to_leave() -> None:
    station = Station()
    wanted: list[NetworkAddress] = []
    station.ways = forwarding_table(request_link=wanted.append)
    station.decider._table = station.ways
    health = {WEST: AddressHealth.LEAVING, EAST: AddressHealth.UNTRIED}
    station.decider.context = replace(station.decider.context, health_of=lambda address: health[address])

    assert WEST == station.resolve("//far")[0]
    assert [EAST] == wanted


# --- pairs ---
# The outboxes of mirrored pairs: where they lead, and what left them for whom.


SOUTH = NetworkAddress("south")
ONE, TWO = (MirroredPair(name, UUID(int=1), NORTH, SOUTH) for name in ("//one", "//two"))


class Kept:
    """A table and what it asks for."""

    def __init__(self) -> None:
        self.asked: list[MirroredPair] = []
        self.wanted: list[NetworkAddress] = []
        self.table = forwarding_table(
            Pool(1 << 20), request_link=self.wanted.append, request_principal=self.asked.append
        )

    def entry(self, pair: MirroredPair, route: str) -> ForwardingEntry:
        return self.table.entry_to(self.table.pair_outbox(pair), Disposition.FORWARDED, route, 0x10)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_outbox_asks_for_the_principal_and_then_for_a_link_to_it(kept: Kept) -> None:
    outbox = kept.table.pair_outbox(ONE)

    outbox.request_link()
    kept.table.set_principals({ONE: SOUTH})
    outbox.request_link()

    assert ([ONE], [SOUTH]) == (kept.asked, kept.wanted)


def test_link_of_a_former_principal_takes_nothing_more(kept: Kept) -> None:
    outbox = kept.table.pair_outbox(ONE)
    for address in (SOUTH, None):
        outbox.outlet = cast("Any", object())

        kept.table.set_principals({ONE: address})

        assert outbox.outlet is None


def test_address_has_the_outboxes_of_those_that_it_is_principal_of(kept: Kept) -> None:
    """Of those alone that something was sent to."""
    outbox = kept.table.pair_outbox(ONE)

    kept.table.set_principals({ONE: NORTH, TWO: NORTH})
    assert [outbox] == list(kept.table.outboxes_to(NORTH))
    kept.table.set_principals({ONE: SOUTH, TWO: None})

    assert ([], [outbox]) == (list(kept.table.outboxes_to(NORTH)), list(kept.table.outboxes_to(SOUTH)))
    assert {ONE: SOUTH} == kept.table.principals


def test_what_left_is_counted_by_the_principal_of_that_time(kept: Kept) -> None:
    """Nothing left while there was none."""
    entry, other = kept.entry(ONE, "r"), kept.entry(TWO, "other")
    other.frames = 1
    kept.table.set_principals({ONE: NORTH})
    entry.frames = 3

    kept.table.set_principals({ONE: None})
    kept.table.set_principals({ONE: SOUTH})
    entry.frames = 4
    kept.table.set_principals({ONE: NORTH})

    assert {ONE: {("r", str(NORTH)): 3, ("r", str(SOUTH)): 4}} == kept.table.sent_earlier
    assert (0, 1) == (entry.frames, other.frames)


def test_outboxes_that_lead_nowhere_and_hold_nothing_can_be_retired(kept: Kept) -> None:
    """Their frames are still counted."""
    entry = kept.entry(ONE, "r")
    kept.table.pair_outbox(TWO)
    kept.table.set_principals({ONE: NORTH, TWO: NORTH})
    assert set() == kept.table.idle_pairs()
    entry.frames = 3
    kept.table.set_principals({ONE: None})

    idle = kept.table.idle_pairs()

    assert {kept.table.pair_outboxes[ONE]} == idle
    assert ([entry], 3) == kept.table.retire(idle)
    assert ([TWO], {}) == (list(kept.table.pair_outboxes), kept.table.sent_earlier)


# --- ways ---
# A way for each sink, route and kind, made once; addresses that peers invent have a bound of their own.


def on(address: NetworkAddress) -> Decision:
    """A decision to go on, by a route that names the address."""
    route = Route("R", address)
    return Decision(Disposition.FORWARDED, 1, route, candidates=(Candidate(address, route, AddressHealth.UNTRIED),))


def test_there_is_one_way_for_a_sink_a_route_and_a_kind() -> None:
    ways = forwarding_table()
    first = ways.entry_for(on(NORTH), FrameKind.MESSAGE)

    assert first is ways.entry_for(on(NORTH), FrameKind.MESSAGE)
    assert first is not ways.entry_for(on(NORTH), FrameKind.ACK)
    assert ways.entry_for(on(NORTH), 0x20) is ways.entry_for(on(NORTH), 0xFF)
    assert {("R", FrameKind.MESSAGE), ("R", FrameKind.ACK), ("R", OTHER_KIND)} == {key[1:] for key in ways.entries}
    assert {NORTH: first.sink} == ways.outboxes


def test_decision_that_fails_is_a_drop_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    station = Station()
    monkeypatch.setattr(module, "decide", lambda *_: 1 / 0)

    assert (Disposition.ROUTE_INVALID, False) == station.resolve("//far")
    assert [ZeroDivisionError] == [type(error) for error in station.reported]

"""What the kernel may remember: the way of now, or that of the dialog's frames which still wait here."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from broker.flow import Disposition
from broker.forwarding import fib as deciding
from broker.forwarding.fib import Decider, ForwardingTable
from broker.forwarding.held_frames import DialogAffinity, key_of
from broker.forwarding.outbox import Ports
from broker.forwarding.pool import Pool
from broker.protocol.layout import FrameKind
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext, RoutingFacts
from broker.routing.route import BROKER_CONFIGURATION, Route
from broker.routing.table import build_table

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

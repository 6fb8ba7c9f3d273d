"""A way for each sink, route and kind, made once; addresses that peers invent have a bound of their own."""

from __future__ import annotations

import pytest

from broker.flow import Disposition
from broker.forwarding import fib as module
from broker.forwarding.fib import OTHER_KIND, ForwardingTable
from broker.forwarding.outbox import Ports
from broker.forwarding.pool import Pool
from broker.protocol.layout import FrameKind
from broker.routing.address import TRANSPORT, Keyword, NetworkAddress
from broker.routing.decide import AddressHealth, Candidate, Decision
from broker.routing.route import Route
from tests.unit.forwarding.test_outbox import Wire

NORTH, SOUTH = NetworkAddress("north"), NetworkAddress("south")


@pytest.fixture
def ways() -> ForwardingTable:
    return ForwardingTable(Pool(0), Ports(drop=lambda *_: None), want=lambda _: None, deliver=lambda *_: None)


def on(address: NetworkAddress, by: Keyword | None = None, *others: NetworkAddress) -> Decision:
    """A decision to go on, by a route that names the address, or by ADDRESS 'TRANSPORT'."""
    route = Route("R", by or address)
    candidates = tuple(Candidate(each, route, AddressHealth.UNTRIED) for each in (address, *others))
    return Decision(Disposition.FORWARDED, 1, route, candidates=candidates)


def test_there_is_one_way_for_a_sink_a_route_and_a_kind(ways: ForwardingTable) -> None:
    first = ways.of(on(NORTH), FrameKind.MESSAGE)

    assert first is ways.of(on(NORTH), FrameKind.MESSAGE)
    assert first is not ways.of(on(NORTH), FrameKind.ACK)
    assert ways.of(on(NORTH), 0x20) is ways.of(on(NORTH), 0xFF)
    assert {("R", FrameKind.MESSAGE), ("R", FrameKind.ACK), ("R", OTHER_KIND)} == {key[1:] for key in ways.by_key}
    assert {NORTH: first.sink} == ways.outboxes


def test_another_candidate_may_be_asked_for(ways: ForwardingTable) -> None:
    assert ways.outbox(SOUTH) is ways.of(on(NORTH, None, SOUTH), FrameKind.MESSAGE, SOUTH).sink


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
    ways.of(on(NORTH), FrameKind.MESSAGE)
    ways.of(on(invented[0], TRANSPORT), FrameKind.MESSAGE)
    assert set() == ways.idle()
    idle = ways.of(on(invented[1], TRANSPORT), FrameKind.MESSAGE)
    ways.outboxes[invented[0]].outlet = Wire()

    assert {ways.outboxes[invented[1]]} == ways.idle()
    assert [idle] == ways.retire(ways.idle())

    assert {NORTH, invented[0]} == set(ways.outboxes)
    assert idle not in ways.by_key.values()
    assert set() == ways.idle()

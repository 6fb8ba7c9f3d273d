"""Which queues are looked at, and by which rule, when something has changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.forwarding.entry import surface
from broker.forwarding.fib import Decider, ForwardingTable
from broker.forwarding.held_frames import DialogAffinity, hold
from broker.forwarding.outbox import Outbox, Ports
from broker.forwarding.pool import Pool
from broker.forwarding.reroute import RerouteReason, Rerouting
from broker.protocol.frame import Header, encode_dialog
from broker.routing.address import NetworkAddress
from broker.routing.decide import AddressHealth, Hosted, RoutingContext
from broker.routing.route import Route
from broker.routing.table import build_table

NORTH, SOUTH, EAST = NetworkAddress("north"), NetworkAddress("south"), NetworkAddress("east")
PAIR = Route("pair", NORTH, "//pair", UUID(int=1), mirror_address=SOUTH).pair
assert PAIR is not None


class Moves:
    """Notes which queues begin to move, and by which rule."""

    def __init__(self) -> None:
        self.begun: dict[Outbox, tuple[RerouteReason, Any]] = {}

    def start(self, outbox: Outbox, reason: RerouteReason, new_way: Any) -> None:
        self.begun[outbox] = reason, new_way


class Yard:
    """A pass without frames that come in: what waits was put there."""

    def __init__(self) -> None:
        self.wanted: list[NetworkAddress] = []
        self.health: dict[NetworkAddress, AddressHealth] = {}
        self.moves = Moves()
        self.ways = ForwardingTable(
            Pool(1 << 20), Ports(drop=lambda *_: None), want=self.wanted.append, deliver=lambda *_: None
        )
        places = DialogAffinity()
        self.decider = Decider(self.ways, places, health_of=self.health_of, ask=lambda _: None, report=surface)
        routes = [Route("n", NORTH, "//both"), Route("s", SOUTH, "//both")]
        table = build_table(routes, now=datetime.now(UTC))
        self.decider.here = RoutingContext(table, Hosted(), self.health_of, is_forwarding=True, msdb=table)
        self.rerouting = Rerouting(self.decider, self.ways, cast("Any", self.moves))

    def health_of(self, address: NetworkAddress) -> AddressHealth:
        return self.health.get(address, AddressHealth.UNTRIED)

    def wait(self, address: NetworkAddress, hop_count: int = 1) -> Outbox:
        """A frame for //both waits for an address."""
        outbox = self.ways.outbox(address)
        header = Header(0x10, 0, b"m" * 16, b"c" * 16, "//both", "//from", b"i" * 16, hop_count=hop_count)
        way = self.ways.to(outbox, cast("Any", "forwarded"), "n", 0x10)
        outbox.held.add(hold(encode_dialog(header, b""), 0.0, way))
        return outbox


@pytest.fixture
def yard() -> Yard:
    return Yard()


def test_change_of_routes_has_all_looked_at_that_waits(yard: Yard) -> None:
    """And only that; what a link takes by itself, and what was sent here, stays."""
    outbox, other = yard.wait(EAST), yard.wait(NORTH, hop_count=0)
    yard.ways.outbox(SOUTH)

    yard.rerouting.by_routes()

    assert {outbox, other} == yard.moves.begun.keys()
    reason, rule = yard.moves.begun[outbox]
    (held,) = outbox.held
    assert (RerouteReason.ROUTES, True) == (
        reason,
        rule(outbox, held).sink in {yard.ways.outbox(NORTH), yard.ways.outbox(SOUTH)},
    )
    assert rule(other, next(iter(other.held))) is None
    outbox.outlet = cast("Any", object())
    assert rule(outbox, held) is None


@pytest.mark.parametrize(
    ("health", "has_failed", "moves"),
    [(AddressHealth.CONNECTED, True, True), (AddressHealth.UNTRIED, False, True), (AddressHealth.UNTRIED, True, False)],
)
def test_better_address_has_what_waits_looked_at(
    yard: Yard, health: AddressHealth, *, has_failed: bool, moves: bool
) -> None:
    """One that is connected, or was not tried; while there is none, each is wanted."""
    outbox = yard.wait(NORTH)
    outbox.alternatives.add(SOUTH)
    yard.health = {NORTH: AddressHealth.SUPPRESSED, SOUTH: health}

    yard.rerouting.by_health(lambda _: has_failed)

    assert (moves, [] if moves else [SOUTH]) == (outbox in yard.moves.begun, yard.wanted)
    if moves:
        reason, rule = yard.moves.begun[outbox]
        (held,) = outbox.held
        assert (RerouteReason.BETTER, yard.ways.outbox(SOUTH)) == (reason, rule(outbox, held).sink)
        outbox.outlet = cast("Any", object())
        assert rule(outbox, held) is None


def test_addresses_of_our_own_have_what_waits_decided_anew(yard: Yard) -> None:
    """Whatever link there is."""
    outbox = yard.wait(EAST)

    yard.rerouting.from_ourselves([EAST, NORTH])

    ((moving, (reason, rule)),) = yard.moves.begun.items()
    assert (outbox, RerouteReason.ITSELF) == (moving, reason)
    assert rule(outbox, next(iter(outbox.held))).route in {"n", "s"}


def test_new_principal_is_wanted_and_of_ourselves_what_waits_is_decided_anew(yard: Yard) -> None:
    """Once, for however many pairs; not while none is known, nor for a pair that nothing was sent to."""
    assert PAIR is not None
    other = replace(PAIR, remote_service_name="//other")
    yard.rerouting.by_principals({PAIR: NORTH})
    outbox = yard.ways.pairs.outbox(PAIR)
    yard.ways.pairs.outbox(other)
    for address in (None, NORTH):
        changes = {PAIR: address, other: address}
        yard.ways.pairs.lead(changes, [])
        yard.rerouting.by_principals(changes)
    assert ([NORTH], {}) == (yard.wanted, yard.moves.begun)

    yard.decider.here = RoutingContext(
        yard.decider.here.table, Hosted(), yard.health_of, is_forwarding=True, own=frozenset({SOUTH})
    )
    yard.rerouting.by_principals({PAIR: SOUTH})

    assert {outbox} == yard.moves.begun.keys()

"""What the oracle leaves open: the draw among instances and addresses, ties, and next hops that have refused."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from unittest import mock
from uuid import UUID

import pytest

from broker.protocol.layout import NO_GUID
from broker.routing import decide as module
from broker.routing.address import NetworkAddress
from broker.routing.decide import (
    AddressHealth,
    HealthOf,
    Hosted,
    RouteChoice,
    RoutingContext,
    RoutingFacts,
    choose,
    match,
    pick_instance,
    score,
)
from broker.routing.route import Route
from broker.routing.table import RouteTable, build_table

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)

EAST, WEST, NORTH = UUID(int=0xE), UUID(int=0xF), UUID(int=16)
DIALOG = b"d" * 16
NOTHING_HERE = Hosted()
ONE, TWO, THREE = (NetworkAddress(host) for host in ("one", "two", "three"))

TO_ONE = Route("to one", ONE)
TO_TWO = Route("to two", TWO)


def _untried(_address: NetworkAddress) -> AddressHealth:
    return AddressHealth.UNTRIED


def _health(**known: AddressHealth) -> HealthOf:
    return lambda address: known.get(address.host, AddressHealth.UNTRIED)


def _facts(service: str = "Orders", instance: UUID | None = None, *, conversation: bytes = DIALOG) -> RoutingFacts:
    return RoutingFacts(service, NO_GUID if instance is None else instance.bytes, conversation)


def _choose(
    routes: Iterable[Route],
    here: Hosted,
    facts: RoutingFacts,
    health: HealthOf,
    refused: Mapping[NetworkAddress, float] | None = None,
) -> RouteChoice | None:
    refusals = {(facts.to_service, facts.to_broker_instance): refused or {}}
    return choose(routes, facts, RoutingContext(RouteTable(), here, health, is_forwarding=True, refusals=refusals))


def test_next_hop_that_does_not_have_the_broker_instance_comes_last_whatever_its_health() -> None:
    health = _health(one=AddressHealth.CONNECTED, two=AddressHealth.CONNECTED, three=AddressHealth.SUPPRESSED)
    for n in range(16):
        facts = _facts(instance=EAST, conversation=bytes([n]) * 16)
        routes = [TO_ONE, TO_TWO, Route("to three", THREE)]
        choice = _choose(routes, NOTHING_HERE, facts, health, refused={TWO: 1.0, ONE: 2.0})

        assert choice is not None
        assert [THREE, TWO, ONE] == [candidate.address for candidate in choice.candidates]


GATEWAY = NetworkAddress("gateway")

TO_WEST = Route("to west", GATEWAY, "Orders", WEST)


@pytest.mark.promise("R2.3")
def test_instances_share_dialogs_by_the_heaviest_of_their_routes() -> None:
    routes = [Route(str(weight), GATEWAY, "Orders", EAST, weight=weight) for weight in (1, 3, 2)]
    table = build_table([*routes, TO_WEST], now=NOW)
    facts = [_facts(conversation=n.to_bytes(16, "big")) for n in range(4000)]

    shares = Counter(match(table, NOTHING_HERE, one).routes[0].broker_instance for one in facts)

    assert shares == pytest.approx({EAST: 3000, WEST: 1000}, abs=120)


@pytest.mark.promise("R2.3")
def test_lower_guid_wins_a_tie_and_so_does_the_lower_address() -> None:
    with mock.patch.object(module, "score", return_value=1.0):
        picked = pick_instance(DIALOG, {WEST.bytes: 1, EAST.bytes: 1})
        choice = _choose([TO_TWO, TO_ONE, Route("to three", THREE)], NOTHING_HERE, _facts(), _untried)

    assert EAST.bytes == picked
    assert choice is not None
    assert [ONE, THREE, TWO] == [candidate.address for candidate in choice.candidates]


@pytest.mark.promise("R2.3")
def test_score_is_the_documented_formula() -> None:
    h = int.from_bytes(sha256(DIALOG + EAST.bytes).digest()[:8], "big")

    assert 7 / -math.log((h + 0.5) / 2**64) == score(DIALOG, EAST.bytes, weight=7)


@pytest.mark.parametrize(
    ("digest", "expected"),
    [(b"\x00" * 32, 1 / -math.log(0.5 / 2**64)), (b"\xff" * 32, math.inf), (b"\x80" + b"\x00" * 31, 1 / math.log(2))],
)
def test_score_is_positive_at_both_ends_of_the_hash(digest: bytes, expected: float) -> None:
    with mock.patch("broker.routing.decide.sha256") as hashing:
        hashing.return_value.digest.return_value = digest
        assert expected == pytest.approx(score(DIALOG, EAST.bytes))


@pytest.mark.promise("R2.3")
def test_score_pins_which_instance_and_address_gateways_of_every_release_pick() -> None:
    """All gateways must pick alike, so the hash is part of the contract: these values never change."""
    by_instance = {instance.bytes: 1 for instance in (EAST, WEST, NORTH)}
    picked = [pick_instance(bytes([n]) * 16, by_instance)[-1] for n in range(8)]
    routes = [TO_ONE, TO_TWO, Route("to three", THREE)]
    choices = [_choose(routes, NOTHING_HERE, _facts(conversation=bytes([n]) * 16), _untried) for n in range(8)]
    order = [" ".join(one.address.host for one in choice.candidates) for choice in choices if choice is not None]

    assert picked == [0xE, 0xF, 0xF, 0xF, 0x10, 0xE, 0x10, 0xF]
    assert order[:4] == ["one three two", "three two one", "two one three", "three two one"]
    assert order[4:] == ["two one three", "three two one", "one three two", "two one three"]

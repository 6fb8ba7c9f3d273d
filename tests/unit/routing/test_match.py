"""The steps of matching one by one, their order, and the balancing of step 3."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from unittest import mock
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.routing import decide as module
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.decide import NEVER_ASKED_ABOUT, Hosted, Match, RoutingFacts, hosted, match, pick_instance, score
from broker.routing.route import AUTO_CREATED_LOCAL, BROKER_CONFIGURATION, Route
from broker.routing.table import RouteTable, build_table
from broker.wire.layout import NO_GUID

NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
EAST, WEST, NORTH = UUID(int=0xE), UUID(int=0xF), UUID(int=0x10)
GATEWAY = NetworkAddress("gateway")
DIALOG = b"d" * 16
NOTHING_HERE = Hosted()

BY_NAME = Route("by name", GATEWAY, "Orders")
TO_EAST = Route("to east", GATEWAY, "Orders", EAST)
TO_WEST = Route("to west", GATEWAY, "Orders", WEST)
EVERYTHING = (AUTO_CREATED_LOCAL, BY_NAME, TO_EAST, TO_WEST)


def _table(routes: Iterable[Route]) -> RouteTable:
    return build_table(routes, now=NOW)


def _facts(instance: UUID | None = None, *, service: str = "Orders", conversation: bytes = DIALOG) -> RoutingFacts:
    return RoutingFacts(service, NO_GUID if instance is None else instance.bytes, conversation)


@pytest.mark.parametrize(
    ("facts", "routes", "expected"),
    [
        # step 1: the dialog names a broker instance
        (_facts(EAST), EVERYTHING, Match(1, (TO_EAST,))),
        (_facts(WEST), EVERYTHING, Match(1, (TO_WEST,))),
        # step 2: by name
        (_facts(NORTH), EVERYTHING, Match(2, (BY_NAME,))),
        (_facts(), EVERYTHING, Match(2, (BY_NAME,))),
        # step 3: an open dialog, and broker instances to pick from
        (_facts(), (AUTO_CREATED_LOCAL, TO_EAST), Match(3, (TO_EAST,))),
        (_facts(NORTH), (AUTO_CREATED_LOCAL, TO_EAST), Match(5, (AUTO_CREATED_LOCAL,))),
        # step 5: whatever is for everything
        (_facts(service="Billing"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        (_facts(EAST, service="Billing"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        (_facts(service="orders"), EVERYTHING, Match(5, (AUTO_CREATED_LOCAL,))),
        # nothing
        (_facts(), (), Match(7)),
        (_facts(EAST), (TO_WEST,), Match(7)),
        (_facts(service="Billing"), (BY_NAME, TO_EAST), Match(7)),
    ],
)
def test_first_step_that_yields_a_route_ends_the_search(
    facts: RoutingFacts, routes: tuple[Route, ...], expected: Match
) -> None:
    assert expected == match(_table(routes), NOTHING_HERE, facts)


def test_every_route_of_the_step_matches() -> None:
    routes = [Route(name, NetworkAddress(name), "Orders", EAST) for name in ("one", "three", "two")]

    assert Match(1, tuple(routes)) == match(_table([*routes, TO_WEST]), NOTHING_HERE, _facts(EAST))


def test_last_resort_ignores_routes_by_name_of_another_service() -> None:
    last = Route("last", GATEWAY)

    assert Match(5, (last,)) == match(_table([BY_NAME, last]), NOTHING_HERE, _facts(service="Billing"))


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        (_facts(NORTH), 6),
        (_facts(), 7),  # only a dialog that names a broker instance is routed as if LOCAL
        (_facts(NORTH, service="Billing"), 7),
    ],
)
def test_named_instance_and_a_service_here_are_as_if_local(facts: RoutingFacts, step: int) -> None:
    here = hosted({EAST.bytes: ["Orders"]})

    found = match(_table([]), here, facts)

    assert step == found.step
    assert [("", LOCAL, "Orders")] * (step == 6) == [
        (route.name, route.address, route.remote_service_name) for route in found.routes
    ]


def test_route_for_everything_comes_before_as_if_local() -> None:
    here = hosted({EAST.bytes: ["Orders"]})

    assert match(_table([AUTO_CREATED_LOCAL]), here, _facts(NORTH)).step == 5


def test_balanced_dialog_matches_the_routes_of_one_instance_only() -> None:
    second_to_east = Route("second to east", NetworkAddress("other"), "Orders", EAST)
    table = _table([TO_EAST, TO_WEST, second_to_east])
    found = {match(table, NOTHING_HERE, _facts(conversation=bytes([n]) * 16)) for n in range(32)}

    assert {Match(3, (second_to_east, TO_EAST), is_balanced=True), Match(3, (TO_WEST,), is_balanced=True)} == found


def test_same_dialog_always_picks_the_same_instance() -> None:
    forwards = match(_table([TO_EAST, TO_WEST]), NOTHING_HERE, _facts())
    backwards = match(_table([TO_WEST, TO_EAST]), NOTHING_HERE, _facts())

    assert forwards == backwards


def _share_of_east(routes: list[Route], dialogs: int = 6000) -> float:
    """The part of the dialogs that take a route to EAST."""
    table = _table(routes)
    found = [match(table, NOTHING_HERE, _facts(conversation=n.to_bytes(16, "big"))) for n in range(dialogs)]
    return Counter(one.routes[0].broker_instance for one in found)[EAST] / dialogs


def test_number_of_routes_to_an_instance_changes_nothing() -> None:
    routes = [replace(TO_EAST, name=name) for name in ("one", "two", "three")]

    assert _share_of_east([*routes, TO_WEST]) == pytest.approx(0.5, abs=0.03)


def test_instances_share_dialogs_by_the_heaviest_of_their_routes() -> None:
    routes = [Route(str(weight), GATEWAY, "Orders", EAST, weight=weight) for weight in (1, 3, 2)]

    assert _share_of_east([*routes, TO_WEST]) == pytest.approx(0.75, abs=0.03)


def test_a_live_route_to_the_configuration_service_ends_the_search_before_the_last_resort() -> None:
    ask = Route("ask", LOCAL, BROKER_CONFIGURATION)
    table = _table([ask, AUTO_CREATED_LOCAL, TO_EAST])

    assert Match(4, (ask,)) == match(table, NOTHING_HERE, _facts(NORTH))
    assert match(table, NOTHING_HERE, _facts(EAST)).step == 1


@pytest.mark.parametrize("service", sorted(NEVER_ASKED_ABOUT))
def test_nobody_asks_about_the_service_that_is_asked_or_the_one_that_asks(service: str) -> None:
    table = _table([Route("ask", LOCAL, BROKER_CONFIGURATION), AUTO_CREATED_LOCAL])
    facts = RoutingFacts(service, NO_GUID, DIALOG)

    assert match(table, NOTHING_HERE, facts).step == (2 if service == BROKER_CONFIGURATION else 5)


def test_expired_route_to_the_configuration_service_is_not_asked() -> None:
    ask = Route("ask", LOCAL, BROKER_CONFIGURATION, lifetime=NOW)

    assert match(_table([ask]), NOTHING_HERE, _facts(NORTH)).step == 7


def test_removing_an_instance_moves_only_its_own_dialogs() -> None:
    three = {instance.bytes: 1 for instance in (EAST, WEST, NORTH)}
    two = {instance.bytes: 1 for instance in (EAST, WEST)}
    dialogs = [n.to_bytes(16, "big") for n in range(500)]

    moved = [dialog for dialog in dialogs if pick_instance(dialog, three) != pick_instance(dialog, two)]

    assert [dialog for dialog in dialogs if pick_instance(dialog, three) == NORTH.bytes] == moved


def test_lower_guid_wins_a_tie() -> None:
    with mock.patch.object(module, "score", return_value=1.0):
        picked = pick_instance(DIALOG, {WEST.bytes: 1, EAST.bytes: 1})

    assert EAST.bytes == picked


def test_score_is_the_documented_formula() -> None:
    h = int.from_bytes(sha256(DIALOG + EAST.bytes).digest()[:8], "big")

    assert 7 / -math.log((h + 0.5) / 2**64) == score(DIALOG, EAST.bytes, weight=7)


@pytest.mark.parametrize(
    ("digest", "expected"),
    [(b"\x00" * 32, 1 / -math.log(0.5 / 2**64)), (b"\xff" * 32, math.inf), (b"\x80" + b"\x00" * 31, 1 / math.log(2))],
)
def test_score_is_positive_at_both_ends_of_the_hash(digest: bytes, expected: float) -> None:
    with mock.patch("hashlib.sha256") as hashing:
        hashing.return_value.digest.return_value = digest
        value = score(DIALOG, EAST.bytes)

    assert expected == pytest.approx(value)
    assert value > 0


def test_score_pins_which_instance_gateways_of_every_release_pick() -> None:
    """All gateways must pick alike, so the hash is part of the contract: these values never change."""
    by_instance = {instance.bytes: 1 for instance in (EAST, WEST, NORTH)}
    picked = [pick_instance(bytes([n]) * 16, by_instance)[-1] for n in range(8)]

    assert picked == [0xE, 0xF, 0xF, 0xF, 0x10, 0xE, 0x10, 0xF]

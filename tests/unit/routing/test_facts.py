"""What a frame says about where it wants to go, and what this instance hosts."""

from __future__ import annotations

import pytest

from broker.routing.decide import Hosted, RoutingFacts, hosted
from broker.wire.layout import NO_GUID

EAST, WEST, NORTH = b"e" * 16, b"w" * 16, b"n" * 16
DIALOG = b"d" * 16


@pytest.mark.parametrize(("to_broker_instance", "is_open"), [(NO_GUID, True), (EAST, False)])
def test_dialog_is_open_while_it_names_no_broker_instance(to_broker_instance: bytes, is_open: bool) -> None:  # noqa: FBT001  (a table's column)
    facts = RoutingFacts("//shop/Orders", to_broker_instance, DIALOG)

    assert is_open == facts.is_open


@pytest.mark.parametrize(("database", "is_incoming"), [(None, True), (EAST, False)])
def test_frame_is_incoming_unless_a_database_here_sends_it(database: bytes | None, is_incoming: bool) -> None:  # noqa: FBT001  (a table's column)
    facts = RoutingFacts("//shop/Orders", NO_GUID, DIALOG, database=database)

    assert is_incoming == facts.is_incoming


def test_facts_are_of_the_initiator_and_incoming_when_nothing_else_is_said() -> None:
    facts = RoutingFacts("//shop/Orders", NO_GUID, DIALOG)

    assert (facts.is_from_target, facts.database) == (False, None)


def test_hosted_databases_are_found_by_instance_and_by_service() -> None:
    here = hosted({WEST: ["Orders", "Billing", "Orders"], EAST: ["Orders"], NORTH: []})

    assert {WEST: {"Orders", "Billing"}, EAST: {"Orders"}, NORTH: set()} == here.services_of
    assert here.databases_with == {"Orders": (EAST, WEST), "Billing": (WEST,)}


def test_databases_of_a_service_are_sorted_however_they_were_given() -> None:
    forwards = hosted({EAST: ["Orders"], NORTH: ["Orders"], WEST: ["Orders"]})
    backwards = hosted({WEST: ["Orders"], NORTH: ["Orders"], EAST: ["Orders"]})

    assert (forwards.databases_with["Orders"], backwards.databases_with["Orders"]) == ((EAST, NORTH, WEST),) * 2


def test_pure_gateway_hosts_nothing() -> None:
    assert Hosted() == hosted({})


def test_mirrors_are_beside_what_is_hosted() -> None:
    known = hosted({b"a" * 16: ["S"]}, mirrors=[b"b" * 16])

    assert ({b"a" * 16}, frozenset({b"b" * 16})) == (set(known.services_of), known.mirrors)

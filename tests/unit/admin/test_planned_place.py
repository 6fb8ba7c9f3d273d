"""An instance told and read again is the same to routing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from broker.admin import planned_place
from broker.admin.explaining import Home, Place
from broker.admin.message import PlaceTold
from broker.admin.planned_place import read_place, tell_place
from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.choose import Health
from broker.routing.decide import Surroundings
from broker.routing.facts import hosted
from broker.routing.route import Route
from broker.routing.table import build_table

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ONE, TWO, OWN = (UUID(int=number) for number in (1, 2, 3))
FULL = Route(
    "full",
    NetworkAddress("a", 1),
    "S",
    TWO,
    NOW + timedelta(seconds=60),
    NetworkAddress("b"),
    7,
    "TCP://A:1",
)
PLAIN = Route("plain", LOCAL)


def place() -> Place:
    msdb, home = build_table([PLAIN, FULL], now=NOW), build_table([FULL], now=NOW)
    here = Surroundings(
        msdb,
        hosted({ONE.bytes: {"S", "T"}, OWN.bytes: set()}, mirrors=[TWO.bytes]),
        lambda _: Health.CONNECTED,
        is_forwarding=False,
        msdb=msdb,
        own=frozenset({NetworkAddress("a")}),
    )
    return Place("gw", OWN.bytes, here, {"orders": Home(ONE.bytes, home, Path("/none"))})


def test_what_is_told_can_travel_and_be_read_again() -> None:
    told = tell_place(place())

    read = read_place(msgspec.json.decode(msgspec.json.encode(told), type=PlaceTold), now=NOW)

    site = read.site
    assert ("gw", frozenset({NetworkAddress("a")}), False) == (site.name, site.addresses, site.is_forwarding)
    assert [FULL, PLAIN] == sorted(site.msdb, key=lambda route: route.name)
    assert {ONE.bytes: [FULL]} == {guid: list(table) for guid, table in site.databases.items()}
    assert place().surroundings.hosted == site.hosted
    assert {ONE.bytes: "orders"} == read.names


def test_routes_hold_at_the_instant_that_is_given() -> None:
    told = tell_place(place())
    assert told is not None

    late = read_place(told, now=NOW + timedelta(days=1)).site

    assert () == late.msdb.routes("S", TWO.bytes)


def test_a_table_that_is_too_long_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_place, "ROUTES_MAX", 2)

    assert tell_place(place()) is None

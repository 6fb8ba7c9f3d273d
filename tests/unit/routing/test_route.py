"""What a route is once it is legal."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.routing.address import LOCAL, NetworkAddress
from broker.routing.route import (
    AUTO_CREATED_LOCAL,
    PropertyError,
    Route,
    RouteProperties,
    alter_route,
    create_route,
    is_live,
)

GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
NOW = datetime(2025, 3, 1, 12, tzinfo=UTC)
FULL = RouteProperties(
    service_name="//shop/Orders",
    broker_instance=GUID,
    lifetime=60,
    address="TCP://East.example/",
    mirror_address="tcp://west.example:4023",
    weight=7,
)
BY_NAME = RouteProperties(service_name="//shop/Orders", address="tcp://east:4022")


@pytest.mark.parametrize("service", ["s", ""])
def test_a_route_needs_an_address_before_anything_else(service: str) -> None:
    """Syntax comes before meaning, as in the original; the other rules are tried by statements, in test_handlers."""
    with pytest.raises(PropertyError) as caught:
        create_route("r", RouteProperties(service_name=service))

    assert (102, ("ADDRESS",)) == (caught.value.number, caught.value.properties)


def test_created_route_holds_values_and_echoes_the_addresses_as_written() -> None:
    route = create_route("r", FULL, now=NOW)

    assert route == Route(
        name="r",
        remote_service_name="//shop/Orders",
        broker_instance=UUID(GUID),
        lifetime=NOW + timedelta(seconds=60),
        address=NetworkAddress("east.example", 4022),
        mirror_address=NetworkAddress("west.example", 4023),
        weight=7,
        address_text="TCP://East.example/",
        mirror_address_text="tcp://west.example:4023",
    )


@pytest.mark.parametrize("text", ["LOCAL", "local", "Local"])
def test_keyword_is_stored_in_upper_case(text: str) -> None:
    route = create_route("AutoCreatedLocal", RouteProperties(address=text), now=NOW)

    assert route == AUTO_CREATED_LOCAL


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        (RouteProperties(service_name="s"), {"remote_service_name": "s"}),
        (RouteProperties(broker_instance=GUID.replace("5", "6")), {"broker_instance": UUID(GUID.replace("5", "6"))}),
        (RouteProperties(lifetime=5), {"lifetime": NOW + timedelta(seconds=5)}),
        (
            RouteProperties(address="tcp://north/"),
            {"address": NetworkAddress("north"), "address_text": "tcp://north/"},
        ),
        (
            RouteProperties(mirror_address="TCP://north"),
            {"mirror_address": NetworkAddress("north"), "mirror_address_text": "TCP://north"},
        ),
        (RouteProperties(weight=9), {"weight": 9}),
        (RouteProperties(), {}),
    ],
)
def test_alter_changes_only_what_it_names(change: RouteProperties, changed: dict[str, object]) -> None:
    before = create_route("r", FULL, now=NOW - timedelta(seconds=10))

    after = alter_route(before, change, now=NOW)

    assert replace(before, **changed) == after  # names and values belong together
    unnamed = create_route("r", BY_NAME, now=NOW)
    assert alter_route(unnamed, RouteProperties(weight=2), now=NOW) == replace(unnamed, weight=2)


@pytest.mark.promise("R1.5")
def test_routes_that_differ_in_spelling_name_weight_and_lifetime_are_identical() -> None:
    one = create_route("one", FULL, now=NOW)
    two = create_route(
        "two",
        replace(FULL, address="tcp://EAST.example:4022", broker_instance=GUID.upper(), weight=1, lifetime=None),
        now=NOW,
    )

    assert one.identity == two.identity


@pytest.mark.parametrize(
    "change",
    [
        RouteProperties(service_name="//shop/orders"),
        RouteProperties(broker_instance=GUID.replace("5", "6")),
        RouteProperties(address="tcp://east.example:4021"),
        RouteProperties(mirror_address="tcp://north"),
    ],
)
@pytest.mark.promise("R1.5")
def test_routes_that_differ_in_what_matters_are_not_identical(change: RouteProperties) -> None:
    route = create_route("r", FULL, now=NOW)

    assert route.identity != alter_route(route, change, now=NOW).identity


@pytest.mark.promise("R1.3", "routes 14")
def test_auto_created_local_is_a_last_resort_that_never_expires() -> None:
    expected = (None, None, LOCAL, None)
    assert expected == AUTO_CREATED_LOCAL.identity
    assert is_live(AUTO_CREATED_LOCAL.lifetime, NOW)

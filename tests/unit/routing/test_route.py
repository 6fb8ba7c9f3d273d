"""Every rule about what a route may say, from every way of breaking it; and what a route is once it is legal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec.structs import replace

from broker.routing.address import LOCAL, TRANSPORT, NetworkAddress
from broker.routing.route import (
    AUTO_CREATED_LOCAL,
    BROKER_CONFIGURATION,
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
LAST_RESORT = RouteProperties(address="tcp://east:4022")

# One for each clause of each rule; more are tried with statements: tests/support/route_errors.py.
BROKEN: list[tuple[int, str, RouteProperties]] = [
    (102, "ADDRESS", RouteProperties(service_name="s")),
    (102, "ADDRESS", RouteProperties(service_name="")),  # syntax comes before meaning, as in the original
    (1080, "WEIGHT", replace(BY_NAME, weight=0)),
    (1080, "WEIGHT", replace(BY_NAME, weight=1001)),
    (8412, "SERVICE_NAME", replace(BY_NAME, service_name="€" * 171)),
    (8412, "SERVICE_NAME", replace(BY_NAME, service_name="\ud800")),
    (8413, "BROKER_INSTANCE", replace(BY_NAME, broker_instance=GUID[:-1])),
    (8413, "BROKER_INSTANCE", replace(BY_NAME, broker_instance="{" + GUID)),
    (8413, "BROKER_INSTANCE", replace(BY_NAME, broker_instance=GUID + "}")),
    (8413, "BROKER_INSTANCE", replace(BY_NAME, broker_instance="x" * 256)),
    (8413, "BROKER_INSTANCE", replace(BY_NAME, broker_instance="00000000-0000-0000-0000-000000000000")),
    (8413, "BROKER_INSTANCE", replace(BY_NAME, broker_instance=GUID, service_name=BROKER_CONFIGURATION)),
    (9659, "SERVICE_NAME", replace(FULL, service_name="")),
    (9659, "BROKER_INSTANCE", replace(FULL, broker_instance="")),
    (9659, "ADDRESS", replace(FULL, address="")),
    (9659, "MIRROR_ADDRESS", replace(FULL, mirror_address="")),
    (9660, "SERVICE_NAME", replace(FULL, service_name="s" * 257)),
    (9660, "BROKER_INSTANCE", replace(FULL, broker_instance="s" * 257)),
    (9660, "ADDRESS", replace(FULL, address="tcp://" + "a." * 126)),
    (9661, "MIRROR_ADDRESS", replace(BY_NAME, mirror_address="tcp://west")),
    (9662, "BROKER_INSTANCE", replace(FULL, service_name=None)),
    (9743, "ADDRESS", replace(FULL, address="LOCAL")),
    (9743, "MIRROR_ADDRESS", replace(FULL, mirror_address="transport")),
    (9744, "ADDRESS", replace(FULL, address="east:4022")),
    (9744, "MIRROR_ADDRESS", replace(FULL, mirror_address="http://west")),
    (9745, "ADDRESS", replace(BY_NAME, address="TRANSPORT")),
    (9746, "LIFETIME", replace(BY_NAME, lifetime=0)),
    (9746, "LIFETIME", replace(BY_NAME, lifetime=2**31)),
    (9747, "MIRROR_ADDRESS", replace(FULL, mirror_address="tcp://EAST.example:4022")),
]


def _name_of_case(value: object) -> str | None:
    return str(value) if isinstance(value, int | str) else ""


@pytest.mark.parametrize(("number", "blamed", "properties"), BROKEN, ids=_name_of_case)
@pytest.mark.promise("R1.2")
def test_broken_rule_has_its_number_and_names_its_property(
    number: int, blamed: str, properties: RouteProperties
) -> None:
    with pytest.raises(PropertyError) as caught:
        create_route("r", properties)

    assert (number, blamed) == (caught.value.number, caught.value.properties[0])
    assert any(name in caught.value.problem for name in caught.value.properties)
    assert str(caught.value).startswith(f"Msg {number}, Level 16\n")


@pytest.mark.parametrize(
    "properties",
    [
        FULL,
        BY_NAME,
        LAST_RESORT,
        RouteProperties(address="LOCAL"),
        RouteProperties(address="TRANSPORT"),
        RouteProperties(address="LOCAL", service_name="s"),
        RouteProperties(address="LOCAL", service_name="s", broker_instance="{" + GUID.upper() + "}"),
        RouteProperties(address="tcp://e", service_name=BROKER_CONFIGURATION),
        RouteProperties(
            address="tcp://e", service_name=BROKER_CONFIGURATION.lower(), broker_instance=GUID
        ),  # another service: names compare byte for byte
        replace(BY_NAME, service_name="s" * 256),
        replace(BY_NAME, service_name="é" * 256),
        replace(BY_NAME, lifetime=1, weight=1),
        replace(BY_NAME, lifetime=2**31 - 1, weight=1000),
    ],
)
@pytest.mark.promise("R1.2", "multiple 1")
def test_legal_properties_make_a_route(properties: RouteProperties) -> None:
    route = create_route("r", properties)

    assert properties.service_name == route.remote_service_name
    assert (properties.weight or 1) == route.weight
    assert properties.address == route.address_text
    assert properties.mirror_address == route.mirror_address_text
    assert (route.address == TRANSPORT) == (properties.address == "TRANSPORT")
    assert route.lifetime is None


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


@pytest.mark.parametrize(
    ("number", "before", "change"),
    [
        (9745, RouteProperties(address="TRANSPORT"), RouteProperties(service_name="s")),
        (9745, BY_NAME, RouteProperties(address="TRANSPORT")),
        (9662, LAST_RESORT, RouteProperties(broker_instance=GUID)),
        (8413, replace(BY_NAME, broker_instance=GUID), RouteProperties(service_name=BROKER_CONFIGURATION)),
        (9661, BY_NAME, RouteProperties(mirror_address="tcp://west")),
        (9743, FULL, RouteProperties(address="LOCAL")),
        (9747, FULL, RouteProperties(address="tcp://west.example:4023/")),
        (9746, BY_NAME, RouteProperties(lifetime=0)),
    ],
)
@pytest.mark.promise("R1.2")
def test_alter_is_refused_when_the_merged_route_breaks_a_rule(
    number: int, before: RouteProperties, change: RouteProperties
) -> None:
    route = create_route("r", before, now=NOW)

    with pytest.raises(PropertyError) as caught:
        alter_route(route, change, now=NOW)

    assert number == caught.value.number


@pytest.mark.parametrize(("offset", "expected"), [(-1, True), (0, False), (1, False)])
def test_route_is_live_before_its_expiry_only(offset: int, expected: bool) -> None:  # noqa: FBT001
    route = create_route("r", replace(BY_NAME, lifetime=60), now=NOW)

    assert expected is is_live(route.lifetime, NOW + timedelta(seconds=60 + offset))


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

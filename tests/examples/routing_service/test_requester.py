"""Making routes for who asks: known by its broker instance, all routes or none, and nobody else's route is touched."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from broker.ddl.statements import CreateRoute
from broker.errors import ConversationError, DaemonUnreachableError
from broker.routing.route import RouteProperties
from examples.routing_service.requester import Requester, Requesters

INSTANCE = uuid.UUID("5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11")
CREATE = "CREATE ROUTE [{}] WITH SERVICE_NAME = 'Orders', LIFETIME = 60, ADDRESS = 'tcp://a:4022';"


def route(name: str) -> CreateRoute:
    return CreateRoute(name, RouteProperties(service_name="Orders", lifetime=60, address="tcp://a:4022"))


@pytest.fixture
def shop(requesting: Any, socket: Path) -> Requester:
    return Requesters([socket]).find(INSTANCE)


def test_a_requester_is_found_by_its_broker_instance(requesting: Any, socket: Path) -> None:
    requesters = Requesters([socket])

    assert "shop" == requesters.find(INSTANCE).name
    assert "msdb" == requesters.find(uuid.UUID(int=1)).name
    assert 1 == requesting.questions


def test_a_database_that_is_new_is_found(requesting: Any, socket: Path) -> None:
    requesters = Requesters([socket])
    requesters.find(INSTANCE)
    requesting.databases["new"] = uuid.UUID(int=7)

    assert "new" == requesters.find(uuid.UUID(int=7)).name


def test_an_unknown_requester_is_refused(requesting: Any, socket: Path) -> None:
    with pytest.raises(ConversationError, match="00000009") as caught:
        Requesters([socket]).find(uuid.UUID(int=9))

    assert 9795 == caught.value.number


def test_who_may_be_in_an_instance_that_is_silent_is_not_unknown(requesting: Any, socket: Path) -> None:
    requesting.is_up = False

    with pytest.raises(DaemonUnreachableError):
        Requesters([socket]).find(INSTANCE)


def test_new_routes_are_made_in_one_script(requesting: Any, shop: Requester) -> None:
    shop.put_routes([route("one"), route("other")])

    assert [("\n".join([CREATE.format("one"), CREATE.format("other")]), "shop")] == requesting.scripts


@pytest.mark.parametrize(
    ("service", "lifetime", "expired"),
    [("Orders", "2026-01-01 00:00:00.000", True), ("Orders", "2999-01-01", False), ("Another", "2026-01-01", True)],
)
def test_a_route_of_the_same_name_has_a_new_life(
    requesting: Any, shop: Requester, service: str, lifetime: str, *, expired: bool
) -> None:
    requesting.routes = [{"name": "one", "remote_service_name": service, "lifetime": lifetime, "is_expired": expired}]

    shop.put_routes([route("one")])

    assert [(f"DROP ROUTE [one];\n{CREATE.format('one')}", "shop")] == requesting.scripts


def test_a_route_without_an_end_stays_as_it_is(requesting: Any, shop: Requester) -> None:
    requesting.routes = [{"name": "one", "remote_service_name": "Orders", "lifetime": None, "is_expired": False}]

    shop.put_routes([route("one")])

    assert [] == requesting.scripts


def test_a_live_route_to_another_service_is_not_touched(requesting: Any, shop: Requester) -> None:
    requesting.routes = [{"name": "one", "remote_service_name": None, "lifetime": None, "is_expired": False}]

    with pytest.raises(ConversationError, match="leads to None") as caught:
        shop.put_routes([route("other"), route("one")])

    assert 2714 == caught.value.number
    assert [] == requesting.scripts


def test_a_refusal_of_the_instance_keeps_its_number(requesting: Any, shop: Requester) -> None:
    requesting.problem = (HTTPStatus.BAD_REQUEST, {"number": 9744, "detail": "no address"})

    with pytest.raises(ConversationError, match="no address") as caught:
        shop.put_routes([route("one")])

    assert 9744 == caught.value.number


def test_a_refusal_without_a_number_has_one(requesting: Any, shop: Requester) -> None:
    requesting.problem = (HTTPStatus.NOT_FOUND, {})

    with pytest.raises(ConversationError) as caught:
        shop.put_routes([route("one")])

    assert 9750 == caught.value.number


def test_an_instance_in_trouble_is_asked_again_later(requesting: Any, shop: Requester) -> None:
    requesting.problem = (HTTPStatus.SERVICE_UNAVAILABLE, {"detail": "disk full"})

    with pytest.raises(DaemonUnreachableError, match="disk full"):
        shop.put_routes([route("one")])

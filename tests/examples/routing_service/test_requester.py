"""Making routes for who asks: known by its broker instance, all routes or none, and nobody else's route is touched."""

import uuid
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

    assert ["shop", "msdb"] == [requesters.find(one).name for one in (INSTANCE, uuid.UUID(int=1))]
    assert 1 == requesting.questions
    requesting.databases["new"] = uuid.UUID(int=7)
    assert "new" == requesters.find(uuid.UUID(int=7)).name
    with pytest.raises(ConversationError, match="00000009") as caught:
        requesters.find(uuid.UUID(int=9))
    assert 9795 == caught.value.number
    requesting.is_up = False
    with pytest.raises(DaemonUnreachableError):  # it may be in there
        requesters.find(uuid.UUID(int=9))


@pytest.mark.parametrize(
    ("service", "lifetime", "expired", "is_replaced"),
    [
        ("Orders", "2026-01-01 00:00:00.000", True, True),
        ("Orders", "2999-01-01", False, True),
        ("Another", "2026-01-01", True, True),
        ("Orders", None, False, False),
    ],
)
def test_a_route_of_the_same_name_has_a_new_life_unless_it_has_no_end(
    requesting: Any, shop: Requester, service: str, lifetime: str | None, *, expired: bool, is_replaced: bool
) -> None:
    requesting.routes = [{"name": "one", "remote_service_name": service, "lifetime": lifetime, "is_expired": expired}]

    shop.put_routes([route("one")])

    scripts = [(f"DROP ROUTE [one];\n{CREATE.format('one')}", "shop")]
    assert (scripts if is_replaced else []) == requesting.scripts


def test_a_live_route_to_another_service_is_not_touched(requesting: Any, shop: Requester) -> None:
    requesting.routes = [{"name": "one", "remote_service_name": None, "lifetime": None, "is_expired": False}]

    with pytest.raises(ConversationError, match="leads to None") as caught:
        shop.put_routes([route("other"), route("one")])

    assert 2714 == caught.value.number
    assert [] == requesting.scripts

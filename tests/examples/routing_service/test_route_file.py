"""Routes from a script: those of the service that was asked for, as the file says now, or as it last said well."""

import os
import uuid
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.dialog.route_requests import Inquiry
from broker.errors import StatementError
from examples.routing_service.route_file import RouteFile

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
FULL = "CREATE ROUTE {} WITH SERVICE_NAME = 'Orders', BROKER_INSTANCE = '{}', ADDRESS = 'tcp://{}:4022';\n"
TWO = FULL.format("one", ONE, "a") + FULL.format("other", OTHER, "b")
PLAIN = "CREATE ROUTE plain WITH SERVICE_NAME = 'Orders', LIFETIME = 60, ADDRESS = 'tcp://c:4022';\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "routes.sql"


def names(file: RouteFile, service: str = "Orders", instance: uuid.UUID | None = None) -> list[str]:
    return [route.name for route in file.find(Inquiry(service, instance))]


def test_routes_of_the_service_and_broker_instance_are_given(path: Path) -> None:
    path.write_text(TWO + "GO\n" + PLAIN.replace("'Orders'", "'orders'"))
    file = RouteFile(path, lifetime=3600)

    assert (["one", "other"], ["plain"], []) == (names(file), names(file, "orders"), names(file, "//unknown"))
    assert ["one", "other"] == names(file, instance=ONE)
    assert [] == names(file, instance=uuid.UUID(int=3))
    path.write_text(TWO + PLAIN)
    assert ["one", "other", "plain"] == names(file, instance=uuid.UUID(int=3))
    assert [3600, 3600, 60] == [route.properties.lifetime for route in file.find(Inquiry("Orders"))]


@pytest.mark.parametrize("bad", ["CREATE ROUTE", "DROP ROUTE one;", b"\xff", None])
def test_the_last_good_file_goes_on_to_hold_and_the_bad_one_is_told_once(path: Path, bad: str | bytes | None) -> None:
    path.write_text(TWO)
    file = RouteFile(path, lifetime=3600)
    if bad is None:
        path.unlink()
    else:
        path.write_bytes(bad if isinstance(bad, bytes) else bad.encode())

    with capture_logs() as logs:
        found = [names(file), names(file)]

    assert [["one", "other"]] * 2 == found
    assert {"route file not used"} == {line["event"] for line in logs}
    assert bad is None or 1 == len(logs)
    path.write_text(PLAIN)
    os.utime(path, ns=(1, 1))
    assert ["plain"] == names(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("USE msdb;", "CREATE ROUTE only"),
        ("CREATE ROUTE a WITH ADDRESS = 'LOCAL';", "needs SERVICE_NAME"),
        ("CREATE ROUTE a WITH SERVICE_NAME = 'a', ADDRESS = 'nowhere';", "not a valid address"),
        ("CREATE ROUTE a WITH SERVICE_NAME = 'a', LIFETIME = 0, ADDRESS = 'LOCAL';", "LIFETIME 0"),
    ],
)
def test_a_file_that_is_bad_at_the_start_is_refused_with_the_place(path: Path, text: str, why: str) -> None:
    path.write_text(f"\n{text}")

    with pytest.raises(StatementError, match=why) as caught:
        RouteFile(path, lifetime=3600)

    assert caught.value.span is not None
    assert 2 == caught.value.span.line

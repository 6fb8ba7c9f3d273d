from __future__ import annotations

import io
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from broker.admin.api import Api
from broker.admin.app import tell_problems
from broker.admin.door import origin_of
from broker.admin.events import Events
from broker.admin.operation import OPERATIONS, SCRIPT_MAX_BYTES
from broker.daemon import Instance

Ask: TypeAlias = Callable[..., Awaitable[tuple[int, Any]]]


async def test_statement_and_question_over_the_socket(ask: Ask) -> None:
    created = await ask("POST", "/v1/sql", {"statement": "CREATE QUEUE Q"})
    asked = await ask("POST", "/v1/sql", {"statement": "SELECT name FROM sys.service_queues", "database": None})

    assert created == (200, {"columns": [], "rows": [], "messages": ["queue Q created"], "truncated": False})
    assert asked == (200, {"columns": ["name"], "rows": [["Q"]], "messages": [], "truncated": False})


async def test_page_of_a_view(ask: Ask) -> None:
    status, answer = await ask("GET", "/v1/views/msdb.sys.routes?limit=1&after=0")

    assert (status, answer["rows"][0][0], answer["after"]) == (200, "AutoCreatedLocal", None)


@pytest.mark.parametrize(
    ("method", "target", "body", "status"),
    [
        ("POST", "/v1/sql", {"statement": "CREATE QEUE Q"}, 400),
        ("POST", "/v1/sql", {"statement": "DROP QUEUE Absent"}, 404),
        ("POST", "/v1/sql", {"statement": "SELECT * FROM sys.nothing"}, 404),
        ("POST", "/v1/sql", {"statement": "CREATE ROUTE AutoCreatedLocal WITH ADDRESS = 'LOCAL'"}, 409),
        ("POST", "/v1/sql", {"statement": "DELETE FROM sys.routes"}, 400),
        ("POST", "/v1/sql", {"statment": "x"}, 400),
        ("POST", "/v1/sql", b"{", 400),
        ("POST", "/v1/sql", b"\xff", 400),
        ("POST", "/v1/sql", b"[" * 100_000, 400),
        ("POST", "/v1/sql", b"", 400),
        ("GET", "/v1/views/sys.nothing", None, 404),
        ("GET", "/v1/views/sys.routes?limit=0", None, 400),
        ("GET", "/v1/views/sys.routes?unknown=1", None, 400),
        ("GET", "/v1/status?unknown=1", None, 400),
        ("GET", "/v1/nope", None, 404),
        ("GET", "/page", None, 404),
        ("POST", "/", None, 405),
        ("GET", "/v1/sql", None, 405),
        ("DELETE", "/v1/status", None, 405),
        ("GET", "/v1/drain?since=-2", None, 400),
        ("POST", "/v1/reload", {"dryrun": True}, 400),
        ("GET", "/v1/reload", None, 405),
    ],
)
async def test_refusal_is_a_problem_with_its_status(
    ask: Ask, method: str, target: str, body: object, status: int
) -> None:
    answered, problem = await ask(method, target, body)

    assert status == answered
    assert status == problem["status"]
    assert {"type", "title", "detail"} <= problem.keys()


async def test_body_above_the_bound_is_refused(ask: Ask) -> None:
    status, problem = await ask("POST", "/v1/sql", io.BytesIO(bytes(SCRIPT_MAX_BYTES + 1)))

    assert (status, problem["status"]) == (413, 413)
    assert problem["detail"].startswith("a request has at most 160 MiB; name a larger script in the configuration")


async def test_bug_is_logged_and_told_as_one(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise KeyError("inside")

    monkeypatch.setattr("broker.admin.api.read_status", broken)

    with capture_logs() as logs:
        status, problem = await ask("GET", "/v1/status")

    assert (status, problem["detail"]) == (500, "see the log of the instance")
    assert [(line["event"], line["path"]) for line in logs] == [("request failed", "/v1/status")]


async def test_refusal_is_not_logged(ask: Ask) -> None:
    """What a caller does wrong is the caller's affair."""
    with capture_logs() as logs:
        await ask("POST", "/v1/sql", {"statement": "CREATE QEUE Q"})

    assert logs == []


async def test_description_has_every_operation(ask: Ask) -> None:
    status, document = await ask("GET", "/v1/openapi.json")

    assert status == 200
    assert {operation.path for operation in OPERATIONS} == document["paths"].keys()


async def test_asking_changes_nothing(ask: Ask, instance: Instance) -> None:
    """GET is safe: whoever only looks leaves no trace."""
    before = (instance.forwarder.generation, instance.catalog.msdb.rows, dict(instance.forwarder.ways))

    for target in ("/v1/status", "/v1/views/sys.routes", "/v1/views/sys.transmission_queue", "/v1/openapi.json"):
        assert (await ask("GET", target))[0] == 200

    assert before == (instance.forwarder.generation, instance.catalog.msdb.rows, dict(instance.forwarder.ways))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_web_pages_are_kept_from_the_port(instance: Instance, headers: dict[str, str], status: int) -> None:
    url = f"http://{instance.admin.admin_address}/v1/status"

    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        answer = json.loads(await response.read())

    assert status == response.status
    assert ("one" if status == 200 else None) == answer.get("name")


async def test_refused_page_changes_nothing(instance: Instance) -> None:
    url = f"http://{instance.admin.admin_address}/v1/sql"
    body = json.dumps({"statement": "CREATE QUEUE Q"})

    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers={"Origin": "http://evil.example"}) as response,
    ):
        assert response.status == 403

    assert "Q" not in instance.catalog.databases["orders"].rows.queues


async def test_whatever_host_is_named_on_the_socket_is_answered(instance: Instance) -> None:
    """Who can open the file needs no further proof."""
    connector = aiohttp.UnixConnector(str(instance.settings.admin.socket))

    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://broker/v1/status") as response,
    ):
        assert response.status == 200


def test_operations_are_methods_of_the_api() -> None:
    owners = {operation: Events if operation.is_stream else Api for operation in OPERATIONS}

    assert all(getattr(owner, one.call.__name__) is one.call for one, owner in owners.items())


async def test_a_client_that_has_gone_before_it_is_asked_after_is_no_failure() -> None:
    gone = make_mocked_request("GET", "/readyz", protocol=Mock(), writer=Mock(), transport=None)

    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=origin_of(request)[1])

    with capture_logs() as logs, pytest.raises(ConnectionResetError, match="gone"):
        await tell_problems(gone, handle)

    assert [] == logs


async def test_a_connection_of_its_own_that_breaks_is_a_failure() -> None:
    there = make_mocked_request("GET", "/readyz")

    async def handle(_: web.Request) -> web.Response:
        raise ConnectionRefusedError("of somebody else")

    with capture_logs() as logs:
        answer = await tell_problems(there, handle)

    assert (500, ["request failed"]) == (answer.status, [one["event"] for one in logs])

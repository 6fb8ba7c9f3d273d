"""The supervisor owns what there is one of, and has every worker decide by what was committed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.admin.client import AdminClient
from broker.control.config import Settings
from broker.control.execute import execute
from broker.ddl.parser import parse_script
from broker.errors import ListenFailedError, SettingError, StatementError, StoreUnavailableError
from broker.forwarding.kernel_choice import KERNEL_VARIABLE
from broker.net.listener import bind
from broker.routing.address import NetworkAddress
from broker.routing.route import BROKER_CONFIGURATION, Route, row_of
from broker.store.database import open_store
from broker.store.metadata import put_routes
from broker.store.transaction import writing
from broker.workers import supervisor as supervisor_module
from broker.workers.channel import WorkerFailedError
from broker.workers.message import unpack_settings
from broker.workers.supervisor import Supervisor
from tests.support.loopback import until

ASK = f"CREATE ROUTE ask WITH SERVICE_NAME = '{BROKER_CONFIGURATION}', ADDRESS = 'tcp://directory:4022';"
FAR = "CREATE ROUTE far WITH SERVICE_NAME = '//far', ADDRESS = 'tcp://far:4022';"
SECONDS = 60.0


@pytest.fixture
async def supervisor(settings: Settings) -> AsyncIterator[Supervisor]:
    """A gateway of two, running; this process is its supervisor."""
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(settings)
        await supervisor.start(stack)
        yield supervisor


async def run(supervisor: Supervisor, script: str) -> None:
    await execute(supervisor.catalog, parse_script(script), database="msdb")


async def next_hops(supervisor: Supervisor) -> list[str]:
    """Where a message to //far would go, by the admin interface."""
    client = AdminClient(supervisor.settings.admin.socket)
    explained = await asyncio.to_thread(client.request, "POST", "/v1/explain", {"to": "//far", "incoming": True})
    return [explained["explanation"]["next_hop"]]


async def test_committed_routes_are_with_every_worker_that_serves(supervisor: Supervisor) -> None:
    loads: list[int] = []
    for slot in supervisor.slots:
        load = slot.load

        async def counted(number: int = slot.number, load: Any = load) -> None:
            await load()
            loads.append(number)

        slot.load = counted  # type: ignore[method-assign]

    await run(supervisor, FAR)
    await supervisor.settle()

    assert sorted(loads) == [1, 2]
    assert await next_hops(supervisor) == ["tcp://far:4022"]


async def test_all_workers_are_there_when_it_has_started(supervisor: Supervisor) -> None:
    assert [slot.is_ready for slot in supervisor.slots] == [True, True]
    assert supervisor.is_ready
    assert len({slot.pid for slot in supervisor.slots} | {os.getpid()}) == 3


async def test_gateway_is_ready_while_one_worker_serves(supervisor: Supervisor) -> None:
    first, second = supervisor.slots

    first.is_ready = False
    one = supervisor.is_ready
    second.is_ready = False
    none = supervisor.is_ready
    first.is_ready = second.is_ready = True

    assert (one, none) == (True, False)


async def test_workers_share_the_pool_and_know_the_port(supervisor: Supervisor) -> None:
    settings = unpack_settings(supervisor.slots[0]._begin.settings)

    assert settings.endpoint.message_forward_size == supervisor.settings.endpoint.message_forward_size // 2
    assert settings.endpoint.listen == tuple(supervisor.listen)
    assert supervisor.listen[0].port > 0
    assert NetworkAddress("127.0.0.1", supervisor.listen[0].port) in supervisor.own


async def test_route_that_would_ask_is_refused(supervisor: Supervisor) -> None:
    with pytest.raises(StatementError, match="would ask for other routes"):
        await run(supervisor, ASK)
    await run(supervisor, FAR)
    with pytest.raises(StatementError, match="would ask for other routes"):
        await run(supervisor, f"ALTER ROUTE far WITH SERVICE_NAME = '{BROKER_CONFIGURATION}'")


async def test_second_one_on_the_same_store_does_not_start(supervisor: Supervisor, settings: Settings) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(StoreUnavailableError, match="another daemon"):
            await Supervisor(settings).start(stack)


async def test_route_that_asks_and_was_there_before_keeps_it_from_starting(settings: Settings, tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "msdb.db")) as db, writing(db):
        put_routes(db, [row_of(Route("ask", NetworkAddress("d", 1), remote_service_name=BROKER_CONFIGURATION))])

    async with AsyncExitStack() as stack:
        with pytest.raises(SettingError, match=r"DROP ROUTE \[ask\]"):
            await Supervisor(settings).start(stack)


async def test_kernel_that_is_not_there_is_told_before_any_worker(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KERNEL_VARIABLE, "steam")
    supervisor = Supervisor(settings)

    async with AsyncExitStack() as stack:
        with pytest.raises(SettingError, match=KERNEL_VARIABLE):
            await supervisor.start(stack)

    assert supervisor.slots == []


async def test_taken_port_keeps_it_from_starting(settings: Settings) -> None:
    with bind("127.0.0.1", 0) as taken:
        listen = type(settings.endpoint.listen[0])("127.0.0.1", taken.getsockname()[1])
        endpoint = settings.endpoint.with_values({"listen": (listen,)})

        async with AsyncExitStack() as stack:
            with pytest.raises(ListenFailedError):
                await Supervisor(settings.with_values({"endpoint": endpoint})).start(stack)


async def test_worker_that_cannot_begin_keeps_it_from_starting(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "pack_settings", lambda _: b"none")

    async with AsyncExitStack() as stack:
        supervisor = Supervisor(settings)
        with pytest.raises(WorkerFailedError):
            await supervisor.start(stack)

    assert [slot.pid for slot in supervisor.slots] == [None, None]


async def test_workers_that_do_not_end_are_killed(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "KILL_SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        supervisor = Supervisor(settings)
        await supervisor.start(stack)
        for slot in supervisor.slots:
            assert slot.pid is not None
            os.kill(slot.pid, signal.SIGSTOP)

    assert [slot.pid for slot in supervisor.slots] == [None, None]


async def test_bug_in_a_task_is_logged(settings: Settings) -> None:
    async def broken() -> None:
        raise AssertionError("a bug")

    supervisor = Supervisor(settings)
    with capture_logs() as logs:
        supervisor._spawn(broken(), "worker 1")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    assert [(line["event"], line["task"]) for line in logs] == [("task failed", "worker 1")]
    assert supervisor._tasks == []


async def test_killed_one_leaves_no_worker_and_begins_none(supervisor: Supervisor) -> None:
    supervisor.kill()

    await until(lambda: [slot.pid for slot in supervisor.slots] == [None, None], seconds=SECONDS)
    assert [slot.restarts for slot in supervisor.slots] == [0, 0]

from __future__ import annotations

import asyncio
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from broker.daemon.instance import Instance, serve
from broker.errors import ListenFailedError
from broker.observe.query import QueryResult, SystemViews


def _change_observe(configuration: Path, listen: str) -> None:
    """Turn the TCP port of the API off, and listen elsewhere for observation."""
    text = configuration.read_text().partition("[admin]")[0]
    configuration.write_text(f'{text}[observe]\nlisten = "{listen}"\n')


async def test_socket_is_for_its_owner_and_gone_at_the_end(configuration: Path) -> None:
    async with serve(configuration) as instance:
        path = instance.settings.admin.socket
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    assert not path.exists()


async def test_ports_are_told_as_bound(instance: Instance) -> None:
    admin, observe = instance.admin.admin_address, instance.admin.observe_address

    assert admin is not None
    assert observe is not None
    assert admin.port
    assert observe.port
    assert admin != observe


async def test_what_is_off_is_not_there(configuration: Path) -> None:
    _change_observe(configuration, "")

    async with serve(configuration) as instance:
        addresses = (instance.admin.admin_address, instance.admin.observe_address)

    assert addresses == (None, None)


async def test_nothing_is_left_behind(configuration: Path) -> None:
    tasks = asyncio.all_tasks()

    async with serve(configuration) as instance:
        port = instance.admin.observe_address
        assert port is not None

    assert tasks == asyncio.all_tasks()
    with socket.create_server((port.host, port.port)):
        pass


async def test_port_that_is_taken_is_told_and_nothing_stays(configuration: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _change_observe(configuration, f"127.0.0.1:{port}")

        with pytest.raises(ListenFailedError, match=str(port)):
            async with serve(configuration):
                pytest.fail("it must not start")

    assert not (configuration.parent / "admin.sock").exists()


async def test_question_under_way_does_not_hold_up_the_end(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that asks the loop something while the instance stops gets its answer."""
    asked = asyncio.Event()
    select = SystemViews.select

    def slow_select(views: SystemViews, statement: str, **more: Any) -> QueryResult:
        loop.call_soon_threadsafe(asked.set)
        while instance.is_ready:
            time.sleep(0.001)
        return select(views, statement, **more)

    monkeypatch.setattr(SystemViews, "select", slow_select)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20):
        async with serve(configuration) as instance:
            reader, writer = await asyncio.open_unix_connection(str(instance.settings.admin.socket))
            body = b'{"statement": "SELECT * FROM sys.service_broker_endpoints"}'
            head = b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await asked.wait()
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 200 OK")


async def test_question_that_nothing_ends_does_not_hold_up_the_end(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, is_over = asyncio.Event(), threading.Event()

    def endless_select(_views: SystemViews, _statement: str, **_more: Any) -> QueryResult:
        loop.call_soon_threadsafe(begun.set)
        is_over.wait()
        return QueryResult((), [], truncated=False)

    monkeypatch.setattr(SystemViews, "select", endless_select)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(20):
            async with serve(configuration) as instance:
                _, writer = await asyncio.open_unix_connection(str(instance.settings.admin.socket))
                body = b'{"statement": "SELECT 1"}'
                head = b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                await begun.wait()
            writer.close()
    finally:
        is_over.set()


@pytest.mark.parametrize(("work", "code"), [("threading.Event().wait", 3), ("int", 0)])
def test_process_leaves_without_a_question_that_never_ends(work: str, code: int) -> None:
    script = f"""
import asyncio, threading
from contextlib import AsyncExitStack
from broker.admin.server import _threads, leave

async def main():
    async with AsyncExitStack() as stack:
        _threads(1, "question", stack).submit({work})

asyncio.run(main())
leave(3)
"""

    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, timeout=60.0)

    assert code == done.returncode, done.stderr

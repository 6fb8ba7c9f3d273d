"""Listeners: one after the other on one address, what is not HTTP, crowds, and the socket file."""

import asyncio
import errno
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from broker.admin import server as listening
from broker.admin.server import FIELDS_MAX, LINE_MAX_BYTES, ListeningApp, SocketFile, serve
from broker.daemon.instance import serve as instance_serve
from broker.errors import ListenFailedError
from broker.net.listener import bind
from broker.observe.query import QueryResult, SystemViews
from tests.support.admin import ask, read_answer, request, speak
from tests.support.certificates import authority, make
from tests.support.loopback import until

# --- listeners ---


def saying(text: str, gate: asyncio.Barrier | None = None) -> web.Application:
    """Answers with this text, behind a gate once when it is asked and once when it may answer."""

    async def handle(_: web.Request) -> web.Response:
        if gate is not None:
            await gate.wait()
            await gate.wait()
        return web.Response(text=text)

    application = web.Application()
    application.router.add_get("/", handle)
    return application


@asynccontextmanager
async def serving(*, tls: ssl.SSLContext | None = None) -> AsyncIterator[ListeningApp]:
    served = await serve(saying("hello"), bind("127.0.0.1", 0), tls=tls)
    try:
        yield served
    finally:
        await served.close()


async def silent(served: ListeningApp, count: int) -> list[asyncio.StreamWriter]:
    """So many clients that connect and say nothing, once all of them are accepted."""
    before = connections(served)
    where = served.address
    crowd = [(await asyncio.open_connection(where.host, where.port))[1] for _ in range(count)]
    await until(lambda: connections(served) == before + count)
    return crowd


def connections(served: ListeningApp) -> int:
    return len(served._beginning) + len(served._server.connections)


def leave(crowd: list[asyncio.StreamWriter]) -> None:
    for writer in crowd:
        writer.transport.abort()


# --- one after the other ---


async def test_the_next_one_serves_on_the_same_port_without_a_gap() -> None:
    first = await serve(saying("first"), bind("127.0.0.1", 0))
    where = first.address
    before = await ask(where, "GET", "/")

    second = await serve(saying("second"), first.sock.dup())
    retiring = asyncio.create_task(first.retire())
    await asyncio.sleep(0)

    assert (b"first", b"second", where) == (before.body, (await ask(where, "GET", "/")).body, second.address)
    retiring.cancel()
    await asyncio.gather(retiring, return_exceptions=True)
    await second.close()


async def test_a_request_under_way_is_answered_by_the_one_before() -> None:
    gate = asyncio.Barrier(2)
    served = await serve(saying("slow", gate), bind("127.0.0.1", 0))
    asking = asyncio.create_task(ask(served.address, "GET", "/"))
    await gate.wait()

    retiring = asyncio.create_task(served.retire())
    await asyncio.sleep(0)
    await gate.wait()

    assert b"slow" == (await asking).body
    retiring.cancel()
    await asyncio.gather(retiring, return_exceptions=True)


# --- what is not HTTP ---


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (b"GET /" + b"a" * LINE_MAX_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (LINE_MAX_BYTES + 1) + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * (FIELDS_MAX + 1) + b"\r\n", 400),
    ],
)
async def test_what_is_no_request_is_refused_as_a_problem_and_not_repeated(
    data: bytes, status: int, logs: list[Any]
) -> None:
    async with serving() as served:
        answer = read_answer(await speak(served.address, data))

    assert status == answer.status == answer.told["status"]
    assert "application/problem+json" == answer.headers["content-type"]
    assert ("no-store", "nosniff") == (answer.headers["cache-control"], answer.headers["x-content-type-options"])
    assert [] == logs


# --- crowds ---


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    ca = authority()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*make("here", "127.0.0.1", by=ca).store(tmp_path, "here"))
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    return server, ssl.create_default_context(cafile=tmp_path / "ca.pem")


async def test_a_connection_above_the_bound_is_refused_until_another_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS_MAX", 2)
    async with serving() as served:
        crowd = await silent(served, 2)
        refused = read_answer(await speak(served.address, b""))
        leave(crowd)
        await until(lambda: connections(served) == 0)
        answered = await ask(served.address, "GET", "/")

    assert (503, "too many connections") == (refused.status, refused.told["detail"])
    assert 200 == answered.status


async def test_a_client_without_the_head_of_a_request_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has sent a part of it."""
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.1)
    async with serving() as served:
        crowd = await silent(served, 2)
        crowd[1].write(b"GET / HTTP/1.1\r\nX: a")
        await until(lambda: connections(served) == 0)
        leave(crowd)


async def test_clients_count_during_their_handshake_which_has_a_time_limit(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(listening, "HANDSHAKE_SECONDS", 0.3)
    async with serving(tls=contexts[0]) as served:
        crowd = await silent(served, 2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(served.address, "GET", "/", tls=contexts[1])
        await until(lambda: connections(served) == 0)
        answer = await ask(served.address, "GET", "/", tls=contexts[1])
        leave(crowd)

    assert b"hello" == answer.body
    assert [] == logs


async def test_a_shortage_of_descriptors_is_waited_out(monkeypatch: pytest.MonkeyPatch, logs: list[Any]) -> None:
    class Short(socket.socket):
        """Has no descriptor for the first client."""

        shortages = [OSError(errno.EMFILE, "Too many open files")]  # noqa: RUF012 - of one socket

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if self.shortages:
                raise self.shortages.pop()
            return super().accept()

    monkeypatch.setattr(listening, "SHORTAGE_SECONDS", 0.01)
    served = await serve(saying("hello"), Short(fileno=bind("127.0.0.1", 0).detach()))
    answer = await ask(served.address, "GET", "/")
    await served.close()

    assert b"hello" == answer.body
    assert [("admin accepting paused", "Too many open files")] == [(line["event"], line["reason"]) for line in logs]


def _change_observe(configuration: Path, listen: str) -> None:
    """Turn the TCP port of the API off, and listen elsewhere for observation."""
    text = configuration.read_text().partition("[admin]")[0]
    configuration.write_text(f'{text}[observe]\nlisten = "{listen}"\n')


async def test_what_is_off_is_not_there_and_nothing_is_left_behind(configuration: Path) -> None:
    tasks = asyncio.all_tasks()
    _change_observe(configuration, "")

    async with instance_serve(configuration) as instance:
        path = instance.settings.admin.socket
        assert (None, None) == (instance.admin.admin_address, instance.admin.observe_address)
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)

    assert (tasks, False) == (asyncio.all_tasks(), path.exists())


async def test_port_that_is_taken_is_told_and_nothing_stays(configuration: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _change_observe(configuration, f"127.0.0.1:{port}")

        with pytest.raises(ListenFailedError, match=str(port)):
            async with instance_serve(configuration):
                pytest.fail("it must not start")

    assert not (configuration.parent / "admin.sock").exists()


@pytest.mark.parametrize("is_endless", [False, True])
async def test_question_under_way_does_not_hold_up_the_end(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, *, is_endless: bool
) -> None:
    """A thread that asks the loop something while the instance stops gets its answer; an endless one is left."""
    asked, is_over = asyncio.Event(), threading.Event()
    select = SystemViews.select

    def slow_select(views: SystemViews, statement: str, **more: Any) -> QueryResult:
        loop.call_soon_threadsafe(asked.set)
        while instance.is_ready or (is_endless and not is_over.is_set()):
            time.sleep(0.001)
        return QueryResult((), [], truncated=False) if is_endless else select(views, statement, **more)

    monkeypatch.setattr(SystemViews, "select", slow_select)
    loop = asyncio.get_running_loop()
    statement = {"statement": "SELECT * FROM sys.service_broker_endpoints"}
    try:
        async with asyncio.timeout(20):
            async with instance_serve(configuration) as instance:
                asking = asyncio.create_task(
                    speak(instance.settings.admin.socket, request("POST", "/v1/sql", body=statement))
                )
                await asked.wait()
            if not is_endless:
                assert (await asking).startswith(b"HTTP/1.1 200 OK")
    finally:
        is_over.set()
        await asyncio.gather(asking, return_exceptions=True)


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


def test_file_of_a_dead_process_is_taken_over_for_the_group_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    group = min(os.getgroups() or [os.getegid()])
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))

    file = SocketFile(path, group=group)

    status = path.stat()
    with socket.socket(socket.AF_UNIX) as client:
        assert 0 == client.connect_ex(str(path))
    file.close()
    assert (0o660, group, False) == (stat.S_IMODE(status.st_mode), status.st_gid, path.exists())


def test_file_on_which_somebody_answers_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    first = SocketFile(path)

    with pytest.raises(ListenFailedError) as caught:
        SocketFile(path)

    assert path.exists()
    assert str(caught.value) == f"cannot listen on {path}: another instance answers there"
    first.close()


@pytest.mark.parametrize(
    ("name", "problem"), [("absent/admin.sock", "does not exist"), ("a" * 120, "AF_UNIX path too long")]
)
def test_file_that_cannot_be_made_is_told(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(ListenFailedError, match=problem):
        SocketFile(tmp_path / name)


def test_file_that_somebody_else_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    first = SocketFile(path)
    path.rename(tmp_path / "old.sock")
    second = SocketFile(path)

    first.close()

    assert path.exists()
    second.close()


def test_a_group_that_may_not_be_named_is_told_and_no_file_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.chown", refuse)

    with pytest.raises(ListenFailedError, match="Operation not permitted"):
        SocketFile(tmp_path / "admin.sock", group=4711)

"""Places are counted from the moment of connecting, TLS included."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from broker.admin import accepting, connection
from broker.admin.accepting import Acceptor
from broker.admin.connection import Connections
from broker.control.listen import ListenAddress
from broker.net.listener import bind
from tests.support.admin import ask, read_answer, speak
from tests.support.certificates import authority, make
from tests.support.loopback import until


@asynccontextmanager
async def serving(
    most: int = 10, tls: ssl.SSLContext | None = None, path: Path | None = None
) -> AsyncIterator[tuple[ListenAddress | Path, Connections]]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, most=most)
    if path is None:
        sock = bind("127.0.0.1", 0)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.bind(str(path))
        sock.listen()
    where = path or ListenAddress("127.0.0.1", sock.getsockname()[1])
    acceptor = Acceptor(sock, connections, tls=tls)
    try:
        yield where, connections
    finally:
        await acceptor.finish()
        await runner.cleanup()
        assert 0 == connections.count


@pytest.fixture
def contexts(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    ca = authority()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(*make("here", "127.0.0.1", by=ca).store(tmp_path, "here"))
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    return server, ssl.create_default_context(cafile=tmp_path / "ca.pem")


async def silent(where: ListenAddress | Path, count: int) -> list[asyncio.StreamWriter]:
    assert isinstance(where, ListenAddress)
    return [(await asyncio.open_connection(where.host, where.port))[1] for _ in range(count)]


def leave(crowd: list[asyncio.StreamWriter]) -> None:
    for writer in crowd:
        writer.transport.abort()


async def test_unix_socket_counts_by_user(tmp_path: Path) -> None:
    path = tmp_path / "sock"
    async with serving(path=path) as (where, connections):
        reader, writer = await asyncio.open_unix_connection(str(path))
        await until(lambda: connections.count == 1)
        (source,) = {one.source for one in connections._taken}
        answer = await ask(where, "GET", "/")
        writer.close()
        del reader

    assert source.startswith("user ")
    assert b"hello" == answer.body


async def test_who_does_not_begin_with_tls_takes_a_place_and_not_for_long(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is logged, and who speaks TLS is served meanwhile."""
    monkeypatch.setattr(accepting, "HANDSHAKE_SECONDS", 0.3)
    with capture_logs() as logs:
        async with serving(most=4, tls=contexts[0]) as (where, connections):
            crowd = await silent(where, 3)
            await until(lambda: connections.count == 3)
            answer = await ask(where, "GET", "/", tls=contexts[1])
            await until(lambda: connections.count == 0)
            leave(crowd)

    assert b"hello" == answer.body
    assert [] == logs


async def test_who_waits_with_its_handshake_gives_way(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.admin.room.GRACE_SECONDS", 0.0)
    async with serving(most=4, tls=contexts[0]) as (where, connections):
        crowd = await silent(where, 4)
        await until(lambda: connections.count == 4)
        answer = await ask(where, "GET", "/", tls=contexts[1])
        leave(crowd)

    assert b"hello" == answer.body


async def test_without_a_place_there_is_no_handshake(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serving(most=2, tls=contexts[0]) as (where, connections):
        crowd = await silent(where, 2)
        await until(lambda: connections.count == 2)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(where, "GET", "/", tls=contexts[1])
        leave(crowd)


async def test_a_stop_in_the_middle_of_handshakes_leaves_nothing(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with serving(tls=contexts[0]) as (where, connections):
        crowd = await silent(where, 5)
        await until(lambda: connections.count == 5)

    leave(crowd)
    assert 0 == connections.count


async def test_a_shortage_of_descriptors_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(socket.socket):
        """Has no descriptor for the first who comes."""

        shortages = 1

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if self.shortages:
                Short.shortages -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(accepting, "SHORTAGE_SECONDS", 0.01)
    made = bind("127.0.0.1", 0)
    short = Short(fileno=made.detach())
    short.setblocking(False)
    monkeypatch.setitem(globals(), "bind", lambda *_: short)
    with capture_logs() as logs:
        async with serving() as (where, _):
            answer = await ask(where, "GET", "/")

    assert b"hello" == answer.body
    assert [("admin accepting paused", "Too many open files")] == [(line["event"], line["reason"]) for line in logs]


# --- who takes nothing ---------------------------------------------------------------------------------------

MIB = 2**20


async def test_who_does_not_read_its_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is alive, and asks on and on."""
    monkeypatch.setattr(connection, "STUCK_SECONDS", 0.3)
    monkeypatch.setattr(connection, "LOOK_SECONDS", 0.05)
    with capture_logs() as logs:
        async with serving() as (where, connections):
            assert isinstance(where, ListenAddress)
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(deaf, (where.host, where.port))
                question = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 4000
                with contextlib.suppress(ConnectionError):
                    async with asyncio.timeout(30):
                        while True:
                            await loop.sock_sendall(deaf, question)
            await until(lambda: connections.count == 0)
            answer = await ask(where, "GET", "/")

    assert b"hello" == answer.body
    assert ["connection cut off"] == [line["event"] for line in logs]


async def test_a_place_too_many_is_told_in_plain_text() -> None:
    async with serving(most=1) as (where, connections):
        crowd = await silent(where, 1)
        await until(lambda: connections.count == 1)
        refused = read_answer(await speak(where, b""))
        leave(crowd)

    assert (503, "too many connections") == (refused.status, refused.told["detail"])

"""Listeners: one application after the other on one address, what is not HTTP, and crowds."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from broker.admin import server as listening
from broker.admin.problems import secure
from broker.admin.server import FIELDS_MAX, LINE_MAX_BYTES, ListeningApp, serve
from broker.net.listener import bind
from tests.support.admin import ask, read_answer, request, speak
from tests.support.certificates import authority, make
from tests.support.loopback import until


def app(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    application = web.Application()
    application.router.add_get("/", handle)
    return application


def saying(text: str) -> web.Application:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=text)

    return app(handle)


async def get(port: int) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/") as response:
        return await response.text()


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


# --- one after the other -------------------------------------------------------------------------------------


async def test_the_next_one_serves_on_the_same_port_without_a_gap() -> None:
    first = await serve(saying("first"), bind("127.0.0.1", 0))
    port = first.address.port
    before = await get(port)

    second = await serve(saying("second"), first.sock.dup())
    retiring = asyncio.create_task(first.retire())
    await asyncio.sleep(0)

    assert ("first", "second", port) == (before, await get(port), second.address.port)
    retiring.cancel()
    await asyncio.gather(retiring, return_exceptions=True)
    await second.close()


async def test_a_request_under_way_is_answered_by_the_one_before() -> None:
    may_answer, has_come = asyncio.Event(), asyncio.Event()

    async def slowly(_: web.Request) -> web.Response:
        has_come.set()
        await may_answer.wait()
        return web.Response(text="slow")

    served = await serve(app(slowly), bind("127.0.0.1", 0))
    asking = asyncio.create_task(get(served.address.port))
    await has_come.wait()

    retiring = asyncio.create_task(served.retire())
    await asyncio.sleep(0)
    may_answer.set()

    assert "slow" == await asking
    retiring.cancel()
    await asyncio.gather(retiring, return_exceptions=True)


async def test_the_port_is_free_when_it_is_closed() -> None:
    served = await serve(saying("x"), bind("127.0.0.1", 0))
    port = served.address.port

    await served.close()

    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


# --- what is not HTTP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX : a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n", 400),
        (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /" + b"a" * LINE_MAX_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * (LINE_MAX_BYTES + 1) + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * (FIELDS_MAX + 1) + b"\r\n", 400),
    ],
)
async def test_what_is_no_request_is_refused_as_a_problem_and_not_repeated(data: bytes, status: int) -> None:
    async with serving() as served:
        with capture_logs() as logs:
            answer = read_answer(await speak(served.address, data))

    assert status == answer.status == answer.told["status"]
    assert "application/problem+json" == answer.headers["content-type"]
    assert ("no-store", "nosniff") == (answer.headers["cache-control"], answer.headers["x-content-type-options"])
    assert [] == logs


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serving() as served:
        data = request("GET", "/", {"Connection": "keep-alive"}) + request("GET", "/")
        got = await speak(served.address, data)

    assert 2 == got.count(b"hello")


def test_an_answer_is_for_nobody_but_who_asked_and_no_page() -> None:
    headers: dict[str, str] = {"Content-Security-Policy": "default-src 'self'"}

    secure(headers)

    assert {
        "Content-Security-Policy": "default-src 'self'",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "X-Frame-Options": "DENY",
        "Server": "broker",
    } == headers


# --- crowds --------------------------------------------------------------------------------------------------


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
    contexts: tuple[ssl.SSLContext, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(listening, "HANDSHAKE_SECONDS", 0.3)
    with capture_logs() as logs:
        async with serving(tls=contexts[0]) as served:
            crowd = await silent(served, 2)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await ask(served.address, "GET", "/", tls=contexts[1])
            await until(lambda: connections(served) == 0)
            answer = await ask(served.address, "GET", "/", tls=contexts[1])
            leave(crowd)

    assert b"hello" == answer.body
    assert [] == logs


async def test_a_stop_during_handshakes_leaves_nothing(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with serving(tls=contexts[0]) as served:
        crowd = await silent(served, 5)

    leave(crowd)
    assert 0 == connections(served)


async def test_a_shortage_of_descriptors_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(socket.socket):
        """Has no descriptor for the first client."""

        shortages = 1

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            if self.shortages:
                Short.shortages -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr(listening, "SHORTAGE_SECONDS", 0.01)
    with capture_logs() as logs:
        served = await serve(saying("hello"), Short(fileno=bind("127.0.0.1", 0).detach()))
        answer = await ask(served.address, "GET", "/")
        await served.close()

    assert b"hello" == answer.body
    assert [("admin accepting paused", "Too many open files")] == [(line["event"], line["reason"]) for line in logs]


async def test_the_kernel_ends_a_connection_whose_client_acknowledges_nothing() -> None:
    async with serving() as served:
        crowd = await silent(served, 1)
        [connection] = served._server.connections
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")

        assert listening.UNREAD_MS == sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        leave(crowd)

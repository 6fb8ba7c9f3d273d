from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from broker.admin import connection
from broker.admin.accepting import Acceptor
from broker.admin.connection import FIELDS_MAX, LINE_MAX_BYTES, Connections, secure
from broker.control.listen import ListenAddress
from broker.net.listener import bind
from tests.support.admin import ask, read_answer, request, speak
from tests.support.loopback import until


@asynccontextmanager
async def serving(most: int = 10) -> AsyncIterator[tuple[ListenAddress, Connections]]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server is not None
    connections = Connections(runner.server, most=most)
    sock = bind("127.0.0.1", 0)
    acceptor = Acceptor(sock, connections)
    try:
        yield ListenAddress("127.0.0.1", sock.getsockname()[1]), connections
    finally:
        await acceptor.finish()
        await runner.cleanup()


async def test_a_request_is_answered() -> None:
    async with serving() as (where, _):
        answer = await ask(where, "GET", "/")

    assert (200, b"hello") == (answer.status, answer.body)


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
    async with serving() as (where, _):
        with capture_logs() as logs:
            answer = read_answer(await speak(where, data))

    assert status == answer.status == answer.told["status"]
    assert "application/problem+json" == answer.headers["content-type"]
    assert ("no-store", "nosniff") == (answer.headers["cache-control"], answer.headers["x-content-type-options"])
    assert [] == logs


async def test_one_connection_too_many_is_told_so_and_places_are_given_back() -> None:
    async with serving(most=2) as (where, connections):
        kept = [await asyncio.open_connection(where.host, where.port) for _ in range(2)]
        await until(lambda: connections.count == 2)
        refused = read_answer(await speak(where, b""))
        for _, writer in kept:
            writer.close()
        await until(lambda: connections.count == 0)
        served = await ask(where, "GET", "/")

    assert (503, "too many connections") == (refused.status, refused.told["detail"])
    assert 200 == served.status


async def test_who_says_nothing_for_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one letter now and then."""
    monkeypatch.setitem(connection._OPTIONS, "keepalive_timeout", 0.1)
    async with serving() as (where, connections):
        _, silent = await asyncio.open_connection(where.host, where.port)
        reader, slow = await asyncio.open_connection(where.host, where.port)
        slow.write(b"GET / HTTP/1.1\r\nX: a")
        async with asyncio.timeout(10):
            got = await reader.read()
        await until(lambda: connections.count == 0)
        silent.close()
        slow.close()

    assert b"" == got


async def test_a_connection_serves_one_request_after_the_other() -> None:
    async with serving() as (where, _):
        data = request("GET", "/", {"Connection": "keep-alive"}) + request("GET", "/")
        got = await speak(where, data)

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

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from broker.admin.app import tell_problems
from broker.admin.body import Bodies
from broker.control.listen import ListenAddress
from tests.support.admin import ask, read_answer, request, speak
from tests.support.loopback import until

LIMIT = 100_000


@asynccontextmanager
async def serving(bodies: Bodies, gate: asyncio.Event | None = None) -> AsyncIterator[ListenAddress]:
    """A server that answers with the length of a body, once the gate is open."""

    async def handle(asked: web.Request) -> web.Response:
        async with bodies.reading(asked, LIMIT) as body:
            if gate is not None and len(body) == LIMIT:
                await gate.wait()
            return web.json_response({"length": len(body)})

    app = web.Application(middlewares=[tell_problems])
    app.router.add_post("/", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    sock = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, sock).start()
    try:
        yield ListenAddress("127.0.0.1", sock.getsockname()[1])
    finally:
        await runner.cleanup()


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    return request("POST", "/", {"Transfer-Encoding": "chunked"}) + body


async def test_a_body_is_read_whole_and_its_room_given_back() -> None:
    bodies = Bodies()
    async with serving(bodies) as where:
        answers = [
            await ask(where, "POST", "/", body=b"x" * LIMIT),
            read_answer(await speak(where, chunked(b"ab", b"c"))),
            await ask(where, "POST", "/"),
        ]

    assert [LIMIT, 3, 0] == [answer.told["length"] for answer in answers]
    assert 0 == bodies.used_bytes


async def test_a_body_above_the_bound_is_refused_by_its_length() -> None:
    """Nothing of it is read."""
    async with serving(Bodies()) as where:
        answer = await ask(where, "POST", "/", headers={"Content-Length": str(10**15)})

    assert 413 == answer.status


async def test_a_body_above_the_bound_is_refused_when_no_length_is_said() -> None:
    bodies = Bodies()
    async with serving(bodies) as where:
        answer = read_answer(await speak(where, chunked(*[b"x" * 1000] * 101)))

    assert 413 == answer.status
    assert 0 == bodies.used_bytes


async def test_a_body_that_does_not_come_is_given_up() -> None:
    async with serving(Bodies(stall_seconds=0.05)) as where:
        answer = await ask(where, "POST", "/", headers={"Content-Length": "10"}, body=b"ab")

    assert (408, "nothing of the rest of the request came for 0.05 s") == (answer.status, answer.told["detail"])


async def test_bodies_together_have_a_bound() -> None:
    gate = asyncio.Event()
    bodies = Bodies(LIMIT + 10, free_bytes=0)
    async with serving(bodies, gate) as where:
        first = asyncio.create_task(ask(where, "POST", "/", body=b"x" * LIMIT))
        await until(lambda: bodies.used_bytes == LIMIT)
        second = await ask(where, "POST", "/", body=b"x" * 11)
        gate.set()
        answered = await first

    assert (503, 200) == (second.status, answered.status)
    assert 0 == bodies.used_bytes


async def test_a_small_body_has_room_whatever_others_take() -> None:
    gate = asyncio.Event()
    bodies = Bodies(LIMIT // 2, free_bytes=LIMIT // 2)
    async with serving(bodies, gate) as where:
        long = asyncio.create_task(ask(where, "POST", "/", body=b"x" * LIMIT))
        await until(lambda: bodies.used_bytes == LIMIT // 2)
        refused = await ask(where, "POST", "/", body=b"x" * (LIMIT // 2 + 1))
        small = await ask(where, "POST", "/", body=b"x" * (LIMIT // 2))
        gate.set()
        answered = await long

    assert (503, 200, 200) == (refused.status, small.status, answered.status)
    assert 0 == bodies.used_bytes


async def test_a_body_that_drips_is_given_up() -> None:
    """Each byte is in time, and the whole is not."""
    async with serving(Bodies(stall_seconds=0.3)) as where:
        reader, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(request("POST", "/", {"Content-Length": str(LIMIT)}))
        got = b""
        while not got:
            writer.write(b"x")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    got = await reader.read(65536)
        writer.close()

    assert got.startswith(b"HTTP/1.1 408 ")


async def test_a_body_that_is_cut_wrongly_is_refused() -> None:
    async with serving(Bodies()) as where:
        answer = await speak(where, request("POST", "/", {"Transfer-Encoding": "chunked"}) + b"zz\r\nab\r\n")

    assert 400 == read_answer(answer).status


async def test_who_goes_away_in_the_middle_leaves_nothing_behind() -> None:
    bodies = Bodies(free_bytes=0)
    async with serving(bodies) as where:
        _, writer = await asyncio.open_connection(where.host, where.port)
        writer.write(request("POST", "/", {"Content-Length": "1000"}) + b"x" * 500)
        await until(lambda: bodies.used_bytes)
        writer.transport.abort()
        await until(lambda: not bodies.used_bytes)

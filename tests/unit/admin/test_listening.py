"""One application after the other on one address."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from broker.admin.listening import serve
from broker.net.listener import bind


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


async def test_who_follows_serves_on_the_same_port_without_a_gap() -> None:
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


async def test_a_request_under_way_is_answered_by_who_is_followed() -> None:
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

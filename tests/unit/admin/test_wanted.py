"""Whether whoever asked is still there."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aiohttp import web

from broker.admin.wanted import asker, note_request, role_of_caller
from broker.config.admin_access import AdminRole

SECONDS = 20.0


def test_one_for_which_nothing_was_noted_is_always_there() -> None:
    assert asker()()
    assert AdminRole.ADMIN is role_of_caller()


async def test_a_client_that_goes_is_known_to_have_gone_in_any_thread(tmp_path: Path) -> None:
    found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def handle(request: web.Request) -> web.Response:
        note_request(request, AdminRole.VIEWER)
        is_wanted = asker()
        assert is_wanted()
        assert AdminRole.VIEWER is role_of_caller()
        told.set()
        with ThreadPoolExecutor(1) as threads:
            while await asyncio.get_running_loop().run_in_executor(threads, is_wanted):
                pass
        found.set_result(True)
        return web.Response()

    told = asyncio.Event()
    app = web.Application()
    app.router.add_get("/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(tmp_path / "s")).start()
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "s"))
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(SECONDS):
            await told.wait()
            writer.close()

            assert await found
    finally:
        await runner.cleanup()

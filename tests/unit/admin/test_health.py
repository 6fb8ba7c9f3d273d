from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeAlias

import aiohttp
import pytest

from broker.admin.health import Check, checks_of
from broker.daemon import Instance

Get: TypeAlias = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
async def get(instance: Instance) -> AsyncIterator[Get]:
    """Asks the port of observation: path, header fields -> status, content type, text."""
    async with aiohttp.ClientSession() as session:

        async def getting(path: str, **headers: str) -> tuple[int, str, str]:
            url = f"http://{instance.admin.observe_address}{path}"
            async with session.get(url, headers=headers) as response:
                return response.status, response.headers["Content-Type"], await response.text()

        yield getting


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/startupz"])
async def test_instance_that_serves_is_well(get: Get, path: str) -> None:
    status, _, text = await get(path)

    assert (status, text) == (200, "ok\n")


async def test_instance_that_ends_lives_and_is_not_ready(get: Get, instance: Instance) -> None:
    instance.is_ready = False
    instance.stopping.set()

    answers = {path: (await get(path))[0] for path in ("/livez", "/readyz", "/startupz")}

    assert answers == {"/livez": 200, "/readyz": 503, "/startupz": 200}


async def test_instance_that_comes_up_has_not_started(get: Get, instance: Instance) -> None:
    instance.is_ready = False

    answers = {path: (await get(path))[0] for path in ("/livez", "/readyz", "/startupz")}

    assert answers == {"/livez": 200, "/readyz": 503, "/startupz": 503}


async def test_verbose_has_a_line_for_each_check(get: Get, instance: Instance) -> None:
    instance.stopping.set()

    _, _, text = await get("/readyz?verbose")

    assert text == "[+] ready\n[-] not stopping\n[+] store of orders\nfailed\n"


def test_store_that_fails_is_told_and_stops_nothing() -> None:
    parts = {"store of orders": "disk I/O error", "store of billing": ""}
    subject: Any = SimpleNamespace(is_ready=True, stopping=asyncio.Event(), parts=parts, certificate_problem="")

    checks = checks_of(subject)["/readyz"]()

    assert ["[!] store of orders: disk I/O error"] == [str(check) for check in checks if not check.is_good]
    assert all(check.is_good for check in checks if check.is_vital)


def test_instance_whose_own_certificate_has_expired_is_not_ready() -> None:
    problem = "the certificate of this instance has expired"
    subject: Any = SimpleNamespace(is_ready=True, stopping=asyncio.Event(), parts={}, certificate_problem=problem)

    checks = checks_of(subject)["/readyz"]()

    assert [f"[-] certificate: {problem}"] == [str(check) for check in checks if check.is_vital and not check.is_good]


async def test_lag_of_the_loop_is_told(get: Get) -> None:
    _, _, text = await get("/livez?verbose")

    assert text.startswith("[+] loop: at most ")


@pytest.mark.parametrize(
    ("accept", "content_type", "end"),
    [
        ("", "text/plain", ""),
        ("*/*", "text/plain", ""),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text", "# EOF\n"),
    ],
)
async def test_metrics_in_the_form_that_is_asked_for(get: Get, accept: str, content_type: str, end: str) -> None:
    status, answered, text = await get("/metrics", Accept=accept)

    assert status == 200
    assert answered.startswith(content_type)
    assert text.endswith(end)
    assert "broker_ready 1.0" in text


async def test_nothing_else_is_there(get: Get) -> None:
    status, content_type, _ = await get("/v1/status")

    assert (status, content_type.partition(";")[0]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (Check("a", is_good=True), "[+] a"),
        (Check("a", is_good=False, detail="why"), "[-] a: why"),
        (Check("a", is_good=False, detail="why", is_vital=False), "[!] a: why"),
    ],
)
def test_check_is_one_line(check: Check, line: str) -> None:
    assert line == str(check)

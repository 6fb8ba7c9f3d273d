"""What tests of pages share: a browser for a module, and instances to look at."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from examples.demo.topology import Daemon, Topology, free_port
from tests.support.chromium import Browser, Tab, chromium
from tests.support.loopback import route, service

SECONDS = 15.0 * float(os.environ.get("BROKER_TEST_SLOWNESS", "1")) * 2
START_SECONDS = 360.0
TO_BILLING, TO_NOWHERE, TO_DEAF = "//page/Billing", "//page/Nowhere", "//page/Deaf"
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"


@dataclass
class Shown:
    """
    Instances with a status page each.

        orders ==> gateway ==> billing
    """

    net: Topology

    def __getitem__(self, name: str) -> Daemon:
        return self.net.daemons[name]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    """Three instances, running; the gateway has a route of a hostile name to where nobody is."""
    net = Topology(tmp_path_factory.mktemp("shown"))
    settings = {"endpoint": {"heartbeat": "1s"}}
    orders = net.add("orders", databases=["orders"], settings=settings | page())
    gateway = net.add("gateway", forwarding=True, settings=settings | page())
    billing = net.add("billing", databases=["billing"], settings=settings | page())
    services = {"orders": "//page/Orders", "billing": TO_BILLING}
    for name, own in services.items():
        others = {*services.values(), TO_NOWHERE, TO_DEAF} - {own}
        net.script(name, name, service(own) + "".join(route(far, far, gateway.address) for far in sorted(others)))
    home = route("Orders", "//page/Orders", orders.address) + route("Billing", TO_BILLING, billing.address)
    deaf = route(HOSTILE, TO_DEAF, "tcp://127.0.0.1:1")
    net.script("gateway", "msdb", f"DROP ROUTE AutoCreatedLocal;\n{home}{deaf}")
    with net:
        for daemon in net.daemons.values():  # one by one: a machine may be busy
            start(daemon)
        yield Shown(net)


def start(daemon: Daemon) -> None:
    """Start an instance, however slowly, as long as it lives."""
    daemon.start(wait=False)
    daemon.wait_ready(START_SECONDS)


def page(role: str = "viewer") -> dict[str, dict[str, str]]:
    """The settings of an instance with a status page on a free port."""
    return {"admin": {"listen": f"127.0.0.1:{free_port()}", "loopback_role": role}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser for all tests of a module."""
    async with chromium(Path(tmp_path_factory.mktemp("chromium"))) as started:
        yield started


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def tabs_closed(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """No page of a test goes on behind the next one."""
    yield
    if "shown" in request.fixturenames:
        await request.getfixturevalue("browser").close_tabs()


async def seen(tab: Tab, expression: str) -> None:
    """Wait until a JavaScript expression is true."""
    deadline = asyncio.get_running_loop().time() + SECONDS
    while True:
        if await tab.evaluate(f"Boolean({expression})"):
            return
        assert asyncio.get_running_loop().time() < deadline, f"never: {expression}\n{await text_of(tab)}"
        await asyncio.sleep(0.05)


async def text_of(tab: Tab) -> str:
    """What a person reads."""
    text: str = await tab.evaluate("document.body.innerText")
    return text

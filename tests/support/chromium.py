"""
A real Chromium without a window, driven by its DevTools protocol over a WebSocket.

    async with chromium(directory) as browser:
        tab = await browser.open(url, width=390, height=844, dark=True)
        title = await tab.evaluate("document.title")

What the page logs, throws or asks the network for is in `tab.complaints` and `tab.requests`.
"""

import asyncio
import base64
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Tab:
    """A page. Shape: `requests` the URLs that were asked for, `complaints` errors and warnings of the console."""

    def __init__(self, browser: "Browser", session: str, target: str) -> None:
        self.target = target
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = asyncio.Event()

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        return await self._browser.ask(method, session=self._session, **parameters)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def roles(self) -> list[tuple[str, str]]:
        """What assistive technology is told: role and name of every node that is not hidden from it."""
        tree = await self.ask("Accessibility.getFullAXTree")
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in tree["nodes"]
            if not node["ignored"]
        ]

    async def screenshot(self) -> bytes:
        """What is seen in the window, as PNG."""
        answer = await self.ask("Page.captureScreenshot", format="png")
        return base64.b64decode(answer["data"])

    def on_event(self, method: str, parameters: dict[str, Any]) -> None:
        """Note what the page did."""
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(parameters["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(parameters["entry"]["text"])
        elif method == "Page.loadEventFired":
            self.loaded.set()


class Browser:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """A page in a window of its own, loaded."""
        target = await self.ask("Target.createTarget", url="about:blank")
        attached = await self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"], target["targetId"])
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            await tab.ask(f"{domain}.enable")
        await tab.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await tab.ask("Emulation.setEmulatedMedia", features=[scheme])
        tab.loaded.clear()
        await tab.ask("Page.navigate", url=url)
        await asyncio.wait_for(tab.loaded.wait(), SECONDS)
        return tab

    async def close_tabs(self) -> None:
        """Close every page that was opened here."""
        there = {one["targetId"] for one in (await self.ask("Target.getTargets"))["targetInfos"]}
        for tab in self._tabs.values():
            if tab.target in there:
                await self.ask("Target.closeTarget", targetId=tab.target)
        self._tabs.clear()

    async def ask(self, method: str, *, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        await self._socket.send_json(message)
        return await asyncio.wait_for(answer, SECONDS)

    async def listen(self) -> None:
        """Sort what the browser says, until it closes."""
        async for message in self._socket:
            said = message.json()
            if "id" not in said:
                if tab := self._tabs.get(said.get("sessionId", "")):
                    tab.on_event(said["method"], said["params"])
            elif "error" in said:
                self._answers.pop(said["id"]).set_exception(AssertionError(said["error"]))
            else:
                self._answers.pop(said["id"]).set_result(said["result"])


@asynccontextmanager
async def chromium(directory: Path) -> AsyncIterator[Browser]:
    """A browser with a new profile in `directory`; ends with the block."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium, or name one in CHROMIUM")
    log = directory / "chromium.log"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            program, *FLAGS, f"--user-data-dir={directory}/profile", "about:blank", stdout=out, stderr=out
        )
    try:
        address = await asyncio.wait_for(_address(directory / "profile" / "DevToolsActivePort"), SECONDS)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"ws://127.0.0.1:{address}", max_msg_size=0) as socket,
        ):
            browser = Browser(socket)
            ear = asyncio.create_task(browser.listen())
            try:
                yield browser
            finally:
                await browser.ask("Browser.close")
                await ear
    finally:
        if process.returncode is None:
            try:
                await asyncio.wait_for(process.wait(), SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _address(file: Path) -> str:
    """Port and path of the browser's socket, once it has written them."""
    while True:
        if found := _read(file):
            return found
        await asyncio.sleep(0.02)


def _read(file: Path) -> str:
    lines = file.read_text(encoding="ascii").split() if file.exists() else []
    return "".join(lines) if len(lines) == 2 else ""

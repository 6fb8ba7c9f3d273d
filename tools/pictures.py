"""
The pictures of README, docs/status-page.md and docs/pipeline.md: real commands in a terminal, the status page of the
demo, and its report.

    python -m tools.pictures

It needs the free ports of the tutorial, `script` and Chromium. A command that fails ends it. On the status page one
next hop is killed, one service has no route and one queue is off, so that there is something to see.
"""

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI, TerminalTheme
from rich.text import Text

import broker
from examples.demo.cast import BILLING, ORDERS, QUEUE, SHIPPING, demo_topology
from examples.demo.story import run_demo
from tests.support.chromium import Browser, Tab, chromium
from tests.support.traffic import Traffic

DOCS = Path(__file__).parents[1] / "docs"
FILES = re.compile(r"```(?:toml|sql)\n(?:#|--) (\S+\.(?:toml|sql))\n(.*?)```", re.DOTALL)
FONTS = re.compile(r"@font-face \{\{.*?\}\}\n *", re.DOTALL)  # the picture fetches nothing
# The colours of docs/pictures: background, text, and from black to white.
_COLOURS = ["f6f8fa", "1f2328", "1f2328", "b91c1c", "15803d", "9a3412", "1d4ed8", "7e22ce", "0e7490", "57606a"]
_PAPER, _INK, *_INKS = ((red, green, blue) for red, green, blue in map(bytes.fromhex, _COLOURS))
LIGHT = TerminalTheme(_PAPER, _INK, _INKS)
TITLE = "A message that has not arrived, found in a terminal"
DESCRIPTION = """\
An order is sent while the gateway is down. broker why names the gateway, its refused connection and the remedy. The
gateway is started; broker receive prints the order, the ledger counts it, and broker explain shows its route."""
COLUMNS, ROWS = 108, 50
SESSION = (
    "# Two services run, each with its database. The gateway between them does not.",
    """broker send -d orders/orders.db --from //shop/Orders --to //shop/Billing '{"order": 7}' > dialog""",
    "broker why $(cat dialog) -c orders.toml",
    "broker serve -c gateway.toml 2> gateway.log &",
    "broker receive -d billing/billing.db --queue BillingQueue --wait 30",
    """broker sql -c orders.toml 'SELECT entry, messages FROM sys.dm_broker_ledger'""",
    "broker explain --to //shop/Billing --incoming --socket gateway/admin.sock",
)
WARM_SECONDS, TROUBLE_SECONDS = 150.0, 25.0  # of traffic, so that the plots have a past
WIDE, PHONE = (1280, 860), (390, 844)
SHEET = (1120, 1726)  # the report down to the first latencies
REPORTED = 10_000  # messages
LANES = """
new Promise(resolve => setInterval(() => { if (document.querySelector("#map svg .lane")) resolve(true); }, 100))
"""
ASK = """
document.getElementById('explain-to').value = '//demo/Shipping';
document.querySelector('#explain-form button').click();
"""


def terminal(target: Path) -> None:
    """Run the session with the files of the tutorial, and write it as a picture."""
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TERM": "xterm-256color"}
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack, Path(os.devnull).open("w") as nowhere:
        at: Any = {"cwd": home, "env": environ, "stdin": subprocess.DEVNULL}

        def run(line: str) -> str:
            words = ["script", "-qec", f"stty cols {COLUMNS} rows {ROWS}; {line}", os.devnull]
            done = subprocess.run(words, check=False, capture_output=True, text=True, **at)  # noqa: S603
            if done.returncode:
                raise SystemExit(f"{line} ended with {done.returncode}:\n{done.stdout}")
            return str(done.stdout)

        def serve(instance: str) -> None:
            words = ["broker", "serve", "-c", f"{instance}.toml"]
            stack.enter_context(daemon := subprocess.Popen(words, stderr=nowhere, **at))  # noqa: S603
            stack.callback(daemon.terminate)
            run(f"broker health ready -c {instance}.toml --wait 60")

        console = Console(record=True, width=COLUMNS, file=nowhere)
        for path, text in FILES.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")):
            Path(home, path).write_text(text, encoding="utf-8")
        serve("billing")
        serve("orders")
        for line in SESSION:
            if line.startswith("#"):
                console.print(Text(line, "dim"))
                continue
            console.print(Text.assemble(("$ ", "green"), (line, "bold")))
            if line.endswith("&"):
                serve("gateway")
            else:
                console.print(Text.from_ansi(run(line).replace("\r\n", "\n")), end="")
        target.write_text(_in_both_modes(console), encoding="utf-8")


def _in_both_modes(console: Console) -> str:
    """Return what was printed as an SVG that follows the colour mode of the page around it."""
    form = FONTS.sub("", CONSOLE_SVG_FORMAT)
    light, dark = (
        console.export_svg(title="broker", theme=theme, code_format=form, unique_id="tour", clear=False)
        for theme in (LIGHT, MONOKAI)
    )
    words = f"<title id='title'>{TITLE}</title>\n<desc id='desc'>{DESCRIPTION}</desc>"
    rules = " ".join(re.findall(r"\.tour-r\d+ \{.*?\}", dark))
    rules += f" .rich-terminal > rect {{ fill: {MONOKAI.background_color.hex} }}"
    rules += f" .tour-title {{ fill: {MONOKAI.foreground_color.hex} }}"
    light = light.replace(">", f" role='img' aria-labelledby='title desc'>\n{words}", 1)
    light = light.replace("rgba(255,255,255,0.35)", "rgba(128,128,128,0.5)")
    return light.replace("</style>", f"@media (prefers-color-scheme: dark) {{ {rules} }}\n</style>", 1)


async def status_page(directory: Path) -> None:
    """Run the demo with traffic, and write pictures of its status pages."""
    with tempfile.TemporaryDirectory(prefix="broker-page-") as temporary, demo_topology(Path(temporary)) as net:
        for daemon in net.daemons.values():
            daemon.start()  # one by one: a machine may be busy
        with ExitStack() as stack:
            for homes in (BILLING, (SHIPPING,)):
                services: dict[str, Any] = {"from_service": ORDERS.service, "to_service": homes[0].service}
                paths = [home.path(net) for home in homes]
                traffic = Traffic(ORDERS.path(net), paths, queue=QUEUE, pause=0.2, **services)
                stack.enter_context(traffic).start()
            await asyncio.sleep(WARM_SECONDS)
            async with chromium(Path(temporary)) as browser:
                gateway = net.daemons["gateway-a"].page
                await _save(directory, "light", await _open(browser, gateway, WIDE))
                await _save(directory, "endpoint", await _open(browser, net.daemons["orders"].page, WIDE))
                net.daemons["billing-west"].kill()
                with closing(sqlite3.connect(ORDERS.path(net), timeout=60)) as db, db:
                    lost = broker.begin_dialog(db, from_service=ORDERS.service, to_service="//demo/Absent")
                    lost.send(b"{}")
                await asyncio.sleep(TROUBLE_SECONDS)
                dark = await _open(browser, gateway, WIDE, dark=True)
                await _save(directory, "dark", dark)
                await _save(directory, "phone", await _open(browser, gateway, PHONE))
                await dark.evaluate(ASK)
                await asyncio.sleep(1)
                await dark.evaluate("document.getElementById('explain').scrollIntoView()")
                await _save(directory, "explain", dark)


async def report(directory: Path) -> None:
    """Play the demo to its end, and write a picture of its report."""
    with tempfile.TemporaryDirectory() as home:
        html = Path(home, "report.html")
        if run_demo(messages=REPORTED, directory=None, keep=False, report=html):
            raise SystemExit("the demo went wrong")
        async with chromium(Path(home)) as browser:
            tab = await browser.open(html.as_uri(), width=SHEET[0], height=SHEET[1])
            await _save(directory, "report", tab)


async def _open(browser: Browser, page: str, size: tuple[int, int], *, dark: bool = False) -> Tab:
    tab = await browser.open(page, width=size[0], height=size[1], dark=dark)
    await tab.evaluate(LANES)
    await asyncio.sleep(3)  # two snapshots
    return tab


async def _save(directory: Path, name: str, tab: Tab) -> None:
    (directory / f"{name}.png").write_bytes(await tab.screenshot())


if __name__ == "__main__":
    terminal(DOCS / "tour.svg")
    asyncio.run(status_page(DOCS / "status-page"))
    asyncio.run(report(DOCS))

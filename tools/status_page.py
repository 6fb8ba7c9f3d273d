"""
Pictures of the status page, for its page in the docs: the demo's instances with traffic, looked at in Chromium.

    python -m tools.status_page docs/status-page

One next hop is killed, one service has no route, and one queue is off, so that there is something to see.
"""

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import broker
from examples.demo.cast import BILLING, ORDERS, QUEUE, SHIPPING, demo_topology
from tests.support.chromium import Tab, chromium
from tests.support.steady import steady

PER_SECOND = 60
WARM_SECONDS = 150.0  # of traffic before the pictures, so that the plots have a past
TROUBLE_SECONDS = 25.0
# True once there is a line on the map.
LANES = """
new Promise(resolve => setInterval(() => { if (document.querySelector("#map svg .lane")) resolve(true); }, 100))
"""
WIDE, PHONE = (1280, 860), (390, 844)


async def main(directory: Path, warm_s: float) -> None:
    """Make all of them."""
    with tempfile.TemporaryDirectory(prefix="broker-page-") as temporary:
        net = demo_topology(Path(temporary))
        with net:
            for daemon in net.daemons.values():
                daemon.start()  # one by one: a machine may be busy
            targets = {
                BILLING[0].service: [home.path(net) for home in BILLING],
                SHIPPING.service: [SHIPPING.path(net)],
            }
            with steady(ORDERS.path(net), ORDERS.service, targets, queue=QUEUE, per_second=PER_SECOND) as failures:
                await asyncio.sleep(warm_s)
                async with chromium(Path(temporary)) as browser:
                    page = net.daemons["gateway-a"].page
                    tab = await browser.open(page, width=WIDE[0], height=WIDE[1])
                    await settle(tab)
                    save(directory, "light", await tab.screenshot())
                    tab = await browser.open(net.daemons["orders"].page, width=WIDE[0], height=WIDE[1])
                    await settle(tab)
                    save(directory, "endpoint", await tab.screenshot())
                    net.daemons["billing-west"].kill()
                    _lose_one(ORDERS.path(net))
                    await asyncio.sleep(TROUBLE_SECONDS * min(1.0, warm_s / WARM_SECONDS))
                    tab = await browser.open(page, width=WIDE[0], height=WIDE[1], dark=True)
                    await settle(tab)
                    save(directory, "dark", await tab.screenshot())
                    phone = await browser.open(page, width=PHONE[0], height=PHONE[1])
                    await settle(phone)
                    save(directory, "phone", await phone.screenshot())
                    await phone.ask(
                        "Emulation.setDeviceMetricsOverride", width=1280, height=860, deviceScaleFactor=1, mobile=False
                    )
                    await tab.evaluate(
                        "document.getElementById('explain-to').value = '//demo/Shipping';"
                        "document.querySelector('#explain-form button').click();"
                    )
                    await asyncio.sleep(1)
                    await tab.evaluate("document.getElementById('explain').scrollIntoView()")
                    save(directory, "explain", await tab.screenshot())
            if failures:
                raise failures[0]


async def settle(tab: Tab) -> None:
    """Until two snapshots have come, and the lines are drawn."""
    await tab.evaluate(LANES)
    await asyncio.sleep(3)


def save(directory: Path, name: str, picture: bytes) -> None:
    """Keep a picture."""
    path = directory / f"{name}.png"
    path.write_bytes(picture)
    sys.stdout.write(f"{path}: {len(picture):,} bytes\n")


def _lose_one(path: Path) -> None:
    """Begin a dialog with a service that no gateway knows."""
    with closing(sqlite3.connect(path, timeout=60)) as db, db:
        broker.begin_dialog(db, from_service=ORDERS.service, to_service="//demo/Absent").send(b"{}")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(target, float(sys.argv[2]) if len(sys.argv) > 2 else WARM_SECONDS))

"""Two gateways are restarted one after the other under load: nothing is lost, doubled or out of order."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.topology import Topology
from tests.support.rolling import Load

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def two_ways(net: Topology) -> None:
    """An initiator and a target with two gateways between them, each with routes by both."""
    orders = net.add("orders", databases=["orders"])
    billing = net.add("billing", databases=["billing"])
    gateways = [net.add(name, forwarding=True) for name in ("north", "south")]
    there = "".join(route(one.name, BILLING, one.address) for one in gateways)
    back = "".join(route(one.name, ORDERS, one.address) for one in gateways)
    net.script("orders", "orders", f"CREATE QUEUE Inbox; CREATE SERVICE [{ORDERS}] ON QUEUE Inbox;\n" + there)
    net.script("billing", "billing", f"CREATE QUEUE Inbox; CREATE SERVICE [{BILLING}] ON QUEUE Inbox;\n" + back)
    for one in gateways:
        net.script(one.name, "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, orders.address))


def test_rolling_restart_of_two_gateways_under_load_loses_nothing(
    net: Topology, capsys: pytest.CaptureFixture[str]
) -> None:
    two_ways(net)
    for daemon in net.daemons.values():
        daemon.start()
    files = [net.daemons[name].directory / f"{name}.db" for name in ("orders", "billing")]
    with Load(*files, services=(ORDERS, BILLING), queue="Inbox") as load:
        load.go_on(1000)
        begun_at = time.monotonic()
        load.go_on(1000)
        restart_at, codes, seconds = time.monotonic(), [], []
        for name in ("north", "south"):
            stop_at = time.monotonic()
            codes.append(net.daemons[name].stop())
            seconds.append(round(time.monotonic() - stop_at, 2))
            net.daemons[name].start()
            load.go_on(500)
        ended_at = time.monotonic()
        load.finish()

    before, during = load.lateness(begun_at, restart_at), load.lateness(restart_at, ended_at)
    with capsys.disabled():
        sys.stdout.write(f"\ndrains {seconds} s; before {before}; during {during}\n")
    assert [0, 0] == codes
    assert {conversation: list(range(count)) for conversation, count in load.sent.items()} == load.heard

"""Two gateways are restarted one after the other under load: nothing is lost, doubled or out of order."""

from __future__ import annotations

from typing import Any

import pytest

from examples.demo.topology import Topology
from tests.support.loopback import BILLING, ORDERS, route, service
from tests.support.traffic import Traffic


def two_ways(net: Topology) -> None:
    """An initiator and a target with two gateways between them, each with routes by both."""
    orders, billing = net.add("orders", databases=["orders"]), net.add("billing", databases=["billing"])
    gateways = [net.add(name, forwarding=True) for name in ("north", "south")]
    for end, own, far in ((orders, ORDERS, BILLING), (billing, BILLING, ORDERS)):
        net.script(end.name, end.name, service(own) + "".join(route(one.name, far, one.address) for one in gateways))
    for one in gateways:
        net.script(one.name, "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, orders.address))
    net.start()


@pytest.mark.promise("A gateway dies", "A stop takes long")
def test_rolling_restart_of_two_gateways_under_load_loses_nothing(net: Topology) -> None:
    two_ways(net)
    near, far = [net.daemons[name].directory / f"{name}.db" for name in ("orders", "billing")]
    more: dict[str, Any] = {"from_service": ORDERS, "to_service": BILLING, "queue": "Inbox"}
    with Traffic(near, [far], dialogs=8, pause=0.01, **more) as load:
        load.start()
        load.goes_on(1000)
        codes = []
        for name in ("north", "south"):
            codes.append(net.daemons[name].stop())
            net.daemons[name].start()
            load.goes_on(500)
        load.finish()

    assert [0, 0] == codes
    assert [] == load.faults()

"""`broker explain` beside real daemons: what it says is what then happens, from the first hop to the last."""

from __future__ import annotations

import pytest

from examples.demo.topology import Topology, free_port
from tests.support.command import run
from tests.support.loopback import BILLING, long_shop, receive, send


@pytest.mark.promise("R8")
def test_what_is_explained_hop_by_hop_is_the_way_that_the_message_takes(net: Topology) -> None:
    """One of those who are asked has its admin API on a port."""
    admin = f"127.0.0.1:{free_port()}"
    orders, billing = long_shop(net, {})
    east = net.daemons["east"]
    west = net.daemons["west"]
    west.environ["BROKER_ADMIN__LISTEN"] = admin
    net.start()
    ways = [f"{one.address}={one.directory / 'admin.sock'}" for one in (east, billing)]
    ways.append(f"{west.address}=http://{admin}")

    words = [word for way in ways for word in ("--admin", way)]
    done = run("explain", "--socket", orders.directory / "admin.sock", "--to", BILLING, "--through", *words)

    *_, last = done.stdout.strip().split("\n\n")
    way = "orders -> east -> west -> billing: delivered here, to the database billing by route AutoCreatedLocal"
    assert (0, way) == (done.exit_code, " ".join(last.split()))
    send(orders, "x")
    assert ["x"] == receive(billing, 1)

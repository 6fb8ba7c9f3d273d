"""A route that expires under a running daemon: ignored from then on, still listed, and brought back by ALTER ROUTE."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import BILLING, ORDERS, PATIENCE, receive, route, service, wait_acknowledged, wait_status


def is_over(daemon: Daemon) -> bool:
    [row] = daemon.query("SELECT lifetime FROM sys.routes WHERE name = 'to'")
    return datetime.fromisoformat(row["lifetime"]).replace(tzinfo=UTC) <= datetime.now(UTC)


@pytest.mark.promise("R1.4", "case R10")
def test_a_route_that_expires_is_ignored_stays_listed_and_comes_back_by_alter_route(net: Topology) -> None:
    """The dialog was begun and its target fixed while the route was live."""
    billing, orders = net.add("billing", databases=["billing"]), net.add("orders", databases=["orders"])
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, orders.address))
    net.script("orders", "orders", service(ORDERS))
    net.start()
    way = route("to", BILLING, billing.address, ", LIFETIME = 3600")
    orders.admin.sql(f"DROP ROUTE AutoCreatedLocal; {way}", "orders")

    with closing(orders.connect("orders")) as db:
        with db:
            dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
            dialog.send("in time")
        wait_acknowledged(orders)
        orders.admin.sql("ALTER ROUTE [to] WITH LIFETIME = 1;", "orders")
        wait_for(lambda: is_over(orders), seconds=PATIENCE, what="the route expired")
        with db:
            dialog.send("too late")
    wait_status(orders, "no route")
    orders.admin.sql("ALTER ROUTE [to] WITH LIFETIME = 3600;", "orders")

    assert ["in time", "too late"] == receive(billing, 2)

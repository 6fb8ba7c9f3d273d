"""A route that leads back to the very instance: msdb's routes decide, and never a third time (R3.9)."""

from __future__ import annotations

import pytest

from examples.demo.topology import Daemon, Topology, free_port
from tests.support.loopback import BILLING, ORDERS, receive, route, send, service, wait_status


def both_services(net: Topology, port: int, way: str) -> Daemon:
    """One instance with two databases, each with a service, and routes of the database that sends."""
    endpoint = {"listen": [f"0.0.0.0:{port}"], "encryption": "disabled"}
    one = net.add("orders", databases=["orders", "billing"], settings={"endpoint": endpoint})
    net.script("orders", "orders", service(ORDERS) + way)
    net.script("orders", "billing", service(BILLING))
    return one


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.7"], ids=["known beforehand", "found by dialling"])
@pytest.mark.promise("R3.9")
def test_own_address_is_routed_by_msdb(net: Topology, host: str) -> None:
    port = free_port()
    one = both_services(net, port, route("ToBilling", BILLING, f"tcp://{host}:{port}"))
    net.start()

    send(one, "hello")

    assert ["hello"] == receive(one.directory / "billing.db", 1)
    assert one.status()["forwarding"]["held"] == 0


@pytest.mark.promise("R3.9")
def test_own_address_in_msdb_too_ends_with_a_reason(net: Topology) -> None:
    port = free_port()
    way = route("ToBilling", BILLING, f"tcp://127.0.0.1:{port}")
    one = both_services(net, port, way)
    net.script("orders", "msdb", way)
    net.start()

    send(one, "hello")

    wait_status(one, "route invalid (11294)")
    one.admin.sql("ALTER ROUTE ToBilling WITH ADDRESS = 'LOCAL'", "msdb")
    assert ["hello"] == receive(one.directory / "billing.db", 1)

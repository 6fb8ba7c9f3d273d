"""`broker bench` against running instances."""

import json

from click.testing import Result

from examples.demo.topology import Daemon, Topology, free_port
from tests.support.command import run
from tests.support.loopback import file_of, route, service

LARGE = ("--messages", "3000", "--size", "4096")


def bench_gateway(gateway: Daemon, port: int, *arguments: str) -> Result:
    listen = f"tcp://127.0.0.1:{port}"
    return run("bench", "forwarding", "--address", gateway.address, "--listen", listen, "-o", "json", *arguments)


def test_a_gateway_is_measured(net: Topology) -> None:
    port = free_port()
    gateway = net.add("gateway", forwarding=True)
    net.script("gateway", "msdb", route("bench", "//bench/Target", f"tcp://127.0.0.1:{port}"))
    net.start()

    result = bench_gateway(gateway, port, "--connections", "3", *LARGE)

    assert 0 == result.exit_code, result.stderr
    flood, single = json.loads(result.stdout)
    assert (3000, 1000) == (flood["messages"], single["messages"])
    assert flood["mib_s"] > flood["messages_s"] * 4096 / 2**20 > 0
    assert 0 < single["p50_us"] <= single["p99_us"] <= single["max_us"]
    forwarding = gateway.status()["forwarding"]
    assert (4001, 0, {}) == (forwarding["forwarded"], forwarding["held"], forwarding["dropped"])


def test_dialogs_are_measured_and_ended(net: Topology) -> None:
    orders, billing = net.add("orders", databases=["orders"]), net.add("billing", databases=["billing"])
    for end, name, far, to in ((orders, "Initiator", "Target", billing), (billing, "Target", "Initiator", orders)):
        own = service(f"//bench/{name}", queue="BenchQueue")
        net.script(end.name, end.name, own + route("far", f"//bench/{far}", to.address))
    net.start()

    result = run("bench", "dialogs", file_of(orders), file_of(billing), "-o", "json", *LARGE)

    assert 0 == result.exit_code, result.stderr
    flood, single = json.loads(result.stdout)
    assert 3000 == flood["messages"]
    assert flood["messages_s"] > 0
    assert 0 < single["p50_us"] <= single["p99_us"] <= single["max_us"]
    assert [] == billing.query("SELECT * FROM sys.conversation_endpoints WHERE state <> 'CD'", "billing")

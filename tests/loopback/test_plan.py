"""`broker routes plan` and `broker explain` beside real daemons: what they say would happen, and what then happens."""

import json
from typing import Any

import pytest

from examples.demo.topology import Daemon, Topology, free_port
from tests.support.command import run
from tests.support.loopback import BILLING, ORDERS, long_shop, receive, route, send, service, wait_acknowledged


def shop(net: Topology) -> tuple[Daemon, Daemon, Daemon, Daemon]:
    """An initiator, two gateways to one target, and routes there and back through the first one; started."""
    one, two = net.add("one", forwarding=True), net.add("two", forwarding=True)
    orders, billing = net.add("orders", databases=["orders"]), net.add("billing", databases=["billing"])
    for gateway in (one, two):
        ways = route("there", BILLING, billing.address) + route("back", ORDERS, orders.address)
        net.script(gateway.name, "msdb", ways)
    net.script("orders", "orders", service(ORDERS) + route("there", BILLING, one.address))
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, one.address))
    net.start()
    return one, two, orders, billing


def plan(daemon: Daemon, script: str, *more: str) -> tuple[int, dict[str, Any]]:
    arguments = ["routes", "plan", "-", "--socket", daemon.directory / "admin.sock", "-o", "json", *more]
    result = run(*arguments, stdin=script)
    assert result.exit_code in {0, 6}, result.stderr
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.promise("Messages reach the wrong target")
def test_plan_tells_who_keeps_a_target_and_who_would_be_harmed(net: Topology) -> None:
    one, two, orders, billing = shop(net)
    for number in range(3):
        send(orders, str(number))
    receive(billing, 3)
    wait_acknowledged(orders)
    before = orders.query("SELECT * FROM orders.sys.routes")

    exit_code, answer = plan(orders, route("more", BILLING, two.address))
    assert (exit_code, answer["fates"]) == (0, {"keeps its target, over other paths": 3})
    assert [(edit["name"], edit["before"]) for edit in answer["edits"]] == [("more", None)]

    exit_code, answer = plan(orders, f"ALTER ROUTE there WITH ADDRESS = '{two.address}';")
    assert (exit_code, answer["harmed"], answer["fates"]) == (6, 3, {"moves": 3})
    assert {one.address in harm["before"] and two.address in harm["after"] for harm in answer["consequences"]} == {True}

    exit_code, answer = plan(orders, "DROP ROUTE there;")
    assert (exit_code, answer["fates"]) == (6, {"loses its route": 3})
    assert plan(orders, "DROP ROUTE there;", "--accept-harm")[0] == 0

    exit_code, answer = plan(orders, f"DROP SERVICE [{ORDERS}];")
    assert (exit_code, answer["edits"], answer["fates"]) == (6, [], {"loses its service here": 3})

    # What passed through the gateway counts there; the target's answers stay with it.
    exit_code, answer = plan(one, "DROP ROUTE there;")
    assert (exit_code, {harm["to_service"] for harm in answer["consequences"]}) == (6, {BILLING})
    assert answer["passing"] == sum(answer["fates"].values())

    # A target without its service fails its dialogs, and new ones do not find it.
    exit_code, answer = plan(billing, f"DROP SERVICE [{BILLING}];")
    assert (exit_code, set(answer["fates"])) == (6, {"loses its service here", "loses its route"})

    assert before == orders.query("SELECT * FROM orders.sys.routes"), "a plan changes nothing"


# --- explain ---


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

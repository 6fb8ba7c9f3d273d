"""`broker routes plan` on real daemons: what would move, what would lose its route, and which loops would appear."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SECONDS = 30.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def shop(net: Topology) -> tuple[Daemon, Daemon, Daemon, Daemon]:
    """An initiator, two gateways to one target, and routes there and back through the first one."""
    one, two = net.add("one", forwarding=True), net.add("two", forwarding=True)
    orders, billing = net.add("orders", databases=["orders"]), net.add("billing", databases=["billing"])
    inbox = "CREATE QUEUE Inbox; CREATE SERVICE [{}] ON QUEUE Inbox;\n"
    for gateway in (one, two):
        net.script(gateway.name, "msdb", route("there", BILLING, billing) + route("back", ORDERS, orders))
    net.script("orders", "orders", inbox.format(ORDERS) + route("there", BILLING, one))
    net.script("billing", "billing", inbox.format(BILLING) + route("back", ORDERS, one))
    return one, two, orders, billing


def route(name: str, service: str, to: Daemon) -> str:
    return f"CREATE ROUTE {name} WITH SERVICE_NAME = '{service}', ADDRESS = '{to.address}';\n"


def begin(orders: Daemon, count: int) -> None:
    with orders.connect("orders") as db:
        for number in range(count):
            broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send(str(number))
    db.close()


def receive(billing: Daemon, count: int) -> None:
    db = billing.connect("billing")
    got = 0
    while got < count:
        with db:
            got += len(broker.receive(db, queue="Inbox", wait=SECONDS))
    db.close()


def plan(daemon: Daemon, script: str, *more: str) -> tuple[int, dict[str, Any]]:
    arguments = ["routes", "plan", "-", "--socket", daemon.directory / "admin.sock", "-o", "json", *more]
    result = run(*arguments, stdin=script)
    assert result.exit_code in {0, 6}, result.stderr
    return result.exit_code, json.loads(result.stdout)


def test_plan_tells_who_keeps_a_target_and_who_would_be_harmed(net: Topology) -> None:
    one, two, orders, billing = shop(net)
    net.start()
    begin(orders, 3)
    receive(billing, 3)
    wait_for(lambda: not orders.query("SELECT 1 AS x FROM sys.transmission_queue"), seconds=SECONDS, what="answers")
    before = orders.query("SELECT * FROM orders.sys.routes")

    exit_code, answer = plan(orders, route("more", BILLING, two))
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


def test_plan_finds_the_loop_that_would_appear(net: Topology) -> None:
    one, two, orders, _ = shop(net)
    net.start()
    admin = [f"--admin={daemon.address}={daemon.directory / 'admin.sock'}" for daemon in net.daemons.values()]
    script = f"ALTER ROUTE there WITH ADDRESS = '{two.address}';"

    assert plan(one, script, "--through", *admin)[0] == 0, "it leads over two to the target"
    two.admin.sql(f"ALTER ROUTE there WITH ADDRESS = '{one.address}';", "msdb")
    exit_code, answer = plan(one, script, "--through", *admin)

    assert exit_code == 6
    (loop,) = answer["followed"]["loops"]
    assert (loop["to_service"], loop["was_there"]) == (BILLING, False)
    assert "one -> two -> one" in loop["path"]
    assert plan(orders, script, "--through", *admin)[1]["followed"]["loops"] == [], "from two on it is not yet a loop"


def test_plan_looks_behind_the_lifetime_that_the_script_sets(net: Topology) -> None:
    *_, orders, billing = shop(net)
    net.start()
    begin(orders, 2)
    receive(billing, 2)

    exit_code, answer = plan(orders, "ALTER ROUTE there WITH LIFETIME = 600;")

    assert (exit_code, answer["harmed"], answer["expired"]["harmed"]) == (6, 0, 2)
    orders.admin.sql("ALTER ROUTE there WITH LIFETIME = 300;")
    assert plan(orders, "ALTER ROUTE there WITH LIFETIME = 600;")[0] == 0, "it was to expire anyway"


def test_plan_finds_a_loop_of_last_resort(net: Topology) -> None:
    one, two, *_ = shop(net)
    net.start()
    admin = [f"--admin={daemon.address}={daemon.directory / 'admin.sock'}" for daemon in (one, two)]
    two.admin.sql(f"CREATE ROUTE rest WITH ADDRESS = '{one.address}';", "msdb")

    exit_code, answer = plan(one, f"CREATE ROUTE rest WITH ADDRESS = '{two.address}';", "--through", *admin)

    assert exit_code == 6
    assert ["one -> two -> one" in loop["path"] for loop in answer["followed"]["loops"]] == [True]


def test_plan_waits_for_nobody_and_nobody_waits_for_it(net: Topology) -> None:
    orders = net.add("orders", databases=["orders"])
    net.start()
    with closing(orders.connect("orders")) as db:
        db.isolation_level = None
        db.execute("BEGIN IMMEDIATE")  # as an application in the middle of its work

        exit_code, answer = plan(orders, "CREATE QUEUE q; CREATE ROUTE r WITH ADDRESS = 'tcp://far:4022';")
        db.execute("COMMIT")

    assert (exit_code, [edit["name"] for edit in answer["edits"]]) == (0, ["r"])


def test_a_script_that_would_be_refused_is_refused_with_its_place(net: Topology) -> None:
    orders = net.add("orders", databases=["orders"])
    net.start()

    result = run("routes", "plan", "-", "--socket", orders.directory / "admin.sock", stdin="DROP ROUTE\n  nowhere;")

    assert result.exit_code == 3
    assert "<stdin>:2:3" in result.stderr
    assert "nowhere" in result.stderr

"""`broker explain` beside real daemons: what it says is what then happens, from the first hop to the last."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import broker
from examples.demo.topology import Daemon, Topology, free_port, wait_for

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SECONDS = 30.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def service(name: str) -> str:
    return f"CREATE QUEUE Inbox; CREATE SERVICE [{name}] ON QUEUE Inbox;\n"


def explain(daemon: Daemon, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell would."""
    words = ["explain", "--socket", daemon.directory / "admin.sock", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "broker", *map(str, words)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def explained(daemon: Daemon, *arguments: object) -> dict[str, Any]:
    """What it says as JSON."""
    done = explain(daemon, *arguments, "-o", "json")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def socket_of(daemon: Daemon) -> str:
    return f"{daemon.address}={daemon.directory / 'admin.sock'}"


def shop(net: Topology) -> tuple[Daemon, Daemon, Daemon, Daemon]:
    """Two gateways between an initiator and a target; the second one has its admin API on a port."""
    first = net.add("gateway-a", forwarding=True)
    second = net.add("gateway-b", forwarding=True, settings={"admin": {"listen": f"127.0.0.1:{free_port()}"}})
    orders = net.add("orders", databases=["orders"])
    billing = net.add("billing", databases=["billing"])
    there, back = route("there", BILLING, second.address), route("back", ORDERS, orders.address)
    net.script("gateway-a", "msdb", there + back + route("round", "//round", second.address))
    there, back = route("there", BILLING, billing.address), route("back", ORDERS, first.address)
    net.script("gateway-b", "msdb", there + back + route("round", "//round", first.address))
    there = route("there", BILLING, first.address)
    net.script("orders", "orders", service(ORDERS) + there + route("round", "//round", first.address))
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, second.address))
    return first, second, orders, billing


def admin_url(daemon: Daemon) -> str:
    """ADDRESS=URL of a daemon whose admin API is on a port."""
    [line] = [line for line in daemon.config.read_text().split("[admin]")[1].splitlines() if line.startswith("listen")]
    return f"{daemon.address}=http://{json.loads(line.partition('= ')[2])}"


def test_what_is_explained_hop_by_hop_is_the_way_that_the_message_takes(net: Topology) -> None:
    first, second, orders, billing = shop(net)
    net.start()
    admin = ["--admin", socket_of(first), "--admin", admin_url(second), "--admin", socket_of(billing)]

    done = explain(orders, "--to", BILLING, "--through", *admin)

    *_, last = done.stdout.strip().split("\n\n")
    way = " ".join(last.split())
    assert (
        "orders -> gateway-a -> gateway-b -> billing: delivered here, to the database billing by route AutoCreatedLocal"
        == way
    )
    assert 0 == done.returncode
    with closing(orders.connect("orders")) as db, db:
        broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING).send("x")
    with closing(billing.connect("billing")) as db, db:
        [message] = broker.receive(db, queue="Inbox", wait=SECONDS)
    assert b"x" == message.body


def test_a_loop_between_gateways_is_shown_as_one(net: Topology) -> None:
    first, second, orders, _ = shop(net)
    for daemon in (first, second, orders):
        daemon.start()
    admin = ["--admin", socket_of(first), "--admin", socket_of(second)]

    way = explained(orders, "--to", "//round", "--through", *admin)

    assert ("loop", ["orders", "gateway-a", "gateway-b"]) == (way["end"], [hop["instance"] for hop in way["hops"]])
    assert way["sentence"].startswith("orders -> gateway-a -> gateway-b -> gateway-a: a loop")
    assert 3 == explain(orders, "--to", "//round", "--through", *admin).returncode


def test_explaining_opens_no_connection_and_tells_what_is_known_against_an_address(net: Topology) -> None:
    """The next hop is down: nobody knows until a message wants to go there."""
    first, _, orders, _ = shop(net)
    orders.start()

    def candidate() -> dict[str, Any]:
        [one] = explained(orders, "--to", BILLING)["explanation"]["passes"][0]["candidates"]
        return dict(one)

    assert (first.address, "untried", "") == tuple(candidate()[name] for name in ("address", "health", "problem"))
    assert ["untried"] == [one["health"] for one in orders.status()["addresses"].values()]
    with closing(orders.connect("orders")) as db, db:
        dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
        dialog.send("x")
    wait_for(lambda: candidate()["health"] == "suppressed", seconds=SECONDS, what="an attempt that failed")

    assert "refused" in candidate()["problem"]
    asked = explained(orders, "--conversation", dialog.conversation_handle)
    assert str(dialog.conversation_id) == asked["explanation"]["conversation_id"]


def test_offline_and_live_say_the_same(net: Topology) -> None:
    first, *_ = shop(net)
    words = ["--to", BILLING, "--incoming", "--conversation", "11111111-1111-1111-1111-111111111111", "-o", "json"]
    offline = subprocess.run(
        [sys.executable, "-m", "broker", "explain", "--offline", "-c", first.config, *words],
        capture_output=True,
        check=True,
    )
    first.start()

    assert explained(first, *words[:-2])["explanation"] == json.loads(offline.stdout)["explanation"]

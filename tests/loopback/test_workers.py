"""A gateway of two processes on one port, as its neighbours, an operator and a scraper see it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sqlite3
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import broker
from broker.admin.client import ProblemError
from broker.bench.traffic import hello
from broker.daemon import serve
from broker.demo.topology import Daemon, Topology, free_port, wait_for
from broker.errors import SettingError
from tests.support.loopback import message

BILLING = "//shop/Billing"
SENDERS = [f"orders{number}" for number in range(6)]
SECONDS = 60.0


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


@pytest.fixture
def gateway(net: Topology) -> Daemon:
    return net.add("gateway", forwarding=True, settings={"endpoint": {"workers": 2}})


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def shop(net: Topology, gateway: Daemon) -> Daemon:
    """Several senders and one target around the gateway, with all routes but the one to the target; not started."""
    billing = net.add("billing", databases=["billing"])
    net.script(
        "billing",
        "billing",
        f"CREATE QUEUE Inbox; CREATE SERVICE [{BILLING}] ON QUEUE Inbox;\n"
        + "".join(route(name, f"//{name}", gateway.address) for name in SENDERS),
    )
    back = ""
    for name in SENDERS:
        sender = net.add(name, databases=[name], settings={"dialog": {"resend_first": "250ms", "resend_cap": "1s"}})
        own = f"CREATE QUEUE Inbox; CREATE SERVICE [//{name}] ON QUEUE Inbox;\n"
        net.script(name, name, own + route("to", BILLING, gateway.address))
        back += route(name, f"//{name}", sender.address)
    net.script("gateway", "msdb", back)
    return billing


def send(net: Topology, first: int, count: int) -> None:
    """So many messages of each sender, in a dialog of their own."""
    for name in SENDERS:
        with contextlib.closing(net.daemons[name].connect(name)) as db, db:
            dialog = broker.begin_dialog(db, from_service=f"//{name}", to_service=BILLING)
            for number in range(first, first + count):
                dialog.send(f"{name} {number}")


def receive(db: sqlite3.Connection, count: int) -> Counter[str]:
    """The bodies of so many messages, and how often each came."""
    bodies: Counter[str] = Counter()
    while bodies.total() < count:
        with db:
            messages = broker.receive(db, queue="Inbox", top=100, wait=SECONDS)
        assert messages, f"only {bodies.total()} of {count} came"
        bodies.update(message.body.decode() for message in messages)
    return bodies


def each_once(first: int, count: int) -> Counter[str]:
    return Counter(f"{name} {number}" for name in SENDERS for number in range(first, first + count))


def pids(gateway: Daemon) -> dict[int, int]:
    return {one["worker"]: one["pid"] for one in gateway.status()["workers"] if one["ready"]}


def metrics(gateway: Daemon) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.observe_port}/metrics", timeout=10) as response:
        return str(response.read(), "utf-8")


def metric(gateway: Daemon, name: str) -> float:
    """The sum of all series of a metric."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", metrics(gateway), re.MULTILINE))


def is_counted_alike(gateway: Daemon) -> bool:
    """Acknowledgements may still pass between the two questions."""
    received: int = sum(gateway.status()["forwarding"]["received"].values())
    return metric(gateway, "broker_messages_received_total") == received > 0


def are_connections_alike(gateway: Daemon) -> bool:
    """Not while links come and go: each is asked at a moment of its own."""
    told = len(gateway.status()["connections"])
    rows = gateway.query("SELECT connection_id FROM sys.dm_broker_connections")
    return told == len(rows) == metric(gateway, "broker_connections") >= len(SENDERS)


def is_replaced(gateway: Daemon, victim: dict[str, Any]) -> bool:
    """Another process stands in its place; that it is dead may not have been noticed yet."""
    now = pids(gateway)
    return len(now) == 2 and now[victim["worker"]] != victim["pid"]


@pytest.mark.timeout(240)
def test_messages_cross_whichever_process_dies(net: Topology, gateway: Daemon) -> None:
    """Both carry connections, a new route holds in both at once, a killed one is replaced, and nothing is lost."""
    billing = shop(net, gateway)
    net.start()
    answer = gateway.admin.sql(route("to", BILLING, billing.address))
    assert answer["messages"] == ["route to created"]

    send(net, 0, 20)
    with contextlib.closing(billing.connect("billing")) as db:
        assert receive(db, 20 * len(SENDERS)) == each_once(0, 20)
        status = gateway.status()
        assert status["forwarding"]["dropped"] == {}, "the route held in every process from the first message on"
        assert {link["worker"] for link in status["connections"]} <= {1, 2}
        wait_for(lambda: are_connections_alike(gateway), seconds=SECONDS, what="status, view and metric tell the same")
        wait_for(lambda: is_counted_alike(gateway), seconds=SECONDS, what="metrics and status tell the same")
        before = metric(gateway, "broker_messages_forwarded_total")

        victim = max(status["workers"], key=lambda one: int(one["connections"]))
        send(net, 20, 20)
        os.kill(victim["pid"], signal.SIGKILL)

        assert receive(db, 20 * len(SENDERS)) == each_once(20, 20)
    wait_for(lambda: is_replaced(gateway, victim), seconds=SECONDS, what="the dead worker replaced")
    assert metric(gateway, "broker_worker_restarts_total") == 1
    assert metric(gateway, "broker_messages_forwarded_total") >= before, "no counter goes down"
    assert gateway.status()["forwarding"]["unaccounted"] == 0


def test_what_a_dead_worker_counted_and_held_is_told(net: Topology, gateway: Daemon) -> None:
    """Every frame that came in is in the sums, those that died with a worker among them; metrics say the same."""
    net.script("gateway", "msdb", route("dead", "//dead", "tcp://127.0.0.1:1"))
    gateway.start()
    frames = [message("//dead", number) for number in range(200)]

    with contextlib.ExitStack() as stack:
        for _ in range(8):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
            sock.sendall(hello() + b"".join(frames))
        wait_for(lambda: gateway.status()["forwarding"]["received"]["message"] == 1600, seconds=SECONDS, what="all")
        status = gateway.status()
        victim = max(status["workers"], key=lambda one: int(one["held"]))
        os.kill(victim["pid"], signal.SIGKILL)
        dead = {victim["pid"]}
        wait_for(
            lambda: dead.isdisjoint((now := pids(gateway)).values()) and len(now) == 2,
            seconds=SECONDS,
            what="the dead worker replaced",
        )
        after = gateway.status()

    forwarding = after["forwarding"]
    assert victim["held"] > 0
    assert forwarding["received"]["message"] == 1600
    lost = forwarding["dropped"]["lost with a worker"]
    assert lost == victim["held"] == status["forwarding"]["held"] - forwarding["held"]
    assert sum(forwarding["dropped"].values()) + forwarding["held"] == 1600
    assert (forwarding["unaccounted"], metric(gateway, "broker_ledger_unaccounted_messages")) == (0, 0)
    assert metric(gateway, "broker_messages_dropped_total") == sum(forwarding["dropped"].values())
    assert metric(gateway, "broker_forward_pool_limit_bytes") == forwarding["pool_limit_bytes"]
    (told,) = [one for one in after["workers"] if one["worker"] == victim["worker"]]
    assert (told["lost"], told["uncounted_s"] > 0) == (victim["held"], True)


def test_nobody_waits_for_a_stopped_worker(net: Topology, gateway: Daemon) -> None:
    """It is told which one it is; a statement does not wait for it, because it is replaced then."""
    gateway.start()
    stopped = pids(gateway)[2]
    os.kill(stopped, signal.SIGSTOP)

    problems = wait_for(
        lambda: {one["worker"]: one["problem"] for one in gateway.status()["workers"] if one["problem"]},
        seconds=SECONDS,
        what="the problem told",
    )
    answer = gateway.admin.sql(route("far", "//far", "tcp://127.0.0.1:1"))
    wait_for(lambda: len(pids(gateway)) == 2, seconds=SECONDS, what="the stopped worker replaced")

    assert list(problems) == [2]
    assert "has not answered for" in problems[2]
    assert answer["messages"] == ["route far created"]
    assert pids(gateway)[2] != stopped


def test_connections_spread_over_both_processes(net: Topology, gateway: Daemon) -> None:
    """The system gives each new connection to one of them; of forty none without any is a chance of 2 in 2 ** 40."""
    gateway.start()

    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port)))
        wait_for(lambda: len(gateway.status()["connections"]) == 40, seconds=SECONDS, what="all connections told")
        carried = {one["worker"]: one["connections"] for one in gateway.status()["workers"]}

    assert carried[1] + carried[2] == 40
    assert min(carried.values()) > 0


def test_sigterm_drains_and_leaves_nobody(net: Topology, gateway: Daemon) -> None:
    gateway.start()
    workers = set(pids(gateway).values())

    code = gateway.stop()

    assert code == 0
    assert not any(map(psutil.pid_exists, workers))


def test_killed_supervisor_leaves_no_orphan(net: Topology, gateway: Daemon) -> None:
    gateway.start()
    workers = set(pids(gateway).values())

    gateway.kill()

    wait_for(lambda: not any(map(psutil.pid_exists, workers)), seconds=SECONDS, what="the end of the workers")


def test_taken_port_is_told_at_once(net: Topology, gateway: Daemon) -> None:
    """Even by a gateway of several, whose ports others could share."""
    gateway.start()
    other = net.add("other", forwarding=True, settings={"endpoint": {"workers": 2, "listen": [gateway.address[6:]]}})
    other.start(wait=False)

    wait_for(lambda: not other.is_running, seconds=SECONDS, what="the end of the second gateway")

    assert "cannot listen on" in other.last_words()


def test_route_that_asks_for_routes_is_refused(net: Topology, gateway: Daemon) -> None:
    gateway.start()
    ask = route("ask", "SQL/ServiceBroker/BrokerConfiguration", "tcp://directory:4022")

    with pytest.raises(ProblemError, match=r"would ask for other routes, which takes endpoint\.workers = 1"):
        gateway.admin.sql(ask)

    assert gateway.query("SELECT name FROM msdb.sys.routes") == [{"name": "AutoCreatedLocal"}]


def test_stored_route_that_asks_keeps_the_gateway_from_starting(net: Topology) -> None:
    """One process had it; several refuse to leave it out without a word."""
    ask = route("ask", "SQL/ServiceBroker/BrokerConfiguration", "tcp://directory:4022")
    single = net.add("gateway", forwarding=True)
    single.start()
    single.admin.sql(ask)
    single.stop()
    single.environ["BROKER_ENDPOINT__WORKERS"] = "2"

    single.start(wait=False)
    wait_for(lambda: not single.is_running, seconds=SECONDS, what="the end")

    assert "several processes do not ask for routes" in single.last_words()


def test_questions_about_routing_are_answered_for_the_whole(net: Topology, gateway: Daemon) -> None:
    net.script("gateway", "msdb", route("far", "//far", "tcp://127.0.0.1:1"))
    gateway.start()

    explained = gateway.admin.request("POST", "/v1/explain", {"to": "//far", "incoming": True})
    planned = gateway.admin.request("POST", "/v1/plan", {"script": "DROP ROUTE far"})
    checked = gateway.admin.request("POST", "/v1/check", {})

    assert explained["explanation"]["next_hop"] == "tcp://127.0.0.1:1"
    assert gateway.address in explained["addresses"]
    assert [edit["name"] for edit in planned["edits"]] == ["far"]
    assert checked["ok"]


def test_route_to_a_sibling_goes_round_in_no_circle(net: Topology) -> None:
    """The address is found to be the gateway's own, whichever worker takes the connection."""
    port = free_port()
    settings = {"workers": 2, "listen": [f"0.0.0.0:{port}"], "encryption": "disabled"}
    gateway = net.add("gateway", forwarding=True, settings={"endpoint": settings})
    net.script("gateway", "msdb", route("to", BILLING, f"tcp://127.0.0.7:{port}"))
    sender = net.add("orders", databases=["orders"])
    own = "CREATE QUEUE Inbox; CREATE SERVICE [//orders] ON QUEUE Inbox;\n"
    net.script("orders", "orders", own + route("to", BILLING, f"tcp://127.0.0.1:{port}"))
    net.start()

    with contextlib.closing(sender.connect("orders")) as db, db:
        broker.begin_dialog(db, from_service="//orders", to_service=BILLING).send(b"round and round")

    wait_for(lambda: gateway.status()["forwarding"]["dropped"], seconds=SECONDS, what="the end of the message")
    assert set(gateway.status()["forwarding"]["dropped"]) == {"route invalid"}


async def test_application_cannot_embed_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[instance]\nstate_dir = '.'\n[endpoint]\nworkers = 2\n")

    with pytest.raises(SettingError, match=r"endpoint\.workers: an application is one process"):
        async with serve(path):
            pass

"""
What an instance tells of itself is what really happens: a peer that stands still is seen, a task that dies is told and
begun anew, and every frame is accounted for while routes come and go.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.daemon.instance import Instance, serve
from broker.errors import DaemonUnreachableError
from examples.demo.topology import Daemon, Topology, wait_for

ORDERS, BILLING = "//shop/Orders", "//shop/Billing"
SECONDS = 30.0
HEARTBEAT = {"endpoint": {"heartbeat": "1s"}}


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Topology]:
    with Topology(tmp_path) as topology:
        yield topology


def service(name: str) -> str:
    return f"CREATE QUEUE Inbox; CREATE SERVICE [{name}] ON QUEUE Inbox;\n"


def route(name: str, to: str, address: str) -> str:
    return f"CREATE ROUTE [{name}] WITH SERVICE_NAME = '{to}', ADDRESS = '{address}';\n"


def shop(net: Topology) -> tuple[Daemon, Daemon, Daemon]:
    """An initiator, a gateway and a target, with routes there and back."""
    gateway = net.add("gateway", forwarding=True, settings=HEARTBEAT)
    orders = net.add("orders", databases=["orders"], settings=HEARTBEAT)
    billing = net.add("billing", databases=["billing"], settings=HEARTBEAT)
    net.script("gateway", "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, orders.address))
    net.script("orders", "orders", service(ORDERS) + route("to", BILLING, gateway.address))
    net.script("billing", "billing", service(BILLING) + route("back", ORDERS, gateway.address))
    net.start()
    return gateway, orders, billing


@contextmanager
def traffic(daemon: Daemon) -> Iterator[list[int]]:
    """Sends a message every few milliseconds; how many, in a list that grows."""
    sent: list[int] = []
    stopping = threading.Event()

    def send() -> None:
        with closing(daemon.connect("orders")) as db:
            while not stopping.wait(0.005):
                with db:
                    dialog = broker.begin_dialog(db, from_service=ORDERS, to_service=BILLING)
                    dialog.send(str(len(sent)))
                sent.append(len(sent))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        thread.join(SECONDS)


def flow_to(daemon: Daemon, peer: str) -> str:
    """What the connection to a peer does; empty while there is none."""
    flows = [one["flow"] for one in daemon.status()["connections"] if one["name"] == peer]
    return flows[0] if flows else ""


def arrived(daemon: Daemon) -> list[str]:
    with closing(daemon.connect("billing")) as db:
        rows = db.execute("SELECT message_body FROM broker_message WHERE message_body IS NOT NULL").fetchall()
    return sorted((bytes(body).decode() for (body,) in rows), key=int)


# --- a peer that stands still ---


def test_peer_that_is_stopped_under_traffic_is_seen_to_stand_still(net: Topology) -> None:
    """Its connection stands, and the system takes what is written to it; only the answer that is missing tells."""
    gateway, orders, billing = shop(net)
    with traffic(orders) as sent:
        wait_for(lambda: flow_to(gateway, "billing") == "flowing", seconds=SECONDS, what="flowing")

        billing.freeze()
        seen: list[str] = []

        def sees() -> bool:
            seen.append(flow_to(gateway, "billing"))
            return seen[-1] == "stalled"

        wait_for(sees, seconds=SECONDS, what="stalled")
        (row,) = [
            one
            for one in gateway.query(
                "SELECT peer_name, flow_state, flow_reason, state_desc FROM sys.dm_broker_connections"
            )
            if one["peer_name"] == "billing"
        ]
        billing.thaw()
        wait_for(lambda: flow_to(gateway, "billing") == "flowing", seconds=SECONDS, what="flowing again")

    assert "" not in seen, "it was closed before it was seen to stand still"
    assert row == {
        "peer_name": "billing",
        "flow_state": "stalled",
        "flow_reason": "the peer does not answer",
        "state_desc": "LOGGED_IN",
    }
    wait_for(lambda: len(arrived(billing)) == len(sent), seconds=SECONDS, what="all of them")
    assert arrived(billing) == [str(number) for number in sent]


# --- tasks ---


async def running(
    stack: AsyncExitStack, directory: Path, name: str, script: str, *, mirroring: str = "off"
) -> Instance:
    """An instance in this process, with one database of its name."""
    return await stack.enter_async_context(serve(configuration(directory, name, script, mirroring)))


def configuration(directory: Path, name: str, script: str, mirroring: str) -> Path:
    directory.mkdir()
    (directory / "own.sql").write_text(service(f"//{name}") + script)
    path = directory / "broker.toml"
    path.write_text(
        f'instance = {{ name = "{name}", state_dir = "." }}\n'
        'endpoint = { listen = ["127.0.0.1:0"], message_forwarding = true }\n'
        f'databases.{name} = {{ path = "{name}.db", scripts = ["own.sql"], mirroring = "{mirroring}" }}\n'
        'observe = { listen = "127.0.0.1:0" }\n'
    )
    return path


async def until(condition: Any) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.01)


async def test_every_task_that_is_killed_is_told_counted_and_begun_anew(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        target = await running(stack, tmp_path / "target", "target", "")
        address = f"tcp://127.0.0.1:{target.listeners[0].port}"
        near = await running(stack, tmp_path / "near", "near", route("to", "//target", address), mirroring="lock")
        await until(lambda: "near" in near.endpoints)
        watch = near.supervision
        names = [task["name"] for task in watch.status()]

        for name in names:
            for task in asyncio.all_tasks():
                if task.get_name() == name and task.get_coro().cr_code.co_filename.startswith(_SOURCE):  # type: ignore[union-attr]
                    task.cancel()
        await until(lambda: all(watch.failures[name] >= 1 for name in names))
        await until(lambda: all(task["running"] for task in watch.status()))
        with closing(sqlite3.connect(near.endpoints["near"].path)) as db, db:
            broker.begin_dialog(db, from_service="//near", to_service="//target").send(b"after all of them died")
        await until(lambda: target.endpoints["target"].delivered["//target"] == 1)

        url = f"http://{near.admin.observe_address}"
        ready, metrics = [await asyncio.to_thread(fetch, f"{url}/{path}") for path in ("readyz?verbose", "metrics")]

    assert {"peers tick", "loop lag", "log summary", "near turns", "near requests", "near role"} <= {*names}
    for name in names:
        assert f"[!] task {name}: has died" in ready
        assert f'broker_task_failures_total{{task="{name}"}} 0.0' not in metrics
    assert ready.endswith("ok\n")


_SOURCE = str(Path(broker.__file__).parent)


# --- a log that nobody reads ---


def test_log_that_nobody_reads_holds_nobody_up(net: Topology) -> None:
    """A pipe takes 64 KiB; behind that a write would wait, and the loop with it."""
    gateway = net.add("gateway", forwarding=True, settings={"observe": {"log_level": "debug"}})
    command = [sys.executable, "-m", "broker", "serve", "-c", str(gateway.config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        wait_for(lambda: is_ready(gateway), seconds=SECONDS, what="ready")
        while not lost_lines(gateway):  # ten thousand wait beside the pipe, and what comes then is lost
            for _ in range(1500):
                socket.create_connection(("127.0.0.1", gateway.port)).close()

        alive = fetch(f"http://127.0.0.1:{gateway.observe_port}/livez")
        gateway.admin.get("/v1/status")
        process.terminate()
        code = process.wait(SECONDS)
        assert process.stderr is not None
        told = process.stderr.read()

    assert (alive, code) == ("ok\n", 0)
    assert len(told) > 32_768  # it was full


def lost_lines(daemon: Daemon) -> float:
    """What `BrokerLogLinesDropped` looks at."""
    lines = fetch(f"http://127.0.0.1:{daemon.observe_port}/metrics").splitlines()
    (line,) = [line for line in lines if line.startswith("broker_log_lines_dropped_total ")]
    return float(line.split()[-1])


def is_ready(daemon: Daemon) -> bool:
    try:
        return bool(daemon.status()["ready"])
    except DaemonUnreachableError:
        return False


# --- the ledger ---


def test_every_frame_is_accounted_for_while_routes_come_and_go(net: Topology) -> None:
    gateway, orders, billing = shop(net)
    looks: list[tuple[int, float]] = []
    with traffic(orders) as sent:
        deadline = time.monotonic() + 4.0
        number = 0
        while time.monotonic() < deadline:
            number += 1
            gateway.admin.sql("DROP ROUTE [to];", "msdb")
            gateway.admin.sql(route(f"other{number}", f"//elsewhere/{number}", "tcp://127.0.0.1:1"), "msdb")
            looks.append((unaccounted(gateway), scraped(gateway)))
            gateway.admin.sql(route("to", BILLING, billing.address), "msdb")
            looks.append((unaccounted(gateway), scraped(gateway)))
        dropped = gateway.status()["forwarding"]["dropped"]

    wait_for(lambda: len(arrived(billing)) == len(sent), seconds=SECONDS, what="all of them")
    assert {(0, 0.0)} == {*looks}
    assert sum(dropped.values()) > 0
    assert arrived(billing) == [str(one) for one in sent]


def fetch(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read(), "utf-8")


def unaccounted(daemon: Daemon) -> int:
    found: int = daemon.status()["forwarding"]["unaccounted"]
    return found


def scraped(daemon: Daemon) -> float:
    lines = fetch(f"http://127.0.0.1:{daemon.observe_port}/metrics").splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("broker_ledger_unaccounted_messages{"))

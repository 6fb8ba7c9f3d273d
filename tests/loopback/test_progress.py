"""What an instance tells of itself is what happens: a peer that stands still is seen, a task that dies begun anew."""

import asyncio
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

import broker
from broker.daemon.instance import serve
from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import PATIENCE, receive, route, send, service, shop, until
from tests.support.prometheus import fetch

SOURCE = str(Path(broker.__file__).parent)


def flow_to(daemon: Daemon, peer: str) -> str:
    """What the connection to a peer does; empty while there is none."""
    flows = [one["flow"] for one in daemon.status()["connections"] if one["name"] == peer]
    return flows[0] if flows else ""


@pytest.mark.promise("A connection is stalled, blocked or down")
def test_peer_that_is_stopped_under_traffic_is_seen_to_stand_still(net: Topology) -> None:
    """Its connection stands, and the system takes what is written to it; only the answer that is missing tells."""
    gateway, orders, billing = shop(net, {"gateway": {"endpoint": {"heartbeat": "1s"}}})
    net.start()
    send(orders, "0")
    assert ["0"] == receive(billing, 1)

    billing.freeze()
    send(orders, "1")
    wait_for(lambda: flow_to(gateway, "billing") == "stalled", seconds=PATIENCE, what="stalled")
    query = "SELECT flow_reason, state_desc FROM sys.dm_broker_connections WHERE flow_state = 'stalled'"
    rows = gateway.query(f"{query} AND peer_name = 'billing'")
    billing.thaw()

    assert [{"flow_reason": "the peer does not answer", "state_desc": "LOGGED_IN"}] == rows
    assert ["1"] == receive(billing, 1)
    assert "stalled" != flow_to(gateway, "billing")


def configuration(directory: Path, name: str, script: str = "", *, mirroring: str = "off") -> Path:
    """Of an instance with one database of its name."""
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


@pytest.mark.promise("A connection is stalled, blocked or down")
async def test_every_task_that_is_killed_is_told_counted_and_begun_anew(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        target = await stack.enter_async_context(serve(configuration(tmp_path / "target", "target")))
        address = f"tcp://127.0.0.1:{target.listeners[0].port}"
        way = route("to", "//target", address)
        near = await stack.enter_async_context(serve(configuration(tmp_path / "near", "near", way, mirroring="lock")))
        await until(lambda: "near" in near.endpoints)
        watch = near.supervision
        names = [task["name"] for task in watch.status()]

        for name in names:
            for task in asyncio.all_tasks():
                if task.get_name() == name and task.get_coro().cr_code.co_filename.startswith(SOURCE):  # type: ignore[union-attr]
                    task.cancel()
        await until(lambda: all(watch.failures[name] >= 1 for name in names))
        await until(lambda: all(task["running"] for task in watch.status()))
        with closing(sqlite3.connect(near.endpoints["near"].path)) as db, db:
            broker.begin_dialog(db, from_service="//near", to_service="//target").send(b"after all of them died")
        await until(lambda: target.endpoints["target"].delivered["//target"] == 1)

        url = f"http://{near.admin.observe_address}"
        (ready, _), (metrics, _) = [
            await asyncio.to_thread(fetch, f"{url}/{path}") for path in ("readyz?verbose", "metrics")
        ]

    assert {"peers tick", "loop lag", "log summary", "near turns", "near requests", "near role"} <= {*names}
    for name in names:
        assert f"[!] task {name}: has died" in ready
        assert f'broker_task_failures_total{{task="{name}"}} 0.0' not in metrics
    assert ready.endswith("ok\n")

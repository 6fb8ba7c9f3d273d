"""Daemons as processes that read their configuration again, or are restarted, while messages pass: nobody notices."""

import os
import signal
from typing import Any

import pytest

from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.command import run
from tests.support.loopback import BILLING, ORDERS, PATIENCE, file_of, route, service, shop
from tests.support.traffic import Traffic


def change(daemon: Daemon, original: str, **endpoint: Any) -> None:
    """Write the configuration with other values of `[endpoint]`, whole at once."""
    lines = "".join(f"{key} = {value}\n" for key, value in endpoint.items())
    aside = daemon.config.with_suffix(".new")
    aside.write_text(original.replace("[endpoint]\n", f"[endpoint]\n{lines}", 1))
    aside.replace(daemon.config)


def reloads(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = daemon.status()["reload"]
    return found


def connections(daemon: Daemon) -> set[str]:
    return {one["address"] for one in daemon.status()["connections"]}


@pytest.mark.promise("Routes or settings are changed in operation", "A reload fails")
def test_reloads_under_traffic_lose_nothing_and_close_no_connection(net: Topology) -> None:
    """Limits, sizes, routes and the rest change back and forth; every message comes once and in order."""
    gateway, orders, billing = shop(net)
    net.start()
    original = gateway.config.read_text()
    near, far = file_of(orders), file_of(billing)
    with Traffic(near, [far], from_service=ORDERS, to_service=BILLING, dialogs=1) as traffic:
        traffic.start()
        traffic.goes_on()
        before = connections(gateway)
        for number in range(12):
            size, share, hops = ("32MiB", 30, 8) if number % 2 else ("64MiB", 50, 16)
            net.script("gateway", "msdb", route(f"extra{number}", f"//extra/{number}", "tcp://127.0.0.1:9"))
            change(
                gateway,
                original,
                message_forward_size=f'"{size}"',
                message_forward_share=share,
                max_hops=hops,
                max_frame='"2MiB"' if number % 3 else '"1MiB"',
                backpressure=f'"{100 + number}ms"',
            )
            if number % 2:
                assert gateway.admin.request("POST", "/v1/reload", {})["changed"]
            else:
                done = reloads(gateway)["succeeded"]
                os.kill(gateway.pid, signal.SIGHUP)
                wait_for(lambda: reloads(gateway)["succeeded"] > done, seconds=PATIENCE, what="a reload by SIGHUP")  # noqa: B023
        traffic.goes_on()
        traffic.finish()

    status = gateway.status()
    assert [] == traffic.faults()
    assert before <= connections(gateway)
    assert (12, 0) == (status["reload"]["succeeded"], status["reload"]["failed"])
    names = {row[0] for row in gateway.admin.sql("SELECT name FROM msdb.sys.routes")["rows"]}
    assert {f"extra{number}" for number in range(12)} <= names


def test_the_command_says_what_has_changed_and_a_broken_file_is_exit_code_2(net: Topology) -> None:
    gateway = net.add("gateway", forwarding=True)
    net.start()
    original = gateway.config.read_text()

    change(gateway, original, max_hops=3)
    good = run("reload", "-c", gateway.config)
    again = run("reload", "-c", gateway.config)
    gateway.config.write_text(original[: len(original) // 2] + "\n[endpoint")
    bad = run("reload", "--socket", gateway.directory / "admin.sock")
    status = run("status", "--socket", gateway.directory / "admin.sock")

    assert (0, True) == (good.exit_code, "endpoint.max_hops: 16 -> 3, in force" in good.stdout)
    assert (0, "nothing changed\n") == (again.exit_code, again.stdout)
    assert (2, True, True) == (bad.exit_code, "broker.toml:" in bad.stderr, "nothing has changed" in bad.stderr)
    assert (False, True) == (reloads(gateway)["successful"], "reload" in status.stdout)


# --- restarts ---


def two_ways(net: Topology) -> None:
    """An initiator and a target with two gateways between them, each with routes by both."""
    orders, billing = net.add("orders", databases=["orders"]), net.add("billing", databases=["billing"])
    gateways = [net.add(name, forwarding=True) for name in ("north", "south")]
    for end, own, far in ((orders, ORDERS, BILLING), (billing, BILLING, ORDERS)):
        net.script(end.name, end.name, service(own) + "".join(route(one.name, far, one.address) for one in gateways))
    for one in gateways:
        net.script(one.name, "msdb", route("to", BILLING, billing.address) + route("back", ORDERS, orders.address))
    net.start()


@pytest.mark.long
@pytest.mark.promise("A gateway dies", "A stop takes long")
def test_rolling_restart_of_two_gateways_under_load_loses_nothing(net: Topology) -> None:
    two_ways(net)
    near, far = [file_of(net.daemons[name]) for name in ("orders", "billing")]
    with Traffic(near, [far], from_service=ORDERS, to_service=BILLING, dialogs=8, pause=0.01) as load:
        load.start()
        load.goes_on(1000)
        codes = []
        for name in ("north", "south"):
            codes.append(net.daemons[name].stop())
            net.daemons[name].start()
            load.goes_on(500)
        load.finish()

    assert [0, 0] == codes
    assert [] == load.faults()

"""How daemons leave: on a signal, on command, or when their application is done with them; and what they tell of it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from bench.generator import hello
from examples.demo.topology import Daemon, Topology, free_port, wait_for
from tests.support.loopback import message

SECONDS = 60.0
DRAIN_SECONDS = 2.0  # the bound of the drains that do not come to an end by themselves


def add_gateway(net: Topology, next_hop: str, **drain: str) -> Daemon:
    """A gateway with one route; not started."""
    settings: dict[str, dict[str, Any]] = {
        "drain": {"timeout": f"{DRAIN_SECONDS:g}s"} | drain,
    }
    gateway = net.add("gateway", forwarding=True, settings=settings)
    net.script("gateway", "msdb", f"CREATE ROUTE r WITH SERVICE_NAME = '//far', ADDRESS = '{next_hop}';")
    return gateway


def dead_hop() -> str:
    """An address at which nobody answers."""
    return f"tcp://127.0.0.1:{free_port()}"


@contextlib.contextmanager
def holding(gateway: Daemon, count: int) -> Iterator[None]:
    """A neighbour that has sent so many frames, which the gateway holds; it does not know of moving away."""
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(hello() + b"".join(message("//far", number) for number in range(count)))
        wait_for(lambda: gateway.status()["forwarding"]["held"] == count, seconds=SECONDS, what="all held")
        yield


def events(daemon: Daemon, event: str) -> list[dict[str, Any]]:
    """The lines of its log with this event."""
    lines = [line for line in daemon.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    return [entry for entry in map(json.loads, lines) if entry["event"] == event]


def ended(daemon: Daemon, *signals: signal.Signals) -> int:
    """Send these signals; the exit code."""
    assert daemon._process is not None
    for number in signals:
        daemon._process.send_signal(number)
        time.sleep(0.3)  # or the system makes one of two
    return daemon._process.wait(SECONDS)


def command(daemon: Daemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`broker` with these arguments, asked of this daemon."""
    words = [sys.executable, "-m", "broker", *arguments, "--socket", str(daemon.directory / "admin.sock")]
    return subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)


def probe(daemon: Daemon, path: str) -> tuple[int, str]:
    """Status and text of a health check."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{daemon.observe_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def refuses(daemon: Daemon) -> bool:
    """Whether nobody listens at its port any more."""
    try:
        socket.create_connection(("127.0.0.1", daemon.port)).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_the_exit_code_says_that_nothing_was_left(net: Topology, number: signal.Signals) -> None:
    gateway = add_gateway(net, dead_hop())
    gateway.start()

    assert 0 == ended(gateway, number)
    assert [number.name] == [entry["reason"] for entry in events(gateway, "instance draining")]
    assert 1 == len(events(gateway, "instance drained"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.promise("A stop takes long")
def test_second_signal_ends_it_at_once(net: Topology, number: signal.Signals, code: int) -> None:
    gateway = add_gateway(net, dead_hop(), timeout="60s")
    gateway.start()
    with holding(gateway, 10):
        begun_at = time.monotonic()

        assert code == ended(gateway, number, number)

        assert time.monotonic() - begun_at < 4.0  # well before the five seconds for which dead next hops are waited for
        assert [] == events(gateway, "instance stopped")


@pytest.mark.promise("A stop takes long")
def test_readiness_fails_first_and_health_is_told_until_the_end(net: Topology) -> None:
    gateway = add_gateway(net, dead_hop(), announce="2s", timeout="6s")
    gateway.start()
    with holding(gateway, 10):
        assert (200, "ok\n") == probe(gateway, "/readyz")
        assert gateway._process is not None
        gateway._process.send_signal(signal.SIGTERM)
        wait_for(lambda: probe(gateway, "/readyz")[0] == 503, seconds=SECONDS, what="not ready")

        announced = gateway.status()["draining"]
        assert ("announced", "SIGTERM") == (announced["stage"], announced["reason"])
        socket.create_connection(("127.0.0.1", gateway.port)).close()  # others are served as before
        assert "[-] not stopping: draining: announced" in probe(gateway, "/readyz?verbose")[1]
        wait_for(lambda: gateway.status()["draining"]["stage"] == "leaving", seconds=SECONDS, what="leaving")
        wait_for(lambda: refuses(gateway), seconds=SECONDS, what="closed ports")
        wait_for(lambda: gateway.status()["draining"]["held"] == 10, seconds=SECONDS, what="what is held")
        assert (200, "ok\n") == probe(gateway, "/livez")
        assert "[-] not stopping: draining: 10 held" in probe(gateway, "/readyz?verbose")[1]

        assert 7 == gateway._process.wait(SECONDS)


def test_command_drains_and_follows_until_the_instance_has_gone(net: Topology) -> None:
    gateway = add_gateway(net, dead_hop())
    gateway.start()

    result = command(gateway, "drain")

    assert gateway._process is not None
    assert (0, 0) == (result.returncode, gateway._process.poll())
    assert "drained" == result.stderr.splitlines()[-1]
    assert 4 == command(gateway, "drain").returncode

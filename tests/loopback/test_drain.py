"""How daemons leave: on a signal, on command, or when their application is done with them; and what they tell of it."""

import contextlib
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from bench.generator import hello
from examples.demo.topology import Daemon, Topology, free_port, wait_for
from tests.support.command import run
from tests.support.loopback import message, route
from tests.support.mirrored import lines

SECONDS = 60.0
DRAIN = "2s"  # the bound of the drains that do not come to an end by themselves


def add_gateway(net: Topology, **drain: str) -> Daemon:
    """A gateway with one route, to where nobody answers; started."""
    gateway = net.add("gateway", forwarding=True, settings={"drain": {"timeout": DRAIN} | drain})
    net.script("gateway", "msdb", route("r", "//far", f"tcp://127.0.0.1:{free_port()}"))
    gateway.start()
    return gateway


@contextlib.contextmanager
def holding(gateway: Daemon, count: int) -> Iterator[None]:
    """A neighbour that has sent so many frames, which the gateway holds; it does not know of moving away."""
    with socket.create_connection(("127.0.0.1", gateway.port)) as sock:
        sock.sendall(hello() + b"".join(message("//far", number) for number in range(count)))
        wait_for(lambda: gateway.status()["forwarding"]["held"] == count, seconds=SECONDS, what="all held")
        yield


def ended(daemon: Daemon, *signals: signal.Signals) -> int:
    """Send these signals; the exit code."""
    assert daemon._process is not None
    for number in signals:
        daemon._process.send_signal(number)
        time.sleep(0.3)  # or the system makes one of two
    return daemon._process.wait(SECONDS)


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
    gateway = add_gateway(net)

    assert 0 == ended(gateway, number)
    assert [number.name] == [entry["reason"] for entry in lines(gateway, "instance draining")]
    assert 1 == len(lines(gateway, "instance drained"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.promise("A stop takes long")
def test_second_signal_ends_it_at_once(net: Topology, number: signal.Signals, code: int) -> None:
    gateway = add_gateway(net, timeout="60s")
    with holding(gateway, 10):
        begun_at = time.monotonic()

        assert code == ended(gateway, number, number)

        assert time.monotonic() - begun_at < 4.0  # well before the five seconds for which dead next hops are waited for
        assert [] == lines(gateway, "instance stopped")


@pytest.mark.promise("A stop takes long")
def test_readiness_fails_first_and_health_is_told_until_the_end(net: Topology) -> None:
    gateway = add_gateway(net, announce="2s", timeout="6s")
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
    gateway = add_gateway(net)

    result = run("drain", "--socket", gateway.directory / "admin.sock")

    assert gateway._process is not None
    assert (0, 0) == (result.exit_code, gateway._process.wait(SECONDS))
    assert "drained" == result.stderr.splitlines()[-1]
    assert 4 == run("drain", "--socket", gateway.directory / "admin.sock").exit_code

"""
What stands between the load generator's two ends: a gateway, or something that only moves bytes.

Every hop is a process of its own that listens on `port` and sends on to `ports` behind it; nothing else about it
matters to the measurement.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.bench.instance import Instance, free_port, started, wait_for
from broker.bench.tied import tied
from broker.errors import BrokerError

LISTEN_SECONDS = 10.0
_LISTENING = "0A"  # in /proc/net/tcp
RELAY = "byte relay, uvloop"


class FramesLostError(BrokerError):
    """A gateway dropped what it had to forward: the figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Hop:
    """
    Something under measurement.

    Shape: `pids` of all its processes; `ports` behind it on 127.0.0.1; `is_greeting` when it speaks the protocol;
    `daemon` when it is a gateway.
    """

    name: str
    pids: tuple[int, ...]
    port: int
    ports: tuple[int, ...]
    is_greeting: bool = False
    daemon: Instance | None = None

    def check(self) -> None:
        """
        Ask a gateway whether everything went on.

        Raises:
            FramesLostError: something was dropped, or is held still.
        """
        if self.daemon is None:
            return
        status = self.daemon.status()["forwarding"]
        if status["dropped"] or status["held"]:
            raise FramesLostError(f"{self.name}: {status['held']} frames held, dropped: {status['dropped']}")


@contextmanager
def relay() -> Iterator[Hop]:
    """The relay in this package, which reads nothing."""
    port, to = free_port(), free_port()
    command = [sys.executable, "-m", "broker.bench.relay", str(port), str(to)]
    with running(RELAY, command, port, to) as hop:
        yield hop


@contextmanager
def gateway(
    directory: Path,
    name: str,
    services: Sequence[str],
    *,
    next_hops: int,
    environ: Mapping[str, str],
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> Iterator[Hop]:
    """A real daemon with a route to each service, which lead to so many next hops in turn."""
    ports = tuple(free_port() for _ in range(next_hops))
    crowd = {"connections": 0, "connections_per_peer": 0}  # all of them come from one address
    daemon = Instance(directory / "gateway", "gateway", forwarding=True, settings={"limits": crowd, **(settings or {})})
    daemon.environ.update(environ)
    daemon.script("msdb", route_script(services, ports))
    with started(daemon):
        yield Hop(name, (daemon.pid,), daemon.port, ports, is_greeting=True, daemon=daemon)


def route_script(services: Sequence[str], ports: Sequence[int]) -> str:
    """A route to each service, over the ports in turn."""
    return "".join(
        f"CREATE ROUTE [r{number}] WITH SERVICE_NAME = '{service}',"
        f" ADDRESS = 'tcp://127.0.0.1:{ports[number % len(ports)]}';\n"
        for number, service in enumerate(services)
    )


@contextmanager
def running(name: str, command: Sequence[str], port: int, to: int) -> Iterator[Hop]:
    """
    A program that listens on a port, as a child process; what it connects to may be there only later.

    Raises:
        TimedOutError: it does not listen.
    """
    process = subprocess.Popen(  # noqa: S603 - our own program, or one found on PATH
        [*tied(), *command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: _is_listening(port), seconds=LISTEN_SECONDS, what=f"{name} listens")
        yield Hop(name, (process.pid,), port, (to,))
    finally:
        process.kill()
        process.wait()


def _is_listening(port: int) -> bool:
    rows = (line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines())
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTENING for row in rows)

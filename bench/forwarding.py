"""
What a forwarded message costs the gateway: CPU time of a real daemon, frames over loopback, one worker.

The gateway has one core for itself, sender and receiver share the other. Beside it, in the same run, a byte relay on
uvloop moves the same bytes and reads nothing: the ratio to it is the figure that survives a change of machine.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
from load import FRAMES, Receiver, Sender, frames

from broker.demo.topology import Topology, free_port, wait_for

PAYLOAD = 256
ROUNDS = 12  # times FRAMES messages in one measurement


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def pin(pid: int, core: int) -> None:
    """Keep a process on one core, where there are two."""
    cores = sorted(os.sched_getaffinity(0)) if pid == 0 else list(range(os.cpu_count() or 1))
    if len(cores) > 1:
        os.sched_setaffinity(pid, {cores[core % len(cores)]})


def measure(pid: int, sender: Sender, receiver: Receiver, data: bytes) -> float:
    """CPU microseconds of process `pid` for each message."""
    sender.send(data, rounds=1)
    expected = receiver.received
    wait_for(lambda: _settled(receiver), seconds=30, what="warm-up received")
    before, expected = cpu_seconds(pid), receiver.received + ROUNDS * len(data)
    sender.send(data, rounds=ROUNDS)
    wait_for(lambda: receiver.received >= expected, seconds=120, what="all frames received")
    return (cpu_seconds(pid) - before) / (ROUNDS * FRAMES) * 1e6


def _settled(receiver: Receiver) -> bool:
    before = receiver.received
    time.sleep(0.1)
    return receiver.received == before


class Hop:
    """Something under measurement: a process that moves what `sender` writes to `receiver`."""

    def __init__(self, pid: int, port: int, receiver: Receiver, data: bytes, *, speaks: bool) -> None:
        self.pid = pid
        self.receiver = receiver
        self.data = data
        self.sender = Sender(port, speaks=speaks)
        self.values: list[float] = []
        pin(pid, 0)

    def measure(self) -> None:
        """One more value: CPU microseconds of the process for each message."""
        self.values.append(measure(self.pid, self.sender, self.receiver, self.data))

    def close(self) -> None:
        """Close both ends."""
        self.sender.close()
        self.receiver.stop()


def gateway(stack: ExitStack, net: Topology, name: str, destinations: int, next_hops: int) -> Hop:
    """A gateway with so many routes by name, which lead to so many next hops in turn."""
    services = [f"//bench/service-{number:05d}" for number in range(destinations)]
    ports = [free_port() for _ in range(next_hops)]
    daemon = net.add(name, forwarding=True)
    routes = [
        f"CREATE ROUTE [r{number}] WITH SERVICE_NAME = '{service}',"
        f" ADDRESS = 'tcp://127.0.0.1:{ports[number % next_hops]}';"
        for number, service in enumerate(services)
    ]
    net.script(name, "msdb", "\n".join(routes))
    receiver = Receiver(ports)
    daemon.start()
    hop = Hop(daemon.pid, daemon.port, receiver, frames(services, PAYLOAD), speaks=True)
    stack.callback(hop.close)
    return hop


def relay(stack: ExitStack) -> Hop:
    """The same bytes through a relay that reads nothing."""
    listen, to = free_port(), free_port()
    receiver = Receiver([to], speaks=False)
    script = str(Path(__file__).with_name("relay.py"))
    process = subprocess.Popen([sys.executable, script, str(listen), str(to)])
    stack.callback(process.wait)
    stack.callback(process.kill)
    wait_for(lambda: _listens(listen), seconds=10, what="relay listens")
    hop = Hop(process.pid, listen, receiver, frames(["//bench/service-00000"], PAYLOAD), speaks=False)
    stack.callback(hop.close)
    return hop


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def run(repeats: int = 7) -> dict[str, float]:
    """Medians in CPU microseconds a message; the hops take turns, so that all see the same weather."""
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        pin(0, 1)
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        net = stack.enter_context(Topology(Path(directory)))
        hops = {
            "byte relay, uvloop": relay(stack),
            "1 destination": gateway(stack, net, "one", 1, 1),
            "1,000 destinations, 4 next hops": gateway(stack, net, "many", 1000, 4),
        }
        for _ in range(repeats):
            for hop in hops.values():
                hop.measure()
        for daemon in net.daemons.values():
            status = daemon.status()["forwarding"]
            assert not status["dropped"], status
        return {name: statistics.median(hop.values) for name, hop in hops.items()}

"""
What a forwarded message costs the gateway: CPU time of a real daemon, frames over loopback, one worker.

The gateway has one core for itself, sender and receiver share the other. Beside it, in the same run, a byte relay on
uvloop moves the same bytes and reads nothing: the ratio to it is the figure that survives a change of machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
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


def gateway(destinations: int, next_hops: int, repeats: int) -> list[float]:
    """CPU microseconds a message of the gateway, one value a repeat."""
    services = [f"//bench/service-{number:05d}" for number in range(destinations)]
    data = frames(services, PAYLOAD)
    ports = [free_port() for _ in range(next_hops)]
    with tempfile.TemporaryDirectory() as directory, Topology(Path(directory)) as net:
        hop = net.add("gateway", forwarding=True)
        routes = [
            f"CREATE ROUTE [r{number}] WITH SERVICE_NAME = '{service}',"
            f" ADDRESS = 'tcp://127.0.0.1:{ports[number % next_hops]}';"
            for number, service in enumerate(services)
        ]
        net.script("gateway", "msdb", "\n".join(routes))
        receiver = Receiver(ports)
        net.start()
        pin(hop.pid, 0)
        sender = Sender(hop.port)
        values = [measure(hop.pid, sender, receiver, data) for _ in range(repeats)]
        status = hop.status()["forwarding"]
        assert not status["dropped"], status
        sender.close()
        receiver.stop()
    return values


def relay(repeats: int) -> list[float]:
    """The same bytes through a relay that reads nothing."""
    data = frames(["//bench/service-00000"], PAYLOAD)
    listen, to = free_port(), free_port()
    receiver = Receiver([to], speaks=False)
    script = str(Path(__file__).with_name("relay.py"))
    process = subprocess.Popen([sys.executable, script, str(listen), str(to)])
    try:
        pin(process.pid, 0)
        sender = wait_for(lambda: _connect(listen), seconds=10, what="relay listens")
        return [measure(process.pid, sender, receiver, data) for _ in range(repeats)]
    finally:
        process.kill()
        process.wait()
        receiver.stop()


def _connect(port: int) -> Sender | None:
    try:
        return Sender(port, speaks=False)
    except ConnectionRefusedError:
        return None


def run(repeats: int = 5) -> dict[str, float]:
    """Medians in CPU microseconds a message."""
    pin(0, 1)
    return {
        "byte relay, uvloop": statistics.median(relay(repeats)),
        "1 destination": statistics.median(gateway(1, 1, repeats)),
        "1,000 destinations, 4 next hops": statistics.median(gateway(1000, 4, repeats)),
    }

"""
What a way between two hosts carries, whole and impaired: `python -m tests.chaos.network.figures`.

Small messages are answered one by one, 32 under way; bulk is what one connection takes. The CPU time is that of the
switch process. Neither says anything about the broker: it has to be more than a fault run asks of its network.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chaos.network.host import Host
from tests.chaos.network.impairment import WHOLE, Impairment
from tests.chaos.network.namespaces import NamespaceNetwork

WAYS = {
    "whole": WHOLE,
    "relayed": Impairment(mtu=65535),
    "relayed, 1 ms delay": Impairment(delay=0.001),
    "relayed, 1 % loss": Impairment(loss=0.01),
}
SECONDS = 3
MESSAGE = 300  # bytes
TICKS = os.sysconf("SC_CLK_TCK")

SERVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], 4022))
print(flush=True)  # noqa: T201 - a table for people
end, _ = listener.accept()
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := end.recv(65536):
    if sys.argv[2] == "messages":
        end.sendall(data)
"""
CLIENT = """
import socket, sys, time
end = socket.create_connection((sys.argv[1], 4022))
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
size, seconds, done, came = int(sys.argv[3]), int(sys.argv[4]), 0, 0
until = time.monotonic() + seconds
if sys.argv[2] == "messages":
    end.sendall(bytes(32 * size))
    while time.monotonic() < until:
        came += len(end.recv(65536))
        whole, came = divmod(came, size)
        done += whole
        end.sendall(bytes(whole * size))
else:
    while time.monotonic() < until:
        done += end.send(bytes(65536))
print(done / seconds)
"""


def main() -> None:
    """Raises NetworkError: this machine allows no namespaces."""
    with tempfile.TemporaryDirectory() as directory, NamespaceNetwork(Path(directory), seed=1) as net:
        near, far = net.host("near"), net.host("far")
        print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs, {SECONDS} s each")  # noqa: T201 - a table for people
        for name, how in WAYS.items():
            net.impair(near, far, how, is_both_ways=True)
            for what, unit, scale in (("messages", "messages/s", 1), ("bulk", "MB/s", 1_000_000)):
                before = cpu_seconds(net.switch_pid)
                rate = measure(near, far, what)
                share = (cpu_seconds(net.switch_pid) - before) / SECONDS
                print(f"{name:20} {rate / scale:12,.0f} {unit:10} switch {share:4.0%} of a CPU", flush=True)  # noqa: T201 - a table for people


def measure(near: Host, far: Host, what: str) -> float:
    """Messages or bytes a second."""
    server = far.popen(
        [sys.executable, "-c", SERVER, far.address, what], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert server.stdout is not None
    server.stdout.readline()
    client = [sys.executable, "-c", CLIENT, far.address, what, str(MESSAGE), str(SECONDS)]
    told, _ = near.popen(client, stdout=subprocess.PIPE).communicate(timeout=10 * SECONDS)
    server.kill()
    server.communicate()
    return float(told)


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()

"""
A million routes: how long a script of them takes, what they cost in memory, and whether traffic notices.

A real daemon gets the same script in the three ways there are: as a script of its configuration, again at the next
start, and through `broker sql`. Time is from the start of the process (or of the command) until the routes hold; memory
is resident, beyond that of the same daemon without routes; lag is by how much the loop's tick comes too late, the worst
while the script runs and the tables are swapped.
"""

import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import psutil

from broker.errors import DaemonUnreachableError
from examples.demo.topology import Daemon, Topology, wait_for

ROUTES = 1_000_000
PATIENCE_SECONDS = 300.0
ONE = "ALTER ROUTE [route-{number:07d}] WITH ADDRESS = 'tcp://other.example:4022';"
CHANGES = 20


def script(*, are_addresses_distinct: bool = False) -> str:
    """CREATE ROUTE over and over; service names of 29 characters, route names of 13, 300 addresses or all different."""
    lines = []
    for number in range(ROUTES):
        host = f"h{number}.example.net" if are_addresses_distinct else f"gateway-{number % 300:03d}.example"
        lines.append(
            f"CREATE ROUTE [route-{number:07d}] WITH SERVICE_NAME = '//example.com/service/{number:07d}',"
            f" ADDRESS = 'tcp://{host}:4022';\n"
        )
    return "".join(lines)


class LagWatch:
    """Scrapes a daemon's own measure of its loop until it is closed; `worst` in seconds."""

    def __init__(self, daemon: Daemon) -> None:
        self.worst = 0.0
        self._url = f"http://127.0.0.1:{daemon.observe_port}/metrics"
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> float:
        """Stop; the worst lag."""
        self._done.set()
        self._thread.join()
        return self.worst

    def _run(self) -> None:
        while not self._done.wait(5.0):
            self._look()
        self._look()

    def _look(self) -> None:
        with urllib.request.urlopen(self._url, timeout=60) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("broker_event_loop_lag_seconds "):
                    self.worst = max(self.worst, float(line.split()[1]))


def start(daemon: Daemon) -> float:
    """Seconds until it serves."""

    def answers() -> bool:
        try:
            return bool(daemon.status()["ready"])
        except DaemonUnreachableError:
            assert daemon.is_running, daemon.last_words()
            return False

    started = time.monotonic()
    daemon.start(wait=False)
    wait_for(answers, seconds=PATIENCE_SECONDS, what="a daemon that serves")
    return time.monotonic() - started


def through_sql(daemon: Daemon, path: Path) -> float:
    """Seconds of `broker sql < path`."""
    command = [sys.executable, "-m", "broker", "sql", "--socket", str(daemon.directory / "admin.sock")]
    started = time.monotonic()
    with path.open() as text:
        subprocess.run(command, stdin=text, check=True, stderr=subprocess.DEVNULL)
    return time.monotonic() - started


def change_one(daemon: Daemon) -> float:
    """Milliseconds of a change of one route, request and commit included; the mean."""
    started = time.monotonic()
    for number in range(CHANGES):
        daemon.admin.sql(ONE.format(number=number))
    return (time.monotonic() - started) / CHANGES * 1000


def bytes_a_route(daemon: Daemon, before: int) -> float:
    """Of everything the process has resident."""
    return (psutil.Process(daemon.pid).memory_info().rss - before) / ROUTES


def run() -> dict[str, float]:
    """Seconds, milliseconds and bytes."""
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as directory, Topology(Path(directory)) as net:
        for name, distinct in (("few addresses", False), ("all addresses different", True)):
            text = script(are_addresses_distinct=distinct)
            declared, asked = (net.add(f"{way}-{distinct}", forwarding=True) for way in ("declared", "asked"))
            start(asked)
            before = psutil.Process(asked.pid).memory_info().rss
            path = asked.directory / "routes.txt"
            path.write_text(text)
            watch = LagWatch(asked)
            results[f"broker sql, {name}, s"] = through_sql(asked, path)
            results[f"worst lag meanwhile, {name}, ms"] = watch.close() * 1000
            results[f"one changed route, {name}, ms"] = change_one(asked)
            results[f"bytes a route after sql, {name}"] = bytes_a_route(asked, before)
            asked.stop()
            net.script(declared.name, "msdb", text)
            results[f"first start, {name}, s"] = start(declared)
            results[f"bytes a route after start, {name}"] = bytes_a_route(declared, before)
            declared.stop()
            results[f"start with nothing new, {name}, s"] = start(declared)
            declared.stop()
    return results


if __name__ == "__main__":
    for what, value in run().items():
        print(f"{what:50} {value:10.2f}")

"""
What the commands cost before they do anything: processor time of each, beside that of a Python that does nothing.

    python bench/start_up.py [REPEATS]

One daemon is started, and each command is run as a person would: its help, and where it asks a daemon, a real question.
Each round runs every command once, and an empty Python before each, so that both see the same machine. Processor time
of the process itself is what counts, for a machine that does other things as well.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from broker.cli.group import COMMANDS
from broker.demo.topology import Daemon, Topology

ROUNDS = 20
EMPTY = [sys.executable, "-c", "pass"]
# An installed program has its byte code; a checkout keeps it once it has run, unless the environment forbids.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def processor_ms(command: list[str]) -> float:
    """Processor time of one run, user and system together, in ms."""
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(command[0], command, ENVIRONMENT, file_actions=nowhere)
    used = os.wait4(pid, 0)[2]
    return (used.ru_utime + used.ru_stime) * 1000


def commands(daemon: Daemon) -> dict[str, list[str]]:
    """What is run, by name."""
    where = ["--socket", str(daemon.admin.where)]
    file = ["-d", str(daemon.directory / "orders.db")]
    real = {
        "status": ["status", *where],
        "status -o json": ["status", *where, "-o", "json"],
        "status -c FILE": ["status", "-c", str(daemon.config)],
        "sql SELECT": ["sql", *where, "SELECT name FROM sys.routes"],
        "sql SELECT -o json": ["sql", *where, "-o", "json", "SELECT name FROM sys.routes"],
        "explain": ["explain", *where, "--to", "//shop/Orders"],
        "why": ["why", *where, "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"],
        "send": ["send", *file, "--from", "//shop/Orders", "--to", "//shop/Orders", "x"],
        "receive": ["receive", *file, "--queue", "OrdersQueue"],
        "check": ["check", "-c", str(daemon.config), "--offline"],
    }
    helps = {f"{name} --help".strip(): [*name.split(), "--help"] for name in ("", *sorted(COMMANDS))}
    program = [sys.executable, "-m", "broker"]
    return {name: [*program, *words] for name, words in (helps | real).items()}


def main() -> None:
    """Measure, and print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as directory, Topology(Path(directory)) as net:
        daemon = net.add("only", databases=["orders"])
        net.script("only", "orders", "CREATE QUEUE OrdersQueue; CREATE SERVICE [//shop/Orders] ON QUEUE OrdersQueue;")
        net.start()
        asked = commands(daemon)
        used: dict[str, list[float]] = {name: [] for name in asked}
        empty: list[float] = []
        for _ in range(rounds):
            for name, command in asked.items():
                empty.append(processor_ms(EMPTY))
                used[name].append(processor_ms(command))
    nothing = statistics.median(empty)
    print(f"Python {sys.version.split()[0]} that does nothing: {nothing:.0f} ms of processor time")
    print(f"{'broker':28} {'ms':>5} {'times':>6}")
    for name, figures in sorted(used.items(), key=lambda one: -statistics.median(one[1])):
        middle = statistics.median(figures)
        print(f"{name:28} {middle:5.0f} {middle / nothing:6.1f}")


if __name__ == "__main__":
    main()

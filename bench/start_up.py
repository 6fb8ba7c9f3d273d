"""
What the commands cost before they do anything: processor time of each, beside that of a Python that does nothing.

    python -m bench.start_up [REPEATS [WORD ...]]

One daemon is started, and each command is run as a person would: its help, and a real question, small enough that what
is measured is the start; with words, only the commands that have one of them in their name. Each round runs every
command once, and an empty Python before each, so that both see the same machine; a round before the first one is not
counted, for it writes what Python compiles. A command that ends with an exit code has done less than it was asked for,
and is told. Processor time of the process itself is what counts, for a machine that does other things as well.
"""

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from broker.cli.main import COMMANDS
from examples.demo.topology import Daemon, Topology
from tests.support.histories import generate

ROUNDS = 20
EMPTY = [sys.executable, "-c", "pass"]
PROGRAM = [sys.executable, "-m", "broker"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
SETTLED = 9.0  # times that of `python -c pass`: 0.3 s where that takes 33 ms
GUID = "5b0f3c1e-5d5e-4f0b-8a55-0e9b0b9c2f11"
ROUTES = """
CREATE ROUTE Billing WITH SERVICE_NAME = '//shop/Billing', ADDRESS = 'tcp://127.0.0.1:9';
CREATE ROUTE Stock WITH SERVICE_NAME = '//shop/Stock', ADDRESS = 'tcp://127.0.0.1:9', WEIGHT = 2;
"""
GATEWAY = """
[instance]
name = "gateway"
state_dir = "."

[endpoint]
listen = ["127.0.0.1:0"]
encryption = "disabled"
message_forwarding = true

[routes]
files = ["routes.sql"]
"""
CERTIFICATE = """
certificate = "certs/gateway.pem"
private_key = "certs/gateway.key"
"""


def processor_ms(command: list[str]) -> tuple[float, int]:
    """Processor time of one run, user and system together, in ms; and its exit code."""
    nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(command[0], command, ENVIRONMENT, file_actions=nowhere)
    _, status, used = os.wait4(pid, 0)
    return (used.ru_utime + used.ru_stime) * 1000, os.waitstatus_to_exitcode(status)


def prepare(directory: Path) -> None:
    """Files that commands without a daemon work on."""
    directory.mkdir()
    (directory / "gateway.toml").write_text(GATEWAY, encoding="utf-8")
    (directory / "sealed.toml").write_text(GATEWAY.replace('"disabled"', '"required"' + CERTIFICATE), encoding="utf-8")
    (directory / "routes.sql").write_text(ROUTES, encoding="utf-8")
    generate(directory / "flows", messages=100)
    words = ["certs", "init", "--self-signed", str(directory / "certs"), "--name", "gateway"]
    subprocess.run([*PROGRAM, *words], check=True, capture_output=True)


def asked_of_a_daemon(daemon: Daemon, routes: Path) -> dict[str, list[str]]:
    """What is asked of one that runs."""
    where = ["--socket", str(daemon.admin.where)]
    return {
        "status": ["status", *where],
        "status -o json": ["status", *where, "-o", "json"],
        "status -c FILE": ["status", "-c", str(daemon.config)],
        "sql SELECT": ["sql", *where, "SELECT name FROM sys.routes"],
        "sql SELECT -o json": ["sql", *where, "-o", "json", "SELECT name FROM sys.routes"],
        "sql CREATE ROUTE": ["sql", *where, "CREATE ROUTE r WITH ADDRESS = 'LOCAL'; DROP ROUTE r"],
        "explain": ["explain", *where, "--to", "//shop/Orders"],
        "explain -c FILE": ["explain", "-c", str(daemon.config), "--to", "//shop/Orders"],
        "why (unknown)": ["why", *where, GUID],
        "top --once": ["top", *where, "--once"],
        "health live": ["health", "live", "-c", str(daemon.config)],
        "reload --dry-run": ["reload", *where, "--dry-run"],
        "drain --dry-run": ["drain", *where, "--dry-run"],
        "config show --running": ["config", "show", *where, "--running"],
        "config diff": ["config", "diff", "-c", str(daemon.config)],
        "routes plan": ["routes", "plan", *where, str(routes)],
        "dialogs census --socket": ["dialogs", "census", *where],
    }


def asked_of_files(daemon: Daemon, files: Path) -> dict[str, list[str]]:
    """What is asked of a configuration, a database or other files."""
    gateway = ["-c", str(files / "gateway.toml")]
    database = ["-d", str(daemon.directory / "orders.db")]
    return {
        "--version": ["--version"],
        "completion bash": ["completion", "bash"],
        "config show": ["config", "show", "-c", str(daemon.config)],
        "config schema": ["config", "schema"],
        "check --offline": ["check", "-c", str(daemon.config), "--offline"],
        "check --offline, a gateway": ["check", *gateway, "--offline"],
        "explain -c, nobody answers": ["explain", *gateway, "--to", "//shop/Billing", "--incoming"],
        "explain --offline": ["explain", *gateway, "--offline", "--to", "//shop/Billing", "--incoming"],
        "send": ["send", *database, "--from", "//shop/Orders", "--to", "//shop/Orders", "x"],
        "send -c": ["send", "-c", str(daemon.config), "-d", "orders", "--from", "//shop/Orders", "--to", "a", "x"],
        "receive": ["receive", *database, "--queue", "OrdersQueue"],
        "quarantine list": ["quarantine", "list", *database],
        "dialogs census": ["dialogs", "census", *database],
        "dialogs end --dry-run": ["dialogs", "end", *database, "--older-than", "7d", "--dry-run"],
        "database keep --dry-run": ["database", "keep", str(files / "copy.db"), *gateway, "--dry-run"],
        "token list": ["token", "list", *gateway],
        "certs show": ["certs", "show", str(files / "certs" / "gateway.pem")],
        "certs show -c": ["certs", "show", "-c", str(files / "sealed.toml")],
        "journal tail": ["journal", "tail", str(files / "flows")],
    }


def measure(
    commands: Mapping[str, list[str]], rounds: int
) -> tuple[dict[str, list[float]], list[float], dict[str, int]]:
    """Processor times of each command, and of an empty Python; and the exit codes of commands that have one."""
    used: dict[str, list[float]] = {name: [] for name in commands}
    empty: list[float] = []
    codes: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, words in commands.items():
            (nothing, _), (something, code) = processor_ms(EMPTY), processor_ms([*PROGRAM, *words])
            if code:
                codes[name] = code
            if number:
                empty.append(nothing)
                used[name].append(something)
    return used, empty, codes


def main() -> None:
    """Measure, and print a table."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    wanted = sys.argv[2:]
    with tempfile.TemporaryDirectory() as directory, Topology(Path(directory) / "net") as net:
        files = Path(directory) / "files"
        prepare(files)
        daemon = net.add("only", databases=["orders"])
        net.script("only", "orders", "CREATE QUEUE OrdersQueue; CREATE SERVICE [//shop/Orders] ON QUEUE OrdersQueue;")
        net.start()
        with closing(sqlite3.connect(daemon.directory / "orders.db")) as db:
            db.execute(
                "VACUUM INTO ?", (str(files / "copy.db"),)
            )  # with what the daemon has not moved out of its log yet
        helps = {f"{name} --help".strip(): [*name.split(), "--help"] for name in ("", *sorted(COMMANDS))}
        commands = helps | asked_of_a_daemon(daemon, files / "routes.sql") | asked_of_files(daemon, files)
        commands = {name: words for name, words in commands.items() if not wanted or any(one in name for one in wanted)}
        used, empty, codes = measure(commands, rounds)
    nothing = statistics.median(empty)
    load = os.getloadavg()[0]
    print(f"Python {sys.version.split()[0]} that does nothing: {nothing:.0f} ms of processor time, load {load:.1f}")
    print(f"{'broker':28} {'ms':>5} {'times':>6}")
    for name, figures in sorted(used.items(), key=lambda one: -statistics.median(one[1])):
        middle = statistics.median(figures)
        above = "  above" if middle > SETTLED * nothing else ""
        ended = f"  ended with {codes[name]}" if name in codes else ""
        print(f"{name:28} {middle:5.0f} {middle / nothing:6.1f}{above}{ended}")


if __name__ == "__main__":
    main()

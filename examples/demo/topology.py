"""
Several instances on loopback, each a separate process.

    with Topology(directory) as net:
        gateway = net.add("gateway", forwarding=True)
        target = net.add("target", databases=["billing"])
        net.script("target", "billing", "CREATE QUEUE ...")
        net.start()

An instance can be started, stopped, killed, frozen and inspected at any time. The demo, the tests and the benchmarks
of the repository use it.
"""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from broker.admin.client import AdminClient
from broker.config.toml import dotted, render_value
from broker.errors import BrokerError, DaemonUnreachableError

PORTS = (20_000, 32_000)  # below the range from which the system takes the ports of outgoing connections
BLOCK = 240  # ports of one process: more than its instances have at a time
READY_SECONDS = 60.0  # a busy machine takes half of it for seven of them
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02
PATIENCE_SECONDS = 1.0  # at the end of a topology, for drains that have no reader


class TimedOutError(BrokerError):
    """A condition did not come true in time."""


class Process(Protocol):
    """What is used of a `subprocess.Popen`."""

    @property
    def pid(self) -> int:
        """The number of the process."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it runs."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""


def start_process(
    arguments: Sequence[str], log: Path, environ: Mapping[str, str], prefix: Sequence[str] = ()
) -> Process:
    """Start `broker ARGUMENTS` as a child, with words before its command; its output is appended to the log."""
    command = [*prefix, sys.executable, "-m", "broker", *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ)  # noqa: S603


class Daemon:
    """
    One instance, started as a child process.

    Args:
        directory: For its configuration, its files and its log; made when it is missing.
        name: The name of the instance.
        forwarding: Whether it is a gateway.
        databases: Names of the databases it hosts.
        settings: Further sections of its configuration.

    Attributes:
        address: `tcp://127.0.0.1:port`.
        page: The URL of its status page, "" without `admin.listen`.
        environ: Added to the environment of the process.
        prefix: Words before its command.
        starter: Starts daemons without an `environ` and a `prefix`.
    """

    starter: Callable[[Sequence[str], Path, Mapping[str, str]], Process] = staticmethod(start_process)

    def __init__(
        self,
        directory: Path,
        name: str,
        *,
        forwarding: bool = False,
        databases: Sequence[str] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.observe_port = free_port()
        self.log = directory / "log"
        listen = (settings or {}).get("admin", {}).get("listen", "")
        self.page = f"http://{listen}/" if listen else ""
        self.environ: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()
        self._process: Process | None = None
        sections: dict[str, dict[str, Any]] = {
            "instance": {"name": name, "state_dir": "."},
            "endpoint": {"listen": [f"127.0.0.1:{self.port}"], "message_forwarding": forwarding},
            "observe": {"listen": f"127.0.0.1:{self.observe_port}", "log_format": "json"},
            "routes": {"files": ["msdb*.sql"]},
        }
        for database in databases:
            sections[f"databases.{database}"] = {"path": f"{database}.db", "scripts": [f"{database}*.sql"]}
        for section, values in (settings or {}).items():
            sections.setdefault(section, {}).update(values)
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "broker.toml"
        self.config.write_text(render_sections(sections), encoding="utf-8")
        for database in ("msdb", *databases):
            self.script(database, "")

    def script(self, database: str, text: str) -> None:
        """Set the script that it runs in one of its databases, or in msdb, at every start."""
        (self.directory / f"{database}.sql").write_text(text, encoding="utf-8")

    @property
    def admin(self) -> AdminClient:
        """Its admin API."""
        return AdminClient(self.directory / "admin.sock")

    @property
    def pid(self) -> int:
        """Its process id; only while it runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with `wait`, return when it serves."""
        command = ["serve", "-c", str(self.config)]
        if self.environ or self.prefix:
            self._process = start_process(command, self.log, os.environ | self.environ, self.prefix)
        else:
            self._process = self.starter(command, self.log, os.environ)
        if wait:
            self.wait_ready()

    def wait_ready(self, seconds: float | None = None) -> None:
        """Wait until it serves, READY_SECONDS at most; raises TimedOutError with the end of its log if it does not."""

        def answers() -> bool:
            if not self.is_running:
                raise TimedOutError(f"{self.name} did not start")
            try:
                return bool(self.status()["ready"])
            except DaemonUnreachableError:
                return False

        try:
            wait_for(answers, seconds=seconds or READY_SECONDS, what=f"{self.name} ready")
        except TimedOutError as error:
            raise TimedOutError(f"{error}: {self.last_words()}") from error

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL, and wait."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def status(self) -> dict[str, Any]:
        """Return the output of `broker status -o json`."""
        status: dict[str, Any] = self.admin.get("/v1/status")
        return status

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else "no log"

    def terminate(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.terminate()

    def wait(self, seconds: float) -> int:
        """Wait until it has ended; the exit code. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(seconds)

    def end(self) -> None:
        """Wait for one that was told to stop, and kill it when it does not listen."""
        try:
            self.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def freeze(self) -> None:
        """SIGSTOP: alive, and deaf."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def query(self, statement: str, database: str | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT over the system views."""
        answer = self.admin.sql(statement, database)
        return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]

    def connect(self, database: str) -> sqlite3.Connection:
        """The application's own connection to one of its databases."""
        return sqlite3.connect(self.directory / f"{database}.db")


class Topology:
    """Daemons that belong together. Shape: `daemons` by name, in the order in which they were added."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.daemons: dict[str, Daemon] = {}

    def add(
        self,
        name: str,
        *,
        forwarding: bool = False,
        databases: Sequence[str] = (),
        broker_instances: Mapping[str, str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Daemon:
        """
        One more instance, not started yet; its scripts are written by `script`.

        Args:
            name: Its name and its directory's.
            forwarding: Whether it is a gateway.
            databases: The databases it hosts.
            broker_instances: Fixed identities of some of them.
            settings: Further sections of its configuration.
        """
        sections = {section: dict(values) for section, values in (settings or {}).items()}
        for database in databases:
            if broker_instances and database in broker_instances:
                identity = {"broker_instance": broker_instances[database]}
                sections[f"databases.{database}"] = identity | sections.get(f"databases.{database}", {})
        daemon = Daemon(self.directory / name, name, forwarding=forwarding, databases=databases, settings=sections)
        self.daemons[name] = daemon
        return daemon

    def script(self, name: str, database: str, text: str) -> None:
        """What an instance runs in one of its databases, or in msdb, at every start."""
        self.daemons[name].script(database, text)

    def start(self) -> None:
        """Start all of them at once, and wait until they serve."""
        for daemon in self.daemons.values():
            daemon.start(wait=False)
        for daemon in self.daemons.values():
            daemon.wait_ready()

    def stop(self, *, patience: float = STOP_SECONDS) -> None:
        """Stop all that run at once; after `patience` seconds a second SIGTERM ends drains, SIGKILL who is deaf."""
        running = [daemon for daemon in self.daemons.values() if daemon.is_running]
        for daemon in running:
            daemon.thaw()
            daemon.terminate()
        for daemon in running:
            try:
                daemon.wait(patience)
            except subprocess.TimeoutExpired:
                daemon.terminate()
                daemon.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(patience=PATIENCE_SECONDS)


def render_sections(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A configuration file; the name of a section is its dotted path, as TOML writes it."""
    tables = (
        [f"[{section}]", *(f"{dotted((key,))} = {render_value(value)}" for key, value in values.items()), ""]
        for section, values in sections.items()
    )
    return "\n".join(line for table in tables for line in table)


def wait_for(condition: Callable[[], Any], *, seconds: float, what: str) -> Any:
    """
    The first true value of `condition`.

    Raises:
        TimedOutError: it did not come within `seconds`; names `what` was waited for.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimedOutError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_SECONDS)


def free_port() -> int:
    """
    Return a port on 127.0.0.1 that is free, and that no other process on this machine returns.

    Each process has a block of ports, which repeats when all of it was returned. The first port of the block stays
    bound as long as the process runs, so the system gives the block to one process only.

    Raises:
        TimedOutError: other processes have all blocks.
    """
    _, ports = _own_block()
    for port in ports:
        with suppress(OSError):
            _bound(port).close()
            break
    return port


@cache
def _own_block() -> tuple[socket.socket, Iterator[int]]:
    for first in range(*PORTS, BLOCK):
        with suppress(OSError):
            return _bound(first), cycle(range(first + 1, first + BLOCK))
    raise TimedOutError(f"no ports are left in {PORTS[0]} .. {PORTS[1]}: end other tests and benchmarks")


os.register_at_fork(after_in_child=_own_block.cache_clear)


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.bind(("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    return sock

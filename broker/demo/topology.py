"""
Any topology of real daemons on loopback, each a process of its own, from a few lines.

    with Topology(directory) as net:
        gateway = net.add("gateway", forwarding=True)
        target = net.add("target", databases=["billing"])
        net.script("target", "billing", "CREATE QUEUE ...")
        net.start()

An instance keeps its files in a directory of its own, listens on a port that was free a moment ago, and can be
started, stopped, killed, frozen and looked into at any time. `broker demo`, the loopback tests and the benchmarks use
the same thing.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from broker.admin.client import AdminClient
from broker.errors import BrokerError, DaemonUnreachableError

PORTS = (20_000, 32_000)  # below the range from which the system takes the ports of outgoing connections
READY_SECONDS = 60.0  # a busy machine takes half of it for seven of them
STOP_SECONDS = 20.0
PATIENCE_SECONDS = 1.0  # at the end of a topology, whose drains nobody waits for
POLL_SECONDS = 0.02

_any = random.SystemRandom()  # not the shared one: two processes that seed it alike, as tests do, took the same ports
_given_ports: set[int] = set()  # of daemons that may not have bound theirs yet


class TimedOutError(BrokerError):
    """A condition did not come true in time."""


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


class Process(Protocol):
    """What is used of a `subprocess.Popen`, as which it behaves."""

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
    """Start `broker ARGUMENTS` as a child, with words before its command; its output goes behind what the log has."""
    command = [*prefix, sys.executable, "-m", "broker", *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ
        )


class Daemon:
    """
    One instance as a child process.

    Shape: `address` is `tcp://127.0.0.1:port`; `directory` holds its configuration, its files and `log`; `page` the URL
    of its status page, "" without `admin.listen`; `starter` starts those without an environment of their own.
    """

    starter: Callable[[Sequence[str], Path, Mapping[str, str]], Process] = staticmethod(start_process)

    def __init__(self, directory: Path, name: str, sections: Mapping[str, Mapping[str, Any]]) -> None:
        self.name = name
        self.directory = directory
        self.port = free_port()
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.observe_port = free_port()
        self.log = directory / "log"
        self.environ: dict[str, str] = {}
        self.prefix: tuple[str, ...] = ()  # words before its command
        self._process: Process | None = None
        base: dict[str, dict[str, Any]] = {
            "instance": {"name": name, "state_dir": "."},
            "endpoint": {"listen": [f"127.0.0.1:{self.port}"]},
            "observe": {"listen": f"127.0.0.1:{self.observe_port}", "log_format": "json"},
        }
        for section, values in sections.items():
            base.setdefault(section, {}).update(values)
        listen = base.get("admin", {}).get("listen", "")
        self.page = f"http://{listen}/" if listen else ""
        directory.mkdir(parents=True, exist_ok=True)
        self.config = directory / "broker.toml"
        self.config.write_text(_toml(base), encoding="utf-8")

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
        arguments, environ = ["serve", "-c", str(self.config)], os.environ | self.environ
        if self.environ or self.prefix:
            self._process = start_process(arguments, self.log, environ, self.prefix)
        else:
            self._process = self.starter(arguments, self.log, environ)
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until it serves; raises TimedOutError with the end of its log when it does not."""

        def answers() -> bool:
            if not self.is_running:
                raise TimedOutError(f"{self.name} did not start")
            try:
                return bool(self.status()["ready"])
            except DaemonUnreachableError:
                return False

        try:
            wait_for(answers, seconds=READY_SECONDS, what=f"{self.name} ready")
        except TimedOutError as error:
            raise TimedOutError(f"{error}: {self.last_words()}") from error

    def terminate(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        self._process.terminate()

    def wait(self, seconds: float) -> int:
        """Wait until it has ended; the exit code. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        return self._process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        self.terminate()
        return self.wait(STOP_SECONDS)

    def end(self) -> None:
        """Wait for one that was told to stop, and kill it when it does not listen."""
        try:
            self.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL: no chance to say goodbye."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP: alive, and deaf."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def status(self) -> dict[str, Any]:
        """What `broker status -o json` tells."""
        status: dict[str, Any] = self.admin.get("/v1/status")
        return status

    def query(self, statement: str, database: str | None = None) -> list[dict[str, Any]]:
        """Rows of a SELECT over the system views."""
        answer = self.admin.sql(statement, database)
        return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]

    def connect(self, database: str) -> sqlite3.Connection:
        """The application's own connection to one of its databases."""
        return sqlite3.connect(self.directory / f"{database}.db")

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else "no log"


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
        sections: dict[str, dict[str, Any]] = {
            "endpoint": {"message_forwarding": forwarding},
            "routes": {"files": ["msdb*.sql"]},
        }
        for database in databases:
            sections[f"databases.{database}"] = {"path": f"{database}.db", "scripts": [f"{database}*.sql"]}
            if broker_instances and database in broker_instances:
                sections[f"databases.{database}"]["broker_instance"] = broker_instances[database]
        for section, values in (settings or {}).items():
            sections.setdefault(section, {}).update(values)
        daemon = Daemon(self.directory / name, name, sections)
        for database in ("msdb", *databases):
            self.script(name, database, "", daemon)
        self.daemons[name] = daemon
        return daemon

    def script(self, name: str, database: str, text: str, daemon: Daemon | None = None) -> None:
        """What an instance runs in one of its databases, or in msdb, at every start."""
        daemon = daemon or self.daemons[name]
        (daemon.directory / f"{database}.sql").write_text(text, encoding="utf-8")

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


def free_port() -> int:
    """A port on 127.0.0.1 that nobody listens on now, and that was not given out by this process before."""
    while True:
        port = _any.randrange(*PORTS)
        if port in _given_ports:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given_ports.add(port)
        return port


def _toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """TOML of plain sections: strings, numbers, bools and lists look as in JSON without its escapes of non-ASCII."""
    return "\n".join(
        f"[{section}]\n"
        + "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
        for section, values in sections.items()
    )

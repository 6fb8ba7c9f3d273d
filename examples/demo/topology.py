"""
Several instances on loopback, each a process of its own.

    with Topology(directory) as net:
        gateway = net.add("gateway", forwarding=True)
        target = net.add("target", databases=["billing"])
        net.script("target", "billing", "CREATE QUEUE ...")
        net.start()

An instance can be started, stopped, killed, frozen and inspected at any time. The demo, the tests and the benchmarks
of the repository use it.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broker.bench.instance import STOP_SECONDS, Instance, Process, TimedOutError, free_port, start_process, wait_for

__all__ = ["Daemon", "Process", "TimedOutError", "Topology", "free_port", "start_process", "wait_for"]

PATIENCE_SECONDS = 1.0  # at the end of a topology, whose drains nobody waits for


class Daemon(Instance):
    """
    One instance of a topology.

    Attributes:
        page: The URL of its status page, "" without `admin.listen`.
        starter: Starts those without an environment of their own.
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
        super().__init__(directory, name, forwarding=forwarding, databases=databases, settings=settings)
        self.prefix: tuple[str, ...] = ()  # words before its command
        listen = (settings or {}).get("admin", {}).get("listen", "")
        self.page = f"http://{listen}/" if listen else ""

    def _started(self, arguments: Sequence[str], environ: Mapping[str, str]) -> Process:
        if self.environ or self.prefix:
            return start_process(arguments, self.log, environ, self.prefix)
        return self.starter(arguments, self.log, environ)

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

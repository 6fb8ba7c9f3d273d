"""Instances to measure: each a separate `broker serve`, with its files in a directory and ports on 127.0.0.1."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

from broker.admin.client import AdminClient
from broker.bench.generator import tied
from broker.config.toml import render_sections
from broker.errors import BrokerError, DaemonUnreachableError

PORTS = (20_000, 32_000)  # below the range from which the system takes the ports of outgoing connections
BLOCK = 240  # ports of one process: more than its instances have at a time
READY_SECONDS = 60.0  # a busy machine takes half of it for seven of them
STOP_SECONDS = 20.0
POLL_SECONDS = 0.02


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


class Instance:
    """
    One instance, started as a child process that ends with this one.

    Args:
        directory: For its configuration, its files and its log; made when it is missing.
        name: The name of the instance.
        forwarding: Whether it is a gateway.
        databases: Names of the databases it hosts.
        settings: Further sections of its configuration.

    Attributes:
        address: `tcp://127.0.0.1:port`.
        environ: Added to the environment of the process.
    """

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
        self.environ: dict[str, str] = {}
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
        self._process = self._started(["serve", "-c", str(self.config)], os.environ | self.environ)
        if wait:
            self.wait_ready()

    def _started(self, arguments: Sequence[str], environ: Mapping[str, str]) -> Process:
        return start_process(arguments, self.log, environ, tied())

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


@contextmanager
def started(*instances: Instance) -> Iterator[None]:
    """Start all of them at once, wait until they serve; kill them at the end: their files are discarded."""
    try:
        for one in instances:
            one.start(wait=False)
        for one in instances:
            one.wait_ready()
        yield
    finally:
        for one in instances:
            if one.is_running:
                one.kill()


def start_process(
    arguments: Sequence[str], log: Path, environ: Mapping[str, str], prefix: Sequence[str] = ()
) -> Process:
    """Start `broker ARGUMENTS` as a child, with words before its command; its output is appended to the log."""
    command = [*prefix, sys.executable, "-m", "broker", *arguments]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environ)  # noqa: S603


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

"""Daemons and applications of a fault run as child processes, and how they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from broker.errors import BrokerError
from examples.demo.topology import Daemon
from tests.chaos.history import Job, Orders, answer_open_question, history_of
from tests.chaos.network.host import Host

LEAVE_SECONDS = 60.0  # until a daemon has ended: a drain takes 5, and the machine may be busy
TELL_SECONDS = 10.0  # for its last words
DRAINED = 0
LEFT_BEHIND = 7  # what could not be handed on in time; its sender has it


class BadEndError(BrokerError):
    """A process did not end as it should."""


def leave(name: str, daemon: Daemon, *, codes: Collection[int]) -> None:
    """
    Wait for the end of a daemon; one that does not end gets SIGABRT, and tells in its log where it is.

    Args:
        name: Of its host.
        daemon: Was sent SIGTERM.
        codes: Exit codes that are allowed.

    Raises:
        BadEndError: it had another exit code, or did not end within LEAVE_SECONDS; it has ended all the same.
    """
    try:
        code = daemon.wait(LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        os.kill(daemon.pid, signal.SIGABRT)
        try:
            daemon.wait(TELL_SECONDS)
        except subprocess.TimeoutExpired:
            daemon.kill()
        raise BadEndError(
            f"{name} has not ended {LEAVE_SECONDS:g} s after SIGTERM; its log tells where it is"
        ) from None
    if code not in codes:
        raise BadEndError(f"{name} has ended with exit code {code} after SIGTERM")


def bad_ends(daemons: dict[str, Daemon]) -> list[str]:
    """End these, which have nothing to do any more: a sentence for each that does not end in good order."""
    for daemon in daemons.values():
        daemon.terminate()
    found = []
    for name, daemon in daemons.items():  # a second SIGTERM would end a drain, and journals with it
        try:
            leave(name, daemon, codes=[DRAINED])
        except BadEndError as error:
            found.append(str(error))
    return found


ROOT = Path(__file__).parents[2]
STOP_SECONDS = 90.0  # longer than one waits for a locked file
GOOD_ENDS = (0, -signal.SIGTERM)  # the latter while it is still starting


class Application:
    """
    One application as a child process in its host's namespace.

    Shape: `bad_ends` sentences on how it ended when it was told to, and not in good order.
    """

    def __init__(self, host: Host, job: Job, path: Path) -> None:
        self.host = host
        self.job = job
        self._path = path
        self._process: subprocess.Popen[bytes] | None = None
        self.is_wanted = False
        self.bad_ends: list[str] = []

    @property
    def is_running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, job: Job | None = None) -> None:
        """Start it, with another job if one is given."""
        self.job = job or self.job
        self.job.write(self._path)
        module = "tests.chaos.reader" if self.job.kind == "reader" else "tests.chaos.application"
        command = [sys.executable, "-m", module, str(self._path)]
        with self._path.with_suffix(".log").open("ab") as log:
            self._process = self.host.popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.is_wanted = True

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it for good, and have every question that it leaves answered."""
        was_wanted, self.is_wanted = self.is_wanted, False
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.bad_ends.append(f"{self.job.name} has not ended {STOP_SECONDS:g} s after SIGTERM")
            self.kill()
        else:
            if was_wanted and code not in GOOD_ENDS:
                self.bad_ends.append(f"{self.job.name} has ended with exit code {code}")
        orders = Orders.read(Path(self.job.orders))
        path = history_of(Path(self.job.histories), orders.phase, self.job.name)
        answer_open_question(path, self.job.name, Path(self.job.database))

"""An application of a fault run as a child process, in the namespace of its host."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.chaos.history import answer_open_question
from tests.chaos.job import Job, Orders, history_of
from tests.chaos.network.host import Host

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

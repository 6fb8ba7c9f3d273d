"""
Daemons from a fork server, for tests that start many: see `fork_server`.

They are real processes of the same program; only their Python did not have to import it again. A daemon with an
environment of its own or with words before its command is started as a user starts it.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.01
PACKET = 1 << 20


class ForkServer:
    """One server for this process, begun when it is first asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._codes: dict[int, int] = {}

    def start(
        self, arguments: Sequence[str], log: Path, environ: Mapping[str, str], *, directory: Path | None = None
    ) -> "Forked":
        """Start `broker ARGUMENTS` in a directory, or in that of this process; output goes behind what the log has."""
        where = str(directory or Path.cwd())
        told = {"arguments": arguments, "log": str(log), "environ": dict(environ), "directory": where}
        with self._lock:
            asked = self._socket or self._begin()
            asked.setblocking(True)
            asked.send(json.dumps(told).encode())
            while "pid" not in (answer := json.loads(asked.recv(PACKET))):
                self._codes[answer["ended"]] = answer["code"]
            self._codes.pop(answer["pid"], None)  # of one that had the number before
            return Forked(self, answer["pid"])

    def code(self, pid: int) -> int | None:
        """The exit code of a daemon, negative for a signal; None while it runs."""
        with self._lock:
            assert self._socket is not None
            self._socket.setblocking(False)
            while pid not in self._codes:
                try:
                    packet = self._socket.recv(PACKET)
                except BlockingIOError:
                    return None
                assert packet, "the fork server has died"
                ended = json.loads(packet)
                self._codes[ended["ended"]] = ended["code"]
            return self._codes[pid]

    def _begin(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
            where = Path(__file__).parents[2]
            server = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=where)
        self._socket = ours
        atexit.register(self._end, server)
        return ours

    def _end(self, server: subprocess.Popen[bytes]) -> None:
        assert self._socket is not None
        self._socket.close()
        server.wait()


class Forked:
    """One daemon, with what is used of `subprocess.Popen`."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._server.code(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit code. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if timeout is not None and deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout)
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


FORK_SERVER = ForkServer()

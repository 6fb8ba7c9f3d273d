"""`broker sql` and `broker status --watch` as a person has them: real daemons, at a real terminal."""

import errno
import fcntl
import os
import re
import select
import signal
import stat
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.demo.topology import Daemon, Topology, wait_for
from tests.support.loopback import route, service

PATIENCE_SECONDS = 30.0
# What a terminal obeys: control sequences, and operating system commands.
_OBEYED = re.compile(r"\x1b\[[0-9;?>=]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][A-Z0-9]|\x1b[=>78]")
UP, TAB, CONTROL_C, CONTROL_D = "\x1b[A", "\t", "\x03", "\x04"


class Terminal:
    """One process and its terminal. Shape: `written` everything it has written so far, control sequences included."""

    def __init__(self, process: subprocess.Popen[bytes], control: int) -> None:
        self.process = process
        self.written = ""
        self._control = control
        self._seen = 0

    def type(self, text: str) -> None:
        """Press keys; a line feed is the key Enter."""
        os.write(self._control, text.replace("\n", "\r").encode())

    def expect(self, text: str) -> str:
        """
        Read until a text is shown, after what was expected before.

        Returns:
            What was written until then, without control sequences.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            shown = plain(self.written)[self._seen :]
            found = shown.find(text)
            if found >= 0:
                self._seen += found + len(text)
                return shown[: found + len(text)]
            if not self._read(deadline - time.monotonic()):
                raise AssertionError(f"{text!r} was not shown; shown was: {shown!r}")

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Read until something is so of what is written."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert self._read(deadline - time.monotonic()), "it did not come"

    def resize(self, *, columns: int, rows: int) -> None:
        """Another size, of which the process is told."""
        fcntl.ioctl(self._control, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self, seconds: float) -> bool:
        """Whether there was something more."""
        if not select.select([self._control], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self._control, 65_536)
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux tells that the other side is closed
                raise
            return False
        self.written += data.decode(errors="replace")
        return bool(data)


def plain(text: str) -> str:
    """A text without what a terminal obeys."""
    return _OBEYED.sub("", text).replace("\r", "")


@contextmanager
def terminal(
    arguments: Sequence[object], *, environ: Mapping[str, str] | None = None, columns: int = 100, rows: int = 30
) -> Iterator[Terminal]:
    """The command `broker` with these words, in a session of its own at a terminal of its own."""
    control, slave = os.openpty()
    fcntl.ioctl(control, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("BROKER_", "COLUMNS"))}
    surroundings |= {"TERM": "xterm-256color", **(environ or {})}
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_FRONT, "-m", "broker", *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=surroundings,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, control)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(control)


# The terminal is made that of the session, so that Ctrl-C is a signal.
_IN_FRONT = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

SECONDS = 30.0
LOOKS = 20  # at the state of a thread
PROMPT = "broker> "
ENDLESS = "WITH n AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM n) SELECT COUNT(*) FROM n;\n"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One with a database, a queue, a service and two routes."""
    with Topology(tmp_path_factory.mktemp("terminal")) as net:
        only = net.add("only", databases=["orders"], forwarding=True)
        own = service("//shop/Orders", queue="OrdersQueue")
        net.script("only", "orders", own + route("Far", "//shop/Far", "tcp://127.0.0.1:1"))
        net.start()
        yield only


def socket_of(daemon: Daemon) -> list[str]:
    return ["--socket", str(daemon.admin.where)]


@pytest.fixture
def history(tmp_path: Path) -> dict[str, str]:
    return {"BROKER_SQL_HISTORY": str(tmp_path / "history")}


def test_statements_are_typed_completed_answered_and_kept(daemon: Daemon, history: dict[str, str]) -> None:
    with terminal(["sql", *socket_of(daemon)], environ=history) as first:
        first.expect(PROMPT)
        first.type("SELECT na" + TAB + " FROM sys.rou" + TAB + "\n")
        first.expect("    -> ")
        first.type("WHERE name = 'Far';\n")
        answer = first.expect(PROMPT)
        first.type("SELCT;\n")
        mistake = first.expect(PROMPT)
        first.type("CREATE LOGIN a WITH PASSWORD = 'open sesame';\n")
        first.expect(PROMPT)
        first.type(CONTROL_D)
        ended = first.end()
    with terminal(["sql", *socket_of(daemon)], environ=history) as second:
        second.expect(PROMPT)
        second.type(UP + UP)
        earlier = second.expect("'Far';")
        second.type("\n")
        again = second.expect("│ Far")
        second.type("exit\n")

        assert (0, 0) == (ended, second.end())

    assert "│ Far" in answer
    assert "incorrect syntax near 'SELCT'" in mistake
    assert "^^^^^" in mistake
    assert "FROM sys.routes" in earlier
    assert again
    kept = Path(history["BROKER_SQL_HISTORY"])
    assert ["SELECT name FROM sys.routes\x01WHERE name = 'Far';", "SELCT;"] == kept.read_text("utf-8").split("\n")[:2]
    assert "sesame" not in kept.read_text("utf-8")
    assert 0o600 == stat.S_IMODE(kept.stat().st_mode)


def test_ctrl_c_cancels_the_statement_here_and_in_the_daemon(daemon: Daemon, history: dict[str, str]) -> None:
    """One after another, more than the daemon has threads for."""
    with terminal(["sql", *socket_of(daemon)], environ=history) as shell:
        shell.expect(PROMPT)
        for _ in range(8):
            shell.type(ENDLESS)
            shell.expect(ENDLESS.strip())
            wait_for(lambda: busy(daemon), seconds=SECONDS, what="the daemon works on it")
            shell.type(CONTROL_C)
            shell.expect("no longer waiting")
            shell.expect(PROMPT)
        shell.type("SELECT 'still ' + 'there';\n")
        shell.expect("still there")

    wait_for(lambda: not busy(daemon), seconds=SECONDS, what="the daemon has given it up")


def busy(daemon: Daemon) -> bool:
    """Whether one of its threads, other than that of the loop, works all the time or waits for a processor to do so."""
    tasks = Path(f"/proc/{daemon.pid}/task")
    seen = 0
    for _ in range(LOOKS):
        others = [task for task in tasks.iterdir() if task.name != str(daemon.pid)]
        states = [(task / "stat").read_text("ascii").rpartition(")")[2].split()[0] for task in others]
        seen += "R" in states
        time.sleep(0.005)
    return seen > LOOKS // 2


def test_watching_fills_the_screen_and_goes_on_when_the_daemon_is_back(daemon: Daemon) -> None:
    with terminal(["status", "--watch", "--interval", "0.5", *socket_of(daemon)], columns=80, rows=40) as screen:
        screen.expect("only ready")
        daemon.kill()
        screen.expect("NO NEWS")
        daemon.start()
        screen.wait(lambda: "NO NEWS" not in screen.written.rpartition("\x1b[H")[2])
        screen.resize(columns=40, rows=12)
        screen.expect("only ready")
        screen.type(CONTROL_C)

        assert 0 == screen.end()

    assert screen.written.endswith("\x1b[?1049l")  # the screen is left as it was

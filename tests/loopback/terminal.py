"""A command at a real terminal: a pseudo-terminal of a given size, on which is typed and read."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

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

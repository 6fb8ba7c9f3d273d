"""
Lines of the log on their way out, written by a thread of their own.

Whoever reads the log may stop: a pipe that is full, a terminal that is held, a disk that does not answer. A write waits
for as long then, and in the event loop everything else would wait with it. So the loop only puts lines into a queue
with a bound, and a thread writes them, many in one call. What finds no room is lost and counted, and how much that was
is told in the log as soon as it is taken again. A line that cannot be written, because nobody reads any more, is lost:
an instance does not stop over its log.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

LINES_MAX = 10_000
BYTES_MAX = 4 * 1024 * 1024
FLUSH_SECONDS = 1.0  # at the end of the process, for what is in the queue

OnGap = Callable[[int], None]


class LogWriter:
    """
    Args:
        stream: Where to.
        on_gap: Told in the thread, once lines are taken again, how many were lost before; it may write one.

    Shape: `dropped` lines since the start.
    """

    def __init__(self, stream: TextIO, on_gap: OnGap = lambda _: None) -> None:
        self.stream = stream
        self.dropped = 0
        self._on_gap = on_gap
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._gap = 0  # lost and not told yet
        self._is_writing = self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Hand over one line, for any thread; it never waits for the stream."""
        with self._changed:
            if self._is_closed:
                return
            if len(self._lines) >= LINES_MAX or self._bytes + len(line) > BYTES_MAX:
                self.dropped += 1
                self._gap += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything is written, for so long at most; whether it is."""
        deadline = time.monotonic() + seconds
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines and not self._is_writing, deadline - time.monotonic())

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write what is there, for so long at most, and take nothing more."""
        self.flush(seconds)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self.flush(0.0):
            self._thread.join(seconds)

    # --- in the thread ---

    def _run(self) -> None:
        while (lines := self._take()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the stream is closed
                self._put("".join([f"{line}\n" for line in lines]))
            with self._changed:
                gap, self._gap = self._gap, 0
            if gap:
                self._on_gap(gap)
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()

    def _put(self, text: str) -> None:
        """To the descriptor itself where there is one: a stream has a lock, which the end of the process would want."""
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()
            return
        data = memoryview(text.encode(errors="backslashreplace"))
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                select.select([], [descriptor], [])

    def _take(self) -> list[str] | None:
        """All that waits; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closed)
            if not self._lines:
                return None
            lines = list(self._lines)
            self._lines.clear()
            self._bytes = 0
            self._is_writing = True
            return lines

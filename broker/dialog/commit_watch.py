"""
When the writer of a database checks for commits of applications.

Every commit writes to the write-ahead log first, which the kernel reports (`WriteHint`); a moment later, once it is on
the disk, it is visible. A hint may be missing, as of a commit right before the watch is armed. So the writer checks
again a millisecond after each batch with work or a hint, then after four times as long, and so on, up to CHECK_SECONDS.
Where there are no hints, as on some file systems, up to POLL_SECONDS: a commit was found without one. While the writer
itself writes, hints only say that, and while it waits for a commit that was hinted, they are of the same one: both are
ignored. Loop-only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from broker.store.sqlite.hints import WriteHint
from broker.supervision import Timer

FIRST_SECONDS = 0.001  # until the check after a batch that had something to do, or was hinted
CHECK_SECONDS = 1.0  # between two checks of an idle writer, where there are hints
POLL_SECONDS = 0.03  # likewise, where there are none, and within RECENT_SECONDS of a hint or of work
RECENT_SECONDS = 1.0  # in which a commit that was hinted may still be waiting for the disk


class CommitWatch:
    """
    Calls `check` when applications may have committed.

    Attributes:
        is_hinted: Whether a hint has arrived; its commit may not be visible yet. Reset by `begin`.
    """

    def __init__(self, path: str, check: Callable[[], None]) -> None:
        self.is_hinted = self._was_hinted = False
        self._check = check
        self._loop = asyncio.get_running_loop()
        self._writes = WriteHint(f"{os.path.realpath(path)}-wal")
        self._pause = FIRST_SECONDS
        self._longest = POLL_SECONDS
        self._recent_until = 0.0
        self._is_deaf = False
        self._timer = Timer()
        if self._writes.descriptor is not None:
            try:
                self._loop.add_reader(self._writes.descriptor, self._on_write)
                self._longest = CHECK_SECONDS
            except NotImplementedError:  # a loop without descriptors
                self._writes.close()

    def begin(self, *, is_writing: bool) -> None:
        """A batch begins, which looks for commits; later ones are hinted, unless it writes itself or was hinted."""
        self._was_hinted, self.is_hinted, self._is_deaf = self.is_hinted, False, is_writing or self.is_hinted
        self._timer.cancel()
        if not self._is_deaf:
            self._listen()

    def end(self, *, has_found: bool, had_work: bool, longest: float) -> None:
        """
        The batch is over: check again later.

        Args:
            has_found: A dialog has something to send.
            had_work: That, or something has arrived.
            longest: Seconds until something else is due.
        """
        if has_found and self._pause == CHECK_SECONDS and not self._was_hinted:
            self._longest = POLL_SECONDS
        now = self._loop.time()
        if had_work or self._was_hinted:
            self._recent_until = now + RECENT_SECONDS
        most = self._longest if now > self._recent_until else POLL_SECONDS
        self._pause = FIRST_SECONDS if had_work or self._was_hinted else min(most, 4 * self._pause)
        if self._is_deaf:
            self._is_deaf = False
            self._listen()
        self._timer.after(min(self._pause, longest), self._check)

    def hint(self) -> None:
        """An application may have committed."""
        self.is_hinted = True
        self._check()

    def close(self) -> None:
        """Check no longer."""
        self._timer.cancel()
        if self._writes.descriptor is not None:
            self._loop.remove_reader(self._writes.descriptor)
            self._writes.close()

    def _on_write(self) -> None:
        if self._writes.clear():
            self._longest = CHECK_SECONDS
            if not self._is_deaf:
                self.hint()

    def _listen(self) -> None:
        self._writes.clear()
        self._writes.arm()

"""
The histories of one phase: all applications write there before anything is begun, and nothing comes behind the verdict.

An application reads the orders between two steps, so on a busy machine it may be in the former phase for a while. What
it received then would stand among what has been judged already, and be missing where it was sent.
"""

from __future__ import annotations

import time
from pathlib import Path

from examples.demo.topology import TimedOutError
from tests.chaos.fleet import Fleet, wait_until
from tests.chaos.history import Entry, OpenQuestionError, read_history, together
from tests.chaos.job import history_of

ENTER_SECONDS = 120.0  # twice as long as an application waits for a locked file
ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.05


def wait_entered(fleet: Fleet, phase: str) -> None:
    """
    Wait until every application writes into the histories of a phase, and into no other any more.

    Raises:
        TimedOutError: one did not within ENTER_SECONDS; names it.
    """

    def missing() -> list[str]:
        jobs = [one.job for one in fleet.applications.values() if one.is_wanted]
        return [job.name for job in jobs if not history_of(fleet.histories, phase, job.name).exists()]

    try:
        wait_until(lambda: not missing(), seconds=ENTER_SECONDS, what=f"all applications in {phase}")
    except TimedOutError as error:
        raise TimedOutError(f"{error}: {', '.join(missing())}") from None


def read_chapter(directory: Path) -> list[Entry]:
    """
    What was committed in a phase, by time, and what was sent and rolled back.

    Raises:
        OpenQuestionError: of a transaction nobody has said within ANSWER_SECONDS what became of it.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return together([read_history(path, with_undone=True) for path in sorted(directory.glob("*.history"))])
        except OpenQuestionError:  # it is between its commit and the line that tells of it
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


class Judged:
    """What has been judged: everything in it was over, so whatever comes behind is wrong."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._entries: list[Entry] = []

    def close(self, directory: Path, entries: list[Entry]) -> None:
        """These are all entries of a phase."""
        self._directory, self._entries = directory, entries

    def added(self) -> list[str]:
        """What has been added to the phase that was closed last, in sentences."""
        if self._directory is None:
            return []
        known = set(self._entries)
        late = [entry for entry in read_chapter(self._directory) if entry not in known]
        self._entries += late
        return [
            f"when all was over: {one.application}:{one.line}: {one.event.what} {one.event.number}"
            f" of dialog {one.event.conversation}"
            for one in late
        ]

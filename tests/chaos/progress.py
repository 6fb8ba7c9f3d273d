"""How far the applications of a phase are, read from their histories."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.fleet import Fleet, wait_until
from tests.chaos.history import (
    Entry,
    Event,
    Intent,
    OpenQuestionError,
    What,
    history_of,
    lines_of,
    read_history,
    together,
)

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

    what = f"all applications in {phase}"
    wait_until(lambda: not missing(), seconds=ENTER_SECONDS, what=what, why=lambda: ", ".join(missing()))


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


class Progress:
    """
    One phase.

    Shape: `dialogs` that were begun, `messages` that were sent both ways; `unfinished` dialogs whose initiator has not
    ended them; `answered_at` for each (application, service) when the newest request was sent of which the answer has
    come, monotonic seconds.
    """

    def __init__(self, directory: Path) -> None:
        self.dialogs = 0
        self.messages = 0
        self.unfinished: set[str] = set()
        self.answered_at: dict[tuple[str, str], float] = {}
        self._directory = directory
        self._offsets: Counter[Path] = Counter()  # bytes that were read
        self._open: dict[tuple[Path, int], Intent] = {}  # without an outcome
        self._services: dict[str, str] = {}
        self._sent_at: dict[tuple[str, int], float] = {}

    def read(self) -> None:
        """Read what has been written since."""
        for path in sorted(self._directory.glob("*.history")):
            with path.open("rb") as file:
                file.seek(self._offsets[path])
                data = file.read()
            self._offsets[path] += data.rfind(b"\n") + 1
            for line in lines_of(data):
                if isinstance(line, Intent):
                    self._open[path, line.number] = line
                    continue
                intent = self._open.pop((path, line.number), None)
                if intent is not None and line.is_committed:
                    for event in intent.events:
                        self._take(intent.application, intent.at, event)

    def is_answered(self, applications: Iterable[str], services: Iterable[str], since: float) -> bool:
        """Whether each of these applications has an answer of each service to what it sent since an instant."""
        services = list(services)
        return all(self.answered_at.get((one, service), 0.0) > since for one in applications for service in services)

    def _take(self, application: str, at: float, event: Event) -> None:
        what, conversation, message = event.what, event.conversation, (event.conversation, event.number)
        self.messages += what is What.SENT
        if not event.is_initiator:
            return
        if what is What.SENT:
            self._sent_at[message] = at
        elif what is What.BEGAN:
            self.dialogs += 1
            self.unfinished.add(conversation)
            self._services[conversation] = event.note.rsplit(" ", 1)[0]
        elif what in (What.ENDED, What.CLEANED):
            self.unfinished.discard(conversation)
        elif what is What.RECEIVED:
            key = application, self._services.get(conversation, "")
            self.answered_at[key] = max(self.answered_at.get(key, 0.0), self._sent_at.get(message, 0.0))

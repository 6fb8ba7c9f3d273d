"""How far the applications of a phase are, read from their histories."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.fleet import Fleet, wait_until
from tests.chaos.history import Entry, OpenQuestionError, What, history_of, read_history, together

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


@dataclass
class _Tail:
    """What was read of one history. Shape: `offset` bytes; `open` lines of intents without an outcome."""

    offset: int = 0
    open: dict[int, dict[str, Any]] = field(default_factory=dict)


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
        self._tails: dict[Path, _Tail] = defaultdict(_Tail)
        self._services: dict[str, str] = {}
        self._sent_at: dict[tuple[str, int], float] = {}

    def read(self) -> None:
        """Read what has been written since."""
        for path in sorted(self._directory.glob("*.history")):
            tail = self._tails[path]
            with path.open("rb") as file:
                file.seek(tail.offset)
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            tail.offset += len(data)
            for text in data.splitlines():
                self._line(tail, json.loads(text))

    def is_answered(self, applications: Iterable[str], services: Iterable[str], since: float) -> bool:
        """Whether each of these applications has an answer of each service to what it sent since an instant."""
        services = list(services)
        return all(self.answered_at.get((one, service), 0.0) > since for one in applications for service in services)

    def _line(self, tail: _Tail, line: dict[str, Any]) -> None:
        if line["kind"] == "intent":
            tail.open[line["number"]] = line
            return
        intent = tail.open.pop(line["number"], None)
        if intent is None or not line["is_committed"]:
            return
        for event in intent["events"]:
            self._event(intent["application"], intent["at"], event)

    def _event(self, application: str, at: float, event: dict[str, Any]) -> None:
        what, conversation = event["what"], event.get("conversation", "")
        is_initiator = event.get("is_initiator", True)
        if what == What.SENT:
            self.messages += 1
            if is_initiator:
                self._sent_at[conversation, event["number"]] = at
        if not is_initiator:
            return
        if what == What.BEGAN:
            self.dialogs += 1
            self.unfinished.add(conversation)
            self._services[conversation] = event["note"].rsplit(" ", 1)[0]
        elif what in (What.ENDED, What.CLEANED):
            self.unfinished.discard(conversation)
        elif what == What.RECEIVED:
            sent_at = self._sent_at.get((conversation, event["number"]), 0.0)
            key = application, self._services.get(conversation, "")
            self.answered_at[key] = max(self.answered_at.get(key, 0.0), sent_at)

"""
How far the applications are, read from their histories while they write them.

Only what was committed counts, as soon as its outcome stands there.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.history import What


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

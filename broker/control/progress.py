"""
How far a script is, and what it has done so far in words, both bounded whatever the size of the script.

The thread that carries out the script writes here, and anybody may read: every field is one reference, so what is read
is at worst a moment old.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from broker.ddl.statements import Statement

MESSAGES_MAX = 100  # told one by one; a script of a million statements would answer with 30 MB


class Auditing(Protocol):
    """Records what a script changes; called in the thread of the script."""

    def note(self, database: str, statement: Statement) -> None:
        """A statement was carried out; nothing is committed yet."""

    def seal(self, statements: int) -> None:
        """This many statements are about to be committed; raises when that cannot be recorded."""


class ScriptStage(StrEnum):
    """Where a script is."""

    WAITING = "waiting"  # for the script before it
    RUNNING = "running"
    FINISHING = "finishing"  # everything is carried out; the new tables are made, then all of it is committed


class ScriptProgress(Struct, eq=False):
    """
    A script under way.

    Shape: `source` as in the places of errors; `size` and `position` characters, 0 when the statements come from no
    text; `statements` carried out so far. Whoever sets `is_stopped` has the script end, and change nothing, soon;
    `seen_by` records what it changes.
    """

    source: str = "-"
    size: int = 0
    position: int = 0
    statements: int = 0
    stage: ScriptStage = ScriptStage.WAITING
    is_stopped: bool = False
    seen_by: Auditing | None = None


class ScriptMessages:
    """One message for each statement, as long as they are few; of the others their number by kind."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._more: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, name: object, verb: str) -> None:
        """A statement was carried out."""
        if len(self._first) < MESSAGES_MAX:
            self._first.append(f"{what} {name} {verb}")
        else:
            self._more[what, verb] += 1

    def lines(self) -> list[str]:
        """The messages; at most one more than `MESSAGES_MAX`."""
        if not self._more:
            return self._first
        kinds = ", ".join(f"{what} {verb} {count:,}" for (what, verb), count in self._more.items())
        return [*self._first, f"{self._more.total():,} more: {kinds}"]

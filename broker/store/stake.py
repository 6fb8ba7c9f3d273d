"""What a database holds that an operation on the whole of it may lose."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from broker.store.conversation import conversations_by_state


@dataclass(frozen=True, slots=True)
class ContentsAtRisk:
    """Shape: `conversations` by state; messages `unsent` are not acknowledged yet, `unread` wait for RECEIVE."""

    conversations: dict[str, int]
    unsent: int
    unread: int

    @property
    def count(self) -> int:
        """All conversations."""
        return sum(self.conversations.values())

    def __str__(self) -> str:
        states = ", ".join(f"{number:,} {state}" for state, number in self.conversations.items())
        inside = f" ({states})" if states else ""
        return f"{self.count:,} conversations{inside}, {self.unsent:,} messages to send, {self.unread:,} unread"


def stake_of(db: sqlite3.Connection) -> ContentsAtRisk:
    """What is in this database now."""
    states = conversations_by_state(db)
    unsent, unread = (
        db.execute(f"SELECT count(*) FROM broker_{table}").fetchone()[0]  # noqa: S608 - names right here
        for table in ("transmission", "message")
    )
    return ContentsAtRisk(states, unsent, unread)

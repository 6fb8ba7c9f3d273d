"""
What a database at work needs of the store that keeps it: the port through which another kind of store can follow.

`broker.store.sqlite_store` is the one there is. What a turn does is described by values (`broker.store.turn`,
`broker.store.sending`, `broker.store.receipt`) that say nothing of files or SQL.
"""

from __future__ import annotations

import sqlite3
from typing import Protocol

from broker.store.turn import Turn, TurnResult


class Store(Protocol):
    """
    The conversations of one database, kept through every crash.

    Shape: `broker_instance` 16 bytes, constant; `connection` on which the catalog's statements and the requests for
    routes run, in the writer thread between two turns.
    """

    broker_instance: bytes
    connection: sqlite3.Connection

    def turn_in_writer(self, turn: Turn) -> TurnResult:
        """
        Do one turn as a whole: what it returns is durable, of what fails nothing is there.

        Raises:
            StoreUnavailableError: it failed, for a reason that may pass.
        """

    def check(self) -> None:
        """See that what is committed now would be found again. Raises StoreUnavailableError."""

    def version(self) -> int:
        """A number that changes with every commit of an application; cheap, and for any thread, it waits for nobody."""

    def close(self) -> None:
        """Let go of it; nothing may be under way."""

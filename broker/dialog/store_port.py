"""
What a database at work needs of the store that keeps it: the port through which another kind of store can follow.

`broker.store.sqlite_store` is the one there is. What a turn does is described by values (`broker.store.turn`,
`broker.store.sending`, `broker.store.receipt`) that say nothing of files or SQL.
"""

from __future__ import annotations

from typing import Protocol

from broker.store.transaction import DaemonConnection
from broker.store.turn_port import WriteBatch, WriteResult


class Store(Protocol):
    """
    The conversations of one database, kept through every crash.

    Shape: `broker_instance` 16 bytes, constant.
    """

    broker_instance: bytes

    def turn_in_writer(self, turn: WriteBatch) -> WriteResult:
        """
        Do one turn as a whole: what it returns is durable, of what fails nothing is there.

        Raises:
            StoreUnavailableError: it failed, for a reason that may pass.
        """

    def lend(self) -> DaemonConnection:
        """
        What the catalog's statements and the requests for routes run on, in the writer thread or while it stands still.

        Nobody but the functions of `broker.store` and `broker.application` looks into it: everybody else hands it on.

        Raises:
            StoreUnavailableError: what would be committed now would not be found again.
        """

    def version(self) -> int:
        """A number that changes with every commit of an application; cheap, and for any thread, it waits for nobody."""

    def close(self) -> None:
        """Let go of it; nothing may be under way."""

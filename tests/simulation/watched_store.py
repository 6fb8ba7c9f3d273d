"""The store of a story: it fails now and then, and after each of its turns the ledger of the file holds."""

from __future__ import annotations

import random

from broker.errors import StoreUnavailableError
from broker.store.port import WriteBatch, WriteResult
from broker.store.sqlite.inspect import read_balance
from broker.store.sqlite.transaction import epoch
from broker.store.sqlite.write_batch import SqliteStore


class WatchedStore(SqliteStore):
    """
    Fails now and then, before, within or behind the commit; after each turn the ledger holds.

    Shape: `chance` and `failure`, the chance that a turn fails, are those of a story, which makes a class of its own.
    """

    chance: random.Random
    failure = 0.0

    def write_in_writer(self, batch: WriteBatch) -> WriteResult:
        """
        As `SqliteStore`.

        Raises:
            StoreUnavailableError: as well when it is to fail.
            AssertionError: messages are unaccounted for, or a copy that has been taken over has stored something.
        """
        how = self.chance.choice(["before", "within", "behind"]) if self.chance.random() < self.failure else ""
        if how == "before":
            raise StoreUnavailableError(str(self.path), "played: before")
        if how == "within":
            steps = iter([0] * self.chance.randrange(300))
            self.connection.set_progress_handler(lambda: 1 if self._is_over(steps) else 0, 5)
        seen = self._seen
        try:
            result = super().write_in_writer(batch)
        finally:
            self.connection.set_progress_handler(None, 0)
            if self.connection.in_transaction:  # SQLite may stop behind a BEGIN that has worked; no disk does that
                self.connection.execute("ROLLBACK")
            assert read_balance(self.connection).unaccounted == 0
        if batch.frames:
            assert self.epoch == epoch(self.connection), "frames were stored by a principal of earlier"
        if how == "behind":
            self._seen = seen  # as when a look behind the commit fails: what was found is found again
            raise StoreUnavailableError(str(self.path), "played: behind")
        return result

    def _is_over(self, steps: object) -> bool:
        if next(steps, None) is None:  # type: ignore[call-overload]
            self.connection.set_progress_handler(None, 0)
            return True
        return False

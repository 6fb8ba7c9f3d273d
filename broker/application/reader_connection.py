"""
The connection that a reader's function is given: its transaction is committed by the reader alone.

The first statement that writes begins the transaction, IMMEDIATE; the reader commits it together with the receipt of
the messages. A function that committed by itself would be given the same messages again after a crash, so it is told.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from broker.store.transaction import BUSY_SECONDS

ASYNC_BUSY_SECONDS = 1.0  # a write in a coroutine stops the loop, and with it whoever has the file, while it waits
_REFUSAL = "the reader commits when the function returns, and rolls back when it raises: leave out {what}"


class ReaderConnection(sqlite3.Connection):
    """A connection that only its reader commits (`commit_all`) and closes (`close_all`)."""

    _may_commit = True

    def commit(self) -> None:
        """Refused. Raises sqlite3.ProgrammingError."""
        raise sqlite3.ProgrammingError(_REFUSAL.format(what="commit()"))

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:  # noqa: ARG002 - the name is the library's
        """Refused: it commits first. Raises sqlite3.ProgrammingError."""
        raise sqlite3.ProgrammingError(_REFUSAL.format(what="executescript(), which commits first"))

    def close(self) -> None:
        """Refused. Raises sqlite3.ProgrammingError."""
        raise sqlite3.ProgrammingError("the connection is the reader's: leave out close()")

    def __enter__(self) -> Self:
        raise sqlite3.ProgrammingError(_REFUSAL.format(what='"with db:"'))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> Literal[False]:
        return False

    # --- for the reader ---

    def hand_out(self) -> None:
        """From now on the function has it: COMMIT as text is refused too, as "not authorized"."""
        self._may_commit = False

    def take_back(self) -> None:
        """The function has it no more; what it set on the connection is undone."""
        self._may_commit = True
        self.isolation_level = "IMMEDIATE"
        self.row_factory = None
        self.text_factory = str

    def begin(self) -> None:
        """Begin the transaction, if the function has not."""
        if not self.in_transaction:
            self.execute("BEGIN IMMEDIATE")

    def commit_all(self) -> None:
        """Commit what the function and the reader did."""
        super().commit()

    def close_all(self) -> None:
        """Close it."""
        super().close()

    def judge(self, action: int, what: str | None, *_rest: Any) -> int:
        """SQLite's authorizer: everything but a COMMIT of the function's."""
        is_commit = action == sqlite3.SQLITE_TRANSACTION and what == "COMMIT"
        return sqlite3.SQLITE_DENY if is_commit and not self._may_commit else sqlite3.SQLITE_OK


def open_connection(path: str | Path, *, is_async: bool) -> ReaderConnection:
    """
    A connection for one reader, used by one thread at a time.

    Raises:
        sqlite3.Error: there is no such file, or it cannot be opened.
    """
    db = sqlite3.connect(
        f"{Path(path).absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=ASYNC_BUSY_SECONDS if is_async else BUSY_SECONDS,
        isolation_level="IMMEDIATE",
        check_same_thread=False,
        factory=ReaderConnection,
    )
    db.set_authorizer(db.judge)
    db.execute("PRAGMA synchronous = FULL")
    return db

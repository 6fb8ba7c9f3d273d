"""
Whether the path of a database still leads to the file that is open.

A file that was renamed, deleted or replaced stays open, and SQLite goes on to commit to it: what is stored then is gone
with the process. So nothing may be acknowledged unless the path led to the open file behind the commit. The same holds
for its write-ahead log, which is as much a part of the database as the file.

Source: SQLite documentation, "How To Corrupt An SQLite Database File", sections 1.4 and 2.4.
"""

from __future__ import annotations

from pathlib import Path

from broker.errors import StoreUnavailableError

_Number = tuple[int, int]  # device and inode


class FileWatch:
    """The files of one database, as they are when this is made: while they are open."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = Path(f"{path}-wal")
        self._file_number = _number(path)
        self._log_number = _number(self._log)

    def check(self) -> None:
        """
        See that they are still there. Cost: two calls of the system.

        Raises:
            StoreUnavailableError: one is not, and what to do.
        """
        number = _number(self._path)
        if number != self._file_number:
            self._refuse("file", is_gone=number is None, remedy="rename it back, and the daemon goes on; or")
        if self._log_number is not None:  # a file system without shared memory has none
            number = _number(self._log)
            if number != self._log_number:
                self._refuse(f"write-ahead log {self._log}", is_gone=number is None, remedy="")

    def _refuse(self, what: str, *, is_gone: bool, remedy: str) -> None:
        happened = "is gone" if is_gone else "was replaced by another one"
        problem = (
            f"the {what} {happened} while it is in use, so nothing more is stored or acknowledged:"
            f" {remedy} stop the daemon and whoever else uses the database, and see docs/databases.md"
        )
        raise StoreUnavailableError(str(self._path), " ".join(problem.split()))


def _number(path: Path) -> _Number | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino

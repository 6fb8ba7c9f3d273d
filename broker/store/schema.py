"""
The tables of a database, which `schema.sql` makes, and their version.

Nothing here begins or ends a transaction: the tables are made in the caller's, all or some of them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterator

SCHEMA_VERSION = 7
OLDEST_VERSION = 1  # that can be brought up to this one
_TABLE = r"^CREATE (?:TABLE|INDEX \w+ ON) broker_(\w+)"


def schema_version(db: sqlite3.Connection) -> int:
    """The version of the schema in this file."""
    version: int = db.execute("SELECT schema_version FROM broker_database").fetchone()[0]
    return version


def has_schema(db: sqlite3.Connection) -> bool:
    """Whether a database of the broker lives in this file."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = 'broker_database'").fetchone() is not None


def make_tables(db: sqlite3.Connection, names: Collection[str] | None = None) -> None:
    """Make the tables of the broker, all or those of these names, empty; inside the caller's transaction."""
    from importlib.resources import files  # noqa: PLC0415 - a slow import, for once in the life of a file

    script = files("broker.store").joinpath("schema.sql").read_text(encoding="utf-8")
    for statement in _statements(script):
        if names is None or re.findall(_TABLE, statement, re.MULTILINE)[0] in names:
            db.execute(statement)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: `executescript` would commit the transaction around it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""

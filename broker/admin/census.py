"""The census as a value: of each database what lives in it, and its ledger."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.admin.database_name import DatabaseName
from broker.application.transaction import check_schema
from broker.errors import StoreUnavailableError
from broker.observe.ledger import ledger_sentence, ledger_values
from broker.store.balance import read_balance
from broker.store.census import Census, take_census
from broker.store.database import open_watch
from broker.store.fault import sentence


class CensusRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which databases are counted."""

    database: DatabaseName = None


class Ledger(msgspec.Struct, frozen=True):
    """sent = acknowledged + held + failed + unaccounted, since the file was made."""

    sent: int
    acknowledged: int
    held: int
    failed: Annotated[dict[str, int], Meta(description="By reason.")]
    unaccounted: Annotated[int, Meta(description="0 unless somebody changed the file, or the program has a fault.")]
    sentence: Annotated[str, Meta(description="The same in one line.")]


class DatabaseCensus(msgspec.Struct, frozen=True):
    """One database."""

    database: str
    census: Census
    meaning: Annotated[list[str], Meta(description="Always empty; earlier versions had sentences here.")]
    ledger: Ledger


class CensusAnswer(msgspec.Struct, frozen=True):
    """What lives in the databases of an instance."""

    databases: list[DatabaseCensus]


def census_of(paths: Mapping[str, Path], now: float) -> CensusAnswer:
    """
    Count the databases in these files. Blocking.

    Raises:
        StoreUnavailableError: a file cannot be read, is no database of the broker, or one of another release.
    """
    databases = []
    for name, path in paths.items():
        try:
            with closing(open_watch(path)) as db:
                check_schema(db)
                census = take_census(db, now)
                ledger = ledger_values(read_balance(db))
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(path), sentence(error)) from error
        told = ledger_sentence(ledger)
        databases.append(DatabaseCensus(name, census, [], Ledger(**ledger, sentence=told)))
    return CensusAnswer(databases)

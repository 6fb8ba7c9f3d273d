"""The census as a value: of each database what lives in it, and what that means in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from broker.admin.message import DatabaseName
from broker.application.transaction import check_schema
from broker.errors import StoreUnavailableError
from broker.observe.census import meaning
from broker.store.census import Census, take_census
from broker.store.database import open_watch
from broker.store.fault import sentence


class CensusRequest(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Which databases are counted."""

    database: DatabaseName = None


class DatabaseCensus(msgspec.Struct, frozen=True):
    """One database."""

    database: str
    census: Census
    meaning: Annotated[list[str], Meta(description="What should be looked at, in words; never empty.")]


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
        except sqlite3.Error as error:
            raise StoreUnavailableError(str(path), sentence(error)) from error
        databases.append(DatabaseCensus(name, census, meaning(census)))
    return CensusAnswer(databases)

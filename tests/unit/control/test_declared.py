from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.catalog import scripts as declared
from broker.catalog.catalog import MSDB, Catalog, Database
from broker.catalog.scripts import run_declared
from broker.errors import SettingError, StatementError
from broker.store.sqlite import database, metadata


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = database.open_store(tmp_path / "msdb.db")
    yield db
    db.close()


@pytest.fixture
def catalog(db: sqlite3.Connection) -> Catalog:
    return Catalog({MSDB: Database(MSDB, bytes(16), None, lambda: nullcontext(db))}, lambda: None)


async def test_script_is_carried_out_as_declared(catalog: Catalog, db: sqlite3.Connection, tmp_path: Path) -> None:
    path = tmp_path / "a.sql"
    path.write_text("CREATE ROUTE [Å] WITH ADDRESS = 'LOCAL'; DROP ROUTE nix;", encoding="utf-8")

    for _ in range(2):
        await run_declared(catalog, path, MSDB)

    assert metadata.find_route(db, "Å") is not None


async def test_mistake_names_the_file(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "a.sql"
    path.write_text("CREATE ROUTE r WITH\nADDRESS = 'x';")

    with pytest.raises(StatementError) as caught:
        await run_declared(catalog, path, MSDB)

    assert f", {path}:2:11\n" in str(caught.value)


async def test_file_that_is_no_text_is_told_with_its_place(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "a.sql"
    path.write_bytes(b"DROP ROUTE x;\nDROP ROUTE \xe4;")

    with pytest.raises(StatementError) as caught:
        await run_declared(catalog, path, MSDB)

    assert f"Msg 102, Level 16, {path}:2:12\nthe byte 0xe4 is not UTF-8; save the script as UTF-8" == str(caught.value)


async def test_file_that_cannot_be_read_is_told_with_its_reason(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        await run_declared(catalog, tmp_path, MSDB)

    assert f"{tmp_path}: cannot be read: Is a directory; make it readable for the instance" == str(caught.value)


async def test_long_script_is_told_of(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "TELL_SECONDS", 0.0)
    path = tmp_path / "a.sql"
    path.write_text("".join(f"CREATE ROUTE r{number} WITH ADDRESS = 'LOCAL';" for number in range(2000)))

    with capture_logs() as logs:
        await run_declared(catalog, path, MSDB)

    told = [entry for entry in logs if entry["event"] == "script running"]
    assert told
    assert all(entry["script"] == str(path) and 0 <= entry["percent"] <= 100 for entry in told)

"""Rows that are read from the files of the databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.observe.view_rows import database_ids, database_rows, ledger_rows, monitor_rows, names_of
from broker.observe.views import DATABASES, LEDGER, MEMORY_VIEWS, QUEUE_MONITORS
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def files(shop: Shop, tmp_path: Path) -> dict[str, Path]:
    """One database, and one whose file is none."""
    (tmp_path / "text.db").write_text("this is a text, and no database at all")
    return {"shop": shop.path, "broken": tmp_path / "text.db"}


def test_msdb_is_first_and_has_the_number_of_the_original() -> None:
    files = dict.fromkeys(["shop", "msdb", "billing"], Path())

    assert ("msdb", "shop", "billing") == names_of(files)
    assert {"msdb": 4, "billing": 5, "shop": 6} == database_ids(files)
    assert {"msdb": 4, "shop": 5} == database_ids({"shop": Path()})


def test_every_database_has_a_row_also_when_its_file_is_none(files: dict[str, Path]) -> None:
    rows = [dict(zip(MEMORY_VIEWS[DATABASES], row, strict=True)) for row in database_rows(files)]

    told = [(row["name"], row["database_id"], row["is_broker_enabled"], row["path"]) for row in rows]
    assert [
        ("msdb", 4, True, None),
        ("shop", 6, True, str(files["shop"])),
        ("broken", 5, False, str(files["broken"])),
    ] == told


def test_queue_monitors_name_their_database_by_its_number(files: dict[str, Path]) -> None:
    rows = [dict(zip(MEMORY_VIEWS[QUEUE_MONITORS], row, strict=True)) for row in monitor_rows(files)]

    told = [(row["database_id"], row["database_name"], row["queue_name"], row["state"]) for row in rows]
    assert [(6, "shop", "OrdersQueue", "INACTIVE"), (6, "shop", "BillingQueue", "INACTIVE")] == told


def test_ledgers_are_of_the_databases_that_can_be_read_and_not_of_msdb(files: dict[str, Path], shop: Shop) -> None:
    db = shop.connect()
    with db:
        shop.begin(db).send(b"")

    rows = [dict(zip(MEMORY_VIEWS[LEDGER], row, strict=True)) for row in ledger_rows({"msdb": shop.path} | files)]

    assert {"shop"} == {row["database_name"] for row in rows}
    assert ("sent", None, 1) in {(row["entry"], row["reason"], row["messages"]) for row in rows}

"""What tests of databases share: one with two services, an application's connection, and a dialog begun on it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.dialog import Dialog
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A database of its own for each test."""
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def db(shop: Shop) -> sqlite3.Connection:
    """A connection on which each call commits by itself."""
    return shop.connect(isolation_level=None)


@pytest.fixture
def dialog(shop: Shop, db: sqlite3.Connection) -> Dialog:
    return shop.begin(db)

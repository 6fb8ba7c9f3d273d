"""What tests of databases share: one with two services, and connections of an application."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker.store.sqlite.database import open_store
from broker.store.sqlite.transaction import DaemonConnection
from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A database of its own for each test."""
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def db(path: Path) -> Iterator[DaemonConnection]:
    """A new database, with nothing but its first route."""
    with closing(open_store(path)) as connection:
        yield connection

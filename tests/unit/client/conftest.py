"""What tests of databases share: one with two services, and connections of an application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.shop import Shop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    """A database of its own for each test."""
    shop = Shop(tmp_path / "shop.db")
    yield shop
    shop.close()

"""What tests of databases share: one with two services, and connections of an application."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"

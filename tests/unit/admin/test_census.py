"""The census as an answer: every database that is asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker.errors import StoreUnavailableError
from broker.observe.database_stats import CensusAnswer, census_of
from broker.store.sqlite.database import open_store


def test_each_database_is_counted(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.db" for name in ("orders", "billing")}
    for path in paths.values():
        open_store(path).close()

    answer = census_of(paths, 5.0)

    assert ["orders", "billing"] == [one.database for one in answer.databases]
    assert 5.0 == answer.databases[0].census.now
    assert answer == msgspec.convert(msgspec.to_builtins(answer), CensusAnswer)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.db").write_bytes(b"x" * 4096)

    with pytest.raises(StoreUnavailableError, match=r"bad\.db.*no SQLite database"):
        census_of({"bad": tmp_path / "bad.db"}, 5.0)

"""A record is replaced as a whole, or stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.store.record import write_record


def test_what_is_written_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    for number in (1, 2):
        write_record(tmp_path / "a.json", {"number": number})

    assert {"number": 2} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


@pytest.mark.parametrize(("blocked", "why"), [("a.json", "Is a directory"), ("a.json.new", "Is a directory")])
def test_what_cannot_be_written_is_told(tmp_path: Path, blocked: str, why: str) -> None:
    (tmp_path / blocked).mkdir()

    with pytest.raises(StoreUnavailableError, match=why) as caught:
        write_record(tmp_path / "a.json", {})

    assert str(tmp_path / "a.json") == caught.value.path


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="No such file or directory"):
        write_record(tmp_path / "gone" / "a.json", {})

"""A record is replaced as a whole, or stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.files import changing, check_record, write_record


def test_what_is_written_is_there_and_nothing_beside_it(tmp_path: Path) -> None:
    for number in (1, 2):
        write_record(tmp_path / "a.json", {"number": number})

    assert {"number": 2} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [lambda file: write_record(file, {}), check_record])
def test_what_cannot_be_written_is_told_and_leaves_nothing(tmp_path: Path, write: Callable[[Path], None]) -> None:
    (tmp_path / "a.json").mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory") as caught:
        write(tmp_path / "a.json")

    assert str(tmp_path / "a.json") == caught.value.path
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_what_is_no_json_leaves_what_was_written_before_and_nothing_beside_it(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"number": 1})

    with pytest.raises(TypeError):
        write_record(tmp_path / "a.json", {"number": object()})

    assert {"number": 1} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_seeing_that_it_can_be_written_changes_nothing(tmp_path: Path) -> None:
    write_record(tmp_path / "a.json", {"number": 1})

    check_record(tmp_path / "a.json")

    assert {"number": 1} == json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert [tmp_path / "a.json"] == list(tmp_path.iterdir())


def test_a_lock_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json.lock").mkdir()

    with pytest.raises(StoreUnavailableError, match="Is a directory"), changing(tmp_path / "a.json"):
        pytest.fail("nobody may change it")


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    for write in (lambda file: write_record(file, {}), check_record):
        with pytest.raises(StoreUnavailableError, match="No such file or directory"):
            write(tmp_path / "gone" / "a.json")

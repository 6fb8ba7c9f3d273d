"""Whether a directory can be written is found out by writing, and leaves nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from broker.control.writable import write_problem


def test_directory_that_is_not_there_yet_is_judged_by_the_one_above(tmp_path: Path) -> None:
    assert write_problem(tmp_path / "a" / "b") is None
    assert [] == list(tmp_path.iterdir())


def test_file_in_the_way_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")

    assert f'"{tmp_path / "a"}" is no directory' == write_problem(tmp_path / "a" / "b")


def test_directory_that_refuses_a_file_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)

    assert f'"{tmp_path}" cannot be written: No space left on device' == write_problem(tmp_path)

"""A journal is kept where the settings name a directory that can be written, and only with its library."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.catalog.check import journal_errors
from broker.config import settings as module
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.daemon.reload import journal_plan
from broker.errors import SettingError


def settings(tmp_path: Path, text: str = '[journal]\ndirectory = "flows"\nsample = 0.25\n') -> Settings:
    path = tmp_path / "broker.toml"
    path.write_text(f'[instance]\nname = "gw"\nstate_dir = "state"\n{text}')
    return load_settings(path, environ={})


def test_plan_is_what_the_settings_say_and_the_directory_is_made(tmp_path: Path) -> None:
    plan = journal_plan(settings(tmp_path))

    assert plan is not None
    assert tmp_path / "state" / "flows" == plan.directory
    assert plan.directory.is_dir()
    assert ("gw", 0.25, 32 << 20, 64 << 20, 900.0) == (
        plan.instance,
        plan.sample,
        plan.buffer_bytes,
        plan.file_bytes,
        plan.file_seconds,
    )
    assert (10 << 30, 30 * 86_400.0) == (plan.keep_bytes, plan.keep_seconds)


def test_without_a_directory_there_is_none(tmp_path: Path) -> None:
    one = settings(tmp_path, "")

    assert journal_plan(one) is None
    assert [] == list(journal_errors(one))


def test_library_that_is_missing_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)

    with pytest.raises(SettingError) as caught:
        journal_plan(settings(tmp_path))

    assert "a journal needs pyarrow, which is not installed" in str(caught.value)
    assert "pip install broker[journal]" in str(caught.value)
    assert "broker.toml:5:" in str(caught.value)


def test_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "flows").write_text("a file")

    (error,) = journal_errors(settings(tmp_path))

    assert "journal.directory" in str(error)
    assert "is no directory" in str(error)


def test_directory_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    one = settings(tmp_path)
    monkeypatch.setattr(Path, "mkdir", refuse)

    with pytest.raises(SettingError, match="Read-only file system"):
        journal_plan(one)

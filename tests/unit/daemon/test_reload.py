"""What the parts of an instance take from the settings."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from broker.catalog import check
from broker.config.settings import Settings
from broker.daemon.reload import journal_plan
from broker.errors import SettingError


def with_journal(path: Path, **more: Any) -> Settings:
    journal = {"directory": str(path / "flows"), "sample": 0.25}
    return Settings.read({"instance": {"name": "gw"}, "journal": journal, **more})


def test_journal_is_what_the_settings_say_and_its_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = journal_plan(with_journal(tmp_path / "state"))

    assert plan is not None
    assert tmp_path / "state" / "flows" == plan.directory
    assert plan.directory.is_dir()
    assert ("gw", 0.25, 32 << 20, 64 << 20) == (plan.instance, plan.sample, plan.buffer_size, plan.file_size)
    assert (900.0, 10 << 30, 30 * 86_400.0) == (plan.file_age, plan.keep_size, plan.keep_age)
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(30, "Read-only file system")))
    with pytest.raises(SettingError, match="Read-only file system"):
        journal_plan(with_journal(tmp_path))


@pytest.mark.parametrize(
    ("library", "problem", "extra"),
    [
        ("pyarrow", "a journal needs pyarrow, which is not installed", "journal"),
        ("opentelemetry", "needs OpenTelemetry, which is not installed", "otel"),
    ],
)
def test_missing_library_is_reported_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, problem: str, extra: str
) -> None:
    def find(name: str) -> object:
        if name.startswith(library) and "." in name:
            raise ModuleNotFoundError  # of a package around it
        return None if name == library else name

    monkeypatch.setattr(check, "find_spec", find)

    with pytest.raises(SettingError, match=problem) as caught:
        journal_plan(with_journal(tmp_path, tracing={"enabled": True}))

    assert f"pip install 'service-broker[{extra}]'" in str(caught.value)

"""Tracing needs its library and a journal, and says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from broker.catalog.check import tracing_errors
from broker.config import settings as module
from broker.config.consistency import contradictions
from broker.config.settings import Settings
from broker.config.toml import dotted
from broker.daemon.reload import journal_plan
from broker.errors import SettingError

JOURNAL = {"directory": "/flows"}


def settings(*, journal: bool = True, enabled: bool = True) -> Settings:
    return Settings.read({"journal": JOURNAL if journal else {}, "tracing": {"enabled": enabled}})


def test_without_a_journal_there_is_nothing_to_trace() -> None:
    (found,) = contradictions(settings(journal=False))

    assert "tracing.enabled" == dotted(found.path)
    assert "needs a journal" in found.problem
    assert "journal.sample = 0" in found.hint


@pytest.mark.parametrize("journal", [True, False])
def test_what_is_off_needs_nothing(monkeypatch: pytest.MonkeyPatch, *, journal: bool) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    one = settings(journal=journal, enabled=False)

    assert ([], []) == (contradictions(one), list(tracing_errors(one)))


def refuse(_: str) -> None:
    raise ModuleNotFoundError


@pytest.mark.parametrize("find", [lambda _: None, refuse], ids=["without it", "without anything around it"])
def test_library_that_is_missing_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, find: object
) -> None:
    monkeypatch.setattr(module, "find_spec", find)
    one = Settings.read({"journal": {"directory": str(tmp_path)}, "tracing": {"enabled": True}})

    with pytest.raises(SettingError, match="OpenTelemetry, which is not installed") as caught:
        journal_plan(one)

    assert "pip install broker[otel]" in str(caught.value)


def test_library_that_is_there_is_found_and_not_imported() -> None:
    code = (
        "import sys; from broker.config.settings import Settings; from broker.config.settings import tracing_errors;"
        " assert not list(tracing_errors(Settings.read({'tracing': {'enabled': True}})));"
        " assert 'opentelemetry.sdk' not in sys.modules and 'requests' not in sys.modules"
    )

    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)

    assert (0, "") == (done.returncode, done.stderr)

"""A journal is opened as the settings say, and followed by tracing where that is on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.config.settings import Settings
from broker.daemon.instance import open_journal
from broker.errors import SettingError


def settings(directory: Path | None, *, enabled: bool = False) -> Settings:
    journal = {} if directory is None else {"directory": str(directory)}
    return Settings.read({"journal": journal, "tracing": {"enabled": enabled}})


def adjacent(_: Any) -> str:
    return ""


async def test_without_a_directory_there_is_none() -> None:
    assert open_journal(settings(None), adjacent) is None


@pytest.mark.parametrize(("enabled", "disabled"), [(False, ""), (True, ""), (True, "true")])
async def test_what_follows_it_is_opened_and_closed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, enabled: bool, disabled: str
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", disabled)

    journal = open_journal(settings(tmp_path, enabled=enabled), adjacent)

    assert journal is not None
    assert (enabled and not disabled) == (journal._follower is not None)
    assert (0, 0, 0) == tuple(journal.status()[name] for name in ("spans", "spans_pending", "spans_dropped"))
    await journal.close()


async def test_an_environment_that_is_refused_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")

    with pytest.raises(SettingError, match="OpenTelemetry refuses to begin") as caught:
        open_journal(settings(tmp_path, enabled=True), adjacent)

    assert "OTEL_" in str(caught.value)

"""What commands write into the audit: before it counts, bounded, and again when it has failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.admin.audit import LINES_MAX, AuditUnavailableError
from broker.cli.audit import recording
from broker.config.load import load_settings
from broker.config.settings import Settings


@pytest.fixture
def settings(configuration: Path) -> Settings:
    return load_settings(configuration, environ={})


def lines(settings: Settings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in settings.admin.audit.read_text(encoding="utf-8").splitlines()]


def test_lines_of_one_command_share_a_request(settings: Settings) -> None:
    with recording(settings, "broker x", "orders") as record:
        record.seal_done("a", "c")

    first, second = lines(settings)
    assert first["request"] == second["request"]
    assert first["who"].startswith("user:")
    assert ("a", "c") == (first["target"], second["target"])
    assert ("broker x", "orders", "done") == (second["operation"], second["database"], second["outcome"])


def test_what_fails_after_its_line_has_a_second_one(settings: Settings) -> None:
    def fail() -> None:
        with recording(settings, "broker x") as record:
            record.seal_done("a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    done, failed = lines(settings)
    assert ("done", "failed", "KeyboardInterrupt()") == (done["outcome"], failed["outcome"], failed["problem"])
    assert done["request"] == failed["request"]


def test_what_fails_before_its_line_has_none(settings: Settings) -> None:
    settings.admin.audit.mkdir()

    with pytest.raises(AuditUnavailableError), recording(settings, "broker x") as record:
        record.seal_done("a")

    assert [] == list(settings.admin.audit.iterdir())


def test_a_crowd_is_counted(settings: Settings) -> None:
    with recording(settings, "broker x") as record:
        record.seal_done(*(str(number) for number in range(LINES_MAX + 7)))

    assert (LINES_MAX + 1, "7 more") == (len(found := lines(settings)), found[-1]["target"])

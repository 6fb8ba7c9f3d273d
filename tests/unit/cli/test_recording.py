"""What commands write into the audit: before it counts, bounded, and again when it has failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker.admin.audit_file import AuditUnavailableError
from broker.cli.recording import LINES_MAX, recording
from broker.control.config import Settings
from broker.control.load import load_settings


@pytest.fixture
def settings(configuration: Path) -> Settings:
    return load_settings(configuration, environ={})


def lines(settings: Settings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in settings.admin.audit.read_text(encoding="utf-8").splitlines()]


def test_lines_of_one_command_share_a_request_and_leave_out_what_says_nothing(settings: Settings) -> None:
    with recording(settings, "broker x") as record:
        record.done([{"target": "a", "before": None, "after": {"b": 1}}, {"target": "c", "database": "orders"}])

    first, second = lines(settings)
    assert first["request"] == second["request"]
    assert first["who"].startswith("user:")
    assert {"at", "request", "who", "from", "operation", "target", "after", "outcome"} == first.keys()
    assert ("broker x", "orders", "done") == (second["operation"], second["database"], second["outcome"])


def test_what_fails_behind_its_line_has_a_second_one(settings: Settings) -> None:
    def fail() -> None:
        with recording(settings, "broker x") as record:
            record.done([{"target": "a"}])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    assert [("a", "done"), ("a", "failed")] == [(line["target"], line["outcome"]) for line in lines(settings)]
    assert "KeyboardInterrupt()" == lines(settings)[1]["problem"]


def test_what_fails_before_its_line_has_none(settings: Settings) -> None:
    settings.admin.audit.mkdir()

    with pytest.raises(AuditUnavailableError), recording(settings, "broker x") as record:
        record.done([{"target": "a"}])

    assert [] == list(settings.admin.audit.iterdir())


def test_a_crowd_is_counted(settings: Settings) -> None:
    with recording(settings, "broker x") as record:
        record.done([{"target": str(number)} for number in range(LINES_MAX + 7)])

    assert (LINES_MAX + 1, "7 more") == (len(found := lines(settings)), found[-1]["target"])

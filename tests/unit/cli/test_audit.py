"""What commands write into the audit: before it counts, bounded, and again when it has failed."""

from pathlib import Path

import pytest

from broker.cli.audit import recording
from broker.config.load import load_settings
from broker.config.settings import Settings
from tests.support.admin import audit_lines


@pytest.fixture
def settings(configuration: Path) -> Settings:
    return load_settings(configuration, environ={})


def test_what_fails_after_its_lines_has_another_one(settings: Settings) -> None:
    def fail() -> None:
        with recording(settings, "broker x", "orders") as record:
            record.seal_done("a", "c")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()

    first, second, failed = audit_lines(settings.admin.audit)
    assert 1 == len({line["request"] for line in (first, second, failed)})
    assert first["who"].startswith("user:")
    assert ("a", "c", "KeyboardInterrupt()") == (first["target"], second["target"], failed["problem"])
    assert [("broker x", "orders", outcome) for outcome in ("done", "done", "failed")] == [
        (line["operation"], line["database"], line["outcome"]) for line in (first, second, failed)
    ]

"""Part of `broker.control.tracing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.control.finding import SettingFinding

if TYPE_CHECKING:
    from broker.control.config import Settings
from broker.control.tracing import _ENABLED


def tracing_contradictions(settings: Settings) -> Iterator[SettingFinding]:
    """Spans are made of records of the journal."""
    if settings.tracing.enabled and settings.journal.directory is None:
        hint = "name a directory; with journal.sample = 0 it keeps traced and dropped messages only"
        yield SettingFinding(
            _ENABLED, "needs a journal, of whose records spans are made", hint, (("journal", "directory"),)
        )

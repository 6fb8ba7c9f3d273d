"""
The setting of tracing, and whether spans can be made by it.

What makes and sends them is an extra of the installation; nothing here imports it, so that an instance without tracing
neither needs nor loads it. Where spans are sent is not ours to say: the OTEL_* variables of OpenTelemetry do.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from broker.control import value
from broker.control.finding import SettingFinding
from broker.control.section import Section
from broker.control.setting import Reload, setting
from broker.errors import SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings

LIBRARY = "opentelemetry.exporter.otlp.proto.http"
_ENABLED = ("tracing", "enabled")


class TracingSettings(Section):
    """`[tracing]`: spans of OpenTelemetry for messages that carry a sampled trace."""

    enabled: Annotated[bool, value.flag()] = setting(
        False,
        "Make spans of messages with the TRACE flag and send them by OTLP over HTTP, as the `OTEL_*` variables of the "
        "environment say; needs `pip install broker[otel]` and a `[journal]`, whose records they are made of.",
        reason="Off: what happened to messages is data about those who send them, and there has to be a collector.",
        reload=Reload.RESTART,
    )


def tracing_contradictions(settings: Settings) -> Iterator[SettingFinding]:
    """Spans are made of records of the journal."""
    if settings.tracing.enabled and settings.journal.directory is None:
        hint = "name a directory; with journal.sample = 0 it keeps traced and dropped messages only"
        yield SettingFinding(
            _ENABLED, "needs a journal, of whose records spans are made", hint, (("journal", "directory"),)
        )


def tracing_errors(settings: Settings) -> Iterator[SettingError]:
    """What keeps spans from being made, as far as a look tells."""
    if settings.tracing.enabled and not _is_installed():
        hint = "pip install broker[otel], or turn it off"
        yield settings.error(_ENABLED, "tracing needs OpenTelemetry, which is not installed", hint)


def _is_installed() -> bool:
    try:
        return find_spec(LIBRARY) is not None
    except ModuleNotFoundError:  # of a package around it
        return False

"""Part of `broker.control.tracing`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

from broker.errors import SettingError

if TYPE_CHECKING:
    from broker.control.config import Settings
from broker.control.tracing import _ENABLED, OTLP_LIBRARY


def tracing_errors(settings: Settings) -> Iterator[SettingError]:
    """What keeps spans from being made, as far as a look tells."""
    if settings.tracing.enabled and not _is_installed():
        hint = "pip install broker[otel], or turn it off"
        yield settings.error(_ENABLED, "tracing needs OpenTelemetry, which is not installed", hint)


def _is_installed() -> bool:
    try:
        return find_spec(OTLP_LIBRARY) is not None
    except ModuleNotFoundError:  # of a package around it
        return False

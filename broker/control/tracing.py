"""
The setting of tracing, and whether spans can be made by it.

What makes and sends them is an extra of the installation; nothing here imports it, so that an instance without tracing
neither needs nor loads it. Where spans are sent is not ours to say: the OTEL_* variables of OpenTelemetry do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from broker.control import value
from broker.control.section import Section
from broker.control.setting import Reload, setting

if TYPE_CHECKING:
    pass

OTLP_LIBRARY = "opentelemetry.exporter.otlp.proto.http"
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

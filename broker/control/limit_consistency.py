"""Part of `broker.control.limits`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker.control.finding import SettingFinding
from broker.control.quantity import render_size

if TYPE_CHECKING:
    from broker.control.config import Settings
from broker.control.limits import BYTES_MIN, MESSAGES_MIN


def limit_contradictions(settings: Settings) -> Iterator[SettingFinding]:
    """Limits that leave nothing, or next to nothing."""
    limits, endpoint = settings.limits, settings.endpoint
    connections = ("limits", "connections")
    if limits.connections and limits.reserved_connections >= limits.connections:
        problem = f"{limits.reserved_connections} of limits.connections = {limits.connections} leave no room for others"
        yield SettingFinding(
            ("limits", "reserved_connections"), problem, "lower it, or raise connections", (connections,)
        )
    if 0 < limits.bytes_per_second < BYTES_MIN:
        problem = f"is below {render_size(BYTES_MIN)}: one read may bring more than that"
        yield SettingFinding(("limits", "bytes_per_second"), problem, "raise it, or set 0 for no limit")
    if 0 < limits.messages_per_second < MESSAGES_MIN:
        problem = f"is below {MESSAGES_MIN}: one read may bring more than that"
        yield SettingFinding(("limits", "messages_per_second"), problem, "raise it, or set 0 for no limit")
    part = endpoint.message_forward_size * limits.pool_share // 100
    if limits.pool_share and "pool_share" in limits.given and part < endpoint.max_frame:
        problem = (
            f"{limits.pool_share} percent of message_forward_size are {part} bytes, which cannot hold one "
            f"frame of endpoint.max_frame = {render_size(endpoint.max_frame)}"
        )
        also = (("endpoint", "message_forward_size"), ("endpoint", "max_frame"))
        yield SettingFinding(
            ("limits", "pool_share"), problem, "raise it or message_forward_size, or lower max_frame", also
        )

"""Part of `broker.observe.transport`."""

from __future__ import annotations

from broker.net.link import Link


def slowed_by(link: Link) -> str:
    """The settings for which a connection is not read now; empty while it is."""
    if not link.is_paused:
        return ""
    return ", ".join(sorted(link.slowed_by)) or "endpoint.backpressure"

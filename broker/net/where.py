"""Part of `broker.net.dialer`."""

from __future__ import annotations

Where = tuple[str, int] | tuple[str, int, int, int]

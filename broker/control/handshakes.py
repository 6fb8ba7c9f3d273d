"""Part of `broker.net.limits`."""

from __future__ import annotations

HANDSHAKES = 256  # each takes some 50 KiB, and a millisecond of its own

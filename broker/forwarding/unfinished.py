"""
The beginnings of frames that have not wholly arrived: what all links together may keep of them.

A link keeps at most one frame's beginning, but there is no end to links, and a stranger may open many and finish
nothing. So the beginnings have a bound of their own. At the bound the link that keeps the most is closed: it is either
in no hurry to finish, or its sender has the message still and sends it again.
"""

from __future__ import annotations

from typing import Protocol

UNFINISHED_MAX_BYTES = 32 * 1024 * 1024  # all links together; a hundred senders of 256 KiB frames at once fit in


class Keeper(Protocol):
    """A link, as far as this is concerned."""

    def close(self, reason: str) -> None:
        """Keep nothing more; must tell `Unfinished.keep` so."""


class Unfinished:
    """Shape: `kept_bytes` by all keepers now, never above `max_bytes` when `keep` has returned."""

    def __init__(self, max_bytes: int = UNFINISHED_MAX_BYTES) -> None:
        self.kept_bytes = 0
        self._max_bytes = max_bytes
        self._kept: dict[Keeper, int] = {}

    def keep(self, keeper: Keeper, size: int) -> None:
        """From now on a keeper keeps so many bytes; may close it, or another one. Cost: O(1) below the bound."""
        self.kept_bytes += size - self._kept.pop(keeper, 0)
        if size:
            self._kept[keeper] = size
        while self.kept_bytes > self._max_bytes:
            largest = max(self._kept, key=lambda one: self._kept[one])
            largest.close("too much kept of unfinished frames by all links together")

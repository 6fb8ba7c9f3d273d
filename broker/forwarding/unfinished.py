"""
The beginnings of frames that have not wholly arrived: what all links together may keep of them.

A link keeps at most one frame's beginning, or what it brought in one read, but there is no end to links, and a stranger
may open many and finish nothing. So all that is kept has a bound of its own. At the bound the link is closed whose
beginning has been waiting for its rest the longest, those that dialled us before those that we have dialled: whoever
means it is done within milliseconds, however large the frame, and has the message still.
"""

from __future__ import annotations

from typing import Protocol

UNFINISHED_MAX_BYTES = 32 * 1024 * 1024  # all links together; a hundred senders of 256 KiB frames at once fit in


class Keeper(Protocol):
    """
    A link, as far as this is concerned.

    Shape: `is_accept` when the peer opened it.
    """

    is_accept: bool

    def close(self, reason: str) -> None:
        """Keep nothing more; must tell `Unfinished.keep` so."""


class PartialFrames:
    """Shape: `kept_bytes` by all keepers now, never above `max_bytes` when `keep` has returned."""

    def __init__(self, max_bytes: int = UNFINISHED_MAX_BYTES) -> None:
        self.kept_bytes = 0
        self._max_bytes = max_bytes
        self._by_strangers: dict[Keeper, int] = {}  # both in the order in which they began to keep something
        self._by_others: dict[Keeper, int] = {}

    def keep(self, keeper: Keeper, size: int) -> None:
        """From now on a keeper keeps so many bytes, 0 when a frame is whole; may close it or another. Cost: O(1)."""
        kept = self._by_strangers if keeper.is_accept else self._by_others
        self.kept_bytes += size - kept.get(keeper, 0)
        if size:
            kept[keeper] = size
        else:
            kept.pop(keeper, None)
        while self.kept_bytes > self._max_bytes:
            oldest = next(iter(self._by_strangers or self._by_others))
            oldest.close("too much kept of unfinished frames by all links together")

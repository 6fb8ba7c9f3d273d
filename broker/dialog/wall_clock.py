"""
Whether the wall clock can be believed.

Lifetimes, timers and tombstones are instants of the wall clock, for they outlive the process. A clock that jumps
forward would end them all at once, and many such jumps are undone a moment later: a wrong time server, a typing error.
So after a jump nothing is ended for a minute. A jump that stays is the truth from then on; one that goes back has done
no harm. Delays inside the process use the monotonic clock and do not care.
"""

from __future__ import annotations

JUMP_SECONDS = 5.0  # forward between two looks; less is a correction
SETTLE_SECONDS = 60.0


class WallClock:
    """How the wall clock goes beside the monotonic one. Changed by `look` only."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._settled_at = 0.0

    def look(self, wall: float, now: float) -> float:
        """Both clocks now; seconds by which the wall clock has jumped since the last look, 0 when it has not."""
        offset = wall - now
        jump = 0.0 if self._offset is None else offset - self._offset
        self._offset = offset
        if abs(jump) < JUMP_SECONDS:
            return 0.0
        self._settled_at = now + SETTLE_SECONDS if jump > 0 else now
        return jump

    def is_settled(self, now: float) -> bool:
        """Whether what the wall clock says may end something."""
        return now >= self._settled_at

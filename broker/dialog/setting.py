"""How the dialogs of a database behave, as the configuration says."""

from __future__ import annotations

from dataclasses import dataclass

from broker.conversation.frames import Travel
from broker.conversation.window import FIRST_FRAMES, Backoff


@dataclass(frozen=True, slots=True)
class DialogSettings:
    """
    Shape: `window` frames and `window_bytes` of bodies in flight for each dialog at most; `fragment_size` bytes of
    payload in one frame.
    """

    backoff: Backoff
    travel: Travel
    window: int
    fragment_size: int
    window_bytes: int = 8 * 1024 * 1024

    @property
    def first_frames(self) -> int:
        """How much of a dialog is loaded when it begins to wait: as `Outbound.room` has it."""
        return min(self.window, 2 * FIRST_FRAMES)

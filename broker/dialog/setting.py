"""How the dialogs of a database behave, as the configuration says."""

from __future__ import annotations

from dataclasses import dataclass

from broker.conversation.contact import Travel
from broker.conversation.round_trip import Backoff


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

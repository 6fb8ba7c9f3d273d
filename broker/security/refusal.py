"""Why a sealed frame is not believed: for those that count and tell it, never for whoever sent it."""

from __future__ import annotations

from broker.flow import Disposition


class SealRefusedError(Exception):
    """
    A sealed frame, or the key packet in one, that is refused; it is dropped, and nothing else happens.

    Shape: `disposition` under which it is counted; `why` in words, without anything secret.
    """

    def __init__(self, disposition: Disposition, why: str) -> None:
        super().__init__(disposition, why)
        self.disposition = disposition
        self.why = why

    def __str__(self) -> str:
        return f"{self.disposition}: {self.why}"

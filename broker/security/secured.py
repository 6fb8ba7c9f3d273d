"""How a side of a dialog is secured, as a value: without the cryptography, which applications do not need. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

SECRET_BYTES = 32  # of an anonymous dialog


class Mode(StrEnum):
    """How a dialog is secured: in full mode both sides prove who they are, in anonymous mode the target only."""

    FULL = "FULL"
    ANONYMOUS = "ANONYMOUS"


class Secured(NamedTuple):
    """
    How one side of a dialog is secured, for as long as it lives.

    Attributes:
        mode: None for a dialog within this instance: at the initiator security was asked for and there was no binding;
            at the target the other two are those of its initiator, empty when it may never leave.
        far_principal: Who alone has the other side.
        secret: Of an anonymous dialog, 32 bytes.
    """

    mode: Mode | None
    far_principal: str = ""
    secret: bytes = b""

    def __repr__(self) -> str:
        return f"Secured(mode={self.mode!r}, far_principal={self.far_principal!r})"  # without the secret

    def outside(self) -> Secured | None:
        """Return how frames from outside this instance have to be sealed; None when none are accepted."""
        if self.mode is not None:
            return self
        if self.secret:
            return Secured(Mode.ANONYMOUS, secret=self.secret)
        return Secured(Mode.FULL, self.far_principal) if self.far_principal else None

"""What an instance answers when it is asked whether it is the principal, and how high an epoch can be."""

from __future__ import annotations

from enum import StrEnum

EPOCH_MAX = 2**63 - 1  # what a database can store; whoever claims more could never be replaced by a failover


class Role(StrEnum):
    """Shape: the texts of PROBE_REPLY."""

    PRINCIPAL = "principal"
    MIRROR = "mirror"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, text: str) -> Role:
        """The role that a text names; any other text is `unknown`, so a later version may say more than this one."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNKNOWN

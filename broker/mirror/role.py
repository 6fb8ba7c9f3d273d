"""What an instance answers when it is asked whether it is the principal, and how high an epoch can be."""

from __future__ import annotations

from enum import StrEnum

EPOCH_MAX = 2**63 - 1  # what a database can store
EPOCH_TOLD_MAX = EPOCH_MAX // 2  # the highest that is believed of a role_command, and so of a peer


class MirrorRole(StrEnum):
    """Shape: the texts of PROBE_REPLY."""

    PRINCIPAL = "principal"
    MIRROR = "mirror"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, text: str) -> MirrorRole:
        """The role that a text names; any other text is `unknown`, so a later version may say more than this one."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNKNOWN

"""Part of `broker.control.role_keeper`."""

from __future__ import annotations

from dataclasses import dataclass

from broker.routing.mirrored import MirrorRole


@dataclass(frozen=True, slots=True)
class OwnRoleStatus:
    """
    What this instance is for one of its databases, for whoever looks.

    Shape: `broker_instance` 16 bytes, None while it is not known; `since` UTC seconds since 1970; `source` the value of
    `mirroring`; `principal` the name of the instance that took it over last, empty when none has; `is_resting` while it
    leaves the database to its partner.
    """

    broker_instance: bytes | None
    role: MirrorRole
    epoch: int
    since: float
    source: str
    problem: str = ""
    principal: str = ""
    is_resting: bool = False

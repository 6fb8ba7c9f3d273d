"""
Advice to a peer about frames of its that were not taken: REJECTED, so many a second.

Advice is never relied on, so a flood of drops must not become a flood of answers: what is above the rate is not said.
"""

from __future__ import annotations

from msgspec import structs

from broker.flow import Disposition
from broker.forwarding.way import Buffer, rejected
from broker.net.permissions import EVERYTHING, Permit
from broker.protocol.frame import encode_link
from broker.protocol.layout import TO_SERVICE_AT

REJECTS_PER_SECOND = 100  # enough to tell an operator and a retrying sender, too few to matter on any network


class Advice:
    """The rate of one link. Loop-only; changed by `allow` and `refill`."""

    __slots__ = ("_left", "_since")

    def __init__(self, now: float) -> None:
        self._left = REJECTS_PER_SECOND
        self._since = now

    def allow(self) -> bool:
        """Whether one more may be said now; if so, it counts as said."""
        self._left -= 1
        return self._left >= 0

    def refill(self, now: float) -> None:
        """A second has passed, or not yet."""
        if now - self._since >= 1.0:
            self._since = now
            self._left = REJECTS_PER_SECOND


def render_rejected(frame: Buffer, disposition: Disposition, permit: Permit = EVERYTHING) -> bytes:
    """The REJECTED that tells what became of this dialog frame, and which permission its sender lacks."""
    told = rejected(frame, disposition)
    if disposition is Disposition.NOT_PERMITTED:
        name_end = TO_SERVICE_AT + int.from_bytes(frame[TO_SERVICE_AT - 2 : TO_SERVICE_AT], "big")
        why = permit.why_not(bytes(frame[TO_SERVICE_AT:name_end]).decode(errors="replace"))
        told = structs.replace(told, reason=f"{told.reason}: {why}")
    return encode_link(told)

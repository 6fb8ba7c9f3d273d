"""
What became of a dialog frame.

`Disposition` is one enum for every outcome; its value is the metric label, the journal value, the log field and
the row of `docs/dispositions.md`. `NUMBER` gives the original's message number where it has one.
"""

from __future__ import annotations

from enum import StrEnum


class Disposition(StrEnum):
    """The outcome of one dialog frame at one instance."""

    FORWARDED = "forwarded"
    DELIVERED = "delivered"
    # dropped by the pass, in the order in which the pass asks
    MALFORMED = "malformed"
    HOPS_EXHAUSTED = "hops exhausted"
    LIFETIME_EXCEEDED = "lifetime exceeded"
    EXPIRED_HERE = "expired here"
    ASKING_FOR_ROUTE = "asking for route"
    NO_ROUTE = "no route"
    FORWARDING_DISABLED = "forwarding disabled"
    ROUTE_INVALID = "route invalid"
    SERVICE_NOT_HERE = "service not here"
    INSTANCE_NOT_HERE = "instance not here"
    PRINCIPAL_UNKNOWN = "principal unknown"
    DATABASE_IS_MIRROR = "database is a mirror"
    ALREADY_HELD = "already held"
    POOL_LIMIT = "pool limit exceeded"
    FRAME_TOO_LARGE = "frame too large for next hop"
    SHUTDOWN = "shut down"
    # at the end of the way
    DUPLICATE = "duplicate"
    OUT_OF_SEQUENCE = "out of sequence"
    UNKNOWN_CONVERSATION = "unknown conversation"
    SERVICE_NOT_FOUND = "service not found"
    CONTRACT_REFUSED = "contract refused"
    CONVERSATION_ENDED = "conversation ended"
    CORRUPTED = "corrupted"
    OTHER_INSTANCE = "another instance converses"
    STORE_BUSY = "store busy"
    STORE_FAILED = "store failed"

    @property
    def number(self) -> int:
        """The original's message number, 0 where it has none."""
        return NUMBER.get(self, 0)


NUMBER = {
    Disposition.MALFORMED: 11271,
    Disposition.HOPS_EXHAUSTED: 11285,
    Disposition.LIFETIME_EXCEEDED: 11291,
    Disposition.EXPIRED_HERE: 11290,
    Disposition.ASKING_FOR_ROUTE: 9770,
    Disposition.NO_ROUTE: 9798,
    Disposition.FORWARDING_DISABLED: 9792,
    Disposition.ROUTE_INVALID: 11294,
    Disposition.SERVICE_NOT_HERE: 9796,
    Disposition.INSTANCE_NOT_HERE: 9795,
    Disposition.PRINCIPAL_UNKNOWN: 9794,
    Disposition.DATABASE_IS_MIRROR: 28018,
    Disposition.ALREADY_HELD: 11288,
    Disposition.POOL_LIMIT: 11289,
    Disposition.FRAME_TOO_LARGE: 11292,
    Disposition.SHUTDOWN: 11293,
    Disposition.DUPLICATE: 11218,
    Disposition.OUT_OF_SEQUENCE: 11217,
    Disposition.UNKNOWN_CONVERSATION: 11213,
    Disposition.SERVICE_NOT_FOUND: 11210,
    Disposition.CONTRACT_REFUSED: 11214,
    Disposition.CONVERSATION_ENDED: 11212,
    Disposition.CORRUPTED: 11221,
    Disposition.OTHER_INSTANCE: 11224,
    Disposition.STORE_BUSY: 9749,
    Disposition.STORE_FAILED: 28017,
}

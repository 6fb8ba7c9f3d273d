"""
The outcome of a dialog frame, and the columns of the journal.

`Disposition` is one enum for every outcome; its value is the metric label, the journal value, the log field and
the row of `docs/dispositions.md`. `NUMBER` gives the original's message number where it has one.

A *flow record* is one visit of a dialog frame to an instance: entered, left and outcome together. `COLUMNS` is what
the journal writes and the pipeline reads; both make their own engine's schema of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Disposition(StrEnum):
    """The outcome of one dialog frame at one instance."""

    FORWARDED = "forwarded"
    DELIVERED = "delivered"
    # dropped by the pass, in the order in which the pass asks
    MALFORMED = "malformed"
    HOPS_EXHAUSTED = "hops exhausted"
    LIFETIME_EXCEEDED = "lifetime exceeded"
    EXPIRED_HERE = "expired here"
    NOT_PERMITTED = "not permitted"
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
    NOT_OF_THIS_DIALOG = "not of this dialog"
    SERVICE_NOT_FOUND = "service not found"
    QUEUE_DISABLED = "queue disabled"
    CONTRACT_REFUSED = "contract refused"
    CONVERSATION_ENDED = "conversation ended"
    CORRUPTED = "corrupted"
    OTHER_INSTANCE = "another instance converses"
    SECURITY_UNRESOLVED = "certificate not known"
    SEAL_BROKEN = "seal broken"
    NOT_SECURED = "sealed without need"
    NOT_SEALED = "not sealed"
    SESSION_KEY_UNKNOWN = "session key unknown"
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
    Disposition.NOT_PERMITTED: 11215,
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
    Disposition.NOT_OF_THIS_DIALOG: 11223,
    Disposition.SERVICE_NOT_FOUND: 11210,
    Disposition.QUEUE_DISABLED: 11219,
    Disposition.CONTRACT_REFUSED: 11214,
    Disposition.CONVERSATION_ENDED: 11212,
    Disposition.CORRUPTED: 11221,
    Disposition.OTHER_INSTANCE: 11224,
    Disposition.SECURITY_UNRESOLVED: 11229,
    Disposition.SEAL_BROKEN: 11230,
    Disposition.NOT_SECURED: 11231,
    Disposition.NOT_SEALED: 11232,
    Disposition.SESSION_KEY_UNKNOWN: 11233,
    Disposition.STORE_BUSY: 9749,
    Disposition.STORE_FAILED: 28017,
}


class VisitOutcome(StrEnum):
    """How a visit ended, in one word; of a dropped frame the disposition says why."""

    SENT = "sent"
    RESENT = "resent"
    FORWARDED = "forwarded"
    DELIVERED = "delivered"
    DUPLICATE = "duplicate"
    DROPPED = "dropped"
    ACKNOWLEDGED = "acknowledged"


class Form(StrEnum):
    """The type of a column of a flow record; each engine has its equivalent of each."""

    INSTANT = "timestamp, microseconds, UTC"
    WORD = "string, dictionary"
    GUID = "binary, 16 bytes"
    FLAG = "boolean"
    INT32 = "int32"
    INT64 = "int64"


class FlowColumn(NamedTuple):
    """One column of a flow record."""

    name: str
    form: Form
    meaning: str
    is_nullable: bool = False


JOURNAL_SCHEMA = 1
"""Version of `COLUMNS`, in the metadata of every file. Later versions add columns that may be null, and change none."""

COLUMNS = (
    FlowColumn("entered_at", Form.INSTANT, "arrival here; at the sender, when it was put in the transmission queue"),
    FlowColumn(
        "left_at", Form.INSTANT, "handed to the next hop, delivered, dropped, or acknowledged", is_nullable=True
    ),
    FlowColumn("instance", Form.WORD, "name of the instance"),
    FlowColumn("outcome", Form.WORD, "how the visit ended"),
    FlowColumn("reason", Form.WORD, "of a dropped frame: its disposition", is_nullable=True),
    FlowColumn("code", Form.INT32, "of a dropped frame: the number of its disposition", is_nullable=True),
    FlowColumn("kind", Form.WORD, "message, ack, fault; other for kinds of later versions"),
    FlowColumn("message_id", Form.GUID, "one for each transmission: a resend has another"),
    FlowColumn("conversation_id", Form.GUID, "the dialog"),
    FlowColumn("from_target", Form.FLAG, "whether the target of the dialog sent it"),
    FlowColumn("sequence_number", Form.INT64, "of the message in its direction, from 0"),
    FlowColumn("fragment_number", Form.INT32, "of the fragment in its message, from 0"),
    FlowColumn("hop_count", Form.INT32, "gateways that it had passed when it arrived"),
    FlowColumn("hop_limit", Form.INT32, "gateways it may pass"),
    FlowColumn("time_to_live_ms", Form.INT64, "lifetime of this copy, milliseconds"),
    FlowColumn("time_consumed_ms", Form.INT64, "lifetime it had spent as it left, milliseconds"),
    FlowColumn("bytes", Form.INT32, "the whole frame"),
    FlowColumn("to_service", Form.WORD, "for whom it is"),
    FlowColumn("from_service", Form.WORD, "who sent it"),
    FlowColumn("to_broker_instance", Form.GUID, "which database it is for", is_nullable=True),
    FlowColumn("from_broker_instance", Form.GUID, "which database sent it", is_nullable=True),
    FlowColumn("route", Form.WORD, "the route that was taken", is_nullable=True),
    FlowColumn("route_table", Form.WORD, "the database whose route that is", is_nullable=True),
    FlowColumn("adjacent_in", Form.WORD, "name or address of the peer that sent it", is_nullable=True),
    FlowColumn("adjacent_out", Form.WORD, "address of the next hop", is_nullable=True),
)
"""The columns of a flow record, in the order in which they are written."""

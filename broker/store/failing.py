"""
A side of a dialog fails at this side: its application reads an Error, and what it holds is given up.

For the writer thread, inside a transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from broker.conversation.message_types import error_body
from broker.conversation.state import TAKES_MESSAGES, ConversationState
from broker.protocol.frame import Fault
from broker.store.delivery import Delivery
from broker.store.ledger import FailureReason, fail
from broker.store.side import SideRow, side_of
from broker.store.tombstone import close

_FAILED = "UPDATE broker_conversation SET state = 'ER', early_fragments = 0, dialog_timer = NULL WHERE endpoint_id = ?"
_PIECES = (
    "INSERT OR IGNORE INTO broker_received SELECT DISTINCT endpoint_id, message_sequence_number FROM broker_fragment"
    " WHERE endpoint_id = ? AND message_sequence_number >= ?"
)


def fail_side(db: sqlite3.Connection, delivery: Delivery, side: SideRow, fault: Fault, reason: FailureReason) -> None:
    """The application of a dialog reads an error, and the ledger counts what was not acknowledged."""
    delivery.put_error(side, side.expected[0], error_body(fault.code, fault.text))
    fail(db, side.endpoint_id, reason)
    db.execute(_PIECES, (side.endpoint_id, side.expected[0]))
    db.execute(_FAILED, (side.endpoint_id,))


def fail_in_writer(db: sqlite3.Connection, faults: Mapping[int, Fault], now: float) -> None:
    """
    Dialogs that cannot be sent as they have to be fail, by endpoint_id; those that have ended here are over.

    Args:
        db: Inside a transaction.
        faults: What their applications read.
        now: UTC seconds since 1970.
    """
    delivery = Delivery(db, now)
    for endpoint_id, fault in faults.items():
        side = side_of(db, endpoint_id)
        if side is None:
            continue
        if side.state in TAKES_MESSAGES or side.state is ConversationState.DISCONNECTED_INBOUND:
            fail_side(db, delivery, side, fault, FailureReason.FAILED_HERE)
        elif side.state is ConversationState.DISCONNECTED_OUTBOUND:
            close(db, endpoint_id, now, FailureReason.FAILED_HERE)
    delivery.flush()

"""
Which conversation a GUID names, and with whom it talks.

Beside `conversation`, which commands import that play a configuration without a message: a contact brings the keys of
dialogs along, and with them what reads certificates.
"""

from __future__ import annotations

import sqlite3

from broker.conversation.frames import Contact
from broker.protocol.layout import NO_GUID
from broker.store.database import broker_instance

_FIND = """
    SELECT conversation_id, is_initiator, service_name, far_service, far_broker_instance
    FROM broker_conversation WHERE conversation_handle = ?1 OR conversation_id = ?1
    ORDER BY conversation_handle = ?1 DESC, is_initiator DESC LIMIT 1
"""


def find_contact(db: sqlite3.Connection, guid: bytes) -> Contact | None:
    """
    The side of a dialog that lives here and has this handle or this id, 16 bytes; of two sides, the initiator's.

    Raises:
        sqlite3.Error: the database cannot be read.
    """
    row = db.execute(_FIND, (guid,)).fetchone()
    instance = broker_instance(db)
    if row is None:
        return None
    conversation_id, is_initiator, service, far_service, far_instance = row
    return Contact(conversation_id, bool(is_initiator), service, instance, far_service, far_instance or NO_GUID)

"""
Which conversation a GUID names, read from the file of its database beside the daemon's own connection.

Blocking, so for a thread; one look at an index.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

from broker.conversation.contact import Contact
from broker.store.database import broker_instance, open_watch
from broker.wire.layout import NO_GUID

_FIND = """
    SELECT conversation_id, is_initiator, service_name, far_service, far_broker_instance
    FROM broker_conversation WHERE conversation_handle = ?1 OR conversation_id = ?1
    ORDER BY conversation_handle = ?1 DESC, is_initiator DESC LIMIT 1
"""


def find_conversation(path: Path, conversation: UUID) -> Contact | None:
    """
    The side of a dialog that lives in this file and has this handle or this id; of two sides, the initiator's.

    Returns:
        None when there is none, and when the file cannot be read now.
    """
    try:
        with closing(open_watch(path)) as db:
            row = db.execute(_FIND, (conversation.bytes,)).fetchone()
            instance = broker_instance(db)
    except sqlite3.Error:
        return None
    if row is None:
        return None
    conversation_id, is_initiator, service, far_service, far_instance = row
    return Contact(conversation_id, bool(is_initiator), service, instance, far_service, far_instance or NO_GUID)

"""
Which conversation a GUID names, read from the file of its database beside the daemon's own connection.

Blocking, so for a thread; one look at an index.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from uuid import UUID

from broker.conversation.frames import Contact
from broker.store.contact import find_contact
from broker.store.database import open_watch


def find_conversation(path: Path, conversation: UUID) -> Contact | None:
    """
    The side of a dialog that lives in this file and has this handle or this id; of two sides, the initiator's.

    Returns:
        None when there is none, and when the file cannot be read now.
    """
    try:
        with closing(open_watch(path)) as db:
            return find_contact(db, conversation.bytes)
    except sqlite3.Error:
        return None

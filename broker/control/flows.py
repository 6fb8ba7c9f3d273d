"""
The conversations under way, as a plan of new routes asks about them.

An endpoint has its own in its databases. A gateway keeps none, but it remembers what passed through it lately.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator

from broker.routing.facts import Facts, Hosted
from broker.routing.plan import Flow
from broker.wire.layout import NO_GUID

# Read at once. Each row lets go of the interpreter's lock for a moment too short for anybody else to take it, and who
# waits for it waits anew: reading and deciding in turns would hold up the loop for as long as both take.
ROWS = 1000

# Not those that are closed or failed: nothing of them is routed any more.
_UNDER_WAY = (
    "SELECT conversation_handle, conversation_id, is_initiator, service_name, far_service, far_broker_instance,"
    " send_sequence FROM broker_conversation WHERE state IN ('SO', 'SI', 'CO', 'DI', 'DO') ORDER BY endpoint_id"
)


def flows_of_database(db: sqlite3.Connection, instance: bytes) -> Iterator[Flow]:
    """
    The dialogs of a database that may still send, by conversation handle; read as they are asked for.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    cursor = db.execute(_UNDER_WAY)
    while rows := cursor.fetchmany(ROWS):
        for handle, conversation, is_initiator, service, far_service, far, sequence in rows:
            facts = Facts(far_service, far or NO_GUID, conversation, is_from_target=not is_initiator, database=instance)
            # A target's acknowledgements are on their way as soon as it exists.
            has_sent = bool(sequence) or not is_initiator
            yield Flow(str(uuid.UUID(bytes=handle)), facts, has_sent, service)


def flows_of_passage(passed: Iterable[Facts], hosted: Hosted) -> Iterator[Flow]:
    """What passes through or arrives, by conversation where that has a say, else together; replies need no route."""
    for facts in passed:
        if facts.is_from_target and facts.to_broker_instance in hosted.services_of:
            continue
        is_one = facts.conversation_id != NO_GUID
        yield Flow(str(uuid.UUID(bytes=facts.conversation_id)) if is_one else "", facts, has_sent=True)

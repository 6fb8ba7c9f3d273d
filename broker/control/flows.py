"""
The conversations under way, as a plan of new routes asks about them.

An endpoint has its own in its databases. A gateway keeps none, but it remembers what passed through it lately.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator

from broker.forwarding.forwarder import Forwarder
from broker.routing.facts import Facts
from broker.routing.plan import Flow
from broker.wire.layout import NO_GUID

# Not those that are closed or failed: nothing of them is routed any more.
_UNDER_WAY = (
    "SELECT conversation_handle, conversation_id, is_initiator, far_service, far_broker_instance, send_sequence"
    " FROM broker_conversation WHERE state IN ('SO', 'SI', 'CO', 'DI', 'DO') ORDER BY endpoint_id"
)


def flows_of_database(db: sqlite3.Connection, instance: bytes) -> Iterator[Flow]:
    """The dialogs of a database that may still send, by conversation handle."""
    for handle, conversation, is_initiator, service, far, sequence in db.execute(_UNDER_WAY):
        facts = Facts(service, far or NO_GUID, conversation, is_from_target=not is_initiator, database=instance)
        # A target's acknowledgements are on their way as soon as it exists.
        yield Flow(str(uuid.UUID(bytes=handle)), facts, has_sent=bool(sequence) or not is_initiator)


def flows_of_passage(forwarder: Forwarder) -> Iterator[Flow]:
    """What passes through or arrives, by service, and by conversation where that has a say; replies need no route."""
    for facts in forwarder.passed:
        if facts.is_from_target and facts.to_broker_instance in forwarder.here.hosted.services_of:
            continue
        which = "" if facts.conversation_id == NO_GUID else f", conversation {uuid.UUID(bytes=facts.conversation_id)}"
        yield Flow(f"to {facts.to_service}{which}", facts, has_sent=True)

"""
The conversations under way, as a plan of new routes asks about them.

An endpoint has its own in its databases. A gateway keeps none, but it remembers what passed through it lately.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Iterator

from broker.protocol.layout import NO_GUID
from broker.routing.decide import Hosted, RoutingFacts
from broker.routing.plan import PlannedFlow
from broker.store.conversation import conversations_under_way


def flows_of_database(db: sqlite3.Connection, instance: bytes) -> Iterator[PlannedFlow]:
    """
    The dialogs of a database that may still send, by conversation handle; read as they are asked for.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    for handle, conversation, is_initiator, service, far_service, far, sequence in conversations_under_way(db):
        facts = RoutingFacts(
            far_service, far or NO_GUID, conversation, is_from_target=not is_initiator, database=instance
        )
        # A target's acknowledgements are on their way as soon as it exists.
        has_sent = bool(sequence) or not is_initiator
        yield PlannedFlow(str(uuid.UUID(bytes=handle)), facts, has_sent, service)


def flows_of_passage(passed: Iterable[RoutingFacts], hosted: Hosted) -> Iterator[PlannedFlow]:
    """What passes through or arrives, by conversation where that has a say, else together; replies need no route."""
    for facts in passed:
        if facts.is_from_target and facts.to_broker_instance in hosted.services_of:
            continue
        is_one = facts.conversation_id != NO_GUID
        yield PlannedFlow(str(uuid.UUID(bytes=facts.conversation_id)) if is_one else "", facts, has_sent=True)

"""
Whole messages go to their queues, when their contract and their type allow them.

For the writer thread. One `Delivery` serves one batch: what it looks up it looks up once, and rows are written
together. A dialog in quarantine stays in order: what arrives for it joins the rest there.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping

from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, ERROR_PRIORITY, Refusal, Rule
from broker.store.assembly import Large
from broker.store.metadata import message_rule
from broker.store.side import SideRow

READY, IN_QUARANTINE = 1, 4  # broker_message.status
_RESERVED = frozenset({END_DIALOG, ERROR, DIALOG_TIMER})
_PUT = (
    "INSERT INTO broker_message (queue_id, status, priority, endpoint_id, message_sequence_number, message_type_name,"
    " message_enqueue_time, message_body, body_fragments, headers) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_QUARANTINED = "SELECT 1 FROM broker_failure WHERE endpoint_id = ? AND quarantine_time IS NOT NULL"

Body = bytes | Large


class Delivery:
    """The queues of a database during one batch. Shape: `delivered` messages by service."""

    def __init__(self, db: sqlite3.Connection, now: float) -> None:
        self.delivered: Counter[str] = Counter()
        self._db = db
        self._now = now
        self._queues: dict[str, int | None] = {}
        self._rules: dict[tuple[str, str], Rule | None] = {}
        self._has_failures: bool | None = None
        self._rows: list[tuple[object, ...]] = []

    def refusal(self, side: SideRow, type_name: str, body: Body) -> Refusal | None:
        """Why the far side may not send this message."""
        if type_name in _RESERVED:
            return Refusal(8428, f"the message type {type_name!r} is the broker's own")
        key = (side.contract, type_name)
        if key not in self._rules:
            self._rules[key] = message_rule(self._db, *key)
        rule = self._rules[key]
        if rule is None:
            return None
        refusal = rule.refusal_of_arrival(is_from_initiator=not side.contact.is_initiator)
        if refusal is not None or not isinstance(body, Large):
            return refusal or rule.refusal_of_body(body)  # type: ignore[arg-type]
        problem = body.violation(rule.validation)
        return None if problem is None else rule.invalid(problem)

    def put(
        self,
        side: SideRow,
        sequence: int,
        type_name: str,
        body: Body,
        *,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Put a message into the queue of the service; False when the service has been dropped."""
        service = side.contact.service_name
        queue_id = self._queue_of(service)
        if queue_id is None:
            return False
        status = IN_QUARANTINE if self._is_quarantined(side.endpoint_id) else READY
        level = side.priority if priority is None else priority
        payload, fragments = (None, body.fragments) if isinstance(body, Large) else (body, None)
        told = json.dumps(headers, ensure_ascii=False) if headers else None
        self._rows.append(
            (queue_id, status, level, side.endpoint_id, sequence, type_name, self._now, payload, fragments, told)
        )
        self.delivered[service] += 1
        return True

    def put_error(self, side: SideRow, sequence: int, body: Body) -> bool:
        """Put an Error message, which is read before everything but a timer."""
        return self.put(side, sequence, ERROR, body, priority=ERROR_PRIORITY)

    def flush(self) -> None:
        """Write what was put, in the order in which it was put."""
        if self._rows:
            self._db.executemany(_PUT, self._rows)
            self._rows.clear()

    def _queue_of(self, service: str) -> int | None:
        if service not in self._queues:
            row = self._db.execute("SELECT queue_id FROM broker_service WHERE name = ?", (service,)).fetchone()
            self._queues[service] = None if row is None else row[0]
        return self._queues[service]

    def _is_quarantined(self, endpoint_id: int) -> bool:
        if self._has_failures is None:
            self._has_failures = self._db.execute("SELECT 1 FROM broker_failure LIMIT 1").fetchone() is not None
        return self._has_failures and self._db.execute(_QUARANTINED, (endpoint_id,)).fetchone() is not None

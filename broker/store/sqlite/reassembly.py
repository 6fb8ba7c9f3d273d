"""
Reassembly: fragments wait until their message is whole and in order; whole messages are put into their queue.

Rows of `broker_fragment` and `broker_message`, inside the transaction of a batch. Early fragments have a bound for each
side, in number and bytes; above it a fragment is refused and arrives again later. A body above LARGE_BYTES is never
joined: its fragments stay rows until an application has received it. Queue rows of a batch are written together; queues
and rules are looked up once per batch. A dialog in quarantine stays in order: messages that arrive join the others
there.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from broker.conversation.body_check import refusal_of_body, validator
from broker.conversation.frames import EARLY_BYTES_MAX, EARLY_FRAGMENTS_MAX, Place, Run
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, ERROR_PRIORITY, Refusal, Rule, Validation
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.protocol.frame import Envelope, decode_envelope
from broker.store.sqlite.dialog_rules import message_rule
from broker.store.sqlite.failure import IN_QUARANTINE, READY, UNCONFIRMED
from broker.store.sqlite.schema import LARGE_BYTES
from broker.store.sqlite.side import OPENING_UNKNOWN, SideRow
from broker.store.sqlite.transaction import DaemonConnection

HELD_RUNS_MAX = 128  # reported in one acknowledgement, about a kilobyte
ENVELOPE_LENGTH = 4  # bytes of the length before an envelope
_RESERVED = frozenset({END_DIALOG, ERROR, DIALOG_TIMER})

_OF_MESSAGE = "FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number = ?"
_IN_ORDER = f"{_OF_MESSAGE} AND fragment_number <= ? ORDER BY fragment_number"
_EARLY = (
    "SELECT message_sequence_number, fragment_number, flags, length(body) FROM broker_fragment"
    " WHERE endpoint_id = ? AND (message_sequence_number, fragment_number) > (?, ?)"
)


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A whole body that stays in its so many fragments."""

    db: sqlite3.Connection
    endpoint_id: int
    sequence: int
    fragments: int

    def violation(self, validation: Validation) -> str | None:
        """Return the problem of the body under this validation, None without one; it is read a fragment at a time."""
        if validation is Validation.NONE:
            return None
        check = validator(validation)
        rows = self.db.execute(f"SELECT body {_IN_ORDER}", (self.endpoint_id, self.sequence, self.fragments))
        for number, (body,) in enumerate(rows):
            problem = check.feed(body if number else decode_envelope(body)[1])
            if problem is not None:
                return problem
        return check.close()


class Reassembly:
    """
    The kept fragments of one side, during one batch.

    Cost: reads the places of what is early, EARLY_FRAGMENTS_MAX rows at most, nothing when the side's row counts none.
    """

    def __init__(self, db: sqlite3.Connection, endpoint_id: int, expected: Place, count: int) -> None:
        self._db = db
        self._endpoint_id = endpoint_id
        self._early: dict[Place, tuple[int, int]] = {}  # flags, bytes
        self._early_bytes = 0
        if count:
            for sequence, fragment, flags, size in db.execute(_EARLY, (endpoint_id, *expected)):
                self._early[sequence, fragment] = (flags, size)
                self._early_bytes += size

    @property
    def count(self) -> int:
        """How many fragments are early."""
        return len(self._early)

    def keep(self, place: Place, flags: int, body: bytes) -> None:
        """Keep the expected fragment of an unfinished message."""
        self._db.execute(
            "INSERT OR REPLACE INTO broker_fragment VALUES (?, ?, ?, ?, ?)", (self._endpoint_id, *place, flags, body)
        )

    def keep_early(self, place: Place, flags: int, body: bytes) -> Disposition | None:
        """Keep a fragment that is not the expected one yet; why it is dropped, where it is here or has no room."""
        if place in self._early:
            return Disposition.DUPLICATE
        if len(self._early) >= EARLY_FRAGMENTS_MAX or self._early_bytes + len(body) > EARLY_BYTES_MAX:
            return Disposition.OUT_OF_SEQUENCE
        self.keep(place, flags, body)
        self._early[place] = (flags, len(body))
        self._early_bytes += len(body)
        return None

    def take_early(self, place: Place) -> int | None:
        """Return the flags of an early fragment that is expected now, so no longer early; None when it is not here."""
        kept = self._early.pop(place, None)
        if kept is None:
            return None
        self._early_bytes -= kept[1]
        return kept[0]

    def held_runs(self) -> tuple[Run, ...]:
        """Return the early fragments as runs within one message each; the first runs when there are many."""
        runs: list[list[int]] = []
        for sequence, fragment in sorted(self._early):
            if runs and runs[-1][0] == sequence and runs[-1][2] + 1 == fragment:
                runs[-1][2] = fragment
            elif len(runs) == HELD_RUNS_MAX:
                break
            else:
                runs.append([sequence, fragment, fragment])
        return tuple((sequence, first, last) for sequence, first, last in runs)

    def join(
        self, sequence: int, last: int, tail: tuple[int, bytes] | None = None, *, is_end: bool = False
    ) -> tuple[Envelope, bytes | LargeBody]:
        """
        Join a message whose fragments are all here, up to its last one; what is joined is not kept any longer.

        Args:
            sequence: The message.
            last: The number of its last fragment.
            tail: Flags and body of that one when it has just arrived; None when it is kept like the others.
            is_end: It is END DIALOG, which needs no body.

        Raises:
            FrameMalformedError: its envelope cannot be read; its fragments are not kept any longer.
        """
        self._forget_strays(sequence, last)
        key = (self._endpoint_id, sequence)
        bodies: list[bytes] = []
        size = 0 if tail is None else len(tail[1])
        for (body,) in self._db.execute(f"SELECT body {_IN_ORDER}", (*key, last)):
            bodies.append(body)
            size += len(body) if len(bodies) > 1 else max(0, len(body) - envelope_bytes(body))
            if size > LARGE_BYTES:
                if tail is not None:
                    self.keep((sequence, last), *tail)
                return self._envelope(sequence, bodies[0]), LargeBody(self._db, self._endpoint_id, sequence, last + 1)
        self._db.execute(f"DELETE {_OF_MESSAGE}", key)
        if tail is not None:
            bodies.append(tail[1])
        body = b"".join(bodies)
        return decode_envelope(body) if body or not is_end else (Envelope(), b"")

    def discard(self, expected: Place) -> None:
        """Discard the fragments after the whole messages: they will never be a message; maintenance removes them."""
        self._early.clear()
        self._early_bytes = 0
        discard_fragments(self._db, self._endpoint_id, expected[0])

    def _envelope(self, sequence: int, first: bytes) -> Envelope:
        """The envelope of a large message; without a readable one its fragments are discarded."""
        try:
            return decode_envelope(first)[0]
        except FrameMalformedError:
            self._db.execute("INSERT OR IGNORE INTO broker_received VALUES (?, ?)", (self._endpoint_id, sequence))
            raise

    def _forget_strays(self, sequence: int, last: int) -> None:
        """Remove fragments after the last one: a broken sender's."""
        strays = [place for place in self._early if place[0] == sequence and place[1] > last]
        for place in strays:
            self._early_bytes -= self._early.pop(place)[1]
        if strays:
            self._db.execute(
                f"DELETE {_OF_MESSAGE} AND fragment_number > ?",
                (self._endpoint_id, sequence, last),
            )


def discard_fragments(db: sqlite3.Connection, endpoint_id: int, sequence: int) -> None:
    """Leave the fragments of a side to maintenance, from this message on."""
    db.execute(
        "INSERT OR IGNORE INTO broker_received SELECT DISTINCT endpoint_id, message_sequence_number"
        " FROM broker_fragment WHERE endpoint_id = ? AND message_sequence_number >= ?",
        (endpoint_id, sequence),
    )


def envelope_bytes(first: bytes) -> int:
    """How much of a body whose first fragment begins so is its envelope."""
    return ENVELOPE_LENGTH + int.from_bytes(first[:ENVELOPE_LENGTH], "big")


# --- queues -----------------------------------------------------------------------------------------------------

ORDERS_RESERVED = 1000  # numbers of messages for which the sequence table is written once
_PUT = (
    "INSERT INTO broker_message (queuing_order, queue_id, status, priority, endpoint_id, message_sequence_number,"
    " message_type_name, message_enqueue_time, message_body, body_fragments, headers)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_LAST_ORDER = "SELECT max(seq) FROM sqlite_sequence WHERE name = 'broker_message'"
_RESERVE_FIRST = "INSERT INTO sqlite_sequence (seq, name) VALUES (?, 'broker_message')"
_RESERVE = "UPDATE sqlite_sequence SET seq = ? WHERE name = 'broker_message'"
_FIND_SERVICE = (
    "SELECT queue_id, s.contracts, q.is_receive_enabled, s.is_exclusive_target FROM broker_service s"
    " JOIN broker_queue q USING (queue_id) WHERE s.name = ?"
)
_CONFIRM = "UPDATE broker_message SET status = ? WHERE endpoint_id = ? AND status = ?"
_QUARANTINED = "SELECT 1 FROM broker_failure WHERE endpoint_id = ? AND quarantine_time IS NOT NULL"


class QueueWriter:
    """The queues of a database during one batch; `delivered` counts messages by service."""

    def __init__(self, db: sqlite3.Connection, now: float) -> None:
        self.delivered: Counter[str] = Counter()
        self._db = db
        self._now = now
        self._services: dict[str, tuple[int, str, bool, bool] | None] = {}  # as `_FIND_SERVICE` has it
        self._rules: dict[tuple[str, str], Rule | None] = {}
        self._has_failures: bool | None = None
        self._rows: list[tuple[Any, ...]] = []

    def contracts_of(self, service: str) -> list[str] | None:
        """The contracts that a service accepts, empty = any; None when there is no such service."""
        found = self._find(service)
        return None if found is None else json.loads(found[1])

    def is_off(self, service: str) -> bool:
        """Whether the queue of a service takes nothing."""
        found = self._find(service)
        return found is not None and not found[2]

    def is_unconfirmed(self, side: SideRow) -> bool:
        """Whether its application shall not see the dialog yet: another instance may have it (EXCLUSIVE_TARGET)."""
        if side.contact.is_initiator or side.opening != OPENING_UNKNOWN:
            return False
        found = self._find(side.contact.service_name)
        return found is not None and bool(found[3])

    def confirm(self, side: SideRow) -> None:
        """The initiator has this database alone: its messages can be received."""
        self.flush()
        self._db.execute(_CONFIRM, (READY, side.endpoint_id, UNCONFIRMED))
        found = self._find(side.contact.service_name)
        if found is not None:
            self._note_arrivals([(found[0], side.endpoint_id)])

    def why_refused(self, side: SideRow, type_name: str, body: bytes | LargeBody) -> Refusal | None:
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
        if refusal is not None or not isinstance(body, LargeBody):
            return refusal or refusal_of_body(rule, body)  # type: ignore[arg-type]
        return rule.invalid(body.violation(rule.validation))

    def put(
        self,
        side: SideRow,
        sequence: int,
        type_name: str,
        body: bytes | LargeBody,
        *,
        priority: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Put a message into the queue of the service; False when the service has been dropped."""
        service = side.contact.service_name
        found = self._find(service)
        if found is None:
            return False
        status = IN_QUARANTINE if self._is_quarantined(side.endpoint_id) else READY
        if self.is_unconfirmed(side):
            status = UNCONFIRMED
        level = side.priority if priority is None else priority
        payload, fragments = (None, body.fragments) if isinstance(body, LargeBody) else (body, None)
        carried = json.dumps(headers, ensure_ascii=False) if headers else None
        self._rows.append(
            (found[0], status, level, side.endpoint_id, sequence, type_name, self._now, payload, fragments, carried)
        )
        self.delivered[service] += 1
        return True

    def put_error(self, side: SideRow, sequence: int, body: bytes | LargeBody) -> bool:
        """Put an Error message, which is read before everything but a timer."""
        return self.put(side, sequence, ERROR, body, priority=ERROR_PRIORITY)

    def flush(self) -> None:
        """Write what was put, in the order in which it was put."""
        if self._rows:
            orders = self._orders(len(self._rows))
            self._db.executemany(_PUT, [(order, *row) for order, row in zip(orders, self._rows, strict=True)])
            self._note_arrivals((row[0], row[3]) for row in self._rows)
            self._rows.clear()

    def _orders(self, count: int) -> Iterable[int | None]:
        """
        The numbers of so many messages, each higher than all before and given once, whatever happens.

        Those that SQLite gives by itself (None) write its sequence table with each message, which is a page more in the
        log. A daemon's connection has a block of them, which that table counts as given. Messages that others put
        in between get higher numbers, and the next block begins after those; the rest of a block is never used.
        """
        db = self._db
        if not isinstance(db, DaemonConnection):
            return repeat(None, count)
        last = db.execute(_LAST_ORDER).fetchone()[0]
        free = db.free_orders
        if free.stop - 1 != last or len(free) < count:
            first = (last or 0) + 1
            free = range(first, first + max(ORDERS_RESERVED, count))
            db.execute(_RESERVE_FIRST if last is None else _RESERVE, (free.stop - 1,))
        db.free_orders = free[count:]
        return free[:count]

    def _note_arrivals(self, arrivals: Iterable[tuple[int, int]]) -> None:
        """Their readers are woken after the commit, by queue_id and endpoint_id."""
        if isinstance(self._db, DaemonConnection) and self._db.arrivals is not None:
            self._db.arrivals.update(arrivals)

    def _find(self, service: str) -> tuple[int, str, bool, bool] | None:
        if service not in self._services:
            self._services[service] = self._db.execute(_FIND_SERVICE, (service,)).fetchone()
        return self._services[service]

    def _is_quarantined(self, endpoint_id: int) -> bool:
        if self._has_failures is None:
            self._has_failures = self._db.execute("SELECT 1 FROM broker_failure LIMIT 1").fetchone() is not None
        return self._has_failures and self._db.execute(_QUARANTINED, (endpoint_id,)).fetchone() is not None

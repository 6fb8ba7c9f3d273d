"""
SEND ON CONVERSATION: one message, many on one dialog, or one on many dialogs, each call as a whole or not at all.

A message gets its sequence number and its row of the transmission queue in the application's own transaction; the
daemon finds it after the commit. A declared contract is enforced here: an undeclared one lets everything pass. The
body of a large message is stored part by part. A generator or a file-like object is the application's code: it may use
the same connection, commit, or even send on the same dialog. So it is read before the database is touched, and none of
its code runs between the writes of a call: up to BATCH_BYTES stay in memory, the rest waits in a file without a name.

Source: Service Broker documentation, "SEND"; the numbers are those of the engine's message catalogue.
"""

from __future__ import annotations

import io
import marshal
import os
import sqlite3
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import IO, Any, TypeAlias

from broker import conversation
from broker.client.arguments import check_name, unknown_handle
from broker.client.body import Body, Bytes, Carried, Headers, carried, not_kept, read_body, temporary_file
from broker.client.transaction import transaction, whole
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, Refusal, Rule
from broker.conversation.state import CAN_SEND, ConversationState
from broker.errors import ConversationError
from broker.protocol.layout import show_guid
from broker.store.sqlite.dialog_rules import message_rule
from broker.store.sqlite.schema import NEXT_TRANSMISSION
from broker.store.sqlite.transaction import ask, plain

BATCH_BYTES = 1024 * 1024  # held in memory at once
_RECORD_BYTES = 100  # of a record besides its body, about
_SIZE_BYTES = 8  # before each batch of the file
SYSTEM_TYPES = frozenset({END_DIALOG, ERROR, DIALOG_TIMER})

_SIDE = (
    "SELECT state, lifetime, create_date, send_sequence, contract, is_initiator,"
    " EXISTS (SELECT 1 FROM broker_contract WHERE name = contract) FROM broker_conversation WHERE endpoint_id = ?"
)
_TRANSMIT = (
    "INSERT INTO broker_transmission (transmission_id,"  # noqa: S608 - a literal of that module
    " endpoint_id, message_sequence_number, message_type_name, enqueue_time, message_body, headers, flags)"
    f" VALUES ({NEXT_TRANSMISSION}, ?, ?, ?, ?, ?, ?, ?)"
)
_PART = "INSERT INTO broker_transmission_part VALUES (?, ?, ?)"
_LENGTH = "UPDATE broker_transmission SET body_length = ? WHERE transmission_id = ?"
_SENT = "UPDATE broker_conversation SET send_sequence = ? WHERE endpoint_id = ?"
_FIRST_SENT = "UPDATE broker_conversation SET send_sequence = ?, state = 'CO' WHERE endpoint_id = ?"

Endpoint: TypeAlias = tuple[int, uuid.UUID]
"""A side of a dialog: its endpoint_id and its conversation handle."""
Item: TypeAlias = Body | tuple[str, Body]
"""A body, or its message type and the body."""
_Record: TypeAlias = tuple[str, bytes, bool]  # type, body or part of one, whether the message is complete with it


class _SendingSide:
    """The sending side while a call sends on it."""

    __slots__ = ("carried", "contract", "db", "endpoint_id", "is_initiator", "now", "rules", "sequence", "state")

    def __init__(
        self, db: sqlite3.Connection, endpoint_id: int, row: tuple[Any, ...], now: float, more: Carried
    ) -> None:
        """Take its row as `_SIDE` has it."""
        self.db = db
        self.endpoint_id = endpoint_id
        state, _, began, sequence, contract, is_initiator, is_declared = row
        self.state: str = state  # before the call
        self.sequence: int = sequence  # of its next message
        self.contract: str | None = contract if is_declared else None
        self.is_initiator = bool(is_initiator)
        self.now = max(now, began)  # not before it began: a wall clock may have gone back since
        self.carried = more  # by each message
        self.rules: dict[str, Rule | None] = {}

    def rule(self, type_name: str) -> Rule | None:
        """Return the contract's rule for a type that this side may send; None when the contract is not declared."""
        if type_name in self.rules:
            return self.rules[type_name]
        _check_type(type_name)
        rule = None
        if self.contract is not None:
            with plain(self.db):
                rule = message_rule(self.db, self.contract, type_name)
        if rule is not None:
            _refuse(rule.refusal_to_send(is_initiator=self.is_initiator))
        self.rules[type_name] = rule
        return rule

    def sent(self, next_sequence: int) -> None:
        """Everything before this number is queued. The state is written only when it changes: that doubles the cost."""
        statement = _FIRST_SENT if self.state == ConversationState.STARTED_OUTBOUND else _SENT
        ask(self.db, statement, (next_sequence, self.endpoint_id))


def send_one(db: sqlite3.Connection, endpoint: Endpoint, body: Body, type_name: str, headers: Headers | None) -> int:
    """Queue one message; returns its sequence number. Raises: see `Dialog.send`."""
    more = carried(headers)
    data = read_body(body)
    if not isinstance(data, bytes):
        with settled(body, data) as parts:
            return _send(db, [endpoint], parts, type_name, more)[0]
    with transaction(db):
        side = _open(db, endpoint, more)
        rule = side.rule(type_name)
        if rule is not None:
            _refuse(conversation.body_check.refusal_of_body(rule, data))
        row = ask(db, _TRANSMIT, (side.endpoint_id, side.sequence, type_name, side.now, data, *more)).lastrowid
        try:
            side.sent(side.sequence + 1)
        except BaseException:
            # The transaction may be the application's, which may commit it: no number may be used twice.
            if db.in_transaction:
                ask(db, "DELETE FROM broker_transmission WHERE transmission_id = ?", (row,))
            raise
    return side.sequence


def send_many(
    db: sqlite3.Connection, endpoint: Endpoint, items: Iterable[Item], type_name: str, headers: Headers | None
) -> range:
    """Queue many messages in one pass; returns their sequence numbers. Raises: see `Dialog.send_many`."""
    if isinstance(items, str | Bytes | Mapping):  # iterables too, but of characters, numbers or keys
        what = "send_many takes an iterable of bodies, or of pairs of a type and a body"
        raise TypeError(f"{what}, not {type(items).__name__}; for one body call send")
    more = carried(headers)
    with closing(Spool()) as spool:
        for item in items:
            name, body = item if isinstance(item, tuple) else (type_name, item)
            _check_type(name)
            spool.put(name, read_body(body))
        with whole(db):
            side = _open(db, endpoint, more)
            first = side.sequence
            db.executemany(_TRANSMIT, _rows(side, spool))
            if side.sequence > first:
                side.sent(side.sequence)
    return range(first, side.sequence)


def send_to_all(
    db: sqlite3.Connection, endpoints: Sequence[Endpoint], body: Body, type_name: str, headers: Headers | None
) -> list[int]:
    """Queue one message on each of several dialogs; returns its sequence numbers. Raises: see `broker.send`."""
    more = carried(headers)
    with settled(body, read_body(body)) as data:
        return _send(db, endpoints, data, type_name, more)


def refusal(db: sqlite3.Connection, endpoint: Endpoint, what: str) -> ConversationError:
    """Why a conversation cannot do what needs a state in which it may send."""
    endpoint_id, handle = endpoint
    with plain(db):
        row = ask(db, "SELECT state FROM broker_conversation WHERE endpoint_id = ?", (endpoint_id,)).fetchone()
    if row is None:
        return unknown_handle(handle)
    state = ConversationState(row[0])
    if state in CAN_SEND:
        return ConversationError(8489, f"the lifetime of conversation {show_guid(handle)} is over")
    problem = f"conversation {show_guid(handle)} is not in a valid state for {what}; it is {state} ({state.name})"
    return ConversationError(8429, problem)


def _open(db: sqlite3.Connection, endpoint: Endpoint, more: Carried) -> _SendingSide:
    """The side of a dialog that may send now."""
    now = time.time()
    with plain(db):
        row = ask(db, _SIDE, endpoint[:1]).fetchone()
    if row is None or row[0] not in CAN_SEND or row[1] <= now:
        raise refusal(db, endpoint, "SEND")
    return _SendingSide(db, endpoint[0], row, now, more)


def _rows(side: _SendingSide, spool: Spool) -> Iterator[tuple[object, ...]]:
    """Yield the rows of many messages, in order; a large message is stored directly, without a row from here."""
    now, endpoint_id, more = side.now, side.endpoint_id, side.carried
    for name, data in spool.messages():
        rule = side.rule(name)
        sequence = side.sequence
        if isinstance(data, bytes):
            if rule is not None:
                _refuse(conversation.body_check.refusal_of_body(rule, data))
            yield endpoint_id, sequence, name, now, data, *more
        else:
            _store_large([side], data, name)
        side.sequence = sequence + 1


def _send(
    db: sqlite3.Connection, endpoints: Sequence[Endpoint], data: bytes | Iterator[bytes], type_name: str, more: Carried
) -> list[int]:
    """Queue one message, its body or the parts of a large one, on each of these dialogs."""
    with whole(db):
        sides = [_open(db, endpoint, more) for endpoint in endpoints]
        if isinstance(data, bytes):
            for rule in _distinct_rules(sides, type_name):
                _refuse(conversation.body_check.refusal_of_body(rule, data))
            rows = ((side.endpoint_id, side.sequence, type_name, side.now, data, *more) for side in sides)
            db.executemany(_TRANSMIT, rows)
        else:
            _store_large(sides, data, type_name)
        for side in sides:
            side.sent(side.sequence + 1)
    return [side.sequence for side in sides]


def _store_large(sides: Sequence[_SendingSide], parts: Iterator[bytes], type_name: str) -> None:
    """The rows of a large message on each of these sides, its body read once."""
    db = sides[0].db
    checks = [(rule, conversation.body_check.validator(rule.validation)) for rule in _distinct_rules(sides, type_name)]
    keys = [
        ask(db, _TRANSMIT, (side.endpoint_id, side.sequence, type_name, side.now, None, *side.carried)).lastrowid
        for side in sides
    ]
    length = 0
    for number, part in enumerate(parts):
        for rule, check in checks:
            _refuse(rule.invalid(check.feed(part)))
        db.executemany(_PART, [(key, number, part) for key in keys])
        length += len(part)
    for rule, check in checks:
        _refuse(rule.invalid(check.close()))
    db.executemany(_LENGTH, [(length, key) for key in keys])


def _distinct_rules(sides: Sequence[_SendingSide], type_name: str) -> list[Rule]:
    """Return the rules for a type in the contracts of several sides, each rule once."""
    return list(dict.fromkeys(rule for side in sides if (rule := side.rule(type_name)) is not None))


@lru_cache(256)
def _check_type(type_name: str) -> None:
    check_name(type_name, "message type")
    if type_name in SYSTEM_TYPES:
        problem = f"the message type {type_name!r} is the broker's own; call end() or set_timer() instead"
        raise ConversationError(8431, problem)


def _refuse(refused: Refusal | None) -> None:
    if refused is not None:
        raise ConversationError(refused.number, refused.problem)


# --- bodies read in advance ---


class Spool:
    """Messages in order, read before the database is touched."""

    def __init__(self) -> None:
        self._batch: list[_Record] = []
        self._batch_bytes = 0
        self._file: IO[bytes] | None = None

    def close(self) -> None:
        """Remove the file."""
        if self._file is not None:
            self._file.close()

    def put(self, type_name: str, data: bytes | Iterator[bytes]) -> None:
        """
        One more message: its body, or the parts of a large one, which are read now.

        Raises:
            StoreUnavailableError: the disk of temporary files is full.
        """
        if isinstance(data, bytes):
            self._add(type_name, data, is_last=True)
            return
        for part in data:
            self._add(type_name, part, is_last=False)
        self._add(type_name, b"", is_last=True)

    def messages(self) -> Iterator[tuple[str, bytes | Iterator[bytes]]]:
        """Type and body of each, as they were put. The parts of a large one are read before the next is asked for."""
        records = self._records()
        for type_name, data, is_last in records:
            yield type_name, data if is_last else _parts(data, records)

    def _add(self, type_name: str, data: bytes, *, is_last: bool) -> None:
        self._batch.append((type_name, data, is_last))
        self._batch_bytes += len(data) + _RECORD_BYTES
        if self._batch_bytes >= BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        written = marshal.dumps(self._batch)
        try:
            if self._file is None:
                self._file = temporary_file()
            self._file.write(len(written).to_bytes(_SIZE_BYTES))
            self._file.write(written)
            self._file.flush()
        except OSError as error:
            raise not_kept(error) from error
        self._batch, self._batch_bytes = [], 0

    def _records(self) -> Iterator[_Record]:
        if self._file is not None:
            self._file.seek(0)
            while size := self._file.read(_SIZE_BYTES):
                yield from marshal.loads(self._file.read(int.from_bytes(size)))  # noqa: S302 - written above
        yield from self._batch


@contextmanager
def settled(body: object, data: bytes | Iterator[bytes]) -> Iterator[bytes | Iterator[bytes]]:
    """
    A body, or the parts of a large one so that reading them runs none of the application's code.

    Bytes, text and files on a disk are read in place, all else is read before.
    """
    if isinstance(data, bytes) or isinstance(body, Bytes | str) or _is_real_file(body):
        yield data
        return
    with closing(Spool()) as spool:
        spool.put("", data)
        yield next(spool.messages())[1]


def _is_real_file(body: object) -> bool:
    """Whether its bytes are there already: of a file on a disk or in memory, not of a pipe."""
    raw = body.raw if type(body) in {io.BufferedReader, io.BufferedRandom} else body  # type: ignore[attr-defined]
    if isinstance(raw, io.FileIO) and type(raw) is io.FileIO:
        return stat.S_ISREG(os.fstat(raw.fileno()).st_mode)
    return type(raw) is io.BytesIO


def _parts(first: bytes, records: Iterator[_Record]) -> Iterator[bytes]:
    yield first
    for _, data, is_last in records:
        if is_last:
            return
        yield data

"""
Finds the messages that applications queued, and loads them as fragments in order, as the window of the dialog asks.

This module is for the writer thread. A new row has a higher `transmission_id` than all rows that are there, so new rows
are those above the newest one that was seen, as long as that is there: when it was removed, its number is free again.
The daemon removes rows in its own transactions, and takes then the newest seen one that is left (`newest`).
Applications remove those of a dialog that they end, which the ledger counts: then all rows are found again. The rows of
one dialog are read by sequence number, as far as its window asks, and large messages in parts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from broker.conversation.frames import Contact
from broker.conversation.outbound import Outgoing
from broker.protocol.envelope import TRACE_PARENT
from broker.protocol.frame import Envelope, encode_envelope
from broker.protocol.layout import NO_GUID, Flag
from broker.store.port import LoadedFragments, LoadRequest, PendingDialog
from broker.store.sqlite.ledger import GIVEN_UP_SQL
from broker.store.sqlite.schema import PART_BYTES
from broker.store.sqlite.session_keys import secured_of

_LAST, _TRACE = int(Flag.LAST_FRAGMENT), int(Flag.TRACE)  # an enum's operators are slow
_NEWEST = (  # SQLite takes a column next to a maximum from the row that has it
    "SELECT coalesce(max(transmission_id), 0), endpoint_id, message_sequence_number,"  # noqa: S608
    f" ({GIVEN_UP_SQL}) FROM broker_transmission WHERE transmission_id <= ?"
)
_IS_THERE = (
    "SELECT 1 FROM broker_transmission WHERE (transmission_id, endpoint_id, message_sequence_number) = (?, ?, ?)"
)
_NUMBER_MAX = (1 << 63) - 1
_DIALOG = (
    " c.conversation_id, c.is_initiator, c.service_name, c.far_service, c.far_broker_instance, c.receive_sequence,"
    " c.receive_sequence_frag, c.priority, c.transmission_status, k.security, k.far_principal, k.secret"
)
_KEY = " LEFT JOIN broker_session_key k ON k.conversation_id = c.conversation_id AND k.is_initiator = c.is_initiator"
_FIND_NEW = (  # NOT INDEXED: by its key, for SQLite would rather go through the whole of the other index
    f"SELECT t.endpoint_id, min(t.message_sequence_number),{_DIALOG}"  # noqa: S608 - columns listed above
    f" FROM broker_transmission t NOT INDEXED JOIN broker_conversation c USING (endpoint_id){_KEY}"
    " WHERE t.transmission_id > ? GROUP BY t.endpoint_id ORDER BY min(t.transmission_id)"
)
_FIND_ALL = (
    "WITH RECURSIVE e (endpoint_id) AS (SELECT min(endpoint_id) FROM broker_transmission UNION ALL"  # noqa: S608
    " SELECT (SELECT min(endpoint_id) FROM broker_transmission WHERE endpoint_id > e.endpoint_id)"
    " FROM e WHERE e.endpoint_id IS NOT NULL)"
    f" SELECT t.endpoint_id, t.message_sequence_number,{_DIALOG} FROM e CROSS JOIN broker_transmission t"
    " ON t.transmission_id = (SELECT first.transmission_id FROM broker_transmission first"
    " WHERE first.endpoint_id = e.endpoint_id ORDER BY first.message_sequence_number LIMIT 1)"
    f" CROSS JOIN broker_conversation c ON c.endpoint_id = e.endpoint_id{_KEY} ORDER BY t.transmission_id"
)


class SentRow(NamedTuple):
    """A row of the transmission queue; its dialog and sequence number are never used again, so they identify it."""

    transmission_id: int  # 0: no row that is there was seen
    endpoint_id: int | None
    message_sequence_number: int | None
    given_up: float  # messages, when it was found (`GIVEN_UP_SQL`)


def newest(db: sqlite3.Connection, up_to: int = _NUMBER_MAX) -> SentRow:
    """The newest row, of those up to this transmission_id."""
    return SentRow(*db.execute(_NEWEST, (up_to,)).fetchone())


def is_there(db: sqlite3.Connection, seen: SentRow) -> bool:
    """Whether a row was not removed, so that all new ones are above it."""
    return not seen.transmission_id or db.execute(_IS_THERE, seen[:3]).fetchone() is not None


def find_pending(
    db: sqlite3.Connection, instance: bytes, seen: SentRow | None
) -> tuple[SentRow, list[PendingDialog], bool]:
    """
    Find the dialogs with rows in the transmission queue above `seen`; with any rows when it is gone, or None, or when
    applications have given messages up since.

    Returns:
        The newest row seen, the dialogs in the order in which they began to wait, and whether these are all.

    Cost: each row above `seen` is read; for all rows, as at the start of a daemon, some look-ups for each dialog that
    has rows, however many.
    """
    last = newest(db)
    if last == seen:
        return last, [], False
    if seen is not None and seen.given_up != last.given_up:
        seen = None
    rows = [] if seen is None else db.execute(_FIND_NEW, (seen.transmission_id,)).fetchall()
    is_all = seen is None or not is_there(db, seen)  # asked last: if it is there, it was when newer rows were found
    if is_all:
        rows = db.execute(_FIND_ALL).fetchall()
    found = [
        PendingDialog(
            endpoint_id,
            Contact(conversation, bool(is_initiator), service, instance, far_service, far or NO_GUID, secured_of(*key)),
            first,
            (sequence, fragment),
            priority,
            status,
        )
        for endpoint_id, first, conversation, is_initiator, service, far_service, far, *rest in rows
        for sequence, fragment, priority, status, *key in (rest,)
    ]
    return last, found, is_all


def load_fragments(
    db: sqlite3.Connection, request: LoadRequest, fragment_size: int, *, now: float, free_bytes: int
) -> LoadedFragments | None:
    """
    Load the next fragments of a dialog in order. Cost: what is loaded, and of a message in one row that row.

    Args:
        db: The connection of the writer thread.
        request: What to load.
        fragment_size: By which messages are cut; the same as long as one of several fragments waits.
        now: UTC seconds since 1970.
        free_bytes: Bytes of bodies that may be loaded at all.

    Returns:
        None when not even the first of them fits in `free_bytes`; no fragments when nothing has to be sent from there.
    """
    sequence, number = request.place
    rows = db.execute(
        "SELECT transmission_id, message_sequence_number, flags, message_type_name, enqueue_time, message_body,"
        " body_length, headers FROM broker_transmission WHERE endpoint_id = ? AND message_sequence_number >= ?"
        " ORDER BY message_sequence_number LIMIT ?",
        (request.endpoint_id, sequence, request.fragments),
    )
    loaded, space = list[Outgoing](), min(request.max_bytes, free_bytes)
    for transmission_id, row_sequence, flags, type_name, enqueued, body, length, headers in rows:
        first = number if row_sequence == sequence else 0
        envelope, contract, lifetime = b"", "", 0.0
        carried = None if headers is None else json.loads(headers)
        parent = carried.get(TRACE_PARENT, "") if carried and flags & _TRACE else ""
        if first == 0:
            since = max(now, enqueued)
            if row_sequence == 0:
                contract, lifetime = _opening(db, request.endpoint_id)
            if 0.0 < lifetime <= since:  # no daemon ran to end it: do not begin the dialog now
                break
            remaining = left(lifetime, since) if contract else None
            envelope = encode_envelope(Envelope(type_name, contract, int(enqueued * 1_000_000), remaining, carried))
        if first == 0 and body is not None and len(body) <= fragment_size:
            fragments: Iterable[tuple[int, bytes, bool]] = ((0, body, True),)
        else:
            fragments = _cut(db, transmission_id, length if body is None else body, first, fragment_size)
        for fragment, piece, is_last in fragments:
            content = piece if fragment else envelope + piece
            size = len(content)
            if size > space and (loaded or size > free_bytes):
                return LoadedFragments(request, loaded, is_all=False) if loaded else None
            marks = flags | _LAST if is_last else flags
            one = Outgoing((row_sequence, fragment), marks, content, enqueued_at=enqueued, trace_parent=parent)
            one.lifetime = 0.0 if fragment else lifetime
            loaded.append(one)
            space -= size
            if len(loaded) == request.fragments:
                return LoadedFragments(request, loaded, is_all=False)
    return LoadedFragments(request, loaded, is_all=True)


def save_statuses(db: sqlite3.Connection, statuses: Mapping[int, str | None], now: float) -> None:
    """Save why dialogs wait, by endpoint_id; None where they do not. Inside a transaction."""
    db.executemany(
        "UPDATE broker_conversation SET transmission_status = ?, transmission_status_time = ? WHERE endpoint_id = ?",
        [(status, None if status is None else now, endpoint_id) for endpoint_id, status in statuses.items()],
    )


def _opening(db: sqlite3.Connection, endpoint_id: int) -> tuple[str, float]:
    """
    Return the contract of an initiator's first message, and the instant at which its dialog is over.

    For a target return no contract and 0.
    """
    query = "SELECT contract, lifetime FROM broker_conversation WHERE endpoint_id = ? AND is_initiator"
    return db.execute(query, (endpoint_id,)).fetchone() or ("", 0.0)


def left(lifetime: float, now: float) -> int:
    """
    Whole seconds that a dialog may still live, as its first message says them: 1 at least.

    `now` is not before the message was queued: a wall clock that went back since would add to the lifetime.
    """
    return max(1, int(lifetime - now))


def _cut(
    db: sqlite3.Connection, transmission_id: int, body: bytes | int, first: int, fragment_size: int
) -> Iterator[tuple[int, bytes, bool]]:
    """
    The fragments of a message from number `first` on, or from its last one when it has no such.

    Args:
        db: The connection of the writer thread.
        transmission_id: Its row.
        body: The whole of it; or the length of one that is in parts.
        first: The number of the first fragment.
        fragment_size: By which it is cut.

    Yields:
        The number and payload of each, and whether it is the last.
    """
    length = body if isinstance(body, int) else len(body)
    last = max(0, (length - 1) // fragment_size)
    first = min(first, last)
    starts = range(first * fragment_size, max(1, length), fragment_size)
    if isinstance(body, int):
        pieces = _pieces(db, transmission_id, starts, length)
    else:
        pieces = (body[start : start + fragment_size] for start in starts)
    for number, piece in enumerate(pieces, first):
        yield number, piece, number == last


def _pieces(db: sqlite3.Connection, transmission_id: int, starts: range, length: int) -> Iterator[bytes]:
    """Yield slices of a body in parts, one step of `starts` long; only one slice and one part are in memory."""
    part = starts.start // PART_BYTES
    rows = db.execute(
        "SELECT part_number, body FROM broker_transmission_part WHERE transmission_id = ? AND part_number >= ?"
        " ORDER BY part_number",
        (transmission_id, part),
    )
    buffer = bytearray()
    skip = starts.start - part * PART_BYTES
    for start in starts:
        size = min(starts.step, length - start)
        while len(buffer) < size + skip:
            row = rows.fetchone()
            if row is None or row[0] != part:
                problem = f"part {part} of message {transmission_id} in the transmission queue is gone"
                raise sqlite3.DatabaseError(problem)
            buffer += row[1]
            part += 1
        yield bytes(buffer[skip : skip + size])
        del buffer[: skip + size]
        skip = 0

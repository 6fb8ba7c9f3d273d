"""
One turn of the writer thread: find what applications queued, load what the windows ask for, store what arrived.

Everything that touches the file of a database happens here, in this order, on one connection. Storing comes last: when
any of it fails, nothing has been stored that the loop does not hear of. The arrivals of a turn are one transaction, so
the more arrives at once, the less a message pays for the disk.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from broker.dialog.conversation import Outgoing
from broker.dialog.receiving import Receipt, receive_in_writer
from broker.dialog.sending import Found, Want, expire_in_writer, find_in_writer, load_in_writer


@dataclass(frozen=True, slots=True)
class Turn:
    """
    What to do.

    Shape: `now` UTC seconds since 1970; `frames` whole dialog frames for this database; `find_after` a transmission_id,
    None when no application has committed; `load_max_bytes` of bodies, at which loading stops; `is_time_to_expire` when
    dialogs past their lifetime shall be looked for.
    """

    now: float
    frames: list[bytes]
    find_after: int | None
    wants: list[Want]
    load_max_bytes: int
    is_time_to_expire: bool


@dataclass(slots=True)
class TurnResult:
    """What came of it; `found_up_to` is the next turn's `find_after`, `postponed` what there was no room to load."""

    receipt: Receipt = field(default_factory=Receipt)
    found: list[Found] = field(default_factory=list)
    found_up_to: int | None = None
    loaded: list[tuple[Want, list[Outgoing]]] = field(default_factory=list)
    postponed: list[Want] = field(default_factory=list)
    expired: list[int] = field(default_factory=list)


def turn_in_writer(db: sqlite3.Connection, instance: bytes, turn: Turn, fragment_size: int) -> TurnResult:
    """
    Do one turn.

    Raises:
        sqlite3.Error: the store failed; nothing of `frames` was stored and nothing may be acknowledged.
    """
    result = TurnResult()
    if turn.find_after is not None:
        result.found_up_to, result.found = find_in_writer(db, instance, turn.find_after)
    room = turn.load_max_bytes
    for want in turn.wants:
        if room > 0:
            messages = load_in_writer(db, want, fragment_size, turn.now)
            room -= sum(len(message.body) for message in messages)
            result.loaded.append((want, messages))
        else:
            result.postponed.append(want)
    if turn.is_time_to_expire:
        result.expired = expire_in_writer(db, turn.now)
    if turn.frames:
        result.receipt = receive_in_writer(db, instance, turn.frames, turn.now)
    return result

"""
One turn of the writer thread: find what applications queued, load what the windows ask for, say what waits and why,
store what arrived.

Everything that touches the file of a database happens here, in this order, on one connection. Whatever is written is
written last and in one transaction: when any of it fails, nothing has been stored that the loop does not hear of. The
arrivals of a turn are one transaction, so the more arrives at once, the less a message pays for the disk.
"""

from __future__ import annotations

import sqlite3
import time

from broker.conversation.window import FIRST_BYTES
from broker.store.expiry import next_timer
from broker.store.failing import fail_in_writer
from broker.store.receiving import store_in_writer
from broker.store.sending import find_in_writer, load_in_writer, say_in_writer
from broker.store.sending_port import Want
from broker.store.transaction import check_epoch, writing
from broker.store.turn_port import WriteBatch, WriteResult

FOUND_LOADED = 1000  # dialogs at most that are loaded in the turn that finds them: the others ask for it
_PROBE = (  # takes more pages than may be lying about
    "INSERT INTO broker_fragment VALUES (-1, 0, 0, 0, zeroblob(65536))",
    "DELETE FROM broker_fragment WHERE endpoint_id = -1",
)


def turn_in_writer(db: sqlite3.Connection, instance: bytes, turn: WriteBatch, fragment_size: int) -> WriteResult:
    """
    Do one turn.

    Raises:
        sqlite3.Error: the store failed; nothing of `frames` was stored and nothing may be acknowledged.
        DemotedError: likewise, because somebody else is the principal of this database.
    """
    result = WriteResult()
    if turn.find_after is not None:
        result.found_up_to, result.found = find_in_writer(db, instance, turn.find_after)
    _load(db, turn, fragment_size, result)
    keeper = turn.housekeeping
    if keeper is not None and not keeper.has_work(db, turn.now):
        keeper = None
    if turn.frames or turn.statuses or turn.faults or turn.is_probe or keeper is not None:
        began = time.perf_counter()
        try:
            with writing(db):
                if turn.is_probe:
                    for statement in _PROBE:
                        db.execute(statement)
                if turn.statuses:
                    say_in_writer(db, turn.statuses, turn.now)
                if keeper is not None:
                    result.kept = keeper.run(db, turn.now)
                if turn.faults:
                    fail_in_writer(db, turn.faults, turn.now)
                if turn.frames:
                    result.receipt = store_in_writer(
                        db, instance, turn.frames, turn.now, gate=turn.gate, origins=turn.origins, inside=turn.inside
                    )
                result.receipt.finished.update(turn.faults)
                result.next_timer = next_timer(db)
            result.seconds = time.perf_counter() - began
        except sqlite3.Error:
            if keeper is not None:
                keeper.forget()
            raise
    else:
        check_epoch(db)
        result.next_timer = next_timer(db)
    return result


def _load(db: sqlite3.Connection, turn: WriteBatch, fragment_size: int, result: WriteResult) -> None:
    """What was wanted; and of dialogs that begin to wait what they may send at once, which saves them a turn."""
    room = turn.load_max_bytes
    wants = [(want, True) for want in turn.wants]
    for found in result.found[:FOUND_LOADED]:
        if not turn.known(found.endpoint_id):
            place = (found.first_sequence, 0)
            wants.append((Want(found.endpoint_id, place, turn.first_frames, FIRST_BYTES), False))
    for want, is_asked_for in wants:
        loaded = load_in_writer(db, want, fragment_size, now=turn.now, room=room)
        if loaded is not None:
            room -= sum([len(fragment.body) for fragment in loaded.fragments])
            result.loaded.append(loaded)
        elif is_asked_for:
            result.postponed.append(want)

"""Play many senders, each with a dialog of its own: `python feed.py state/branches/branches.db 200`."""

import json
import sqlite3
import sys
from contextlib import closing

import broker

EVENTS = 3  # of each sender, in two visits
A_TRANSACTION = 500  # senders: the daemon waits for the file as long as a transaction takes


def in_turns(senders: int) -> list[range]:
    """The numbers of the senders, as many at a time as one transaction takes."""
    return [range(first, min(first + A_TRANSACTION, senders)) for first in range(0, senders, A_TRANSACTION)]


def event(sender: int, number: int) -> str:
    """What one event says."""
    return json.dumps({"sender": sender, "number": number, "what": "opened" if number == 0 else "moved"})


def main(path: str, senders: int) -> None:
    """Begin the dialogs and keep their handles; later find each again by its handle, send the rest and end it."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS senders (sender INTEGER PRIMARY KEY, conversation_handle TEXT NOT NULL)")
        for turn in in_turns(senders):
            with db:
                for sender in turn:
                    dialog = broker.begin_dialog(db, from_service="//bank/Branch", to_service="//bank/Audit")
                    dialog.send(event(sender, 0), type="//bank/Event")
                    db.execute("INSERT INTO senders VALUES (?, ?)", (sender, str(dialog.conversation_handle)))
        for turn in in_turns(senders):
            with db:
                rows = db.execute(
                    "SELECT sender, conversation_handle FROM senders WHERE sender BETWEEN ? AND ?", (turn[0], turn[-1])
                ).fetchall()
                for sender, handle in rows:
                    dialog = broker.get_dialog(db, handle)
                    dialog.send_many([event(sender, number) for number in range(1, EVENTS)], type="//bank/Event")
                    dialog.end()
    print(f"{senders} senders, {senders * EVENTS} events sent")


main(sys.argv[1], int(sys.argv[2]))

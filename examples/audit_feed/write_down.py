"""Write down what comes until every sender has ended: `python write_down.py state/audit/audit.db 200`."""

import json
import sqlite3
import sys
import time
from contextlib import closing

import broker

PATIENCE_SECONDS = 60.0  # without anything coming
TABLE = """
CREATE TABLE IF NOT EXISTS events (
    place INTEGER PRIMARY KEY,  -- in the order in which they were written down
    sender INTEGER NOT NULL,
    number INTEGER NOT NULL,
    what TEXT NOT NULL,
    UNIQUE (sender, number)     -- written down twice would be an error
)
"""
OUT_OF_ORDER = """
SELECT count(*) FROM (
    SELECT number, row_number() OVER (PARTITION BY sender ORDER BY place) - 1 AS expected FROM events
) WHERE number <> expected
"""


def take(db: sqlite3.Connection) -> tuple[int, int]:
    """
    Take what is there, a thousand at most, and write it down in the same transaction.

    Returns:
        How many messages were taken, and how many senders have ended.
    """
    ended = 0
    with db:
        messages = broker.receive(db, queue="AuditQueue", top=1000, wait=1)
        for message in messages:
            if message.is_error:
                raise RuntimeError(f"a sender has failed: {message.error_code} {message.error_description}")
            if message.is_end:
                message.dialog.end()
                ended += 1
            else:
                event = json.loads(message.body)
                db.execute(
                    "INSERT INTO events (sender, number, what) VALUES (?, ?, ?)",
                    (event["sender"], event["number"], event["what"]),
                )
    return len(messages), ended


def main(path: str, senders: int) -> None:
    """Take until so many senders have ended, then look whether each event is there once and in order."""
    with closing(sqlite3.connect(path)) as db:
        db.execute(TABLE)
        ended, heard_at = 0, time.monotonic()
        while ended < senders:
            taken, more = take(db)
            ended += more
            if taken:
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + PATIENCE_SECONDS:
                sys.exit(f"{senders - ended} senders have not ended")
        events, known = db.execute("SELECT count(*), count(DISTINCT sender) FROM events").fetchone()
        (misplaced,) = db.execute(OUT_OF_ORDER).fetchone()
        print(f"{known} senders, {events} events written down, {misplaced} out of order")


main(sys.argv[1], int(sys.argv[2]))

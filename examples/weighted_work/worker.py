"""Count the words of what comes: a reader, run by `WORKER=small broker run -c small.toml worker:app`."""

import json
import os
import sqlite3

import broker

app = broker.Readers()


@app.reader("WorkQueue", concurrency=2)
def count(db: sqlite3.Connection, messages: list[broker.Message]) -> None:  # noqa: ARG001 - this work stores nothing
    """Answer each text with the number of its words and the name of this worker, and end the dialog."""
    for message in messages:
        if message.is_end or message.is_error:
            continue
        answer = {"worker": os.environ["WORKER"], "words": len(message.body.split())}
        message.dialog.send(json.dumps(answer), type="//jobs/Counted")
        message.dialog.end()

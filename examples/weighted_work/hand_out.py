"""Hand out texts and say who counted their words: `python hand_out.py state/desk/desk.db 200`."""

import json
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing

import broker

PATIENCE_SECONDS = 60.0


def main(path: str, texts: int) -> None:
    """Begin a dialog for each text, then collect the answers until all are there."""
    done: Counter[str] = Counter()
    words = 0
    with closing(sqlite3.connect(path)) as db:
        with db:
            for number in range(texts):
                dialog = broker.begin_dialog(db, from_service="//jobs/Desk", to_service="//jobs/Count", lifetime=3600)
                dialog.send("word " * (number % 10), type="//jobs/Text")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while done.total() < texts:
            if time.monotonic() > deadline:
                sys.exit(f"{texts - done.total()} texts without an answer")
            with db:
                for message in broker.receive(db, queue="DeskQueue", wait=1):
                    if message.type == "//jobs/Counted":
                        answer = json.loads(message.body)
                        done[answer["worker"]] += 1
                        words += answer["words"]
                    else:  # the worker has ended its side, or the dialog has failed
                        message.dialog.end()
                        if message.is_error:
                            sys.exit(f"failed: {message.error_code} {message.error_description}")
    print(f"{texts} texts, {words} words: small counted {done['small']}, large {done['large']}")


main(sys.argv[1], int(sys.argv[2]))

"""Place three orders and wait until each is billed or refused: `python place.py state/orders/orders.db`."""

import json
import sqlite3
import sys
import time
from contextlib import closing

import broker

ORDERS = {7: 1250, 8: 990, 9: 0}
PATIENCE_SECONDS = 60.0


def place(db: sqlite3.Connection) -> None:
    """Store each order and send it, in one transaction."""
    with db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS orders"
            " (number INTEGER PRIMARY KEY, conversation_handle TEXT NOT NULL UNIQUE, state TEXT NOT NULL)"
        )
        for number, cents in ORDERS.items():
            dialog = broker.begin_dialog(
                db, from_service="//shop/Orders", to_service="//shop/Billing", encryption=True, lifetime=3600
            )
            dialog.send(json.dumps({"number": number, "cents": cents}), type="//shop/Invoice")
            db.execute("INSERT INTO orders VALUES (?, ?, 'sent')", (number, str(dialog.conversation_handle)))


def take_answers(db: sqlite3.Connection) -> None:
    """Take what has come, waiting for a second at most; what became of an order is stored with its receipt."""
    with db:
        ended = set()
        for message in broker.receive(db, queue="OrdersQueue", wait=1):
            if message.dialog in ended:  # an error comes before what is unread of its dialog
                continue
            state = message.body.decode()
            if message.is_error:
                state = f"refused: {message.error_code} {message.error_description}"
            if not message.is_end:
                handle = str(message.dialog.conversation_handle)
                db.execute("UPDATE orders SET state = ? WHERE conversation_handle = ?", (state, handle))
            message.dialog.end()
            ended.add(message.dialog)


def main() -> None:
    """Place the orders, then wait for every answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with closing(sqlite3.connect(sys.argv[1])) as db:
        place(db)
        while db.execute("SELECT count(*) FROM orders WHERE state = 'sent'").fetchone() != (0,):
            if time.monotonic() > deadline:
                sys.exit("no answer: `broker why` in README.md says where the orders are")
            take_answers(db)
        for number, state in db.execute("SELECT number, state FROM orders ORDER BY number"):
            print(f"order {number}: {state}")


main()

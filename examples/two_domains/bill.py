"""Bill what comes: a reader, run by `broker run -c billing.toml bill:app`."""

import json
import sqlite3

import broker

NOTHING_TO_BILL = 17

app = broker.Readers()


@app.reader("BillingQueue")
def bill(db: sqlite3.Connection, messages: list[broker.Message]) -> None:
    """
    Store one invoice per order and answer; an order without a price is refused with an error.

    All writes, answers and the receipt of the messages are one transaction, which `broker run` commits.
    """
    db.execute("CREATE TABLE IF NOT EXISTS invoices (order_number INTEGER PRIMARY KEY, cents INTEGER NOT NULL)")
    for message in messages:
        if message.is_end or message.is_error:
            continue  # the far side has ended: `broker run` ends this side
        order = json.loads(message.body)
        if order["cents"] == 0:
            message.dialog.end(error=NOTHING_TO_BILL, description="nothing to bill")
            continue
        db.execute("INSERT INTO invoices VALUES (?, ?)", (order["number"], order["cents"]))
        message.dialog.send(f"{order['cents'] / 100:.2f} billed", type="//shop/Receipt")

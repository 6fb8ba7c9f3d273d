"""The readers of both sides, run by `broker run -c shop.toml work:app`."""

import json
import sqlite3

import broker

app = broker.Readers()


@app.reader("WarehouseQueue", single=True)
def pack(db: sqlite3.Connection, message: broker.Message) -> None:
    """In the warehouse: pack an order, say so, and end."""
    if message.is_end or message.is_error:
        return
    order = json.loads(message.body)
    db.execute("CREATE TABLE IF NOT EXISTS parcels (number INTEGER PRIMARY KEY, book TEXT, copies INTEGER)")
    db.execute("INSERT INTO parcels (book, copies) VALUES (?, ?)", (order["book"], order["copies"]))
    message.dialog.send("packed", type="//books/Packed")
    message.dialog.end()


@app.reader("ShopQueue", single=True)
def note(db: sqlite3.Connection, message: broker.Message) -> None:
    """In the shop: note what became of an order. This side is ended by `broker run` when the far one has ended."""
    state = message.body.decode()
    if message.is_error:
        state = f"failed: {message.error_description}"
    if not message.is_end:
        handle = str(message.dialog.conversation_handle)
        db.execute("UPDATE orders SET state = ? WHERE conversation_handle = ?", (state, handle))

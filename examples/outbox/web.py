"""
A web application that takes orders: `python web.py state/shop/shop.db 4243`.

    POST /orders {"book": "Emma", "copies": 2}   201 and the number, or 409 and nothing happened
    GET  /orders                                 number, book, copies and state of each

The order and the message about it are one transaction of the application's own database. There is nothing to poll and
no table of things to be sent: what `send` has queued is the outbox. The daemon need not run meanwhile.
"""

import json
import sqlite3
import sys
from contextlib import closing
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import broker

DATABASE = sys.argv[1]
BODY_BYTES_MAX = 65_536
TABLE = """
CREATE TABLE IF NOT EXISTS orders (
    number INTEGER PRIMARY KEY,
    book TEXT NOT NULL,
    copies INTEGER NOT NULL,
    conversation_handle TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL DEFAULT 'taken',
    CHECK (copies BETWEEN 1 AND 12)
)
"""


def take_order(db: sqlite3.Connection, book: str, copies: int) -> int:
    """
    Send the order to the warehouse and store it, or neither.

    Returns:
        The number of the order.

    Raises:
        sqlite3.IntegrityError: The database refuses the order; the message is not sent either.
    """
    with db:
        dialog = broker.begin_dialog(db, from_service="//books/Shop", to_service="//books/Warehouse", lifetime=86_400)
        dialog.send(json.dumps({"book": book, "copies": copies}), type="//books/Order")
        done = db.execute(
            "INSERT INTO orders (book, copies, conversation_handle) VALUES (?, ?, ?)",
            (book, copies, str(dialog.conversation_handle)),
        )
    assert done.lastrowid is not None
    return done.lastrowid


class Handler(BaseHTTPRequestHandler):
    """One request, on a thread and a connection of its own."""

    def do_POST(self) -> None:
        """Take an order."""
        length = self.headers.get("Content-Length", "")
        if self.path != "/orders" or not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            self._answer(HTTPStatus.BAD_REQUEST, {"problem": "POST /orders with a body and its length"})
            return
        try:
            order = json.loads(self.rfile.read(int(length)))
            book, copies = str(order["book"]), int(order["copies"])
        except (ValueError, KeyError, TypeError):
            self._answer(HTTPStatus.BAD_REQUEST, {"problem": 'an order is {"book": TEXT, "copies": NUMBER}'})
            return
        with closing(sqlite3.connect(DATABASE)) as db:
            try:
                self._answer(HTTPStatus.CREATED, {"number": take_order(db, book, copies)})
            except sqlite3.IntegrityError as error:
                self._answer(HTTPStatus.CONFLICT, {"problem": str(error)})

    def do_GET(self) -> None:
        """Tell the orders."""
        with closing(sqlite3.connect(DATABASE)) as db:
            rows = db.execute("SELECT number, book, copies, state FROM orders ORDER BY number").fetchall()
        names = ("number", "book", "copies", "state")
        self._answer(HTTPStatus.OK, [dict(zip(names, row, strict=True)) for row in rows])

    def _answer(self, status: HTTPStatus, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


with closing(sqlite3.connect(DATABASE)) as first, first:
    first.execute(TABLE)
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()

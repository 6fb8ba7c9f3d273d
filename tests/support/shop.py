"""What tests of databases share: a file with two services, connections of an application, and a daemon's doings."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.message_types import DEFAULT
from broker.errors import ConversationError
from broker.protocol.frame import Envelope, encode_envelope
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_queue, put_service, queues
from broker.store.sqlite.transaction import writing

FRAGMENT = 60_000  # bytes of a fragment of a large message


def sqlite_error(code: int) -> sqlite3.OperationalError:
    """What SQLite raises with a code."""
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return error


class Shop:
    """
    A database with the services Orders and Billing, each on a queue of its name, and a table `orders` of its own.

    `connect` opens a connection as an application would; the other methods say what the daemon finds or does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: list[sqlite3.Connection] = []
        db = open_store(path)
        with writing(db):
            for name in ("Orders", "Billing"):
                put_queue(db, f"{name}Queue", is_receive_enabled=True)
                put_service(db, name, queues(db)[f"{name}Queue"].queue_id, frozenset())
            db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
        db.close()

    def connect(self, **options: Any) -> sqlite3.Connection:
        """A connection, closed when the test is over."""
        connection: sqlite3.Connection = sqlite3.connect(self.path, **options)
        self._opened.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._opened:
            connection.close()

    def begin(self, db: sqlite3.Connection, **more: Any) -> Dialog:
        """A dialog from Orders to a service far away."""
        return begin_dialog(db, **{"from_service": "Orders", "to_service": "//far/Billing", **more})

    def seen(self) -> dict[str, list[Any]]:
        """What the daemon would find: states, and bodies in the transmission queue."""
        db = self.connect()
        states = db.execute("SELECT state FROM broker_conversation ORDER BY endpoint_id")
        bodies = db.execute("SELECT message_body FROM broker_transmission ORDER BY transmission_id")
        return {"conversations": [row[0] for row in states], "sent": [row[0] for row in bodies]}

    def arrive(self, dialog: Dialog, *bodies: bytes, type_name: str = DEFAULT, queue: str = "OrdersQueue") -> None:
        """Messages are stored that came from the far side of a dialog."""
        db = self.connect(isolation_level=None)
        for number, body in enumerate(bodies):
            db.execute(
                "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
                " message_enqueue_time, message_body) SELECT queue_id, endpoint_id, ?, ?, 86400.5, ?"
                " FROM broker_queue q, broker_conversation c WHERE q.name = ? AND c.conversation_handle = ?",
                (number, type_name, body, queue, dialog.conversation_handle.bytes),
            )

    def arrived(self, *bodies: bytes, **options: Any) -> Dialog:
        """A new dialog whose first message is sent, with messages that came from its far side."""
        dialog = self.begin(self.connect(isolation_level=None))
        dialog.send(b"hello")
        self.arrive(dialog, *bodies, **options)
        return dialog

    def arrive_large(self, dialog: Dialog, body: bytes, *, number: int = 0) -> None:
        """A message is stored whose body stays in the fragments that brought it, the first with an envelope."""
        pieces = [body[at : at + FRAGMENT] for at in range(0, len(body), FRAGMENT)]
        pieces[0] = encode_envelope(Envelope(type="large")) + pieces[0]
        db = self.connect(isolation_level=None)
        endpoint = dialog.endpoint_id
        with writing(db):
            db.executemany(
                "INSERT INTO broker_fragment VALUES (?, ?, ?, 0, ?)",
                [(endpoint, number, fragment, piece) for fragment, piece in enumerate(pieces)],
            )
            db.execute(
                "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
                " message_enqueue_time, body_fragments) SELECT queue_id, ?, ?, 'large', 86400.5, ?"
                " FROM broker_queue WHERE name = 'OrdersQueue'",
                (endpoint, number, len(pieces)),
            )

    def look(self, query: str, *parameters: object) -> list[Any]:
        """What a query gives to somebody else; rows of one column as plain values."""
        rows = self.connect().execute(query, parameters).fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]

    def change(self, dialog: Dialog, column: str, value: object) -> None:
        """A column of a conversation is set, as the daemon or time would."""
        statement = f"UPDATE broker_conversation SET {column} = ? WHERE conversation_handle = ?"
        self.connect(isolation_level=None).execute(statement, (value, dialog.conversation_handle.bytes))

    @staticmethod
    def refusal(call: Callable[[], object]) -> int:
        """The number of the error with which a call is refused."""
        with pytest.raises(ConversationError) as caught:
            call()
        return caught.value.number

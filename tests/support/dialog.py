"""
Both ends of a dialog for tests: a database with one service, and a far side that makes whatever frames a test wants.

Databases are on the disk but not flushed to it: what is tested here is a crash of the process, not of the machine.
"""

import sqlite3
import uuid
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import Contact, Fragment, Travel, ack_frame, fault_frame, message_frame
from broker.conversation.message_types import DEFAULT
from broker.dialog.endpoint import Endpoint
from broker.dialog.status import DialogContext, PathProblem
from broker.dialog.transmitter import DialogTuning
from broker.forwarding.forwarder import Forwarder
from broker.forwarding.pool import Limits
from broker.protocol.frame import Envelope, Fault, encode_envelope
from broker.protocol.layout import NO_GUID, Flag
from broker.routing.decide import AddressHealth
from broker.security.session import DialogCredentials
from broker.store.port import ReceiveResult, WriteBatch
from broker.store.sqlite import metadata
from broker.store.sqlite.database import broker_instance, open_store
from broker.store.sqlite.metadata import put_queue, put_service, queues
from broker.store.sqlite.receive import store_frames
from broker.store.sqlite.transaction import DaemonConnection, writing
from broker.store.sqlite.verify import FrameVerifier
from broker.store.sqlite.write_batch import SqliteStore
from broker.supervision import Supervision

QUEUE = "Queue"
LAST = Flag.LAST_FRAGMENT
ALONE = DialogContext(problem_of=lambda _: PathProblem(), left_cleanly=lambda _: False)
_ids = count(1)


def open_database(path: Path, *services: str) -> DaemonConnection:
    """A database with these services, all on one queue; what is missing is made."""
    db = open_store(path)
    db.execute("PRAGMA synchronous = OFF")
    with writing(db):
        put_queue(db, QUEUE, is_receive_enabled=True)
        here = metadata.services(db)
        for service in set(services) - here.keys():
            put_service(db, service, queues(db)[QUEUE].queue_id, frozenset())
    return db


def copy_database(source: Path, destination: Path, query: str) -> Any:
    """Put what is committed in one database in the place of another; what the copy answers first, None for nothing."""
    fresh = destination.with_suffix(".fresh")
    fresh.unlink(missing_ok=True)
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(fresh)) as new:
        old.backup(new)
        row = new.execute(query).fetchone()
    for suffix in ("-wal", "-shm"):
        Path(f"{destination}{suffix}").unlink(missing_ok=True)
    fresh.chmod(0o600)
    fresh.replace(destination)
    return None if row is None else row[0]


def receive_frames(db: sqlite3.Connection, frames: Iterable[bytes], now: float) -> ReceiveResult:
    """Store frames in a transaction of their own, in a database without a certificate."""
    verifier = FrameVerifier(DialogCredentials())
    with writing(db):
        return store_frames(db, broker_instance(db), WriteBatch(now, list(frames)), verifier)


def make_forwarder(**own: Any) -> Forwarder:
    """The forwarder of an instance that delivers nothing and has all its links, unless `own` says otherwise."""
    ends = {"deliver": lambda *_: None, "request_link": lambda _: None, "health_of": lambda _: AddressHealth.CONNECTED}
    return Forwarder(Limits(pool_bytes=1 << 20, max_frame=1 << 20, max_hops=16), **{**ends, **own})


def make_endpoint(name: str, store: SqliteStore, tuning: DialogTuning, forwarder: Forwarder, **more: Any) -> Endpoint:
    """The endpoint of a database that knows nothing of its instance, unless `more` says otherwise."""
    rest = {"context": ALONE, "credentials": DialogCredentials(), "supervision": Supervision(), **more}
    return Endpoint(name, store, tuning=tuning, forwarder=forwarder, **rest)


def rows(db: sqlite3.Connection, query: str, *parameters: object) -> list[Any]:
    """What a query gives; rows of one column as plain values."""
    found = db.execute(query, parameters).fetchall()
    return [row[0] if len(row) == 1 else row for row in found]


def begin(db: sqlite3.Connection, *bodies: bytes, message_type: str = DEFAULT, **more: Any) -> Dialog:
    """A dialog of the service Orders in which these messages are sent."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing", **more)
    for body in bodies:
        dialog.send(body, type=message_type)
    return dialog


def put_message(db: sqlite3.Connection, body: bytes = b"", /, **columns: object) -> int:
    """A message that waits for RECEIVE, the first of its kind but for these columns; its queuing_order."""
    plain = {"queue_id": 1, "endpoint_id": 1, "message_sequence_number": 0, "message_type_name": "T"}
    values = {**plain, "message_enqueue_time": 0.0, "message_body": body, **columns}
    marks = ", ".join("?" * len(values))
    statement = f"INSERT INTO broker_message ({', '.join(values)}) VALUES ({marks})"
    return db.execute(statement, [*values.values()]).lastrowid or 0


def states(db: sqlite3.Connection) -> list[str]:
    """The states of all conversations, in the order in which they came to be."""
    return rows(db, "SELECT state FROM broker_conversation ORDER BY endpoint_id")


def queued(db: sqlite3.Connection) -> list[tuple[str, bytes]]:
    """Type and body of all messages that wait for RECEIVE."""
    return rows(db, "SELECT message_type_name, message_body FROM broker_message ORDER BY queuing_order")


@dataclass
class FarSide:
    """
    The other end of one dialog with a database under test.

    Shape: `contact` as the far side sees it; `envelope` what opens its messages.
    """

    contact: Contact
    envelope: Envelope

    def message(
        self, sequence: int, payload: bytes = b"", *, flags: int = LAST, stored: tuple[int, int] = (0, 0)
    ) -> bytes:
        """A message of one fragment, or with other flags the first fragment of a longer one."""
        return self.fragment((sequence, 0), encode_envelope(self.envelope) + payload, flags=flags, stored=stored)

    def fragment(
        self, place: tuple[int, int], body: bytes, *, flags: int = 0, stored: tuple[int, int] = (0, 0)
    ) -> bytes:
        """Any fragment with any body."""
        return message_frame(self.contact, Travel(), _message_id(), Fragment(place, flags, body, stored))

    def end(self, sequence: int, *, stored: tuple[int, int] = (0, 0)) -> bytes:
        """END DIALOG."""
        return self.message(sequence, flags=LAST | Flag.END_DIALOG, stored=stored)

    def ack(self, *stored: int) -> bytes:
        """An acknowledgement by itself."""
        return ack_frame(self.contact, Travel(), _message_id(), (stored[0], stored[1]))

    def fault(self, code: int, text: str = "text") -> bytes:
        """A broker-made error."""
        return fault_frame(self.contact, Travel(), _message_id(), Fault(code, text))


def far_initiator(service: str = "Billing", **contact: Any) -> FarSide:
    """A far side that begins a dialog with a service here."""
    known = {
        "conversation_id": uuid.uuid4().bytes,
        "service_name": "//far/Orders",
        "broker_instance": bytes(range(16)),
        "far_service": service,
        "far_broker_instance": NO_GUID,
    }
    return FarSide(Contact(is_initiator=True, **(known | contact)), Envelope(type="T", contract="C", lifetime=3600))


def far_target(db: sqlite3.Connection, conversation_id: uuid.UUID, **contact: Any) -> FarSide:
    """A far side that answers a dialog begun in this database."""
    known = {
        "service_name": "//far/Billing",
        "broker_instance": bytes(range(16)),
        "far_service": "Orders",
        "far_broker_instance": broker_instance(db),
    }
    return FarSide(
        Contact(conversation_id=conversation_id.bytes, is_initiator=False, **(known | contact)), Envelope(type="T")
    )


def _message_id() -> bytes:
    return next(_ids).to_bytes(16, "big")

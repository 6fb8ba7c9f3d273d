"""SEND: one, many, to many; large bodies in parts; contracts enforced; each call as a whole or not at all."""

import io
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.client import sending as module
from broker.client.dialog import Dialog, send
from broker.client.sending import BATCH_BYTES, Spool, settled
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, SentBy, Validation
from broker.errors import ConversationError, StoreUnavailableError
from broker.store.sqlite.metadata import put_contract, put_message_type
from broker.store.sqlite.schema import LARGE_BYTES, PART_BYTES
from broker.store.sqlite.transaction import writing
from tests.support.shop import Shop

CONTRACT = "//shop/Invoicing"
LARGE = bytes(range(256)) * (LARGE_BYTES // 256) + b"end"
ROWS = "SELECT message_sequence_number, message_type_name, message_body FROM broker_transmission ORDER BY 1"


@pytest.fixture
def declared(shop: Shop) -> Shop:
    """The shop with a contract: Invoice from the initiator, Receipt from the target, Note from any, Xml with XML."""
    types = {"Invoice": SentBy.INITIATOR, "Receipt": SentBy.TARGET, "Note": SentBy.ANY, "Xml": SentBy.ANY}
    validations = {"Invoice": Validation.JSON, "Note": Validation.EMPTY, "Xml": Validation.WELL_FORMED_XML}
    db = shop.connect(isolation_level=None)
    with writing(db):
        for name in (*types, "Stranger"):
            put_message_type(db, name, validations.get(name, Validation.NONE))
        put_contract(db, CONTRACT, types)
    return shop


def body_of(shop: Shop, sequence: int) -> bytes:
    """The body of a large message in the transmission queue, whose parts have the lengths they must have."""
    query = (
        "SELECT p.part_number, p.body, t.body_length, t.message_body FROM broker_transmission t"
        " JOIN broker_transmission_part p USING (transmission_id) WHERE t.message_sequence_number = ? ORDER BY 1"
    )
    rows = shop.look(query, sequence)
    assert list(range(len(rows))) == [row[0] for row in rows]
    assert {PART_BYTES} == {len(row[1]) for row in rows[:-1]}
    body = b"".join(row[1] for row in rows)
    assert {(len(body), None)} == {row[2:] for row in rows}
    return body


# --- many on one dialog -------------------------------------------------------------------------------------


def test_many_messages_are_queued_in_one_call(shop: Shop) -> None:
    db = shop.connect()
    with db:
        dialog = shop.begin(db)
        dialog.send(b"first")

        numbers = dialog.send_many([b"a", "ż", ("T", b"c"), io.BytesIO(b"d"), [b"e", b"f"]], type="U")

        dialog.send(b"last")
    assert range(1, 6) == numbers
    sent = [("U", b"a"), ("U", "ż".encode()), ("T", b"c"), ("U", b"d"), ("U", b"ef")]
    expected = [("DEFAULT", b"first"), *sent, ("DEFAULT", b"last")]
    assert [(number, *one) for number, one in enumerate(expected)] == shop.look(ROWS)
    assert ["CO"] == shop.look("SELECT state FROM broker_conversation")


@pytest.mark.parametrize("bodies", ["text", {"T": b"body"}, b"bytes", bytearray(), memoryview(b"x")], ids=type)
def test_one_body_is_not_taken_for_many(shop: Shop, bodies: Any, dialog: Dialog) -> None:
    with pytest.raises(TypeError, match=r"send_many takes an iterable of bodies, .* for one body call send"):
        dialog.send_many(bodies)

    assert {"conversations": ["SO"], "sent": []} == shop.seen()


def test_message_is_not_queued_before_its_dialog_began(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that goes back between the two would add to the lifetime that the first message tells."""
    with shop.connect() as db:
        dialog = shop.begin(db, lifetime=60)
        began = dialog.lifetime.timestamp() - 60
        monkeypatch.setattr(module, "time", type("Clock", (), {"time": staticmethod(lambda: began - 1800)}))
        dialog.send(b"a")

    [queued] = shop.look("SELECT enqueue_time FROM broker_transmission")
    assert pytest.approx(began, abs=0.001) == queued


@pytest.mark.parametrize("isolation_level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("name", ["send_many", "send"])
def test_many_bodies_or_parts_are_queued_wholly_or_not_at_all(
    shop: Shop, isolation_level: Any, *, is_open: bool, name: str
) -> None:
    db = shop.connect(isolation_level=isolation_level)
    dialog = shop.begin(db)
    dialog.send(b"before")
    db.commit()
    if is_open:
        db.execute("BEGIN")
        db.execute("INSERT INTO orders VALUES (1, 'mine')")

    def failing() -> Iterator[bytes]:
        yield b"a"
        yield LARGE
        raise RuntimeError("the application's own")

    with pytest.raises(RuntimeError, match="own"):
        getattr(dialog, name)(failing())
    dialog.send(b"after")
    db.commit()

    assert [(0, b"before"), (1, b"after")] == [(row[0], row[2]) for row in shop.look(ROWS)]
    assert [] == shop.look("SELECT * FROM broker_transmission_part")
    assert [1] * is_open == shop.look("SELECT id FROM orders")


# --- one on many dialogs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"small", LARGE])
def test_message_that_one_dialog_cannot_send_goes_to_none(shop: Shop, body: bytes) -> None:
    db = shop.connect()
    with db:
        dialogs = [shop.begin(db) for _ in range(3)]
        dialogs[1].send(b"x")
        dialogs[1].end()

    assert 8429 == shop.refusal(lambda: send(dialogs, body))
    db.commit()
    assert {"conversations": ["SO", "DO", "SO"], "sent": [b"x", b""]} == shop.seen()
    assert [] == shop.look("SELECT * FROM broker_transmission_part")


def test_dialogs_of_one_call_are_different_and_of_one_connection(shop: Shop) -> None:
    db, other = shop.connect(isolation_level=None), shop.connect(isolation_level=None)
    dialog = shop.begin(db)

    assert [] == send([], b"to nobody")
    assert 8418 == shop.refusal(lambda: send([dialog, dialog], b""))
    assert 8418 == shop.refusal(lambda: send([dialog, shop.begin(other)], b""))


# --- large bodies -------------------------------------------------------------------------------------------


def test_large_body_never_meets_parts_of_one_that_is_gone(shop: Shop, dialog: Dialog) -> None:
    """Those are removed by and by; until then no message has their number."""
    for sequence in range(3):
        assert sequence == dialog.send(LARGE)
        assert LARGE == body_of(shop, sequence)
        shop.connect(isolation_level=None).execute("DELETE FROM broker_transmission")

    assert [1, 2, 3] == shop.look("SELECT DISTINCT transmission_id FROM broker_transmission_part ORDER BY 1")


@pytest.mark.parametrize("form", [lambda body: body, io.BytesIO, lambda body: iter([body[:5], body[5:]]), bytearray])
def test_large_body_is_stored_in_parts(shop: Shop, form: Callable[[bytes], Any], db: sqlite3.Connection) -> None:
    """At its place among others, and read once for many dialogs."""
    dialog, other = shop.begin(db), shop.begin(db)
    other.send_many([b""] * 9)

    numbers = [dialog.send(form(LARGE)), *dialog.send_many([b"a", form(LARGE), b"b"])]
    numbers += [*send([dialog, other], form(LARGE)), dialog.send(b"after")]

    assert [0, 1, 2, 3, 4, 9, 5] == numbers
    assert [LARGE] * 4 == [body_of(shop, number) for number in (0, 2, 4, 9)]
    assert [None, b"a", None, b"b", None, b"after"] == [
        row[0]
        for row in shop.look("SELECT message_body, 0 FROM broker_transmission WHERE endpoint_id = 1 ORDER BY rowid")
    ]


# --- what the application does while its bodies are read ------------------------------------------------------


@pytest.mark.parametrize("isolation_level", [None, "", "IMMEDIATE"])
@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("after", ["COMMIT", "ROLLBACK"])
def test_transaction_that_bodies_end_splits_no_call(
    shop: Shop, isolation_level: Any, *, is_open: bool, after: str
) -> None:
    db = shop.connect(isolation_level=isolation_level)
    dialog = shop.begin(db)
    dialog.send(b"before")
    db.commit()
    if is_open:
        db.execute("BEGIN")

    def bodies() -> Iterator[bytes]:
        yield b"a"
        if db.in_transaction:
            db.execute(after)
        with db:
            db.execute("INSERT INTO orders VALUES (1, 'mine')")
        yield b"b"
        raise RuntimeError("the application's own")

    def large() -> Iterator[bytes]:
        yield LARGE
        yield LARGE
        db.commit()
        raise RuntimeError("the application's own")

    with pytest.raises(RuntimeError, match="own"):
        dialog.send_many(bodies())
    with pytest.raises(RuntimeError, match="own"):
        dialog.send(large())
    numbers = dialog.send_many([b"c", b"d"])
    db.commit()

    assert range(1, 3) == numbers
    assert [b"before", b"c", b"d"] == [row[2] for row in shop.look(ROWS)]
    assert [] == shop.look("SELECT * FROM broker_transmission_part")
    assert [1] == shop.look("SELECT id FROM orders")


@pytest.mark.parametrize("size", [1, LARGE_BYTES + 1])
def test_bodies_that_send_on_the_same_dialog_go_behind_what_they_sent(shop: Shop, size: int) -> None:
    db = shop.connect()
    dialog, other = shop.begin(db), shop.begin(db)

    def pieces() -> Iterator[bytes]:
        yield bytes(size)
        dialog.send(b"from a body")
        yield b"end"

    def bodies() -> Iterator[bytes]:
        yield b"a"
        dialog.send_many([b"inner"])
        yield b"b"

    assert 1 == dialog.send(pieces())
    assert range(3, 5) == dialog.send_many(bodies())
    assert [6, 0] == send([dialog, other], pieces())
    db.commit()
    kept = "SELECT message_sequence_number FROM broker_transmission WHERE endpoint_id = ? ORDER BY 1"
    assert [*range(7)] == shop.look(kept, dialog.endpoint_id)
    assert [7, 1] == shop.look("SELECT send_sequence FROM broker_conversation ORDER BY endpoint_id")


@pytest.mark.parametrize("size", [1, LARGE_BYTES + 1])
def test_dialog_that_is_gone_when_its_bodies_have_been_read_is_refused(shop: Shop, size: int) -> None:
    db = shop.connect()
    dialog = shop.begin(db)

    def pieces() -> Iterator[bytes]:
        yield bytes(size)
        if dialog.state != "CD":
            dialog.end(cleanup=True)
        yield b"end"

    for call in (dialog.send_many, dialog.send, lambda body: send([dialog], body)):
        with pytest.raises(ConversationError, match="is not found") as caught:
            call(pieces())
        assert 8426 == caught.value.number
    db.commit()
    assert {"conversations": [], "sent": []} == shop.seen()
    assert [] == shop.look("SELECT * FROM broker_transmission_part")


# --- contracts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_name", "body", "number"),
    [
        ("Missing", b"", 8428),
        ("Stranger", b"", 8431),
        ("Receipt", b"", 8432),
        ("Invoice", b"{", 8430),
        ("Note", b"x", 8430),
        ("Xml", b"<a>", 9616),
        ("Xml", b"<a>" + LARGE, 9616),
        ("Xml", b"<a>" + b" " * LARGE_BYTES, 9616),
        ("Invoice", b"[" + b" " * LARGE_BYTES + b"]", 8430),
    ],
)
def test_declared_contract_is_enforced(declared: Shop, type_name: str, body: bytes, number: int) -> None:
    db = declared.connect()
    with db:
        dialog = declared.begin(db, contract=CONTRACT)

    refused = [
        declared.refusal(lambda: dialog.send(body, type=type_name)),
        declared.refusal(lambda: dialog.send_many([("Note", b""), (type_name, body)])),
        declared.refusal(lambda: send([dialog], body, type=type_name)),
    ]

    assert [number] * 3 == refused
    assert not db.in_transaction
    assert {"conversations": ["SO"], "sent": []} == declared.seen()


def test_bodies_that_are_what_their_types_say_pass(declared: Shop) -> None:
    """And everything under a contract that is not declared."""
    db = declared.connect(isolation_level=None)
    dialog = declared.begin(db, contract=CONTRACT)

    dialog.send(b"{}", type="Invoice")
    dialog.send(b"<a>" + b" " * LARGE_BYTES + b"</a>", type="Xml")
    dialog.send_many([("Note", b""), ("Xml", b"<a/>"), ("Invoice", b"[1]")])
    declared.begin(db, contract="//other").send(b"{", type="Invoice")

    assert 6 == len(declared.seen()["sent"])


@pytest.mark.parametrize("type_name", [END_DIALOG, ERROR, DIALOG_TIMER])
def test_messages_of_the_broker_are_not_sent_by_applications(shop: Shop, type_name: str, dialog: Dialog) -> None:
    assert 8431 == shop.refusal(lambda: dialog.send(b"", type=type_name))
    assert 8431 == shop.refusal(lambda: dialog.send_many([(type_name, b"")]))


# --- the disk -----------------------------------------------------------------------------------------------


@pytest.mark.promise(2)
def test_number_is_not_used_twice_when_the_second_write_of_a_send_fails(shop: Shop) -> None:
    """The application may catch the error and commit its transaction."""

    class Failing(sqlite3.Connection):
        is_failing = False

        def cursor(self, *arguments: Any) -> Any:
            return super().cursor(FailingCursor)

    class FailingCursor(sqlite3.Cursor):
        def execute(self, sql: str, *parameters: Any) -> Any:
            if Failing.is_failing and sql.startswith("UPDATE broker_conversation"):
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(sql, *parameters)

    db = shop.connect(factory=Failing)
    with db:
        dialog: Dialog = shop.begin(db)
        db.execute("INSERT INTO orders VALUES (1, 'mine')")
        Failing.is_failing = True
        with pytest.raises(Exception, match="disk I/O error"):
            dialog.send(b"lost")
        Failing.is_failing = False

    assert {"conversations": ["SO"], "sent": []} == shop.seen()
    assert 0 == dialog.send(b"kept")


def test_no_room_for_the_file_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))

    with (
        closing(Spool()) as spool,
        pytest.raises(StoreUnavailableError, match="gone: a body cannot be kept in a temporary file"),
    ):
        spool.put("T", bytes(BATCH_BYTES))


class Made(io.RawIOBase):
    """A file whose bytes an application makes."""

    def readable(self) -> bool:
        return True


def test_parts_of_bytes_and_real_files_are_not_copied_and_others_are_read_first(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"x")
    reading, writing = os.pipe()
    os.close(writing)

    with path.open("rb") as buffered, path.open("rb", buffering=0) as raw, os.fdopen(reading, "rb") as pipe:
        for body in (b"x", bytearray(b"x"), "x", io.BytesIO(b"x"), buffered, raw):
            parts = iter([b"x"])
            with settled(body, parts) as read:
                assert parts is read
        for body in (iter([b"x"]), pipe, io.BufferedReader(Made())):  # type: ignore[assignment]
            parts = iter([b"x"] * 3)
            with settled(body, parts) as read:
                assert [] == list(parts)
                assert [b"x"] * 3 == list(read)

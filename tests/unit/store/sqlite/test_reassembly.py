"""Fragments are kept by place, within bounds, and joined in order unless they are large; messages reach their queue."""

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest

from broker.conversation.frames import Contact
from broker.conversation.message_types import SentBy, Validation
from broker.errors import FrameMalformedError
from broker.flow import Disposition
from broker.protocol.frame import Envelope, encode_envelope
from broker.store.sqlite import reassembly as module
from broker.store.sqlite.database import open_store
from broker.store.sqlite.metadata import put_contract, put_message_type
from broker.store.sqlite.reassembly import HELD_RUNS_MAX, ORDERS_RESERVED, LargeBody, QueueWriter, Reassembly
from broker.store.sqlite.schema import LARGE_BYTES
from broker.store.sqlite.side import SideRow, SideTable
from broker.store.sqlite.transaction import writing
from tests.support.dialog import open_database, rows

ENVELOPE = Envelope(type="T")
NOW = 1_750_000_000.0
TYPES: Mapping[str, tuple[Validation, SentBy]] = {
    "Any": (Validation.NONE, SentBy.ANY),
    "Ours": (Validation.NONE, SentBy.TARGET),
    "Json": (Validation.JSON, SentBy.ANY),
}
PLACES = "SELECT message_sequence_number, fragment_number FROM broker_fragment WHERE endpoint_id = 1 ORDER BY 1, 2"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "bank.db", "Billing")
    for name, (validation, _) in TYPES.items():
        put_message_type(db, name, validation)
    put_contract(db, "Declared", {name: sent_by for name, (_, sent_by) in TYPES.items()})
    yield db
    db.close()


def begin(db: sqlite3.Connection, *, expected: tuple[int, int] = (5, 0), count: int = 1) -> Reassembly:
    return Reassembly(db, 1, expected, count)


def first(payload: bytes) -> bytes:
    return encode_envelope(ENVELOPE) + payload


def test_strays_behind_the_last_fragment_are_no_part_of_the_message(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And their bytes are free when they are gone."""
    monkeypatch.setattr(module, "EARLY_BYTES_MAX", 30)
    fragments = begin(db)
    fragments.keep((5, 0), 0, first(b"a"))
    for number, body in ((1, b"b"), (7, b"b" * 15), (2**32 - 1, b"b" * 14)):
        fragments.keep_early((5, number), 2 if number == 1 else 0, body)
    assert 2 == fragments.take_early((5, 1))

    assert (ENVELOPE, b"ab") == fragments.join(5, 1)
    assert (0, []) == (fragments.count, rows(db, PLACES))
    assert [None] * 2 == [fragments.keep_early((6, number), 0, b"b" * 15) for number in (0, 1)]


def test_strays_behind_a_message_that_stays_in_its_fragments_go(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LARGE_BYTES", 4)
    fragments = begin(db)
    fragments.keep((5, 0), 0, first(b"abcde"))
    fragments.keep_early((5, 7), 0, b"stray")

    _, body = fragments.join(5, 1, (2, b"f"))

    assert isinstance(body, LargeBody)
    assert [(5, 0), (5, 1)] == rows(db, PLACES)


def test_what_is_early_is_known_in_the_next_batch(db: sqlite3.Connection) -> None:
    """And nothing is read where nothing is early."""
    begin(db).keep((5, 0), 0, b"in its turn")
    before = begin(db)
    for place in ((5, 3), (6, 0)):
        before.keep_early(place, 2, b"x")

    after = begin(db, expected=(5, 1), count=2)

    assert (2, Disposition.DUPLICATE) == (after.count, after.keep_early((6, 0), 2, b"again"))
    assert [None, 2, None] == [after.take_early(place) for place in ((5, 1), (5, 3), (5, 3))]
    assert 1 == after.count
    db.set_trace_callback(pytest.fail)
    begin(db, count=0)


@pytest.mark.parametrize(("name", "value"), [("EARLY_FRAGMENTS_MAX", 3), ("EARLY_BYTES_MAX", 30)])
def test_early_fragments_have_a_bound_that_lasts_over_batches(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    monkeypatch.setattr(module, name, value)
    fragments = begin(db)
    taken = [fragments.keep_early((6, number), 0, b"x" * 10) for number in range(5)]

    again = begin(db, count=fragments.count)

    assert [None] * 3 + [Disposition.OUT_OF_SEQUENCE] * 2 == taken
    assert Disposition.OUT_OF_SEQUENCE is again.keep_early((6, 4), 0, b"x" * 10)
    again.take_early((6, 0))
    assert again.keep_early((6, 4), 0, b"x" * 10) is None


def test_held_is_told_as_runs_of_one_message_each(db: sqlite3.Connection) -> None:
    """Only so many, and the last of them is whole."""
    fragments = begin(db)
    for place in ((7, 0), (5, 4), (5, 3), (5, 5), (5, 9), (6, 1), (6, 0)):
        fragments.keep_early(place, 0, b"")
    assert ((5, 3, 5), (5, 9, 9), (6, 0, 1), (7, 0, 0)) == fragments.held_runs()

    for sequence in range(8, 8 + HELD_RUNS_MAX):
        for number in (0, 1):
            fragments.keep_early((sequence, number), 0, b"")
    held = fragments.held_runs()
    assert (HELD_RUNS_MAX, (8 + HELD_RUNS_MAX - 5, 0, 1)) == (len(held), held[-1])


def keep_large(fragments: Reassembly, *, size: int = LARGE_BYTES + 1, begins: bytes = b"") -> int:
    """A message of this many bytes, all kept but its last fragment; the number of that."""
    payload = begins + b" " * (size - len(begins))
    cuts = [payload[at : at + 200_000] for at in range(0, size, 200_000)]
    for number, piece in enumerate(cuts[:-1]):
        fragments.keep((5, number), 0, piece if number else first(piece))
    return len(cuts) - 1


@pytest.mark.parametrize("size", [LARGE_BYTES, LARGE_BYTES + 1])
def test_large_message_stays_in_its_fragments_and_one_of_just_the_bound_is_joined(
    db: sqlite3.Connection, size: int
) -> None:
    fragments = begin(db)
    last = keep_large(fragments, size=size)

    envelope, body = fragments.join(5, last, (2, b" " * (size - last * 200_000)))

    assert ENVELOPE == envelope
    if size > LARGE_BYTES:
        assert (LargeBody(db, 1, 5, last + 1), last + 1) == (body, len(rows(db, PLACES)))
    else:
        assert b" " * size == body


def test_large_message_with_an_envelope_that_lies_is_refused_without_being_joined(db: sqlite3.Connection) -> None:
    fragments = begin(db)
    last = keep_large(fragments, size=3 * LARGE_BYTES)
    db.execute("UPDATE broker_fragment SET body = CAST(x'ffffffff' || body AS BLOB) WHERE fragment_number = 0")

    with pytest.raises(FrameMalformedError):
        fragments.join(5, last, (2, b""))
    assert [(1, 5)] == rows(db, "SELECT * FROM broker_received")


@pytest.mark.parametrize(
    ("begins", "validation", "problem"),
    [
        (b"<a/>", Validation.WELL_FORMED_XML, None),
        (b"<a>", Validation.WELL_FORMED_XML, "not well-formed XML"),
        (b"<a></b>", Validation.WELL_FORMED_XML, "not well-formed XML"),
        (b"anything", Validation.NONE, None),
        (b"1", Validation.JSON, "above which JSON is not checked"),
        (b"", Validation.EMPTY, "must be empty"),
    ],
)
def test_large_message_is_checked_a_fragment_at_a_time(
    db: sqlite3.Connection, begins: bytes, validation: Validation, problem: str | None
) -> None:
    fragments = begin(db)
    last = keep_large(fragments, begins=begins)
    _, body = fragments.join(5, last, (2, b" " * (LARGE_BYTES + 1 - last * 200_000)))
    assert isinstance(body, LargeBody)

    found = body.violation(validation)

    assert (problem is None) == (found is None)
    assert (problem or "") in (found or "")


def side(db: sqlite3.Connection, service: str = "Billing") -> SideRow:
    count = len(rows(db, "SELECT 1 FROM broker_conversation"))
    contact = Contact(bytes([count] * 16), False, service, bytes(16), "//far/Orders", bytes(range(16)))
    return SideTable(db, bytes(16), NOW).create(contact, "Declared", NOW + 60, is_named=False)


MESSAGES = (
    "SELECT message_sequence_number, message_body, priority, status, body_fragments FROM broker_message ORDER BY 1"
)


def test_messages_are_written_when_the_batch_is_and_in_its_order(db: sqlite3.Connection) -> None:
    """A large one without its body; a service that is gone takes nothing."""
    queue, one = QueueWriter(db, NOW), side(db)
    one.priority = 7
    assert [False, False] == [queue.put(side(db, service="Nobody"), 0, "Any", b"") for _ in range(2)]
    assert [True, True] == [queue.put(one, sequence, "Any", b"x") for sequence in (0, 1)]
    assert queue.put_error(one, 2, b"error")
    assert queue.put(one, 3, "Any", LargeBody(db, 1, 3, 17))
    assert [] == rows(db, MESSAGES)

    queue.flush()
    queue.flush()

    expected = [(0, b"x", 7, 1, None), (1, b"x", 7, 1, None), (2, b"error", 11, 1, None), (3, None, 7, 1, 17)]
    assert expected == rows(db, MESSAGES)
    assert Counter(Billing=4) == queue.delivered


def test_numbers_of_messages_grow_and_none_is_given_twice(db: sqlite3.Connection, tmp_path: Path) -> None:
    """Though messages leave, others put some, a batch is rolled back, and a daemon starts again."""
    one = side(db)
    given: list[int] = []

    def put(db: sqlite3.Connection, count: int = 1, *, is_kept: bool = True) -> None:
        queue = QueueWriter(db, NOW)
        for _ in range(count):
            queue.put(one, 0, "Any", b"")
        with suppress(ZeroDivisionError), writing(db):
            queue.flush()
            orders = rows(db, "DELETE FROM broker_message RETURNING queuing_order")
            given.extend(sorted(orders) if is_kept else ())
            _ = 1 // is_kept

    put(db)
    put(db)
    with closing(sqlite3.connect(tmp_path / "bank.db", isolation_level=None)) as other:
        put(other)
        put(db, ORDERS_RESERVED, is_kept=False)
        put(other, ORDERS_RESERVED)
    put(db)
    put(db, ORDERS_RESERVED + 1)
    with closing(open_store(tmp_path / "bank.db")) as again:
        put(again)

    assert given == sorted(set(given))
    assert [1, 2, ORDERS_RESERVED + 1] == given[:3]


def test_dialog_in_quarantine_stays_in_order_there(db: sqlite3.Connection) -> None:
    failed, tried, healthy = side(db), side(db), side(db)
    db.execute("INSERT INTO broker_failure VALUES (1, 0, 5, 0, 0, 1, 'error', 'traceback')")
    db.execute("INSERT INTO broker_failure VALUES (2, 0, 1, 0, 0, NULL, 'error', 'traceback')")
    queue = QueueWriter(db, NOW)

    for one in (failed, tried, healthy):
        queue.put(one, 1, "Any", b"")
    queue.flush()

    assert [(1, 4), (2, 1), (3, 1)] == rows(db, "SELECT endpoint_id, status FROM broker_message ORDER BY 1")


@pytest.mark.parametrize(("type_name", "number"), [("Any", None), ("Json", 8430), ("Ours", 8457)])
def test_large_message_is_checked_too(db: sqlite3.Connection, type_name: str, number: int | None) -> None:
    one = side(db)
    db.executemany(
        "INSERT INTO broker_fragment VALUES (1, 0, ?, 0, ?)",
        [(0, encode_envelope(Envelope(type=type_name))), (1, b"1" * 2**21)],
    )

    refusal = QueueWriter(db, NOW).why_refused(one, type_name, LargeBody(db, 1, 0, 2))

    assert number == (None if refusal is None else refusal.number)

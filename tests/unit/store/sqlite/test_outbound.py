"""What applications queued is found, and loaded as fragments in order, however large a message is."""

import random
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.conversation.outbound import Outgoing
from broker.protocol.frame import Envelope, decode_envelope
from broker.protocol.layout import Flag
from broker.store.port import LoadRequest, PendingDialog
from broker.store.sqlite.database import broker_instance, fix_fragment_size
from broker.store.sqlite.outbound import SentRow, find_pending, load_fragments, newest
from broker.store.sqlite.schema import PART_BYTES
from tests.support.dialog import begin, open_database, rows

SIZE = 10
LAST = int(Flag.LAST_FRAGMENT)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def find(db: sqlite3.Connection, seen: SentRow | None = None) -> tuple[SentRow, list[PendingDialog]]:
    return find_pending(db, broker_instance(db), seen)[:2]


def load(
    db: sqlite3.Connection,
    *place: int,
    fragments: int = 100,
    max_bytes: int = 1 << 20,
    room: int = 1 << 30,
    **more: Any,
) -> list[Outgoing]:
    want = LoadRequest(1, (place[0], place[1]) if place else (0, 0), fragments, max_bytes)
    now = lifetime_of(db) - more.get("left", 60)
    loaded = load_fragments(db, want, more.get("size", SIZE), now=now, free_bytes=room)
    assert loaded is not None
    return loaded.fragments


def payload(fragment: Outgoing) -> bytes:
    """What a fragment carries beside its envelope."""
    return fragment.body if fragment.place[1] else decode_envelope(fragment.body)[1]


def put_large(db: sqlite3.Connection, body: bytes) -> None:
    """A message in parts, as an application queues it."""
    db.execute(
        "INSERT INTO broker_transmission (endpoint_id, message_sequence_number, message_type_name, enqueue_time,"
        " body_length) SELECT endpoint_id, send_sequence, 'T', 1.0, ? FROM broker_conversation",
        (len(body),),
    )
    (number,) = rows(db, "SELECT max(transmission_id) FROM broker_transmission")
    parts = [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]
    db.executemany(
        "INSERT INTO broker_transmission_part VALUES (?, ?, ?)", [(number, n, part) for n, part in enumerate(parts)]
    )
    db.execute("UPDATE broker_conversation SET send_sequence = send_sequence + 1")


def lifetime_of(db: sqlite3.Connection) -> float:
    """The instant at which the newest dialog expires."""
    latest: float = rows(db, "SELECT max(lifetime) FROM broker_conversation")[0]
    return latest


def test_every_fragment_tells_when_its_message_was_queued(db: sqlite3.Connection) -> None:
    begin(db, b"a", bytes(25))
    put_large(db, bytes(PART_BYTES + 1))
    db.execute("UPDATE broker_transmission SET enqueue_time = 1000.25 + message_sequence_number")

    loaded = load(db, fragments=1000, size=65_536)

    assert {0, 1, 2} == {fragment.place[0] for fragment in loaded}
    assert all(fragment.enqueued_at == 1000.25 + fragment.place[0] for fragment in loaded)
    assert {1001.25} == {fragment.enqueued_at for fragment in load(db, 1, 0, fragments=2, size=10)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", [(b"", LAST)]),
        (b"0123456789", [(b"0123456789", LAST)]),
        (b"0123456789a", [(b"0123456789", 0), (b"a", LAST)]),
        (bytes(30), [(bytes(10), 0), (bytes(10), 0), (bytes(10), LAST)]),
    ],
)
def test_message_is_cut_by_its_payload(db: sqlite3.Connection, body: bytes, expected: list[tuple[bytes, int]]) -> None:
    begin(db, body)

    assert expected == [(payload(fragment), fragment.flags) for fragment in load(db)]


def test_loading_stops_before_there_are_bytes_too_many(db: sqlite3.Connection) -> None:
    """For the window; the first fragment is loaded however large. The room of the process is never exceeded."""
    begin(db, *[b"x" * 60] * 3)
    one = len(load(db, size=100)[0].body)

    def places(*place: int, **limits: int) -> list[tuple[int, int]]:
        return [fragment.place for fragment in load(db, *place, **limits)]

    assert [(0, 0)] == places(max_bytes=one + 60, size=100)
    assert [(0, 0)] == places(max_bytes=1)
    assert [(0, 1), (0, 2)] == places(0, 1, room=29)
    for room in (0, 5):
        assert load_fragments(db, LoadRequest(1, (0, 1), 9, 100), SIZE, now=0.0, free_bytes=room) is None


def test_place_beyond_the_end_of_a_message_begins_with_its_last_fragment(db: sqlite3.Connection) -> None:
    """A far side that claims fragments which do not exist is sent the last one that does."""
    begin(db, b"a" * 25, b"b")

    assert [(0, 2), (1, 0)] == [fragment.place for fragment in load(db, 0, 99)]


@pytest.mark.parametrize("size", [1000, 65_536, PART_BYTES, 300_000, 3 * PART_BYTES])
@pytest.mark.parametrize("length", [1, 2 * PART_BYTES, 2 * PART_BYTES + 7])
def test_message_in_parts_is_cut_as_one_in_a_row_is(db: sqlite3.Connection, size: int, length: int) -> None:
    """And keeps its order among others; parts before the place that is asked for are not read."""
    body = random.Random(length).randbytes(length)
    dialog = begin(db, b"before")
    put_large(db, body)
    dialog.send(b"after")
    whole = [body[start : start + size] for start in range(0, length, size)]

    for first in sorted({0, 1, len(whole) // 2, len(whole) - 1} & set(range(len(whole)))):
        db.execute("DELETE FROM broker_transmission_part WHERE part_number < ?", (first * size // PART_BYTES,))
        loaded = load(db, 1, first, fragments=1000, size=size)

        assert [*whole[first:], b"after"] == [payload(fragment) for fragment in loaded]
        places = [(1, number) for number in range(first, len(whole))]
        assert [*places, (2, 0)] == [fragment.place for fragment in loaded]
        assert [*[0] * (len(loaded) - 2), LAST, LAST] == [fragment.flags for fragment in loaded]


def test_part_that_is_gone_is_a_damaged_file(db: sqlite3.Connection) -> None:
    begin(db)
    put_large(db, bytes(2 * PART_BYTES))
    db.execute("DELETE FROM broker_transmission_part WHERE part_number = 1")

    with pytest.raises(sqlite3.DatabaseError, match="part 1 of message 1 in the transmission queue is gone"):
        load(db, fragments=1000, size=65_536)


@pytest.mark.parametrize(("left", "lifetime"), [(60, 60), (0.4, 1), (1860, 60)])
def test_first_message_of_the_initiator_tells_contract_and_lifetime(
    db: sqlite3.Connection, left: float, lifetime: int
) -> None:
    """A lifetime of a second at least; a clock that has gone back since adds nothing. The target tells neither."""
    begin(db, b"a", b"b", message_type="T", contract="C")
    db.execute("UPDATE broker_transmission SET enqueue_time = ?", [lifetime_of(db) - 60])
    sent_us = [int(at * 1_000_000) for at in rows(db, "SELECT enqueue_time FROM broker_transmission")]

    fragments = load(db, left=left)

    first, second = (decode_envelope(fragment.body) for fragment in fragments)
    assert (Envelope("T", "C", sent_us[0], lifetime), b"a") == first
    assert (Envelope("T", "", sent_us[1]), b"b") == second
    assert [lifetime_of(db), 0.0] == [fragment.lifetime for fragment in fragments]
    db.execute("UPDATE broker_conversation SET is_initiator = 0")
    envelope, _ = decode_envelope(load(db)[0].body)
    assert ("", None) == (envelope.contract, envelope.lifetime)


@pytest.mark.parametrize("left", [0, -7])
def test_dialog_whose_lifetime_is_over_does_not_begin(db: sqlite3.Connection, left: int) -> None:
    """Its daemon was down meanwhile, and has not ended it yet."""
    begin(db, b"a", b"b")

    assert [] == load(db, left=left)
    assert [(1, 0)] == [fragment.place for fragment in load(db, 1, 0, left=left)]


def test_headers_of_a_message_travel_in_its_envelope_and_its_flags_with_each_fragment(db: sqlite3.Connection) -> None:
    """And the span of the application with each fragment of a traced message."""
    begin(db, b"abcd", b"e", b"f")
    db.execute('UPDATE broker_transmission SET headers = \'{"traceparent": "p"}\' WHERE message_sequence_number < 2')
    db.execute("UPDATE broker_transmission SET flags = 32 WHERE message_sequence_number = 0")

    loaded = load(db, size=2)

    assert ["p", "p", "", ""] == [one.trace_parent for one in loaded]
    assert [{"traceparent": "p"}] * 2 == [decode_envelope(loaded[at].body)[0].headers for at in (0, 2)]
    assert decode_envelope(loaded[3].body)[0].headers is None
    assert [Flag.TRACE, Flag.TRACE | LAST, LAST, LAST] == [one.flags for one in loaded]


def test_cuts_stay_when_the_lifetime_told_takes_fewer_bytes(db: sqlite3.Connection) -> None:
    """The far side may have fragments of an earlier sending, which the others have to fit."""
    begin(db, bytes(range(100)))

    early, late = load(db, left=100_000), load(db, left=100)

    assert len(early[0].body) > len(late[0].body)
    assert early[1:] == late[1:]
    assert payload(early[0]) == payload(late[0]) == bytes(range(10))


def test_fragment_size_holds_while_a_large_message_waits_that_was_cut_by_it(db: sqlite3.Connection) -> None:
    begin(db)
    sizes = [fix_fragment_size(db, 65_536)]
    put_large(db, bytes(PART_BYTES))
    sizes.append(fix_fragment_size(db, 1000))

    db.execute("DELETE FROM broker_transmission")
    sizes.append(fix_fragment_size(db, 1000))

    assert sizes == [65_536, 65_536, 1000]


@pytest.mark.parametrize("is_start", [True, False])
def test_finding_does_not_go_through_what_waits_already(db: sqlite3.Connection, *, is_start: bool) -> None:
    """Cost in instructions of SQLite's machine: the same beside many rows as beside few."""

    def cost() -> int:
        steps = count()
        seen = newest(db, newest(db).transmission_id - 1)
        db.set_progress_handler(lambda: bool(next(steps)) and False, 1)
        find(db, None if is_start else seen)
        db.set_progress_handler(None, 0)
        return next(steps)

    dialog = begin(db)
    dialog.send_many([b"a"] * 10)
    few = cost()
    dialog.send_many([b"a"] * 2000)

    assert cost() < 2 * few


def test_all_dialogs_are_found_again_when_an_application_has_given_messages_up(db: sqlite3.Connection) -> None:
    """So the loop forgets the dialog that has ended, though the newest message seen is still there."""
    ended, other = begin(db, b"a"), begin(db, b"b")
    seen, _ = find(db)
    ended.end(cleanup=True)

    _, found, is_all = find_pending(db, broker_instance(db), seen)

    assert ([other.endpoint_id], True) == ([one.endpoint_id for one in found], is_all)

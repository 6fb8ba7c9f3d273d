"""What applications queued is found, loaded in order with its envelope, and over when its lifetime is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.dialog.application import END_DIALOG, ERROR, Dialog, begin_dialog, error_body
from broker.dialog.contact import Contact
from broker.dialog.conversation import Outgoing
from broker.dialog.sending import Found, Want, expire_in_writer, find_in_writer, load_in_writer
from broker.dialog.store import broker_instance, drop_service
from broker.wire.frame import Envelope, decode_envelope
from broker.wire.layout import NO_GUID, Flag
from tests.support.dialog import open_database, queued, rows, states

FAR = bytes(range(16))
GUARD_SECONDS = 30 * 60


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "shop.db", "Orders")
    yield db
    db.close()


def begin(db: sqlite3.Connection, *bodies: bytes, **more: Any) -> Dialog:
    """A dialog of Orders with these messages sent."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing", **more)
    for body in bodies:
        dialog.send(body, type="T")
    return dialog


def find(db: sqlite3.Connection, after: int = 0) -> tuple[int, list[Found]]:
    return find_in_writer(db, broker_instance(db), after)


def load(db: sqlite3.Connection, sequence: int = 0, messages: int = 100, max_bytes: int = 1 << 20) -> list[Outgoing]:
    return load_in_writer(db, Want(1, sequence, messages, max_bytes), 10, lifetime_of(db) - 60)


def lifetime_of(db: sqlite3.Connection) -> float:
    """The instant at which the newest dialog expires."""
    latest: float = rows(db, "SELECT max(lifetime) FROM broker_conversation")[0]
    return latest


# --- finding ----------------------------------------------------------------------------------------------------


def test_nothing_queued_is_nothing_found(db: sqlite3.Connection) -> None:
    begin(db)

    assert find(db, 7) == (7, [])


def test_dialog_is_found_with_its_contact_and_first_message(db: sqlite3.Connection) -> None:
    dialog = begin(db, b"a", b"b")

    contact = Contact(dialog.conversation_id.bytes, True, "Orders", broker_instance(db), "//far/Billing", NO_GUID)
    assert (2, [Found(1, contact, 0, (0, 0))]) == find(db)


def test_bound_dialog_is_found_bound_and_with_what_it_has_stored(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    db.execute(
        "UPDATE broker_conversation SET far_broker_instance = ?, receive_sequence = 3, receive_sequence_frag = 1",
        (FAR,),
    )

    ((found,),) = find(db)[1:]

    assert (found.contact.far_broker_instance, found.stored) == (FAR, (3, 1))


def test_only_what_is_new_is_found_and_the_one_that_waited_longest_first(db: sqlite3.Connection) -> None:
    one, two = begin(db, b"a"), begin(db, b"a")
    seen, _ = find(db)
    two.send(b"b")
    one.send(b"b")
    two.send(b"c")

    up_to, found = find(db, seen)

    assert up_to == 5
    assert [(2, 1), (1, 1)] == [(entry.endpoint_id, entry.first_sequence) for entry in found]


# --- loading ----------------------------------------------------------------------------------------------------


def test_messages_are_loaded_in_order_from_where_the_window_asks(db: sqlite3.Connection) -> None:
    begin(db, b"a", b"b", b"c", b"d")

    loaded = load(db, 1, messages=2)

    assert [(2, 1, b"b"), (3, 2, b"c")] == [(m.transmission_id, m.sequence, m.body) for m in loaded]


def test_loading_stops_once_there_are_bytes_enough(db: sqlite3.Connection) -> None:
    begin(db, b"a" * 60, b"b" * 60, b"c" * 60)

    assert [0, 1] == [message.sequence for message in load(db, max_bytes=100)]


def test_single_message_is_loaded_however_large(db: sqlite3.Connection) -> None:
    begin(db, b"a" * 5000)

    assert [0] == [message.sequence for message in load(db, max_bytes=100)]


def test_first_message_of_the_initiator_tells_contract_and_lifetime(db: sqlite3.Connection) -> None:
    begin(db, b"a", b"b", contract="C")
    sent_us = [int(at * 1_000_000) for at in rows(db, "SELECT enqueue_time FROM broker_transmission")]

    first, second = (decode_envelope(message.fragment(0)[0]) for message in load(db))

    assert (Envelope("T", "C", sent_us[0], 60), b"a") == first
    assert (Envelope("T", "", sent_us[1]), b"b") == second


def test_first_message_of_the_target_tells_neither(db: sqlite3.Connection) -> None:
    begin(db, b"a", contract="C")
    db.execute("UPDATE broker_conversation SET is_initiator = 0")

    envelope, _ = decode_envelope(load(db)[0].fragment(0)[0])

    assert ("", None) == (envelope.contract, envelope.lifetime)


def test_lifetime_told_is_never_below_a_second(db: sqlite3.Connection) -> None:
    begin(db, b"a")

    (message,) = load_in_writer(db, Want(1, 0, 1, 1), 10, lifetime_of(db) + 5)

    assert decode_envelope(message.fragment(0)[0])[0].lifetime == 1


def test_cuts_stay_when_the_lifetime_told_takes_fewer_bytes(db: sqlite3.Connection) -> None:
    """The far side may have fragments of an earlier sending, which the others have to fit."""
    begin(db, bytes(range(100)))
    want = Want(1, 0, 1, 1)

    (early,) = load_in_writer(db, want, 10, lifetime_of(db) - 100_000)
    (late,) = load_in_writer(db, want, 10, lifetime_of(db) - 100)

    assert len(early.fragment(0)[0]) > len(late.fragment(0)[0])
    rest = range(1, early.fragments)
    assert [early.fragment(n) for n in rest] == [late.fragment(n) for n in rest]
    assert decode_envelope(early.fragment(0)[0])[1] == decode_envelope(late.fragment(0)[0])[1] == bytes(range(10))


def test_envelope_lies_wholly_in_the_first_fragment(db: sqlite3.Connection) -> None:
    begin(db, b"0123456789abcdef", contract="C" * 500)

    (message,) = load(db)

    assert (2, b"0123456789") == (message.fragments, decode_envelope(message.fragment(0)[0])[1])
    assert (b"abcdef", Flag.LAST_FRAGMENT) == message.fragment(1)


@pytest.mark.parametrize(
    ("error", "flag", "type_name", "body"),
    [(None, Flag.END_DIALOG, END_DIALOG, b""), (7, Flag.ERROR, ERROR, error_body(7, "why"))],
)
def test_end_is_loaded_behind_everything_sent(
    db: sqlite3.Connection, error: int | None, flag: Flag, type_name: str, body: bytes
) -> None:
    begin(db, b"a").end(error=error, description="why")

    last = load(db)[-1]

    first, flags = last.fragment(0)
    envelope, _ = decode_envelope(first)
    assert (1, flag, type_name, body) == (last.sequence, last.flags, envelope.type, last.body)
    assert flags & flag


# --- lifetime ---------------------------------------------------------------------------------------------------


def test_dialog_within_its_lifetime_is_left_alone(db: sqlite3.Connection) -> None:
    begin(db, b"a", lifetime=60)

    assert expire_in_writer(db, lifetime_of(db) - 0.001) == []
    assert states(db) == ["CO"]


def test_dialog_past_its_lifetime_fails_and_its_application_reads_it(db: sqlite3.Connection) -> None:
    begin(db, b"a", lifetime=60)

    expired = expire_in_writer(db, lifetime_of(db))

    assert (expired, states(db)) == ([1], ["ER"])
    assert queued(db) == [(ERROR, error_body(-8489, "the dialog has exceeded its LIFETIME"))]
    assert rows(db, "SELECT 1 FROM broker_transmission") == []


def test_target_fails_just_so_and_keeps_no_fragments(db: sqlite3.Connection) -> None:
    begin(db)
    db.execute("UPDATE broker_conversation SET is_initiator = 0, state = 'SI'")
    db.execute("INSERT INTO broker_fragment VALUES (1, 0, 0, 0, x'')")

    expire_in_writer(db, lifetime_of(db))

    assert (states(db), len(queued(db))) == (["ER"], 1)
    assert rows(db, "SELECT 1 FROM broker_fragment") == []


def test_application_that_has_ended_hears_nothing(db: sqlite3.Connection) -> None:
    begin(db, b"a").end()

    expired = expire_in_writer(db, lifetime_of(db))

    assert (expired, states(db), queued(db)) == ([1], ["CD"], [])
    assert rows(db, "SELECT 1 FROM broker_transmission") == []


def test_expiry_of_a_dialog_whose_service_is_gone_is_no_trouble(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    drop_service(db, "Orders")

    expire_in_writer(db, lifetime_of(db))

    assert (states(db), queued(db)) == (["ER"], [])


def test_failed_dialog_fails_only_once_and_stays_until_its_application_ends_it(db: sqlite3.Connection) -> None:
    begin(db, b"a")
    expire_in_writer(db, lifetime_of(db))

    assert expire_in_writer(db, lifetime_of(db) + 365 * 86_400) == []
    assert (states(db), len(queued(db))) == (["ER"], 1)


@pytest.mark.parametrize(("seconds", "left"), [(GUARD_SECONDS - 1, ["CD"]), (GUARD_SECONDS, [])])
def test_closed_dialog_guards_against_replays_for_half_an_hour_past_its_lifetime(
    db: sqlite3.Connection, seconds: float, left: list[str]
) -> None:
    begin(db).end()
    assert states(db) == ["CD"]

    expired = expire_in_writer(db, lifetime_of(db) + seconds)

    assert (expired, states(db)) == ([], left)


def test_number_of_a_forgotten_dialog_is_never_used_again(db: sqlite3.Connection) -> None:
    """The daemon remembers by it where a dialog goes."""
    begin(db).end()
    expire_in_writer(db, lifetime_of(db) + GUARD_SECONDS)

    begin(db, b"a", lifetime=timedelta(days=1))

    assert rows(db, "SELECT endpoint_id FROM broker_conversation") == [2]

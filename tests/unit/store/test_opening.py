"""Frames of a dialog of which no side is here: a beginning, a replay after the end, a stranger."""

from __future__ import annotations

import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.conversation.frames import EARLY_WINDOW
from broker.flow import Disposition
from broker.protocol.frame import Envelope
from broker.protocol.layout import NO_GUID
from broker.store.port import Receipt
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.metadata import Priority, put_priority
from broker.store.sqlite.receive import receive_in_writer
from broker.store.sqlite.side import FailureReason, close
from tests.support.dialog import FarSide, far_initiator, far_target, open_database, queued, rows, states

NOW = 1_750_000_000.0

Take = Callable[..., Receipt]


def held(frame: bytes, time_consumed: int) -> bytes:
    """The same frame after so many milliseconds on its way."""
    return frame[:12] + time_consumed.to_bytes(4, "big") + frame[16:]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "bank.db", "Billing")
    yield db
    db.close()


@pytest.fixture
def take(db: sqlite3.Connection) -> Take:
    return lambda *frames: receive_in_writer(db, broker_instance(db), frames, NOW)


@pytest.fixture
def far() -> FarSide:
    return far_initiator()


@pytest.fixture
def closed(db: sqlite3.Connection, take: Take, far: FarSide) -> FarSide:
    """An initiator of a dialog that has closed here after three messages."""
    take(*[far.message(number) for number in range(3)])
    close(db, 1, NOW, FailureReason.CLEANUP)
    return far


def tombstones(db: sqlite3.Connection) -> list[tuple[int, int]]:
    return rows(db, "SELECT receive_sequence, receive_sequence_frag FROM broker_tombstone")


# --- a beginning ------------------------------------------------------------------------------------------------


def test_priority_of_a_new_dialog_is_the_one_declared(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    put_priority(db, Priority("high", None, "Billing", None, 8))

    take(far.message(0))

    assert [8] == rows(db, "SELECT priority FROM broker_conversation")
    assert [8] == rows(db, "SELECT priority FROM broker_message")


@pytest.mark.parametrize("name", ["C" * 513])
def test_contract_has_a_name_of_at_most_512_bytes(db: sqlite3.Connection, take: Take, far: FarSide, name: str) -> None:
    far.envelope = Envelope(type="T", contract=name, lifetime=60)

    receipt = take(far.message(0))

    assert [fault.code for _, fault in receipt.faults] == [-8430]
    assert receipt.dropped == Counter({Disposition.CORRUPTED: 1})
    assert rows(db, "SELECT count(*) FROM broker_conversation") == [0]


@pytest.mark.parametrize(("time_consumed", "lifetime"), [(0, NOW + 60), (2_500, NOW + 57.5), (59_999, NOW + 0.001)])
def test_time_on_the_way_is_part_of_the_lifetime(
    db: sqlite3.Connection, take: Take, far: FarSide, time_consumed: int, lifetime: float
) -> None:
    far.envelope = Envelope(type="T", lifetime=60)

    take(held(far.message(0), time_consumed))

    assert [pytest.approx(lifetime, abs=1e-4)] == rows(db, "SELECT lifetime FROM broker_conversation")


@pytest.mark.parametrize("time_consumed", [60_000, 2**32 - 1])
def test_dialog_that_was_over_before_its_first_message_came_does_not_begin(
    db: sqlite3.Connection, take: Take, far: FarSide, time_consumed: int
) -> None:
    far.envelope = Envelope(type="T", lifetime=60)

    receipt = take(held(far.message(0), time_consumed))

    assert Counter({Disposition.LIFETIME_EXCEEDED: 1}) == receipt.dropped
    assert ([], [], []) == (receipt.faults, states(db), queued(db))


@pytest.mark.parametrize(("is_named", "opening"), [(False, 0), (True, -1)])
def test_naming_this_database_from_the_start_is_remembered(
    db: sqlite3.Connection, take: Take, *, is_named: bool, opening: int
) -> None:
    far = far_initiator(far_broker_instance=broker_instance(db) if is_named else NO_GUID)

    take(far.message(0))

    assert [opening] == rows(db, "SELECT is_opening_acknowledged FROM broker_conversation")


def test_naming_it_later_proves_that_an_answer_has_come(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    take(far.message(0))
    far.contact = far.contact.bound_to(broker_instance(db))

    take(far.message(1))

    assert [1] == rows(db, "SELECT is_opening_acknowledged FROM broker_conversation")


# --- after the end ----------------------------------------------------------------------------------------------


def test_replay_is_acknowledged_and_not_taken_twice(db: sqlite3.Connection, take: Take, closed: FarSide) -> None:
    receipt = take(closed.message(0, b"again"), closed.message(2))

    ((contact, place),) = receipt.closed
    assert ((3, 0), closed.contact.broker_instance, False) == (place, contact.far_broker_instance, contact.is_initiator)
    assert Counter({Disposition.DUPLICATE: 2}) == receipt.dropped
    assert ([], []) == (states(db), queued(db))


def test_what_is_still_sent_is_thrown_away_and_acknowledged(
    db: sqlite3.Connection, take: Take, closed: FarSide
) -> None:
    receipt = take(closed.message(3), closed.message(5), closed.message(4))

    assert [(6, 0)] == [place for _, place in receipt.closed] == tombstones(db)
    assert Counter({Disposition.CONVERSATION_ENDED: 2, Disposition.DUPLICATE: 1}) == receipt.dropped
    assert [(6, 0)] == [place for _, place in take(closed.message(5)).closed]


def test_far_side_that_only_acknowledges_is_not_answered(db: sqlite3.Connection, take: Take, closed: FarSide) -> None:
    assert Receipt() == take(closed.ack(5, 0), closed.fault(-8490))


@pytest.mark.parametrize("place", [(3 + EARLY_WINDOW, 0), (2**64 - 1, 0), (3, 2**32 - 1)])
def test_place_beyond_reason_moves_no_tombstone(
    db: sqlite3.Connection, take: Take, closed: FarSide, place: tuple[int, int]
) -> None:
    receipt = take(closed.fragment(place, b""))

    assert [(3, 0)] == tombstones(db) == [place for _, place in receipt.closed]
    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped


def test_beginning_is_a_new_one_when_the_tombstone_has_gone(
    db: sqlite3.Connection, take: Take, closed: FarSide
) -> None:
    db.execute("DELETE FROM broker_tombstone")

    take(closed.message(0))

    assert ["CO"] == states(db)


# --- strangers --------------------------------------------------------------------------------------------------


def test_who_names_this_database_in_vain_is_a_stranger(db: sqlite3.Connection, take: Take) -> None:
    far = far_initiator(far_broker_instance=broker_instance(db))

    receipt = take(far.message(5), far.message(6))

    ((contact, is_certain),) = receipt.strangers
    assert (far.contact.conversation_id, "Billing", "//far/Orders", False) == (
        contact.conversation_id,
        contact.service_name,
        contact.far_service,
        contact.is_initiator,
    )
    assert not is_certain
    assert Counter({Disposition.UNKNOWN_CONVERSATION: 2}) == receipt.dropped


def test_who_has_heard_from_here_is_a_stranger_for_certain(db: sqlite3.Connection, take: Take) -> None:
    far = far_initiator(far_broker_instance=broker_instance(db))

    ((_, is_certain),) = take(far.message(5, stored=(1, 0))).strangers

    assert is_certain


def test_target_whose_initiator_is_gone_is_a_stranger_for_certain(db: sqlite3.Connection, take: Take) -> None:
    ((contact, is_certain),) = take(far_target(db, uuid.uuid4()).message(0)).strangers

    assert (True, True) == (contact.is_initiator, is_certain)


def test_who_names_no_database_may_be_known_elsewhere(take: Take, far: FarSide) -> None:
    assert [] == take(far.message(5, stored=(1, 0))).strangers


def test_nobody_is_a_stranger_who_is_not_waiting_for_an_answer(db: sqlite3.Connection, take: Take) -> None:
    far = far_initiator(far_broker_instance=broker_instance(db))

    assert [] == take(far.ack(1, 0), far.fault(-8490)).strangers

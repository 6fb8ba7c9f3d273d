"""Frames of a dialog of which no side is here: a beginning, a replay after the end, a stranger."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import receive
from broker.conversation.frames import EARLY_WINDOW
from broker.conversation.message_types import (
    DEFAULT_LIFETIME,
    DIALOG_TIMER,
    END_DIALOG,
    ERROR,
    LIFETIME_MAX,
    SentBy,
    Validation,
    error_body,
)
from broker.flow import Disposition
from broker.protocol.frame import Envelope, Fault, Stored, decode_dialog, encode_dialog, encode_envelope, encode_stored
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, NO_GUID, Flag
from broker.store.port import AckState, ReceiveResult
from broker.store.sqlite import reassembly as assembly
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.expiry import Maintenance
from broker.store.sqlite.metadata import (
    Priority,
    drop_service,
    put_contract,
    put_message_type,
    put_priority,
    put_service,
)
from broker.store.sqlite.schema import LARGE_BYTES
from broker.store.sqlite.side import FailureReason, close
from tests.support.dialog import (
    LAST,
    QUEUE,
    FarSide,
    far_initiator,
    far_target,
    open_database,
    queued,
    receive_frames,
    rows,
    states,
)

NOW = 1_750_000_000.0

Take = Callable[..., ReceiveResult]


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
    return lambda *frames: receive_frames(db, frames, NOW)


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
    assert ReceiveResult() == take(closed.ack(5, 0), closed.fault(-8490))


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

    ((contact, is_certain),) = receipt.unknown_dialogs
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

    ((_, is_certain),) = take(far.message(5, stored=(1, 0))).unknown_dialogs

    assert is_certain


def test_target_whose_initiator_is_gone_is_a_stranger_for_certain(db: sqlite3.Connection, take: Take) -> None:
    ((contact, is_certain),) = take(far_target(db, uuid.uuid4()).message(0)).unknown_dialogs

    assert (True, True) == (contact.is_initiator, is_certain)


def test_who_names_no_database_may_be_known_elsewhere(take: Take, far: FarSide) -> None:
    assert [] == take(far.message(5, stored=(1, 0))).unknown_dialogs


def test_nobody_is_a_stranger_who_is_not_waiting_for_an_answer(db: sqlite3.Connection, take: Take) -> None:
    far = far_initiator(far_broker_instance=broker_instance(db))

    assert [] == take(far.ack(1, 0), far.fault(-8490)).unknown_dialogs


# --- test_receiving ---
# What frames do to a database: order, duplicates, ends, errors, and what the far side is told.


ELSEWHERE = bytes(range(100, 116))


@pytest.fixture
def db_of_receiving(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with a target's and an initiator's service."""
    db_of_receiving = open_database(tmp_path / "bank.db", "Billing", "Orders")
    yield db_of_receiving
    db_of_receiving.close()


@pytest.fixture
def take_of_receiving(db_of_receiving: sqlite3.Connection) -> Take:
    """Stores frames as one batch."""

    def taking(*frames: bytes) -> ReceiveResult:
        return receive_frames(db_of_receiving, frames, NOW)

    return taking


@pytest.fixture
def far_of_receiving() -> FarSide:
    """An initiator far away, who has begun nothing yet."""
    return far_initiator()


@pytest.fixture
def dialog(db_of_receiving: sqlite3.Connection) -> Dialog:
    """A dialog begun here, with one message sent."""
    dialog = begin_dialog(db_of_receiving, from_service="Orders", to_service="//far/Billing")
    dialog.send(b"first")
    return dialog


@pytest.fixture
def target(db_of_receiving: sqlite3.Connection, dialog: Dialog) -> FarSide:
    """The target of that dialog."""
    return far_target(db_of_receiving, dialog.conversation_id)


def stored(receipt: ReceiveResult) -> list[tuple[int, int]]:
    """The places that will be acknowledged."""
    return [standing.place for standing in receipt.stored.values()]


def codes(receipt: ReceiveResult) -> list[int]:
    return [fault.code for _, fault in receipt.faults]


def tombstones_of_receiving(db_of_receiving: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Side and place of what is left of closed dialogs."""
    return rows(db_of_receiving, "SELECT is_initiator, receive_sequence, receive_sequence_frag FROM broker_tombstone")


def kept(db_of_receiving: sqlite3.Connection) -> list[tuple[int, int]]:
    return rows(db_of_receiving, "SELECT message_sequence_number, fragment_number FROM broker_fragment ORDER BY 1, 2")


def pieces(far_of_receiving: FarSide, sequence: int, payload: bytes, size: int) -> list[bytes]:
    """A message cut into frames, with its whole envelope in the first."""
    cuts = [payload[at : at + size] for at in range(0, len(payload), size)]
    cuts[0] = encode_envelope(far_of_receiving.envelope) + cuts[0]
    flags = [0] * (len(cuts) - 1) + [LAST]
    return [
        far_of_receiving.fragment((sequence, n), cut, flags=flag)
        for n, (cut, flag) in enumerate(zip(cuts, flags, strict=True))
    ]


# --- the first message ------------------------------------------------------------------------------------------


def test_first_message_makes_the_endpoint_and_is_delivered(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    receipt = take_of_receiving(far_of_receiving.message(0, b"pay"))

    row = rows(
        db_of_receiving,
        "SELECT conversation_id, is_initiator, state, service_name, far_service, far_broker_instance, contract,"
        " lifetime, create_date, send_sequence, receive_sequence, receive_sequence_frag FROM broker_conversation",
    )
    names = (
        far_of_receiving.contact.conversation_id,
        0,
        "CO",
        "Billing",
        "//far/Orders",
        far_of_receiving.contact.broker_instance,
        "C",
    )
    assert row == [(*names, NOW + 3600, NOW, 0, 1, 0)]
    assert queued(db_of_receiving) == [("T", b"pay")]
    assert stored(receipt) == [(1, 0)]
    assert receipt.delivered == Counter(Billing=1)


def test_what_is_stored_is_told_to_the_initiators_database(take_of_receiving: Take, far_of_receiving: FarSide) -> None:
    receipt = take_of_receiving(far_of_receiving.message(0))

    (standing,) = receipt.stored.values()
    contact = standing.contact
    assert (contact.is_initiator, contact.far_service) == (False, "//far/Orders")
    assert contact.far_broker_instance == far_of_receiving.contact.broker_instance


@pytest.mark.parametrize(
    ("told", "seconds"), [(None, DEFAULT_LIFETIME.total_seconds()), (1, 1), (LIFETIME_MAX + 1, LIFETIME_MAX)]
)
def test_lifetime_is_what_the_envelope_says_within_reason(
    db_of_receiving: sqlite3.Connection,
    take_of_receiving: Take,
    far_of_receiving: FarSide,
    told: int | None,
    seconds: float,
) -> None:
    far_of_receiving.envelope = replace_envelope(far_of_receiving.envelope, told)

    take_of_receiving(far_of_receiving.message(0))

    assert rows(db_of_receiving, "SELECT lifetime FROM broker_conversation") == [NOW + seconds]


def replace_envelope(envelope: Envelope, lifetime: int | None) -> Envelope:
    return Envelope(type=envelope.type, contract=envelope.contract, lifetime=lifetime)


def test_part_of_the_first_message_starts_the_endpoint_only(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    receipt = take_of_receiving(pieces(far_of_receiving, 0, b"abcd", 2)[0])

    assert (states(db_of_receiving), queued(db_of_receiving), stored(receipt)) == (["SI"], [], [(0, 1)])


def test_anything_but_a_beginning_makes_no_endpoint(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    later, part = far_of_receiving.message(1), far_of_receiving.fragment((0, 1), b"x")

    receipt = take_of_receiving(later, part, far_of_receiving.ack(1, 0), far_of_receiving.fault(-8490))

    assert states(db_of_receiving) == []
    assert receipt == ReceiveResult(dropped=Counter({Disposition.UNKNOWN_CONVERSATION: 4}))


def test_answer_to_a_dialog_that_is_not_here_makes_no_endpoint(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take
) -> None:
    receipt = take_of_receiving(far_target(db_of_receiving, uuid.uuid4()).message(0))

    assert states(db_of_receiving) == []
    assert receipt.dropped == Counter({Disposition.UNKNOWN_CONVERSATION: 1})


@pytest.mark.parametrize("is_named", [True, False], ids=["by the dialog", "by its route"])
def test_absent_service_is_answered_by_the_database_that_was_named(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, *, is_named: bool
) -> None:
    far_of_receiving = far_initiator(
        "Nobody", far_broker_instance=broker_instance(db_of_receiving) if is_named else NO_GUID
    )

    receipt = take_of_receiving(far_of_receiving.message(0), far_of_receiving.message(1))

    assert states(db_of_receiving) == []
    assert codes(receipt) == [-8490]
    assert receipt.dropped == Counter({Disposition.SERVICE_NOT_FOUND: 2})
    assert receipt.stored == {}


def test_fault_about_a_service_goes_back_to_who_asked(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take
) -> None:
    far_of_receiving = far_initiator("Nobody", far_broker_instance=broker_instance(db_of_receiving))

    ((contact, fault),) = take_of_receiving(far_of_receiving.message(0)).faults

    assert (contact.service_name, contact.far_service, contact.is_initiator) == ("Nobody", "//far/Orders", False)
    assert contact.far_broker_instance == far_of_receiving.contact.broker_instance
    assert fault.text == "the service 'Nobody' does not exist in the broker instance that was named"


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [(frozenset({"C", "D"}), False), (frozenset({"D"}), True), (frozenset(), False)],
    ids=["listed", "not listed", "any"],
)
def test_contract_has_to_be_one_that_the_service_takes(
    tmp_path: Path, far_of_receiving: FarSide, *, accepted: frozenset[str], refused: bool
) -> None:
    db_of_receiving = open_database(tmp_path / "strict.db", "Billing", contracts=accepted)

    receipt = receive_frames(db_of_receiving, [far_of_receiving.message(0)], NOW)

    assert codes(receipt) == ([-8408] if refused else [])
    assert receipt.dropped[Disposition.CONTRACT_REFUSED] == refused
    assert states(db_of_receiving) == ([] if refused else ["CO"])
    db_of_receiving.close()


def test_dialog_goes_on_when_its_service_takes_its_contract_no_more(tmp_path: Path, far_of_receiving: FarSide) -> None:
    """The original's page on ALTER SERVICE says this and its contrary; here nothing is told with -8469."""
    db_of_receiving = open_database(tmp_path / "strict.db", "Billing", contracts=frozenset({"C"}))
    receive_frames(db_of_receiving, [far_of_receiving.message(0)], NOW)
    put_service(db_of_receiving, "Billing", 1, frozenset({"D"}))

    receipt = receive_frames(db_of_receiving, [far_of_receiving.message(1)], NOW)

    assert ([], ["CO"]) == (codes(receipt), states(db_of_receiving))
    assert [0, 1] == rows(db_of_receiving, "SELECT message_sequence_number FROM broker_message")
    db_of_receiving.close()


# --- order and duplicates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_messages_are_delivered_in_order_however_they_arrive(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide, order: tuple[int, ...]
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"))

    for number in order:
        receipt = take_of_receiving(far_of_receiving.message(number + 1, b"%d" % (number + 1)))

    assert [body for _, body in queued(db_of_receiving)] == [b"0", b"1", b"2", b"3", b"4"]
    assert stored(receipt) == [(5, 0)]
    assert kept(db_of_receiving) == []
    assert rows(db_of_receiving, "SELECT early_fragments FROM broker_conversation") == [0]


def test_fragments_of_several_messages_may_come_in_any_order(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    bodies = [b"abcdefgh", b"ijklm", b"nopqrstuvw"]
    frames = [frame for sequence, body in enumerate(bodies) for frame in pieces(far_of_receiving, sequence, body, 3)]
    mixed = [frames[0], *reversed(frames[1:])]

    for frame in mixed:
        receipt = take_of_receiving(frame)

    assert [body for _, body in queued(db_of_receiving)] == bodies
    assert stored(receipt) == [(3, 0)]
    assert kept(db_of_receiving) == []


def test_fragments_that_come_one_by_one_in_order_are_joined(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    places = [stored(take_of_receiving(frame)) for frame in pieces(far_of_receiving, 0, b"abcdef", 2)]

    assert places == [[(0, 1)], [(0, 2)], [(1, 0)]]
    assert (queued(db_of_receiving), kept(db_of_receiving)) == ([("T", b"abcdef")], [])


def test_one_batch_in_the_wrong_order_is_as_good_as_the_right_one(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    frames = [frame for sequence in range(3) for frame in pieces(far_of_receiving, sequence, b"%d" % sequence * 10, 4)]

    receipt = take_of_receiving(*reversed(frames))

    assert [body for _, body in queued(db_of_receiving)] == [b"%d" % sequence * 10 for sequence in range(3)]
    assert (stored(receipt), receipt.dropped) == ([(3, 0)], Counter())


def test_early_fragment_is_acknowledged_only_when_its_turn_has_come(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0))

    receipt = take_of_receiving(far_of_receiving.message(2))

    assert (stored(receipt), kept(db_of_receiving)) == ([(1, 0)], [(2, 0)])
    assert rows(db_of_receiving, "SELECT early_fragments FROM broker_conversation") == [1]


@pytest.mark.parametrize("again", [0, 2], ids=["delivered", "early"])
def test_duplicate_is_acknowledged_again_and_not_delivered_again(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide, again: int
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"), far_of_receiving.message(2, b"2"))

    receipt = take_of_receiving(far_of_receiving.message(again, b"again"))

    assert receipt.dropped == Counter({Disposition.DUPLICATE: 1})
    assert stored(receipt) == [(1, 0)]
    take_of_receiving(far_of_receiving.message(1, b"1"))
    assert [body for _, body in queued(db_of_receiving)] == [b"0", b"1", b"2"]


def test_too_early_message_is_neither_kept_nor_acknowledged(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0))

    receipt = take_of_receiving(far_of_receiving.message(1 + EARLY_WINDOW))

    assert receipt.dropped == Counter({Disposition.OUT_OF_SEQUENCE: 1})
    assert kept(db_of_receiving) == []


def test_who_sends_too_early_is_told_at_once_what_is_expected(
    take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0))

    (standing,) = take_of_receiving(far_of_receiving.message(1 + EARLY_WINDOW)).stored.values()

    assert ((1, 0), (), True) == (standing.place, standing.held, standing.is_urgent)


def test_two_dialogs_in_one_batch_do_not_mix(db_of_receiving: sqlite3.Connection, take_of_receiving: Take) -> None:
    one, two = far_initiator(), far_initiator()

    receipt = take_of_receiving(
        one.message(0, b"1a"), two.message(0, b"2a"), one.message(1, b"1b"), two.message(1, b"2b")
    )

    assert [body for _, body in queued(db_of_receiving)] == [b"1a", b"1b", b"2a", b"2b"]
    assert stored(receipt) == [(2, 0), (2, 0)]


def test_both_sides_of_a_dialog_may_live_in_one_database(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take
) -> None:
    dialog = begin_dialog(db_of_receiving, from_service="Orders", to_service="Billing")
    dialog.send(b"there")
    here = broker_instance(db_of_receiving)
    initiator = far_initiator(conversation_id=dialog.conversation_id.bytes, broker_instance=here)
    target = far_target(db_of_receiving, dialog.conversation_id, service_name="Billing", broker_instance=here)

    take_of_receiving(initiator.message(0, b"there"))
    take_of_receiving(target.message(0, b"and back", stored=(1, 0)))

    assert [body for _, body in queued(db_of_receiving)] == [b"there", b"and back"]
    assert states(db_of_receiving) == ["CO", "CO"]
    assert rows(db_of_receiving, "SELECT far_broker_instance FROM broker_conversation") == [here, here]


# --- frames that are not believed -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "disposition"),
    [
        (lambda frame: frame[:50], Disposition.MALFORMED),
        (lambda frame: frame + b"x", Disposition.MALFORMED),
        (lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]), Disposition.CORRUPTED),
        (lambda frame: frame[:5] + bytes([frame[5] | Flag.SEALED]) + frame[6:], Disposition.SEAL_BROKEN),
    ],
    ids=["short", "long", "checksum", "sealed"],
)
def test_spoilt_frame_changes_nothing_and_others_of_the_batch_are_taken(
    db_of_receiving: sqlite3.Connection,
    take_of_receiving: Take,
    far_of_receiving: FarSide,
    spoil: Callable[[bytes], bytes],
    disposition: Disposition,
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"))

    receipt = take_of_receiving(spoil(far_of_receiving.message(1, b"1")), far_of_receiving.message(2, b"2"))

    assert receipt.dropped == Counter({disposition: 1})
    assert stored(receipt) == [(1, 0)]
    assert [body for _, body in queued(db_of_receiving)] == [b"0"]


def test_body_without_a_checksum_is_believed(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    header, body = decode_dialog(far_of_receiving.message(0, b"0"))

    take_of_receiving(encode_dialog(replace(header, body_checksum=0), body))

    assert queued(db_of_receiving) == [("T", b"0")]


def test_malformed_envelope_begins_nothing(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    receipt = take_of_receiving(
        far_of_receiving.fragment((0, 0), b"\0\0\0\x09short", flags=LAST), far_of_receiving.message(1)
    )

    assert states(db_of_receiving) == []
    assert receipt == ReceiveResult(dropped=Counter({Disposition.CORRUPTED: 2}))


def test_malformed_envelope_later_fails_the_dialog_at_both_sides(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"))

    receipt = take_of_receiving(far_of_receiving.fragment((1, 0), b"\0\0\0\x09short", flags=LAST))

    assert states(db_of_receiving) == ["ER"]
    assert codes(receipt) == [-8430]
    assert receipt.dropped == Counter({Disposition.CORRUPTED: 1})
    assert queued(db_of_receiving)[-1][0] == ERROR
    assert b"<Code>-8430</Code>" in queued(db_of_receiving)[-1][1]


def test_malformed_bodies_of_ack_and_fault_are_counted_and_change_nothing(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0))
    spoilt = []
    for frame in (far_of_receiving.ack(0, 0), far_of_receiving.fault(-8490)):
        header, _ = decode_dialog(frame)
        spoilt.append(encode_dialog(replace(header, body_checksum=0), b"\xc1"))

    receipt = take_of_receiving(*spoilt)

    assert receipt == ReceiveResult(dropped=Counter({Disposition.MALFORMED: 2}))
    assert states(db_of_receiving) == ["CO"]


def test_dialog_frame_of_a_later_version_is_counted_and_changes_nothing(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, target: FarSide
) -> None:
    header, body = decode_dialog(target.message(0))

    receipt = take_of_receiving(encode_dialog(replace(header, kind=0x20), body))

    assert receipt == ReceiveResult(dropped=Counter({Disposition.MALFORMED: 1}))
    assert rows(db_of_receiving, "SELECT far_broker_instance FROM broker_conversation") == [None]


# --- acknowledgements -------------------------------------------------------------------------------------------


def test_acknowledged_messages_are_kept_no_longer(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.send(b"second")

    receipt = take_of_receiving(target.ack(1, 0))

    assert rows(db_of_receiving, "SELECT message_body FROM broker_transmission") == [b"second"]
    assert rows(db_of_receiving, "SELECT acknowledged_sequence FROM broker_conversation") == [1]
    assert receipt.acknowledged == {1: (1, 0)}


def test_acknowledgement_rides_on_any_frame_and_the_highest_counts(
    take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    for _ in range(4):
        dialog.send(b"more")

    receipt = take_of_receiving(target.message(0, stored=(2, 1)), target.ack(4, 0), target.ack(3, 5))

    assert receipt.acknowledged == {1: (4, 0)}


def test_old_acknowledgement_brings_nothing_back(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.send(b"second")
    take_of_receiving(target.ack(2, 0))

    take_of_receiving(target.ack(1, 0))

    assert rows(db_of_receiving, "SELECT acknowledged_sequence FROM broker_conversation") == [2]


@pytest.mark.parametrize("place", [(1, 1), (2, 0), (2**63, 0), (2**64 - 1, 2**32 - 1)])
def test_acknowledgement_of_what_was_never_sent_is_ignored_and_counted(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, target: FarSide, place: tuple[int, int]
) -> None:
    receipt = take_of_receiving(target.ack(*place))

    assert receipt.dropped == Counter({Disposition.OUT_OF_SEQUENCE: 1})
    assert receipt.acknowledged == {}
    assert rows(db_of_receiving, "SELECT message_body FROM broker_transmission") == [b"first"]


@pytest.mark.parametrize("sequence", [2**63, 2**64 - 1])
def test_sequence_numbers_beyond_what_a_row_holds_are_refused(
    take_of_receiving: Take, far_of_receiving: FarSide, sequence: int
) -> None:
    take_of_receiving(far_of_receiving.message(0))

    assert take_of_receiving(far_of_receiving.message(sequence)).dropped == Counter({Disposition.OUT_OF_SEQUENCE: 1})


# --- which database answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", ["message", "ack"])
def test_first_answer_binds_an_open_dialog(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, target: FarSide, frame: str
) -> None:
    receipt = take_of_receiving(target.message(0) if frame == "message" else target.ack(0, 0))

    assert rows(db_of_receiving, "SELECT far_broker_instance FROM broker_conversation") == [
        target.contact.broker_instance
    ]
    assert [contact.far_broker_instance for contact in receipt.contacts.values()] == [target.contact.broker_instance]


@pytest.mark.parametrize("frame", ["message", "ack"])
def test_second_target_is_told_and_the_binding_stays(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide, frame: str
) -> None:
    take_of_receiving(target.ack(1, 0))
    other = far_target(db_of_receiving, dialog.conversation_id, broker_instance=ELSEWHERE)

    receipt = take_of_receiving(other.message(0, b"me too") if frame == "message" else other.ack(1, 0))

    ((contact, fault),) = receipt.faults
    assert (fault.code, contact.far_broker_instance, contact.far_service) == (-8495, ELSEWHERE, "//far/Billing")
    assert receipt.dropped == Counter({Disposition.OTHER_INSTANCE: 1})
    assert (receipt.stored, receipt.acknowledged, queued(db_of_receiving)) == ({}, {}, [])
    assert rows(db_of_receiving, "SELECT far_broker_instance FROM broker_conversation") == [
        target.contact.broker_instance
    ]


def test_fault_of_a_second_target_is_not_answered(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    take_of_receiving(target.ack(1, 0))

    receipt = take_of_receiving(
        far_target(db_of_receiving, dialog.conversation_id, broker_instance=ELSEWHERE).fault(-8490)
    )

    assert receipt == ReceiveResult(dropped=Counter({Disposition.OTHER_INSTANCE: 1}))
    assert states(db_of_receiving) == ["CO"]


def test_target_listens_to_the_database_that_began(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"))
    other = far_initiator(conversation_id=far_of_receiving.contact.conversation_id, broker_instance=ELSEWHERE)

    receipt = take_of_receiving(other.message(1, b"1"))

    assert receipt == ReceiveResult(dropped=Counter({Disposition.OTHER_INSTANCE: 1}))
    assert queued(db_of_receiving) == [("T", b"0")]


# --- the end ----------------------------------------------------------------------------------------------------


def test_end_is_read_in_its_turn(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"), far_of_receiving.end(2))
    assert states(db_of_receiving) == ["CO"]

    take_of_receiving(far_of_receiving.message(1, b"1"))

    assert states(db_of_receiving) == ["DI"]
    assert queued(db_of_receiving) == [("T", b"0"), ("T", b"1"), (END_DIALOG, b"")]


def test_end_needs_no_body(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0), far_of_receiving.fragment((1, 0), b"", flags=LAST | Flag.END_DIALOG))

    assert states(db_of_receiving) == ["DI"]


def test_end_of_ours_that_is_acknowledged_closes_the_dialog(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.end()
    assert states(db_of_receiving) == ["DO"]

    receipt = take_of_receiving(target.ack(2, 0))

    assert (states(db_of_receiving), tombstones_of_receiving(db_of_receiving)) == ([], [(1, 0, 0)])
    assert receipt.finished == {1}
    assert rows(db_of_receiving, "SELECT 1 FROM broker_transmission") == []
    assert dict(rows(db_of_receiving, "SELECT * FROM broker_ledger")) == {"sent": 2, "acknowledged": 2}


def test_end_of_ours_is_not_acknowledged_by_what_comes_before_it(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.end()

    receipt = take_of_receiving(target.ack(1, 0))

    assert (states(db_of_receiving), receipt.finished) == (["DO"], set())


def test_messages_after_our_end_are_acknowledged_and_discarded(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.end()

    first = take_of_receiving(*pieces(target, 0, b"abcd", 2))
    second = take_of_receiving(target.message(2), target.end(1))
    third = take_of_receiving(target.message(2))

    assert [stored(receipt) for receipt in (first, second, third)] == [[(1, 0)], [(2, 0)], [(3, 0)]]
    assert first.dropped + second.dropped + third.dropped == Counter({Disposition.CONVERSATION_ENDED: 5})
    assert (queued(db_of_receiving), kept(db_of_receiving)) == ([], [])


def test_end_while_the_far_sides_messages_are_unread_throws_them_away(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"), far_of_receiving.message(1, b"1"))
    (first,) = receive(db_of_receiving, queue=QUEUE, top=1)

    first.dialog.end()
    receipt = take_of_receiving(far_of_receiving.message(2, b"2"), far_of_receiving.end(3))

    assert (queued(db_of_receiving), states(db_of_receiving), stored(receipt)) == ([], ["DO"], [(4, 0)])


def test_early_fragments_are_not_kept_past_the_end(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0), far_of_receiving.end(1), far_of_receiving.message(2))
    assert (states(db_of_receiving), kept(db_of_receiving)) == (["DI"], [])

    take_of_receiving(far_of_receiving.message(3))

    assert kept(db_of_receiving) == []


def test_early_fragments_are_gone_once_our_own_end_is_acknowledged(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    take_of_receiving(target.message(1))
    dialog.end()

    take_of_receiving(target.ack(2, 0))

    Maintenance().run(db_of_receiving, NOW)
    assert (states(db_of_receiving), kept(db_of_receiving)) == ([], [])


def test_replay_of_a_whole_dialog_after_it_was_closed_delivers_nothing(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    frames = [far_of_receiving.message(0, b"0"), far_of_receiving.end(1)]
    take_of_receiving(*frames)
    for message in receive(db_of_receiving, queue=QUEUE):
        if message.is_end:
            message.dialog.end()
    assert tombstones_of_receiving(db_of_receiving) == [(0, 2, 0)]

    receipt = take_of_receiving(*frames)

    assert (queued(db_of_receiving), states(db_of_receiving)) == ([], [])
    assert receipt.dropped == Counter({Disposition.DUPLICATE: 2})
    assert [place for _, place in receipt.closed] == [(2, 0)]


def test_frames_behind_those_of_a_closed_dialog_are_taken(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    frames = [far_of_receiving.message(0, b"0"), far_of_receiving.end(1)]
    take_of_receiving(*frames)
    for message in receive(db_of_receiving, queue=QUEUE):
        if message.is_end:
            message.dialog.end()

    receipt = take_of_receiving(frames[0], far_initiator().message(0, b"of another dialog"))

    assert [("T", b"of another dialog")] == queued(db_of_receiving)
    assert [Disposition.DUPLICATE, Disposition.DELIVERED] == receipt.verdicts()


# --- errors -----------------------------------------------------------------------------------------------------


def test_end_with_error_is_read_as_an_error(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"))
    body = error_body(50001, "no")

    receipt = take_of_receiving(far_of_receiving.message(1, body, flags=LAST | Flag.ERROR))

    assert queued(db_of_receiving)[-1] == (ERROR, body)
    assert (states(db_of_receiving), stored(receipt), codes(receipt)) == (["ER"], [(2, 0)], [])


def test_fault_becomes_an_error_message_and_what_waits_is_dropped(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, target: FarSide
) -> None:
    receipt = take_of_receiving(target.fault(-8408, "no such <contract>"))

    assert states(db_of_receiving) == ["ER"]
    assert queued(db_of_receiving) == [(ERROR, error_body(-8408, "no such <contract>"))]
    assert rows(db_of_receiving, "SELECT 1 FROM broker_transmission") == []
    assert (receipt.finished, receipt.faults) == ({1}, [])


def test_fault_binds_nothing(db_of_receiving: sqlite3.Connection, take_of_receiving: Take, target: FarSide) -> None:
    take_of_receiving(target.fault(-8408))

    assert rows(db_of_receiving, "SELECT far_broker_instance FROM broker_conversation") == [None]


def test_fault_says_no_more_to_an_application_that_has_ended(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.end()

    receipt = take_of_receiving(target.fault(-8490))

    assert (states(db_of_receiving), queued(db_of_receiving), receipt.finished) == ([], [], {1})
    assert dict(rows(db_of_receiving, "SELECT * FROM broker_ledger")) == {"sent": 2, "error from the far side": 2}


@pytest.mark.parametrize("state", ["ER", "CD"])
def test_fault_of_a_dialog_that_has_failed_or_closed_changes_nothing(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, target: FarSide, state: str
) -> None:
    db_of_receiving.execute("UPDATE broker_conversation SET state = ?", (state,))

    take_of_receiving(target.fault(-8490))

    assert (states(db_of_receiving), queued(db_of_receiving)) == ([state], [])


def test_message_for_a_service_that_was_dropped_is_not_lost_in_silence(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    take_of_receiving(far_of_receiving.message(0, b"0"))
    drop_service(db_of_receiving, "Billing")

    receipt = take_of_receiving(far_of_receiving.message(1, b"1"))

    assert codes(receipt) == [-8470]
    assert receipt.dropped == Counter({Disposition.SERVICE_NOT_FOUND: 1})
    assert (states(db_of_receiving), receipt.delivered) == (["ER"], Counter())


# --- the batch is one transaction -------------------------------------------------------------------------------


def test_failure_of_the_store_stores_nothing_of_the_batch(
    db_of_receiving: sqlite3.Connection, take_of_receiving: Take, far_of_receiving: FarSide
) -> None:
    db_of_receiving.execute(
        "CREATE TRIGGER full BEFORE INSERT ON broker_fragment BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
    )

    with pytest.raises(sqlite3.Error, match=re.escape("disk is full")):
        take_of_receiving(far_of_receiving.message(0), far_of_receiving.message(2))

    assert (states(db_of_receiving), queued(db_of_receiving), db_of_receiving.in_transaction) == ([], [], False)


def test_receipt_of_no_frames_is_empty(take_of_receiving: Take) -> None:
    assert take_of_receiving() == ReceiveResult()


def test_fault_of_the_texts_is_what_the_peer_reads(
    take_of_receiving: Take, dialog: Dialog, db_of_receiving: sqlite3.Connection
) -> None:
    take_of_receiving(far_target(db_of_receiving, dialog.conversation_id).ack(1, 0))

    receipt = take_of_receiving(
        far_target(db_of_receiving, dialog.conversation_id, broker_instance=ELSEWHERE).ack(1, 0)
    )

    assert [fault for _, fault in receipt.faults] == [
        Fault(-8495, "another instance of the service has this conversation")
    ]


# --- test_reception ---
# What frames do to a side that lives here, beyond order and duplicates: what is told, believed, refused, counted.


@pytest.fixture
def db_of_reception(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db_of_reception = open_database(tmp_path / "bank.db", "Billing", "Orders")
    yield db_of_reception
    db_of_reception.close()


@pytest.fixture
def take_of_reception(db_of_reception: sqlite3.Connection) -> Take:
    return lambda *frames: receive_frames(db_of_reception, frames, NOW)


@pytest.fixture
def far_of_reception() -> FarSide:
    return far_initiator()


@pytest.fixture
def dialog_of_reception(db_of_reception: sqlite3.Connection) -> Dialog:
    """A dialog begun here, with four messages sent."""
    dialog_of_reception = begin_dialog(db_of_reception, from_service="Orders", to_service="//far/Billing")
    for body in (b"0", b"1", b"2", b"3"):
        dialog_of_reception.send(body)
    return dialog_of_reception


@pytest.fixture
def target_of_reception(db_of_reception: sqlite3.Connection, dialog_of_reception: Dialog) -> FarSide:
    return far_target(db_of_reception, dialog_of_reception.conversation_id)


def standing(receipt: ReceiveResult) -> AckState:
    (one,) = receipt.stored.values()
    return one


def ledger(db_of_reception: sqlite3.Connection) -> dict[str, int]:
    return dict(rows(db_of_reception, "SELECT entry, messages FROM broker_ledger"))


# --- what is told -----------------------------------------------------------------------------------------------


def test_frames_in_order_are_told_without_haste(take_of_reception: Take, far_of_reception: FarSide) -> None:
    told = standing(take_of_reception(far_of_reception.message(0), far_of_reception.message(1)))

    assert ((2, 0), (), 2, False) == (told.place, told.held, told.frames, told.is_urgent)


def test_gap_is_told_at_once_with_what_is_held_behind_it(take_of_reception: Take, far_of_reception: FarSide) -> None:
    take_of_reception(far_of_reception.message(0))

    told = standing(
        take_of_reception(
            far_of_reception.message(3),
            far_of_reception.fragment((5, 1), b"x"),
            far_of_reception.fragment((5, 2), b"x"),
        )
    )

    assert ((1, 0), ((3, 0, 0), (5, 1, 2)), True) == (told.place, told.held, told.is_urgent)


def test_gap_that_is_still_open_is_told_again_with_news(take_of_reception: Take, far_of_reception: FarSide) -> None:
    take_of_reception(far_of_reception.message(0), far_of_reception.message(3))

    told = standing(take_of_reception(far_of_reception.message(1)))

    assert ((2, 0), ((3, 0, 0),), True) == (told.place, told.held, told.is_urgent)


def test_gap_that_closes_is_told_at_once(take_of_reception: Take, far_of_reception: FarSide) -> None:
    take_of_reception(far_of_reception.message(0), far_of_reception.message(2))

    told = standing(take_of_reception(far_of_reception.message(1)))

    assert ((3, 0), (), True) == (told.place, told.held, told.is_urgent)


@pytest.mark.parametrize("frame", ["end", "error", "duplicate"])
def test_end_error_and_duplicate_are_told_at_once(
    take_of_reception: Take, far_of_reception: FarSide, frame: str
) -> None:
    take_of_reception(far_of_reception.message(0))
    frames = {
        "end": far_of_reception.end(1),
        "error": far_of_reception.message(1, flags=LAST | Flag.ERROR),
        "duplicate": far_of_reception.message(0),
    }

    assert standing(take_of_reception(frames[frame])).is_urgent


def test_acknowledgement_alone_is_not_answered(
    take_of_reception: Take, dialog_of_reception: Dialog, target_of_reception: FarSide
) -> None:
    assert {} == take_of_reception(target_of_reception.ack(1, 0)).stored


def test_too_much_out_of_order_is_not_kept_and_comes_again(
    db_of_reception: sqlite3.Connection,
    take_of_reception: Take,
    far_of_reception: FarSide,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembly, "EARLY_FRAGMENTS_MAX", 2)
    take_of_reception(far_of_reception.message(0, b"0"))

    receipt = take_of_reception(*[far_of_reception.message(number, b"%d" % number) for number in (2, 3, 4, 5)])

    assert Counter({Disposition.OUT_OF_SEQUENCE: 2}) == receipt.dropped
    assert ((2, 0, 0), (3, 0, 0)) == standing(receipt).held
    take_of_reception(*[far_of_reception.message(number, b"%d" % number) for number in (1, 4, 5)])
    assert [b"%d" % number for number in range(6)] == [body for _, body in queued(db_of_reception)]


# --- what is believed -------------------------------------------------------------------------------------------


def ack(far_of_reception: FarSide, place: tuple[int, int], *runs: tuple[int, int, int]) -> bytes:
    header, _ = decode_dialog(far_of_reception.ack(*place))
    return encode_dialog(header, encode_stored(Stored(runs)))


def test_what_the_far_side_holds_out_of_order_is_handed_on(
    take_of_reception: Take, target_of_reception: FarSide
) -> None:
    receipt = take_of_reception(ack(target_of_reception, (1, 0), (2, 0, 3), (3, 1, 1)))

    assert ({1: (1, 0)}, {1: ((2, 0, 3), (3, 1, 1))}) == (receipt.acknowledged, receipt.held_there)


def test_newest_word_on_what_is_held_counts(take_of_reception: Take, target_of_reception: FarSide) -> None:
    receipt = take_of_reception(
        ack(target_of_reception, (1, 0), (3, 0, 0)),
        ack(target_of_reception, (2, 0)),
        ack(target_of_reception, (1, 0), (2, 0, 0)),
    )

    assert ({1: (2, 0)}, {1: ()}) == (receipt.acknowledged, receipt.held_there)


def test_held_without_a_place_is_believed(take_of_reception: Take, target_of_reception: FarSide) -> None:
    receipt = take_of_reception(ack(target_of_reception, (0, 0), (1, 0, 0)))

    assert ({1: (0, 0)}, {1: ((1, 0, 0),)}) == (receipt.acknowledged, receipt.held_there)


@pytest.mark.parametrize("run", [(4, 0, 0), (2**63, 0, 0), (-1, 0, 0), (2, 3, 1), (2, -1, 0)])
def test_run_of_what_was_never_sent_is_counted_and_left_out(
    take_of_reception: Take, target_of_reception: FarSide, run: tuple[int, int, int]
) -> None:
    receipt = take_of_reception(ack(target_of_reception, (1, 0), run, (3, 0, 0)))

    assert {1: ((3, 0, 0),)} == receipt.held_there
    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped


def test_nothing_is_believed_of_who_acknowledges_what_was_never_sent(
    take_of_reception: Take, target_of_reception: FarSide
) -> None:
    receipt = take_of_reception(ack(target_of_reception, (9, 0), (3, 0, 0)))

    assert ({}, {}) == (receipt.acknowledged, receipt.held_there)


def test_endless_list_of_runs_is_cut(take_of_reception: Take, target_of_reception: FarSide) -> None:
    receipt = take_of_reception(ack(target_of_reception, (1, 0), *[(2, number, number) for number in range(50_000)]))

    assert 1024 == len(receipt.held_there[1])


@pytest.mark.parametrize("is_answer", [True, False])
def test_answer_of_the_initiator_proves_that_it_has_ours(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, *, is_answer: bool
) -> None:
    far_of_reception = far_initiator(far_broker_instance=broker_instance(db_of_reception))
    far_of_reception.envelope = Envelope(type="T", contract="C", lifetime=LIFETIME_MAX)
    take_of_reception(far_of_reception.message(0))
    (handle,) = rows(db_of_reception, "SELECT conversation_handle FROM broker_conversation")
    Dialog(db_of_reception, 1, handle, handle).send(b"answer")

    take_of_reception(far_of_reception.message(1, stored=(1, 0) if is_answer else (0, 0)))

    assert [1 if is_answer else -1] == rows(db_of_reception, "SELECT is_opening_acknowledged FROM broker_conversation")


# --- messages that are refused ----------------------------------------------------------------------------------


@pytest.fixture
def strict(db_of_reception: sqlite3.Connection, far_of_reception: FarSide) -> FarSide:
    """An initiator under a contract that is declared here."""
    put_message_type(db_of_reception, "Xml", Validation.WELL_FORMED_XML)
    put_message_type(db_of_reception, "Ours", Validation.NONE)
    put_contract(db_of_reception, "C", {"Xml": SentBy.INITIATOR, "Ours": SentBy.TARGET})
    return far_of_reception


@pytest.mark.parametrize(
    ("message", "code"),
    [(("Xml", b"<a>"), -9616), (("Ours", b""), -8457), (("Other", b""), -8428), ((DIALOG_TIMER, b""), -8428)],
)
def test_message_that_breaks_the_contract_fails_the_dialog_at_both_sides(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, strict: FarSide, message: tuple[str, bytes], code: int
) -> None:
    strict.envelope = Envelope(type="Xml", contract="C")
    take_of_reception(strict.message(0, b"<a/>"))
    strict.envelope = Envelope(type=message[0])

    receipt = take_of_reception(strict.message(1, message[1]), strict.message(2, b"<a/>"))

    assert [code] == [fault.code for _, fault in receipt.faults]
    assert ["ER"] == states(db_of_reception)
    assert ["Xml", ERROR] == [name for name, _ in queued(db_of_reception)]
    assert b"<Code>%d</Code>" % code in queued(db_of_reception)[1][1]
    assert Counter({Disposition.CONTRACT_REFUSED: 1, Disposition.CONVERSATION_ENDED: 1}) == receipt.dropped
    assert (3, 0) == standing(receipt).place


def test_first_message_may_be_the_one_that_is_refused(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, strict: FarSide
) -> None:
    strict.envelope = Envelope(type="Xml", contract="C")

    receipt = take_of_reception(strict.message(0, b"no XML"))

    assert ([-9616], ["ER"]) == ([fault.code for _, fault in receipt.faults], states(db_of_reception))


# --- large messages ---------------------------------------------------------------------------------------------


def send_large(far_of_reception: FarSide, sequence: int, *, flags: int = 0, is_backwards: bool = False) -> list[bytes]:
    """Frames of a message above LARGE_BYTES."""
    piece = b"x" * 300_000
    count = LARGE_BYTES // len(piece) + 1
    frames = [far_of_reception.fragment((sequence, 0), encode_envelope(far_of_reception.envelope) + piece, flags=flags)]
    frames += [far_of_reception.fragment((sequence, number), piece, flags=flags) for number in range(1, count)]
    header, body = decode_dialog(frames[-1])
    frames[-1] = encode_dialog(replace(header, flags=header.flags | LAST), body)
    return frames[::-1] if is_backwards else frames


@pytest.mark.parametrize("is_backwards", [False, True])
def test_large_message_is_delivered_in_its_fragments(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, far_of_reception: FarSide, *, is_backwards: bool
) -> None:
    take_of_reception(far_of_reception.message(0))

    for frame in send_large(far_of_reception, 1, is_backwards=is_backwards):
        receipt = take_of_reception(frame)

    message = "SELECT message_sequence_number, message_body, body_fragments FROM broker_message WHERE queuing_order = 2"
    assert [(1, None, 4)] == rows(db_of_reception, message)
    assert [0, 1, 2, 3] == rows(db_of_reception, "SELECT fragment_number FROM broker_fragment ORDER BY 1")
    assert (2, 0) == standing(receipt).place
    take_of_reception(far_of_reception.message(2, b"behind"), far_of_reception.end(3))
    assert 4 == len(rows(db_of_reception, "SELECT 1 FROM broker_fragment"))


@pytest.mark.parametrize("flag", [Flag.END_DIALOG, Flag.ERROR])
def test_end_or_error_is_never_large(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, far_of_reception: FarSide, flag: Flag
) -> None:
    take_of_reception(far_of_reception.message(0))

    receipt = take_of_reception(*send_large(far_of_reception, 1, flags=flag))

    assert ([-8430], ["ER"]) == ([fault.code for _, fault in receipt.faults], states(db_of_reception))


# --- the ledger -------------------------------------------------------------------------------------------------


def test_fault_counts_what_will_not_be_sent_and_later_acknowledgements_do_not(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    take_of_reception(target_of_reception.ack(1, 0))

    take_of_reception(target_of_reception.ack(2, 0), target_of_reception.fault(-8408), target_of_reception.ack(3, 0))
    receipt = take_of_reception(target_of_reception.ack(4, 0))

    assert {"error from the far side": 2} == ledger(db_of_reception)
    assert [2] == rows(db_of_reception, "SELECT acknowledged_sequence FROM broker_conversation")
    assert {} == receipt.acknowledged


def test_failure_here_is_counted_as_such(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    take_of_reception(
        target_of_reception.message(0, stored=(1, 0)), target_of_reception.fragment((1, 0), b"no envelope", flags=LAST)
    )

    assert {"error at this side": 3} == ledger(db_of_reception)


def test_error_from_the_application_there_ends_the_sending_here(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    receipt = take_of_reception(target_of_reception.message(0, stored=(1, 0), flags=LAST | Flag.ERROR))

    assert ({1}, {"error from the far side": 3}) == (receipt.finished, ledger(db_of_reception))
    assert [11] == rows(db_of_reception, "SELECT priority FROM broker_message")


def test_end_is_read_in_its_turn_and_what_waits_here_is_still_sent(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    take_of_reception(target_of_reception.end(0, stored=(1, 0)))

    assert (["DI"], [END_DIALOG], {}) == (
        states(db_of_reception),
        [name for name, _ in queued(db_of_reception)],
        ledger(db_of_reception),
    )
    assert 3 == len(rows(db_of_reception, "SELECT 1 FROM broker_transmission"))


def test_what_was_held_when_this_side_ended_need_not_be_sent_again(
    db_of_reception: sqlite3.Connection,
    take_of_reception: Take,
    dialog_of_reception: Dialog,
    target_of_reception: FarSide,
) -> None:
    take_of_reception(target_of_reception.message(1), target_of_reception.message(2))
    dialog_of_reception.end()

    receipt = take_of_reception(target_of_reception.message(0))

    assert ((3, 0), ()) == (standing(receipt).place, standing(receipt).held)
    assert [] == queued(db_of_reception)


# --- a far side that knows nothing ------------------------------------------------------------------------------


def test_far_side_that_has_forgotten_the_dialog_fails_it(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    take_of_reception(target_of_reception.ack(1, 0))

    take_of_reception(target_of_reception.fault(-8462))

    assert ["ER"] == states(db_of_reception)


def test_far_side_that_has_not_heard_of_the_dialog_yet_does_not(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    receipt = take_of_reception(target_of_reception.fault(-8462))

    assert ["CO"] == states(db_of_reception)
    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped


# --- who may answer first ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "disposition"),
    [
        (lambda far_of_reception: far_of_reception.ack(5, 0), Disposition.OUT_OF_SEQUENCE),
        (lambda far_of_reception: far_of_reception.message(0, stored=(5, 0)), Disposition.OUT_OF_SEQUENCE),
        (lambda far_of_reception: far_of_reception.message(EARLY_WINDOW), Disposition.OUT_OF_SEQUENCE),
        (lambda far_of_reception: far_of_reception.fragment((0, 0), b"no envelope", flags=LAST), Disposition.CORRUPTED),
        (lambda far_of_reception: far_of_reception.fragment((0, 0), b"", flags=LAST), Disposition.CORRUPTED),
        (lambda far_of_reception: _with_body(far_of_reception.ack(1, 0), b"\xc1"), Disposition.MALFORMED),
    ],
    ids=["acknowledges too much", "message that does so", "beyond the window", "no envelope", "no body", "no runs"],
)
def test_invalid_frame_binds_nothing_and_does_nothing(
    db_of_reception: sqlite3.Connection,
    take_of_reception: Take,
    target_of_reception: FarSide,
    spoil: Callable[[FarSide], bytes],
    disposition: Disposition,
) -> None:
    assert take_of_reception(spoil(target_of_reception)) == ReceiveResult(dropped=Counter({disposition: 1}))
    assert rows(db_of_reception, "SELECT far_broker_instance, state FROM broker_conversation") == [(None, "CO")]

    take_of_reception(target_of_reception.ack(1, 0))
    assert rows(db_of_reception, "SELECT far_broker_instance FROM broker_conversation") == [
        target_of_reception.contact.broker_instance
    ]


def test_first_answer_may_begin_with_a_later_fragment(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide
) -> None:
    early = take_of_reception(target_of_reception.fragment((0, 1), b"\xfftail", flags=LAST))
    bound = rows(db_of_reception, "SELECT far_broker_instance FROM broker_conversation")

    take_of_reception(target_of_reception.message(0, b"head", flags=0))

    assert ([target_of_reception.contact.broker_instance], Counter()) == (bound, early.dropped)
    assert [("T", b"head\xfftail")] == queued(db_of_reception)


def _with_body(frame: bytes, body: bytes) -> bytes:
    header, _ = decode_dialog(frame)
    return encode_dialog(header, body)


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("kind", ["message", "ack", "fault"])
def test_frame_of_another_service_is_not_of_this_dialog(
    db_of_reception: sqlite3.Connection,
    take_of_reception: Take,
    dialog_of_reception: Dialog,
    target_of_reception: FarSide,
    kind: str,
    *,
    is_bound: bool,
) -> None:
    if is_bound:
        take_of_reception(target_of_reception.ack(0, 0))
    other = far_target(db_of_reception, dialog_of_reception.conversation_id, service_name="//far/Other")
    before = rows(db_of_reception, "SELECT * FROM broker_conversation")

    frame = {"message": other.message(0), "ack": other.ack(1, 0), "fault": other.fault(-8490)}[kind]

    why = "its dialog is between '//far/Billing' and 'Orders', and it is from '//far/Other' to 'Orders'"
    dropped = Counter({Disposition.NOT_OF_THIS_DIALOG: 1})
    assert take_of_reception(frame) == ReceiveResult(dropped=dropped, refusals={Disposition.NOT_OF_THIS_DIALOG: why})
    assert rows(db_of_reception, "SELECT * FROM broker_conversation") == before


# --- what far sides say that no broker says ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 5, 2**63, -(2**31) - 1])
def test_fault_with_a_code_that_is_no_brokers_is_an_error_of_validation(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, target_of_reception: FarSide, code: int
) -> None:
    take_of_reception(target_of_reception.fault(code, "why"))

    ((kind, body),) = queued(db_of_reception)
    assert (kind, states(db_of_reception)) == (ERROR, ["ER"])
    assert b"-8430" in body
    assert f"with the code {code}, ".encode() in body
    assert b"why" in body


@pytest.mark.parametrize("name", ["T" * 513])
def test_message_type_has_a_name_of_at_most_512_bytes(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, far_of_reception: FarSide, name: str
) -> None:
    far_of_reception.envelope = Envelope(type=name, contract="C", lifetime=60)

    receipt = take_of_reception(far_of_reception.message(0))

    assert [fault.code for _, fault in receipt.faults] == [-8430]
    assert receipt.dropped == Counter({Disposition.CORRUPTED: 1})
    assert ([kind for kind, _ in queued(db_of_reception)], states(db_of_reception)) == ([ERROR], ["ER"])


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": "00-ab-cd-01", "Ä": "ß"}])
def test_headers_are_kept_with_the_message(
    db_of_reception: sqlite3.Connection,
    take_of_reception: Take,
    far_of_reception: FarSide,
    headers: dict[str, str] | None,
) -> None:
    far_of_reception.envelope = Envelope(type="T", contract="C", lifetime=60, headers=headers)

    take_of_reception(far_of_reception.message(0, b"body"), far_of_reception.message(1))

    found = [
        None if text is None else json.loads(text)
        for text in rows(db_of_reception, "SELECT headers FROM broker_message")
    ]
    assert [headers or None] * 2 == found


def test_spans_of_traced_messages_are_told(take_of_reception: Take, far_of_reception: FarSide) -> None:
    far_of_reception.envelope = Envelope(type="T", contract="C", lifetime=60, headers={"traceparent": "p"})
    conversation = far_of_reception.contact.conversation_id

    late = take_of_reception(far_of_reception.message(1, flags=LAST | Flag.TRACE), far_of_reception.message(2))
    receipt = take_of_reception(far_of_reception.message(0, flags=LAST | Flag.TRACE))

    assert ({}, {(conversation, False, 0): "p"}) == (late.traced, receipt.traced)


def test_traced_message_that_came_early_is_joined_at_its_last_fragment(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, far_of_reception: FarSide
) -> None:
    take_of_reception(far_of_reception.message(0, b"0"))
    take_of_reception(
        far_of_reception.fragment((1, 1), b"b", flags=Flag.TRACE),
        far_of_reception.fragment((1, 2), b"c", flags=LAST | Flag.TRACE),
    )

    receipt = take_of_reception(far_of_reception.message(1, b"a", flags=Flag.TRACE))

    assert [("T", b"0"), ("T", b"abc")] == queued(db_of_reception)
    assert Counter() == receipt.dropped


@pytest.mark.parametrize("headers", [{str(n): "" for n in range(HEADERS_MAX + 1)}, {"a": "b" * HEADERS_MAX_BYTES}])
def test_a_message_with_more_headers_than_it_may_have_fails_its_dialog(
    db_of_reception: sqlite3.Connection, take_of_reception: Take, far_of_reception: FarSide, headers: dict[str, str]
) -> None:
    far_of_reception.envelope = Envelope(type="T", contract="C", lifetime=60, headers=headers)

    receipt = take_of_reception(far_of_reception.message(0))

    assert ([-8430], Counter({Disposition.CORRUPTED: 1})) == ([one.code for _, one in receipt.faults], receipt.dropped)
    assert ([ERROR], ["ER"]) == ([kind for kind, _ in queued(db_of_reception)], states(db_of_reception))


# --- verdicts ---------------------------------------------------------------------------------------------------


def test_each_frame_has_a_verdict(take_of_reception: Take, far_of_reception: FarSide) -> None:
    delivered = Disposition.DELIVERED

    receipt = take_of_reception(
        far_of_reception.message(0),
        far_of_reception.message(2),
        far_of_reception.message(2),
        far_of_reception.message(0),
        far_of_reception.ack(9, 0),
        bytes(8),
    )

    duplicate, early = Disposition.DUPLICATE, Disposition.OUT_OF_SEQUENCE
    assert [delivered, delivered, duplicate, duplicate, early, Disposition.MALFORMED] == receipt.verdicts()


def test_message_is_delivered_though_what_it_acknowledges_is_not_believed(
    take_of_reception: Take, far_of_reception: FarSide
) -> None:
    receipt = take_of_reception(far_of_reception.message(0, stored=(7, 0)))

    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped
    assert [Disposition.DELIVERED] == receipt.verdicts()


def test_frame_that_closes_a_gap_is_delivered_though_what_came_early_is_corrupted(
    take_of_reception: Take, far_of_reception: FarSide
) -> None:
    take_of_reception(far_of_reception.message(0))
    early = take_of_reception(far_of_reception.fragment((2, 0), b"\xff" * 20, flags=LAST))

    receipt = take_of_reception(far_of_reception.message(1))

    assert [Disposition.DELIVERED] == early.verdicts() == receipt.verdicts()
    assert Counter({Disposition.CORRUPTED: 1}) == receipt.dropped
    told = receipt.last_dropped[Disposition.CORRUPTED]
    assert told is not None
    assert (far_of_reception.contact.conversation_id, (2, 0)) == (told.conversation_id, told.place)


def test_all_frames_of_a_dialog_that_is_not_begun_are_dropped(
    take_of_reception: Take, far_of_reception: FarSide
) -> None:
    receipt = take_of_reception(far_of_reception.message(1), far_of_reception.message(2), far_of_reception.ack(1, 0))

    assert [Disposition.UNKNOWN_CONVERSATION] * 3 == receipt.verdicts()

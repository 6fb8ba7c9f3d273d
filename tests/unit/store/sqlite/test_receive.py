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
from broker.store.sqlite.metadata import drop_service, put_contract, put_message_type, put_service
from broker.store.sqlite.schema import LARGE_BYTES
from broker.store.sqlite.side import FailureReason, close
from tests.support.dialog import (
    LAST,
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
    db = open_database(tmp_path / "bank.db", "Billing", "Orders")
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
    receipt = take(closed.message(0, b"again"), closed.message(2), far_initiator().message(0, b"of another dialog"))

    ((contact, place),) = receipt.closed
    assert ((3, 0), closed.contact.broker_instance, False) == (place, contact.far_broker_instance, contact.is_initiator)
    assert [Disposition.DUPLICATE, Disposition.DUPLICATE, Disposition.DELIVERED] == receipt.verdicts()
    assert [("T", b"of another dialog")] == queued(db)


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


ELSEWHERE = bytes(range(100, 116))


@pytest.fixture
def dialog(db: sqlite3.Connection) -> Dialog:
    """A dialog begun here, with one message sent."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    dialog.send(b"first")
    return dialog


@pytest.fixture
def target(db: sqlite3.Connection, dialog: Dialog) -> FarSide:
    """The target of that dialog."""
    return far_target(db, dialog.conversation_id)


def stored(receipt: ReceiveResult) -> list[tuple[int, int]]:
    """The places that will be acknowledged."""
    return [standing.place for standing in receipt.stored.values()]


def codes(receipt: ReceiveResult) -> list[int]:
    return [fault.code for _, fault in receipt.faults]


def ends_of_tombstones(db: sqlite3.Connection) -> list[tuple[int, int, int]]:
    """Side and place of what is left of closed dialogs."""
    return rows(db, "SELECT is_initiator, receive_sequence, receive_sequence_frag FROM broker_tombstone")


def kept(db: sqlite3.Connection) -> list[tuple[int, int]]:
    return rows(db, "SELECT message_sequence_number, fragment_number FROM broker_fragment ORDER BY 1, 2")


def pieces(far: FarSide, sequence: int, payload: bytes, size: int) -> list[bytes]:
    """A message cut into frames, with its whole envelope in the first."""
    cuts = [payload[at : at + size] for at in range(0, len(payload), size)]
    cuts[0] = encode_envelope(far.envelope) + cuts[0]
    flags = [0] * (len(cuts) - 1) + [LAST]
    return [far.fragment((sequence, n), cut, flags=flag) for n, (cut, flag) in enumerate(zip(cuts, flags, strict=True))]


# --- the first message ------------------------------------------------------------------------------------------


def test_first_message_makes_the_endpoint_and_is_delivered(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    receipt = take(far.message(0, b"pay"))

    row = rows(
        db,
        "SELECT conversation_id, is_initiator, state, service_name, far_service, far_broker_instance, contract,"
        " lifetime, create_date, send_sequence, receive_sequence, receive_sequence_frag FROM broker_conversation",
    )
    names = (
        far.contact.conversation_id,
        0,
        "CO",
        "Billing",
        "//far/Orders",
        far.contact.broker_instance,
        "C",
    )
    assert row == [(*names, NOW + 3600, NOW, 0, 1, 0)]
    assert queued(db) == [("T", b"pay")]
    assert stored(receipt) == [(1, 0)]
    assert receipt.delivered == Counter(Billing=1)


@pytest.mark.parametrize(
    ("told", "seconds"), [(None, DEFAULT_LIFETIME.total_seconds()), (1, 1), (LIFETIME_MAX + 1, LIFETIME_MAX)]
)
def test_lifetime_is_what_the_envelope_says_within_reason(
    db: sqlite3.Connection,
    take: Take,
    far: FarSide,
    told: int | None,
    seconds: float,
) -> None:
    far.envelope = replace_envelope(far.envelope, told)

    take(far.message(0))

    assert rows(db, "SELECT lifetime FROM broker_conversation") == [NOW + seconds]


def replace_envelope(envelope: Envelope, lifetime: int | None) -> Envelope:
    return Envelope(type=envelope.type, contract=envelope.contract, lifetime=lifetime)


def test_anything_but_a_beginning_makes_no_endpoint(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    later, part = far.message(1), far.fragment((0, 1), b"x")

    receipt = take(later, part, far.ack(1, 0), far.fault(-8490))

    assert states(db) == []
    assert receipt == ReceiveResult(dropped=Counter({Disposition.UNKNOWN_CONVERSATION: 4}))


@pytest.mark.parametrize("is_named", [True, False], ids=["by the dialog", "by its route"])
def test_absent_service_is_answered_by_the_database_that_was_named(
    db: sqlite3.Connection, take: Take, *, is_named: bool
) -> None:
    far = far_initiator("Nobody", far_broker_instance=broker_instance(db) if is_named else NO_GUID)

    receipt = take(far.message(0), far.message(1))

    assert states(db) == []
    ((contact, fault),) = receipt.faults
    assert (contact.service_name, contact.far_service, contact.is_initiator) == ("Nobody", "//far/Orders", False)
    assert contact.far_broker_instance == far.contact.broker_instance
    text = "the service 'Nobody' does not exist in the broker instance that was named"
    assert fault == Fault(-8490, text)
    assert receipt.dropped == Counter({Disposition.SERVICE_NOT_FOUND: 2})
    assert receipt.stored == {}


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [(frozenset({"C", "D"}), False), (frozenset({"D"}), True), (frozenset(), False)],
    ids=["listed", "not listed", "any"],
)
def test_contract_has_to_be_one_that_the_service_takes(
    tmp_path: Path, far: FarSide, *, accepted: frozenset[str], refused: bool
) -> None:
    db = open_database(tmp_path / "strict.db", "Billing", contracts=accepted)

    receipt = receive_frames(db, [far.message(0)], NOW)

    assert codes(receipt) == ([-8408] if refused else [])
    assert receipt.dropped[Disposition.CONTRACT_REFUSED] == refused
    assert states(db) == ([] if refused else ["CO"])
    db.close()


def test_dialog_goes_on_when_its_service_takes_its_contract_no_more(tmp_path: Path, far: FarSide) -> None:
    """The original's page on ALTER SERVICE says this and its contrary; here nothing is told with -8469."""
    db = open_database(tmp_path / "strict.db", "Billing", contracts=frozenset({"C"}))
    receive_frames(db, [far.message(0)], NOW)
    put_service(db, "Billing", 1, frozenset({"D"}))

    receipt = receive_frames(db, [far.message(1)], NOW)

    assert ([], ["CO"]) == (codes(receipt), states(db))
    assert [0, 1] == rows(db, "SELECT message_sequence_number FROM broker_message")
    db.close()


# --- order and duplicates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=str)
def test_messages_are_delivered_in_order_however_they_arrive(
    db: sqlite3.Connection, take: Take, far: FarSide, order: tuple[int, ...]
) -> None:
    take(far.message(0, b"0"))

    for number in order:
        receipt = take(far.message(number + 1, b"%d" % (number + 1)))

    assert [body for _, body in queued(db)] == [b"0", b"1", b"2", b"3", b"4"]
    assert stored(receipt) == [(5, 0)]
    assert kept(db) == []
    assert rows(db, "SELECT early_fragments FROM broker_conversation") == [0]


@pytest.mark.parametrize("again", [0, 2], ids=["delivered", "early"])
def test_duplicate_is_acknowledged_again_and_not_delivered_again(
    db: sqlite3.Connection, take: Take, far: FarSide, again: int
) -> None:
    take(far.message(0, b"0"), far.message(2, b"2"))

    receipt = take(far.message(again, b"again"))

    assert receipt.dropped == Counter({Disposition.DUPLICATE: 1})
    assert stored(receipt) == [(1, 0)]
    take(far.message(1, b"1"))
    assert [body for _, body in queued(db)] == [b"0", b"1", b"2"]


def test_too_early_message_is_neither_kept_nor_acknowledged(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    take(far.message(0))

    receipt = take(far.message(1 + EARLY_WINDOW))

    assert receipt.dropped == Counter({Disposition.OUT_OF_SEQUENCE: 1})
    assert kept(db) == []


def test_two_dialogs_in_one_batch_do_not_mix(db: sqlite3.Connection, take: Take) -> None:
    one, two = far_initiator(), far_initiator()

    receipt = take(one.message(0, b"1a"), two.message(0, b"2a"), one.message(1, b"1b"), two.message(1, b"2b"))

    assert [body for _, body in queued(db)] == [b"1a", b"1b", b"2a", b"2b"]
    assert stored(receipt) == [(2, 0), (2, 0)]


def test_both_sides_of_a_dialog_may_live_in_one_database(db: sqlite3.Connection, take: Take) -> None:
    dialog = begin_dialog(db, from_service="Orders", to_service="Billing")
    dialog.send(b"there")
    here = broker_instance(db)
    initiator = far_initiator(conversation_id=dialog.conversation_id.bytes, broker_instance=here)
    target = far_target(db, dialog.conversation_id, service_name="Billing", broker_instance=here)

    take(initiator.message(0, b"there"))
    take(target.message(0, b"and back", stored=(1, 0)))

    assert [body for _, body in queued(db)] == [b"there", b"and back"]
    assert states(db) == ["CO", "CO"]
    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [here, here]


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
    db: sqlite3.Connection,
    take: Take,
    far: FarSide,
    spoil: Callable[[bytes], bytes],
    disposition: Disposition,
) -> None:
    take(far.message(0, b"0"))

    receipt = take(spoil(far.message(1, b"1")), far.message(2, b"2"))

    assert receipt.dropped == Counter({disposition: 1})
    assert stored(receipt) == [(1, 0)]
    assert [body for _, body in queued(db)] == [b"0"]


def test_body_without_a_checksum_is_believed(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    header, body = decode_dialog(far.message(0, b"0"))

    take(encode_dialog(replace(header, body_checksum=0), body))

    assert queued(db) == [("T", b"0")]


def test_malformed_envelope_begins_nothing(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    receipt = take(far.fragment((0, 0), b"\0\0\0\x09short", flags=LAST), far.message(1))

    assert states(db) == []
    assert receipt == ReceiveResult(dropped=Counter({Disposition.CORRUPTED: 2}))


def test_malformed_envelope_later_fails_the_dialog_at_both_sides(
    db: sqlite3.Connection, take: Take, far: FarSide
) -> None:
    take(far.message(0, b"0"))

    receipt = take(far.fragment((1, 0), b"\0\0\0\x09short", flags=LAST))

    assert states(db) == ["ER"]
    assert codes(receipt) == [-8430]
    assert receipt.dropped == Counter({Disposition.CORRUPTED: 1})
    assert queued(db)[-1][0] == ERROR
    assert b"<Code>-8430</Code>" in queued(db)[-1][1]


def test_malformed_bodies_of_ack_and_fault_are_counted_and_change_nothing(
    db: sqlite3.Connection, take: Take, far: FarSide
) -> None:
    take(far.message(0))
    spoilt = []
    for frame in (far.ack(0, 0), far.fault(-8490)):
        header, _ = decode_dialog(frame)
        spoilt.append(encode_dialog(replace(header, body_checksum=0), b"\xc1"))

    receipt = take(*spoilt)

    assert receipt == ReceiveResult(dropped=Counter({Disposition.MALFORMED: 2}))
    assert states(db) == ["CO"]


def test_dialog_frame_of_a_later_version_is_counted_and_changes_nothing(
    db: sqlite3.Connection, take: Take, target: FarSide
) -> None:
    header, body = decode_dialog(target.message(0))

    receipt = take(encode_dialog(replace(header, kind=0x20), body))

    assert receipt == ReceiveResult(dropped=Counter({Disposition.MALFORMED: 1}))
    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [None]


# --- acknowledgements -------------------------------------------------------------------------------------------


def test_acknowledged_messages_are_kept_no_longer(
    db: sqlite3.Connection, take: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.send(b"second")

    receipt = take(target.ack(1, 0))

    assert rows(db, "SELECT message_body FROM broker_transmission") == [b"second"]
    assert rows(db, "SELECT acknowledged_sequence FROM broker_conversation") == [1]
    assert receipt.acknowledged == {1: (1, 0)}


def test_acknowledgement_rides_on_any_frame_and_the_highest_counts(take: Take, dialog: Dialog, target: FarSide) -> None:
    for _ in range(4):
        dialog.send(b"more")

    receipt = take(target.message(0, stored=(2, 1)), target.ack(4, 0), target.ack(3, 5))

    assert receipt.acknowledged == {1: (4, 0)}


@pytest.mark.parametrize("place", [(1, 1), (2, 0), (2**63, 0), (2**64 - 1, 2**32 - 1)])
def test_acknowledgement_of_what_was_never_sent_is_ignored_and_counted(
    db: sqlite3.Connection, take: Take, target: FarSide, place: tuple[int, int]
) -> None:
    receipt = take(target.ack(*place))

    assert receipt.dropped == Counter({Disposition.OUT_OF_SEQUENCE: 1})
    assert receipt.acknowledged == {}
    assert rows(db, "SELECT message_body FROM broker_transmission") == [b"first"]


# --- which database answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", ["message", "ack"])
def test_first_answer_binds_an_open_dialog(db: sqlite3.Connection, take: Take, target: FarSide, frame: str) -> None:
    receipt = take(target.message(0) if frame == "message" else target.ack(0, 0))

    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [target.contact.broker_instance]
    assert [contact.far_broker_instance for contact in receipt.contacts.values()] == [target.contact.broker_instance]


@pytest.mark.parametrize("frame", ["message", "ack"])
def test_second_target_is_told_and_the_binding_stays(
    db: sqlite3.Connection, take: Take, dialog: Dialog, target: FarSide, frame: str
) -> None:
    take(target.ack(1, 0))
    other = far_target(db, dialog.conversation_id, broker_instance=ELSEWHERE)

    receipt = take(other.message(0, b"me too") if frame == "message" else other.ack(1, 0))

    ((contact, fault),) = receipt.faults
    assert (contact.far_broker_instance, contact.far_service) == (ELSEWHERE, "//far/Billing")
    assert fault == Fault(-8495, "another instance of the service has this conversation")
    assert receipt.dropped == Counter({Disposition.OTHER_INSTANCE: 1})
    assert (receipt.stored, receipt.acknowledged, queued(db)) == ({}, {}, [])
    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [target.contact.broker_instance]


def test_fault_of_a_second_target_is_not_answered(
    db: sqlite3.Connection, take: Take, dialog: Dialog, target: FarSide
) -> None:
    take(target.ack(1, 0))

    receipt = take(far_target(db, dialog.conversation_id, broker_instance=ELSEWHERE).fault(-8490))

    assert receipt == ReceiveResult(dropped=Counter({Disposition.OTHER_INSTANCE: 1}))
    assert states(db) == ["CO"]


def test_target_listens_to_the_database_that_began(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    take(far.message(0, b"0"))
    other = far_initiator(conversation_id=far.contact.conversation_id, broker_instance=ELSEWHERE)

    receipt = take(other.message(1, b"1"))

    assert receipt == ReceiveResult(dropped=Counter({Disposition.OTHER_INSTANCE: 1}))
    assert queued(db) == [("T", b"0")]


# --- the end ----------------------------------------------------------------------------------------------------


def test_end_is_read_in_its_turn(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    take(far.message(0, b"0"), far.end(2))
    assert states(db) == ["CO"]

    take(far.message(1, b"1"))

    assert states(db) == ["DI"]
    assert queued(db) == [("T", b"0"), ("T", b"1"), (END_DIALOG, b"")]


def test_end_needs_no_body(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    take(far.message(0), far.fragment((1, 0), b"", flags=LAST | Flag.END_DIALOG))

    assert states(db) == ["DI"]


def test_messages_after_our_end_are_acknowledged_and_discarded(
    db: sqlite3.Connection, take: Take, dialog: Dialog, target: FarSide
) -> None:
    dialog.end()

    first = take(*pieces(target, 0, b"abcd", 2))
    second = take(target.message(2), target.end(1))
    third = take(target.message(2))

    assert [stored(receipt) for receipt in (first, second, third)] == [[(1, 0)], [(2, 0)], [(3, 0)]]
    assert first.dropped + second.dropped + third.dropped == Counter({Disposition.CONVERSATION_ENDED: 5})
    assert (queued(db), kept(db)) == ([], [])


# --- errors -----------------------------------------------------------------------------------------------------


def test_fault_becomes_an_error_message_and_what_waits_is_dropped(
    db: sqlite3.Connection, take: Take, target: FarSide
) -> None:
    receipt = take(target.fault(-8408, "no such <contract>"))

    assert states(db) == ["ER"]
    assert queued(db) == [(ERROR, error_body(-8408, "no such <contract>"))]
    assert rows(db, "SELECT 1 FROM broker_transmission") == []
    assert (receipt.finished, receipt.faults) == ({1}, [])


def test_fault_binds_nothing(db: sqlite3.Connection, take: Take, target: FarSide) -> None:
    take(target.fault(-8408))

    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [None]


def test_message_for_a_service_that_was_dropped_is_not_lost_in_silence(
    db: sqlite3.Connection, take: Take, far: FarSide
) -> None:
    take(far.message(0, b"0"))
    drop_service(db, "Billing")

    receipt = take(far.message(1, b"1"))

    assert codes(receipt) == [-8470]
    assert receipt.dropped == Counter({Disposition.SERVICE_NOT_FOUND: 1})
    assert (states(db), receipt.delivered) == (["ER"], Counter())


# --- the batch is one transaction -------------------------------------------------------------------------------


def test_failure_of_the_store_stores_nothing_of_the_batch(db: sqlite3.Connection, take: Take, far: FarSide) -> None:
    db.execute("CREATE TRIGGER full BEFORE INSERT ON broker_fragment BEGIN SELECT RAISE(ABORT, 'disk is full'); END")

    with pytest.raises(sqlite3.Error, match=re.escape("disk is full")):
        take(far.message(0), far.message(2))

    assert (states(db), queued(db), db.in_transaction) == ([], [], False)


@pytest.fixture
def long_dialog(db: sqlite3.Connection) -> Dialog:
    """A dialog begun here, with four messages sent."""
    long_dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    for body in (b"0", b"1", b"2", b"3"):
        long_dialog.send(body)
    return long_dialog


@pytest.fixture
def long_target(db: sqlite3.Connection, long_dialog: Dialog) -> FarSide:
    return far_target(db, long_dialog.conversation_id)


def standing(receipt: ReceiveResult) -> AckState:
    (one,) = receipt.stored.values()
    return one


def ledger(db: sqlite3.Connection) -> dict[str, int]:
    return dict(rows(db, "SELECT entry, messages FROM broker_ledger"))


# --- what is told -----------------------------------------------------------------------------------------------


def test_frames_in_order_are_told_without_haste(take: Take, far: FarSide) -> None:
    told = standing(take(far.message(0), far.message(1)))

    assert ((2, 0), (), 2, False) == (told.place, told.held, told.frames, told.is_urgent)


def test_gap_is_told_at_once_with_what_is_held_behind_it(take: Take, far: FarSide) -> None:
    take(far.message(0))

    told = standing(
        take(
            far.message(3),
            far.fragment((5, 1), b"x"),
            far.fragment((5, 2), b"x"),
        )
    )

    assert ((1, 0), ((3, 0, 0), (5, 1, 2)), True) == (told.place, told.held, told.is_urgent)


def test_gap_that_is_still_open_is_told_again_with_news(take: Take, far: FarSide) -> None:
    take(far.message(0), far.message(3))

    told = standing(take(far.message(1)))

    assert ((2, 0), ((3, 0, 0),), True) == (told.place, told.held, told.is_urgent)


def test_gap_that_closes_is_told_at_once(take: Take, far: FarSide) -> None:
    take(far.message(0), far.message(2))

    told = standing(take(far.message(1)))

    assert ((3, 0), (), True) == (told.place, told.held, told.is_urgent)


@pytest.mark.parametrize("frame", ["end", "error", "duplicate"])
def test_end_error_and_duplicate_are_told_at_once(take: Take, far: FarSide, frame: str) -> None:
    take(far.message(0))
    frames = {
        "end": far.end(1),
        "error": far.message(1, flags=LAST | Flag.ERROR),
        "duplicate": far.message(0),
    }

    assert standing(take(frames[frame])).is_urgent


def test_acknowledgement_alone_is_not_answered(take: Take, long_dialog: Dialog, long_target: FarSide) -> None:
    assert {} == take(long_target.ack(1, 0)).stored


def test_too_much_out_of_order_is_not_kept_and_comes_again(
    db: sqlite3.Connection,
    take: Take,
    far: FarSide,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assembly, "EARLY_FRAGMENTS_MAX", 2)
    take(far.message(0, b"0"))

    receipt = take(*[far.message(number, b"%d" % number) for number in (2, 3, 4, 5)])

    assert Counter({Disposition.OUT_OF_SEQUENCE: 2}) == receipt.dropped
    assert ((2, 0, 0), (3, 0, 0)) == standing(receipt).held
    take(*[far.message(number, b"%d" % number) for number in (1, 4, 5)])
    assert [b"%d" % number for number in range(6)] == [body for _, body in queued(db)]


# --- what is believed -------------------------------------------------------------------------------------------


def ack(far: FarSide, place: tuple[int, int], *runs: tuple[int, int, int]) -> bytes:
    header, _ = decode_dialog(far.ack(*place))
    return encode_dialog(header, encode_stored(Stored(runs)))


def test_what_the_far_side_holds_out_of_order_is_handed_on(take: Take, long_target: FarSide) -> None:
    receipt = take(ack(long_target, (1, 0), (2, 0, 3), (3, 1, 1)))

    assert ({1: (1, 0)}, {1: ((2, 0, 3), (3, 1, 1))}) == (receipt.acknowledged, receipt.held_there)


def test_newest_word_on_what_is_held_counts(take: Take, long_target: FarSide) -> None:
    receipt = take(
        ack(long_target, (1, 0), (3, 0, 0)),
        ack(long_target, (2, 0)),
        ack(long_target, (1, 0), (2, 0, 0)),
    )

    assert ({1: (2, 0)}, {1: ()}) == (receipt.acknowledged, receipt.held_there)


def test_held_without_a_place_is_believed(take: Take, long_target: FarSide) -> None:
    receipt = take(ack(long_target, (0, 0), (1, 0, 0)))

    assert ({1: (0, 0)}, {1: ((1, 0, 0),)}) == (receipt.acknowledged, receipt.held_there)


@pytest.mark.parametrize("run", [(4, 0, 0), (2**63, 0, 0), (-1, 0, 0), (2, 3, 1), (2, -1, 0)])
def test_run_of_what_was_never_sent_is_counted_and_left_out(
    take: Take, long_target: FarSide, run: tuple[int, int, int]
) -> None:
    receipt = take(ack(long_target, (1, 0), run, (3, 0, 0)))

    assert {1: ((3, 0, 0),)} == receipt.held_there
    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped


def test_nothing_is_believed_of_who_acknowledges_what_was_never_sent(take: Take, long_target: FarSide) -> None:
    receipt = take(ack(long_target, (9, 0), (3, 0, 0)))

    assert ({}, {}) == (receipt.acknowledged, receipt.held_there)


def test_endless_list_of_runs_is_cut(take: Take, long_target: FarSide) -> None:
    receipt = take(ack(long_target, (1, 0), *[(2, number, number) for number in range(50_000)]))

    assert 1024 == len(receipt.held_there[1])


@pytest.mark.parametrize("is_answer", [True, False])
def test_answer_of_the_initiator_proves_that_it_has_ours(
    db: sqlite3.Connection, take: Take, *, is_answer: bool
) -> None:
    far = far_initiator(far_broker_instance=broker_instance(db))
    far.envelope = Envelope(type="T", contract="C", lifetime=LIFETIME_MAX)
    take(far.message(0))
    (handle,) = rows(db, "SELECT conversation_handle FROM broker_conversation")
    Dialog(db, 1, handle, handle).send(b"answer")

    take(far.message(1, stored=(1, 0) if is_answer else (0, 0)))

    assert [1 if is_answer else -1] == rows(db, "SELECT is_opening_acknowledged FROM broker_conversation")


# --- messages that are refused ----------------------------------------------------------------------------------


@pytest.fixture
def strict(db: sqlite3.Connection, far: FarSide) -> FarSide:
    """An initiator under a contract that is declared here."""
    put_message_type(db, "Xml", Validation.WELL_FORMED_XML)
    put_message_type(db, "Ours", Validation.NONE)
    put_contract(db, "C", {"Xml": SentBy.INITIATOR, "Ours": SentBy.TARGET})
    return far


@pytest.mark.parametrize(
    ("message", "code"),
    [(("Xml", b"<a>"), -9616), (("Ours", b""), -8457), (("Other", b""), -8428), ((DIALOG_TIMER, b""), -8428)],
)
def test_message_that_breaks_the_contract_fails_the_dialog_at_both_sides(
    db: sqlite3.Connection, take: Take, strict: FarSide, message: tuple[str, bytes], code: int
) -> None:
    strict.envelope = Envelope(type="Xml", contract="C")
    take(strict.message(0, b"<a/>"))
    strict.envelope = Envelope(type=message[0])

    receipt = take(strict.message(1, message[1]), strict.message(2, b"<a/>"))

    assert [code] == [fault.code for _, fault in receipt.faults]
    assert ["ER"] == states(db)
    assert ["Xml", ERROR] == [name for name, _ in queued(db)]
    assert b"<Code>%d</Code>" % code in queued(db)[1][1]
    assert Counter({Disposition.CONTRACT_REFUSED: 1, Disposition.CONVERSATION_ENDED: 1}) == receipt.dropped
    assert (3, 0) == standing(receipt).place


# --- large messages ---------------------------------------------------------------------------------------------


def send_large(far: FarSide, sequence: int, *, flags: int = 0, is_backwards: bool = False) -> list[bytes]:
    """Frames of a message above LARGE_BYTES."""
    piece = b"x" * 300_000
    count = LARGE_BYTES // len(piece) + 1
    frames = [far.fragment((sequence, 0), encode_envelope(far.envelope) + piece, flags=flags)]
    frames += [far.fragment((sequence, number), piece, flags=flags) for number in range(1, count)]
    header, body = decode_dialog(frames[-1])
    frames[-1] = encode_dialog(replace(header, flags=header.flags | LAST), body)
    return frames[::-1] if is_backwards else frames


@pytest.mark.parametrize("is_backwards", [False, True])
def test_large_message_is_delivered_in_its_fragments(
    db: sqlite3.Connection, take: Take, far: FarSide, *, is_backwards: bool
) -> None:
    take(far.message(0))

    for frame in send_large(far, 1, is_backwards=is_backwards):
        receipt = take(frame)

    message = "SELECT message_sequence_number, message_body, body_fragments FROM broker_message WHERE queuing_order = 2"
    assert [(1, None, 4)] == rows(db, message)
    assert [0, 1, 2, 3] == rows(db, "SELECT fragment_number FROM broker_fragment ORDER BY 1")
    assert (2, 0) == standing(receipt).place
    take(far.message(2, b"behind"), far.end(3))
    assert 4 == len(rows(db, "SELECT 1 FROM broker_fragment"))


@pytest.mark.parametrize("flag", [Flag.END_DIALOG, Flag.ERROR])
def test_end_or_error_is_never_large(db: sqlite3.Connection, take: Take, far: FarSide, flag: Flag) -> None:
    take(far.message(0))

    receipt = take(*send_large(far, 1, flags=flag))

    assert ([-8430], ["ER"]) == ([fault.code for _, fault in receipt.faults], states(db))


# --- the ledger -------------------------------------------------------------------------------------------------


def test_fault_counts_what_will_not_be_sent_and_later_acknowledgements_do_not(
    db: sqlite3.Connection, take: Take, long_target: FarSide
) -> None:
    take(long_target.ack(1, 0))

    take(long_target.ack(2, 0), long_target.fault(-8408), long_target.ack(3, 0))
    receipt = take(long_target.ack(4, 0))

    assert {"error from the far side": 2} == ledger(db)
    assert [2] == rows(db, "SELECT acknowledged_sequence FROM broker_conversation")
    assert {} == receipt.acknowledged


def test_failure_here_is_counted_as_such(db: sqlite3.Connection, take: Take, long_target: FarSide) -> None:
    take(long_target.message(0, stored=(1, 0)), long_target.fragment((1, 0), b"no envelope", flags=LAST))

    assert {"error at this side": 3} == ledger(db)


def test_error_from_the_application_there_ends_the_sending_here(
    db: sqlite3.Connection, take: Take, long_target: FarSide
) -> None:
    receipt = take(long_target.message(0, stored=(1, 0), flags=LAST | Flag.ERROR))

    assert ({1}, {"error from the far side": 3}) == (receipt.finished, ledger(db))
    assert [11] == rows(db, "SELECT priority FROM broker_message")


# --- a far side that knows nothing ------------------------------------------------------------------------------


def test_far_side_that_has_forgotten_the_dialog_fails_it(
    db: sqlite3.Connection, take: Take, long_target: FarSide
) -> None:
    take(long_target.ack(1, 0))

    take(long_target.fault(-8462))

    assert ["ER"] == states(db)


def test_far_side_that_has_not_heard_of_the_dialog_yet_does_not(
    db: sqlite3.Connection, take: Take, long_target: FarSide
) -> None:
    receipt = take(long_target.fault(-8462))

    assert ["CO"] == states(db)
    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped


# --- who may answer first ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "disposition"),
    [
        (lambda far: far.ack(5, 0), Disposition.OUT_OF_SEQUENCE),
        (lambda far: far.message(0, stored=(5, 0)), Disposition.OUT_OF_SEQUENCE),
        (lambda far: far.message(EARLY_WINDOW), Disposition.OUT_OF_SEQUENCE),
        (lambda far: far.fragment((0, 0), b"no envelope", flags=LAST), Disposition.CORRUPTED),
        (lambda far: far.fragment((0, 0), b"", flags=LAST), Disposition.CORRUPTED),
        (lambda far: _with_body(far.ack(1, 0), b"\xc1"), Disposition.MALFORMED),
    ],
    ids=["acknowledges too much", "message that does so", "beyond the window", "no envelope", "no body", "no runs"],
)
def test_invalid_frame_binds_nothing_and_does_nothing(
    db: sqlite3.Connection,
    take: Take,
    long_target: FarSide,
    spoil: Callable[[FarSide], bytes],
    disposition: Disposition,
) -> None:
    assert take(spoil(long_target)) == ReceiveResult(dropped=Counter({disposition: 1}))
    assert rows(db, "SELECT far_broker_instance, state FROM broker_conversation") == [(None, "CO")]

    take(long_target.ack(1, 0))
    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [long_target.contact.broker_instance]


def test_first_answer_may_begin_with_a_later_fragment(db: sqlite3.Connection, take: Take, long_target: FarSide) -> None:
    early = take(long_target.fragment((0, 1), b"\xfftail", flags=LAST))
    bound = rows(db, "SELECT far_broker_instance FROM broker_conversation")

    take(long_target.message(0, b"head", flags=0))

    assert ([long_target.contact.broker_instance], Counter()) == (bound, early.dropped)
    assert [("T", b"head\xfftail")] == queued(db)


def _with_body(frame: bytes, body: bytes) -> bytes:
    header, _ = decode_dialog(frame)
    return encode_dialog(header, body)


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("kind", ["message", "ack", "fault"])
def test_frame_of_another_service_is_not_of_this_dialog(
    db: sqlite3.Connection,
    take: Take,
    long_dialog: Dialog,
    long_target: FarSide,
    kind: str,
    *,
    is_bound: bool,
) -> None:
    if is_bound:
        take(long_target.ack(0, 0))
    other = far_target(db, long_dialog.conversation_id, service_name="//far/Other")
    before = rows(db, "SELECT * FROM broker_conversation")

    frame = {"message": other.message(0), "ack": other.ack(1, 0), "fault": other.fault(-8490)}[kind]

    why = "its dialog is between '//far/Billing' and 'Orders', and it is from '//far/Other' to 'Orders'"
    dropped = Counter({Disposition.NOT_OF_THIS_DIALOG: 1})
    assert take(frame) == ReceiveResult(dropped=dropped, refusals={Disposition.NOT_OF_THIS_DIALOG: why})
    assert rows(db, "SELECT * FROM broker_conversation") == before


# --- what far sides say that no broker says ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 5, 2**63, -(2**31) - 1])
def test_fault_with_a_code_that_is_no_brokers_is_an_error_of_validation(
    db: sqlite3.Connection, take: Take, long_target: FarSide, code: int
) -> None:
    take(long_target.fault(code, "why"))

    ((kind, body),) = queued(db)
    assert (kind, states(db)) == (ERROR, ["ER"])
    assert b"-8430" in body
    assert f"with the code {code}, ".encode() in body
    assert b"why" in body


@pytest.mark.parametrize("name", ["T" * 513])
def test_message_type_has_a_name_of_at_most_512_bytes(
    db: sqlite3.Connection, take: Take, far: FarSide, name: str
) -> None:
    far.envelope = Envelope(type=name, contract="C", lifetime=60)

    receipt = take(far.message(0))

    assert [fault.code for _, fault in receipt.faults] == [-8430]
    assert receipt.dropped == Counter({Disposition.CORRUPTED: 1})
    assert ([kind for kind, _ in queued(db)], states(db)) == ([ERROR], ["ER"])


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": "00-ab-cd-01", "Ä": "ß"}])
def test_headers_are_kept_with_the_message(
    db: sqlite3.Connection,
    take: Take,
    far: FarSide,
    headers: dict[str, str] | None,
) -> None:
    far.envelope = Envelope(type="T", contract="C", lifetime=60, headers=headers)

    take(far.message(0, b"body"), far.message(1))

    found = [None if text is None else json.loads(text) for text in rows(db, "SELECT headers FROM broker_message")]
    assert [headers or None] * 2 == found


def test_spans_of_traced_messages_are_told(take: Take, far: FarSide) -> None:
    far.envelope = Envelope(type="T", contract="C", lifetime=60, headers={"traceparent": "p"})
    conversation = far.contact.conversation_id

    late = take(far.message(1, flags=LAST | Flag.TRACE), far.message(2))
    receipt = take(far.message(0, flags=LAST | Flag.TRACE))

    assert ({}, {(conversation, False, 0): "p"}) == (late.traced, receipt.traced)


def test_traced_message_that_came_early_is_joined_at_its_last_fragment(
    db: sqlite3.Connection, take: Take, far: FarSide
) -> None:
    take(far.message(0, b"0"))
    take(
        far.fragment((1, 1), b"b", flags=Flag.TRACE),
        far.fragment((1, 2), b"c", flags=LAST | Flag.TRACE),
    )

    receipt = take(far.message(1, b"a", flags=Flag.TRACE))

    assert [("T", b"0"), ("T", b"abc")] == queued(db)
    assert Counter() == receipt.dropped


@pytest.mark.parametrize("headers", [{str(n): "" for n in range(HEADERS_MAX + 1)}, {"a": "b" * HEADERS_MAX_BYTES}])
def test_a_message_with_more_headers_than_it_may_have_fails_its_dialog(
    db: sqlite3.Connection, take: Take, far: FarSide, headers: dict[str, str]
) -> None:
    far.envelope = Envelope(type="T", contract="C", lifetime=60, headers=headers)

    receipt = take(far.message(0))

    assert ([-8430], Counter({Disposition.CORRUPTED: 1})) == ([one.code for _, one in receipt.faults], receipt.dropped)
    assert ([ERROR], ["ER"]) == ([kind for kind, _ in queued(db)], states(db))


# --- verdicts ---------------------------------------------------------------------------------------------------


def test_each_frame_has_a_verdict(take: Take, far: FarSide) -> None:
    delivered = Disposition.DELIVERED

    receipt = take(
        far.message(0),
        far.message(2),
        far.message(2),
        far.message(0),
        far.ack(9, 0),
        bytes(8),
    )

    duplicate, early = Disposition.DUPLICATE, Disposition.OUT_OF_SEQUENCE
    assert [delivered, delivered, duplicate, duplicate, early, Disposition.MALFORMED] == receipt.verdicts()


def test_message_is_delivered_though_what_it_acknowledges_is_not_believed(take: Take, far: FarSide) -> None:
    receipt = take(far.message(0, stored=(7, 0)))

    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped
    assert [Disposition.DELIVERED] == receipt.verdicts()


def test_frame_that_closes_a_gap_is_delivered_though_what_came_early_is_corrupted(take: Take, far: FarSide) -> None:
    take(far.message(0))
    early = take(far.fragment((2, 0), b"\xff" * 20, flags=LAST))

    receipt = take(far.message(1))

    assert [Disposition.DELIVERED] == early.verdicts() == receipt.verdicts()
    assert Counter({Disposition.CORRUPTED: 1}) == receipt.dropped
    told = receipt.last_dropped[Disposition.CORRUPTED]
    assert told is not None
    assert (far.contact.conversation_id, (2, 0)) == (told.conversation_id, told.place)

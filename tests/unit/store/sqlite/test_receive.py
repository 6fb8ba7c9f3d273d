"""What frames do to a database: dialogs begun and ended, order, acknowledgements, refusals, and what is answered."""

import json
import re
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from broker.client.dialog import Dialog
from broker.client.receiving import receive
from broker.conversation.frames import CONFIRM, NO_NOTE, AckNote, Travel, ack_frame
from broker.conversation.message_types import (
    DEFAULT_LIFETIME,
    DIALOG_TIMER,
    END_DIALOG,
    ERROR,
    LIFETIME_MAX,
    SentBy,
    Validation,
)
from broker.flow import Disposition
from broker.protocol.frame import Envelope, Fault, Stored, decode_dialog, encode_dialog, encode_envelope, encode_stored
from broker.protocol.layout import EARLY_WINDOW, HEADERS_MAX, HEADERS_MAX_BYTES, NO_GUID, Flag
from broker.store.port import AckState, ReceiveResult
from broker.store.sqlite import reassembly
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.ledger import FailureReason, close
from broker.store.sqlite.metadata import drop, put_contract, put_message_type, put_queue, put_service
from broker.store.sqlite.schema import LARGE_BYTES
from broker.store.sqlite.side import unconfirmed_sides
from broker.store.sqlite.transaction import writing
from tests.support.dialog import (
    LAST,
    QUEUE,
    FarSide,
    begin,
    far_initiator,
    far_target,
    open_database,
    queued,
    receive_frames,
    rows,
    states,
)

NOW = 1_750_000_000.0
ELSEWHERE = bytes(range(100, 116))
FAR_INSTANCE = "SELECT far_broker_instance FROM broker_conversation"
OPENING = "SELECT is_opening_acknowledged FROM broker_conversation"


@dataclass
class Desk:
    """A database with the services Billing and Orders, and frames that arrive for it."""

    db: sqlite3.Connection

    def take(self, *frames: bytes) -> ReceiveResult:
        """Store frames as one batch."""
        return receive_frames(self.db, frames, NOW)

    def rows(self, query: str) -> list[object]:
        return rows(self.db, query)

    @property
    def states(self) -> list[str]:
        return states(self.db)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in queued(self.db)]

    @property
    def kept(self) -> list[object]:
        return self.rows("SELECT message_sequence_number, fragment_number FROM broker_fragment ORDER BY 1, 2")

    @property
    def ledger(self) -> dict[str, int]:
        return dict(rows(self.db, "SELECT entry, messages FROM broker_ledger"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    db = open_database(tmp_path / "bank.db", "Billing", "Orders")
    yield Desk(db)
    db.close()


@pytest.fixture
def far() -> FarSide:
    """An initiator far away, which has begun nothing yet."""
    return far_initiator()


@pytest.fixture
def known(desk: Desk) -> FarSide:
    """An initiator that names this database."""
    return far_initiator(far_broker_instance=broker_instance(desk.db))


@pytest.fixture
def dialog(desk: Desk) -> Dialog:
    """A dialog begun here, with four messages sent."""
    return begin(desk.db, b"0", b"1", b"2", b"3")


@pytest.fixture
def target(desk: Desk, dialog: Dialog) -> FarSide:
    """The target of that dialog."""
    return far_target(desk.db, dialog.conversation_id)


@pytest.fixture
def closed(desk: Desk, far: FarSide) -> FarSide:
    """An initiator of a dialog that has closed here after three messages."""
    desk.take(*[far.message(number) for number in range(3)])
    close(desk.db, 1, NOW, FailureReason.CLEANUP)
    return far


def dropped(disposition: Disposition, count: int = 1) -> Counter[Disposition]:
    return Counter({disposition: count})


def stored(result: ReceiveResult) -> list[tuple[int, int]]:
    """The places that will be acknowledged."""
    return [state.place for state in result.stored.values()]


def ack_state(result: ReceiveResult) -> AckState:
    (one,) = result.stored.values()
    return one


def codes(result: ReceiveResult) -> list[int]:
    return [fault.code for _, fault in result.faults]


def with_body(frame: bytes, body: bytes) -> bytes:
    header, _ = decode_dialog(frame)
    return encode_dialog(replace(header, body_checksum=0), body)


def delayed(frame: bytes, time_consumed: int) -> bytes:
    """The same frame after so many milliseconds on its way."""
    return frame[:12] + time_consumed.to_bytes(4, "big") + frame[16:]


# --- a dialog begins --------------------------------------------------------------------------------------------


def test_first_message_makes_the_endpoint_and_is_delivered(desk: Desk, far: FarSide) -> None:
    result = desk.take(far.message(0, b"pay"))

    columns = (
        "conversation_id, is_initiator, state, service_name, far_service, far_broker_instance, contract, lifetime,"
        " create_date, send_sequence, receive_sequence, receive_sequence_frag"
    )
    ends = (far.contact.conversation_id, 0, "CO", "Billing", "//far/Orders", far.contact.broker_instance)
    assert [(*ends, "C", NOW + 3600, NOW, 0, 1, 0)] == desk.rows(f"SELECT {columns} FROM broker_conversation")
    assert [("T", b"pay")] == queued(desk.db)
    contact = ack_state(result).contact
    assert (contact.is_initiator, contact.far_broker_instance) == (False, far.contact.broker_instance)
    assert ([(1, 0)], Counter(Billing=1)) == (stored(result), result.delivered)


@pytest.mark.parametrize(
    ("lifetime", "time_consumed", "seconds"),
    [
        (None, 0, DEFAULT_LIFETIME.total_seconds()),
        (LIFETIME_MAX + 1, 0, LIFETIME_MAX),
        (60, 2_500, 57.5),
        (60, 59_999, 0.001),
    ],
)
@pytest.mark.promise(12)
def test_time_on_the_way_is_part_of_the_lifetime(
    desk: Desk, far: FarSide, lifetime: int | None, time_consumed: int, seconds: float
) -> None:
    far.envelope = Envelope(type="T", contract="C", lifetime=lifetime)

    desk.take(delayed(far.message(0), time_consumed))

    assert [pytest.approx(NOW + seconds, abs=1e-4)] == desk.rows("SELECT lifetime FROM broker_conversation")


@pytest.mark.parametrize("time_consumed", [60_000, 2**32 - 1])
@pytest.mark.promise(12)
def test_dialog_that_was_over_before_its_first_message_came_does_not_begin(
    desk: Desk, far: FarSide, time_consumed: int
) -> None:
    far.envelope = Envelope(type="T", lifetime=60)

    result = desk.take(delayed(far.message(0), time_consumed))

    assert ReceiveResult(dropped=dropped(Disposition.LIFETIME_EXCEEDED)) == result
    assert [] == desk.states


def test_anything_but_a_beginning_makes_no_endpoint(desk: Desk, far: FarSide) -> None:
    result = desk.take(far.message(1), far.fragment((0, 1), b"x"), far.ack(1, 0), far.fault(-8490))

    assert ReceiveResult(dropped=dropped(Disposition.UNKNOWN_CONVERSATION, 4)) == result
    assert [Disposition.UNKNOWN_CONVERSATION] * 4 == result.verdicts()
    assert [] == desk.states


@pytest.mark.parametrize("is_named", [True, False], ids=["by the dialog", "by its route"])
@pytest.mark.promise("R4.1")
def test_absent_service_is_answered_by_the_database_that_was_named(desk: Desk, *, is_named: bool) -> None:
    far = far_initiator("Nobody", far_broker_instance=broker_instance(desk.db) if is_named else NO_GUID)

    result = desk.take(far.message(0), far.message(1))

    ((contact, fault),) = result.faults
    assert ("Nobody", "//far/Orders", False) == (contact.service_name, contact.far_service, contact.is_initiator)
    assert contact.far_broker_instance == far.contact.broker_instance
    assert Fault(-8490, "the service 'Nobody' does not exist in the broker instance that was named") == fault
    assert (dropped(Disposition.SERVICE_NOT_FOUND, 2), {}, []) == (result.dropped, result.stored, desk.states)


@pytest.mark.parametrize(
    ("accepted", "is_refused"),
    [(frozenset({"C", "D"}), False), (frozenset({"D"}), True), (frozenset(), False)],
    ids=["listed", "not listed", "any"],
)
def test_contract_has_to_be_one_that_the_service_accepts_when_a_dialog_begins(
    desk: Desk, far: FarSide, *, accepted: frozenset[str], is_refused: bool
) -> None:
    """The original's page on ALTER SERVICE says of open dialogs this and its contrary; here -8469 is never sent."""
    put_service(desk.db, "Billing", 1, accepted)

    result = desk.take(far.message(0))

    assert [-8408] * is_refused == codes(result)
    assert (is_refused, ["CO"] * (not is_refused)) == (result.dropped[Disposition.CONTRACT_REFUSED], desk.states)
    if not is_refused:
        put_service(desk.db, "Billing", 1, frozenset({"D"}))
        result = desk.take(far.message(1, b"1"))
        assert ([], ["CO"], [b"", b"1"]) == (codes(result), desk.states, desk.bodies)


@pytest.mark.parametrize(
    ("envelope", "refused"),
    [(b"\0\0\0\x09short", []), (encode_envelope(Envelope(type="T", contract="C" * 513, lifetime=60)), [-8430])],
    ids=["malformed", "contract of more than 512 bytes"],
)
def test_invalid_envelope_begins_nothing(desk: Desk, far: FarSide, envelope: bytes, refused: list[int]) -> None:
    result = desk.take(far.fragment((0, 0), envelope, flags=LAST), far.message(1))

    assert (refused, dropped(Disposition.CORRUPTED, 2), []) == (codes(result), result.dropped, desk.states)
    assert ReceiveResult(dropped=result.dropped, faults=result.faults) == result


@pytest.mark.parametrize(
    ("is_named", "is_named_later", "is_answer", "opening"),
    [(False, False, False, 0), (False, True, False, 1), (True, True, False, -1), (True, True, True, 1)],
)
def test_naming_this_database_proves_that_an_answer_has_arrived_unless_it_was_named_from_the_start(
    desk: Desk, far: FarSide, known: FarSide, *, is_named: bool, is_named_later: bool, is_answer: bool, opening: int
) -> None:
    one = known if is_named else far
    one.envelope = Envelope(type="T", contract="C", lifetime=LIFETIME_MAX)
    desk.take(one.message(0))
    (handle,) = rows(desk.db, "SELECT conversation_handle FROM broker_conversation")
    Dialog(desk.db, 1, handle, handle).send(b"answer")
    if is_named_later:
        one.contact = one.contact.bound_to(broker_instance(desk.db))

    desk.take(one.message(1, stored=(1, 0) if is_answer else (0, 0)))

    assert [opening] == desk.rows(OPENING)


# --- dialogs of which only a tombstone or nothing is here ---------------------------------------------------------


@pytest.mark.promise(11)
def test_replay_is_acknowledged_and_not_taken_twice(desk: Desk, closed: FarSide) -> None:
    other = far_initiator().message(0, b"of another dialog")

    result = desk.take(closed.message(0, b"again"), closed.message(2), other)

    ((contact, place),) = result.closed
    assert ((3, 0), closed.contact.broker_instance, False) == (place, contact.far_broker_instance, contact.is_initiator)
    assert [Disposition.DUPLICATE, Disposition.DUPLICATE, Disposition.DELIVERED] == result.verdicts()
    assert [b"of another dialog"] == desk.bodies


@pytest.mark.parametrize("place", [(3 + EARLY_WINDOW, 0), (2**64 - 1, 0), (3, 2**32 - 1)])
def test_place_beyond_the_window_moves_no_tombstone(desk: Desk, closed: FarSide, place: tuple[int, int]) -> None:
    result = desk.take(closed.fragment(place, b""))

    assert [(3, 0)] == [place for _, place in result.closed]
    assert [(3, 0)] == desk.rows("SELECT receive_sequence, receive_sequence_frag FROM broker_tombstone")
    assert dropped(Disposition.OUT_OF_SEQUENCE) == result.dropped


@pytest.mark.parametrize("number", [32, 2**31, 2**32 - 2])
def test_any_fragment_of_a_closed_dialog_is_acknowledged(desk: Desk, closed: FarSide, number: int) -> None:
    result = desk.take(closed.fragment((3, number), b""))

    moved = desk.rows("SELECT receive_sequence, receive_sequence_frag FROM broker_tombstone")
    assert [(3, number + 1)] == [place for _, place in result.closed] == moved
    assert dropped(Disposition.CONVERSATION_ENDED) == result.dropped


def test_unknown_dialog_that_names_this_database_is_reported(desk: Desk, far: FarSide, known: FarSide) -> None:
    """For certain when its far side has heard from here; not where it may be known elsewhere, or waits for nothing."""
    result = desk.take(known.message(5), known.message(6))
    certain = desk.take(known.message(5, stored=(1, 0)))
    target = desk.take(far_target(desk.db, uuid.uuid4()).message(0))

    ((contact, is_certain),) = result.unknown_dialogs
    ends = (contact.conversation_id, contact.service_name, contact.far_service, contact.is_initiator)
    assert (known.contact.conversation_id, "Billing", "//far/Orders", False) == ends
    assert dropped(Disposition.UNKNOWN_CONVERSATION, 2) == result.dropped
    assert [False, True] == [is_certain, certain.unknown_dialogs[0][1]]
    assert [(True, True)] == [(one.is_initiator, is_certain) for one, is_certain in target.unknown_dialogs]
    assert [] == desk.take(far.message(5, stored=(1, 0)), known.ack(1, 0), known.fault(-8490)).unknown_dialogs
    assert [] == desk.states


# --- order and duplicates ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [1 + EARLY_WINDOW, 2**63, 2**64 - 1])
@pytest.mark.promise(7)
def test_too_early_message_is_neither_kept_nor_acknowledged(desk: Desk, far: FarSide, sequence: int) -> None:
    desk.take(far.message(0))

    result = desk.take(far.message(sequence))

    assert (dropped(Disposition.OUT_OF_SEQUENCE), []) == (result.dropped, desk.kept)
    state = ack_state(result)
    assert ((1, 0), (), True) == (state.place, state.held, state.is_urgent)


def test_too_much_out_of_order_is_not_kept_and_arrives_again(
    desk: Desk, far: FarSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassembly, "EARLY_FRAGMENTS_MAX", 2)
    desk.take(far.message(0, b"0"))

    result = desk.take(*[far.message(number, b"%d" % number) for number in (2, 3, 4, 5)])

    assert dropped(Disposition.OUT_OF_SEQUENCE, 2) == result.dropped
    assert ((2, 0, 0), (3, 0, 0)) == ack_state(result).held
    desk.take(*[far.message(number, b"%d" % number) for number in (1, 4, 5)])
    assert [b"%d" % number for number in range(6)] == desk.bodies


# --- what is to be acknowledged ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "arriving", "expected"),
    [
        ([], [(0, 0), (1, 0)], ((2, 0), (), 2, False)),
        ([(0, 0)], [(3, 0), (5, 1), (5, 2)], ((1, 0), ((3, 0, 0), (5, 1, 2)), 0, True)),
        ([(0, 0), (3, 0)], [(1, 0)], ((2, 0), ((3, 0, 0),), 1, True)),
        ([(0, 0), (2, 0)], [(1, 0)], ((3, 0), (), 1, True)),
        ([(0, 0)], [(0, 0)], ((1, 0), (), 0, True)),
    ],
    ids=["in order", "a gap opens", "a gap stays open", "a gap closes", "duplicate"],
)
def test_gaps_and_duplicates_are_acknowledged_at_once_with_what_is_held(
    desk: Desk, far: FarSide, before: list[tuple[int, int]], arriving: list[tuple[int, int]], expected: object
) -> None:
    def make(places: list[tuple[int, int]]) -> list[bytes]:
        return [far.message(one[0]) if one[1] == 0 else far.fragment(one, b"x") for one in places]

    desk.take(*make(before))

    state = ack_state(desk.take(*make(arriving)))

    assert expected == (state.place, state.held, state.frames, state.is_urgent)


# --- frames that break a rule -----------------------------------------------------------------------------------


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
@pytest.mark.promise(7)
def test_spoilt_frame_changes_nothing_and_others_of_the_batch_are_taken(
    desk: Desk, far: FarSide, spoil: Callable[[bytes], bytes], disposition: Disposition
) -> None:
    desk.take(far.message(0, b"0"))

    result = desk.take(spoil(far.message(1, b"1")), far.message(2, b"2"))

    assert (dropped(disposition), [(1, 0)], [b"0"]) == (result.dropped, stored(result), desk.bodies)
    assert [(2, 0)] == desk.kept


def test_malformed_bodies_and_frames_of_a_later_version_are_counted_and_change_nothing(
    desk: Desk, far: FarSide
) -> None:
    """But a body without a checksum is accepted."""
    header, body = decode_dialog(far.message(0, b"0"))
    desk.take(with_body(far.message(0), body))

    result = desk.take(
        *[with_body(frame, b"\xc1") for frame in (far.ack(0, 0), far.fault(-8490))],
        encode_dialog(replace(header, kind=0x20), body),
    )

    assert ReceiveResult(dropped=dropped(Disposition.MALFORMED, 3)) == result
    assert (["CO"], 1) == (desk.states, len(desk.bodies))


TOO_MANY = {str(number): "" for number in range(HEADERS_MAX + 1)}


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(type="T" * 513),
        Envelope(type="T", headers=TOO_MANY),
        Envelope(type="T", headers={"a": "b" * HEADERS_MAX_BYTES}),
        None,
    ],
    ids=["type", "headers", "bytes of headers", "malformed"],
)
def test_message_with_an_invalid_envelope_fails_its_dialog_at_both_sides(
    desk: Desk, far: FarSide, envelope: Envelope | None
) -> None:
    desk.take(far.message(0, b"0"))
    body = b"\0\0\0\x09short" if envelope is None else encode_envelope(envelope)

    result = desk.take(far.fragment((1, 0), body, flags=LAST))

    assert ([-8430], dropped(Disposition.CORRUPTED), ["ER"]) == (codes(result), result.dropped, desk.states)
    ((_, first), (kind, error)) = queued(desk.db)
    assert (b"0", ERROR) == (first, kind)
    assert b"<Code>-8430</Code>" in error


@pytest.mark.parametrize(
    ("type_name", "body", "code"),
    [
        ("Xml", b"<a>", -9616),
        ("Nothing", b"x", -8430),
        ("Ours", b"", -8457),
        ("Elsewhere", b"", -8498),
        ("Unheard of", b"", -8428),
        (DIALOG_TIMER, b"", -8428),
    ],
)
def test_message_that_breaks_the_contract_fails_the_dialog_at_both_sides(
    desk: Desk, far: FarSide, type_name: str, body: bytes, code: int
) -> None:
    for name, validation in (("Xml", Validation.WELL_FORMED_XML), ("Nothing", Validation.EMPTY)):
        put_message_type(desk.db, name, validation)
    for name in ("Ours", "Elsewhere"):
        put_message_type(desk.db, name, Validation.NONE)
    put_contract(desk.db, "C", {"Xml": SentBy.INITIATOR, "Nothing": SentBy.ANY, "Ours": SentBy.TARGET})
    far.envelope = Envelope(type="Xml", contract="C")
    desk.take(far.message(0, b"<a/>"))
    far.envelope = Envelope(type=type_name)

    result = desk.take(far.message(1, body), far.message(2, b"<a/>"))

    assert ([code], ["ER"]) == (codes(result), desk.states)
    assert ["Xml", ERROR] == [name for name, _ in queued(desk.db)]
    assert b"<Code>%d</Code>" % code in desk.bodies[1]
    assert Counter({Disposition.CONTRACT_REFUSED: 1, Disposition.CONVERSATION_ENDED: 1}) == result.dropped
    assert (3, 0) == ack_state(result).place


def test_message_for_a_service_that_was_dropped_fails_the_dialog(desk: Desk, far: FarSide) -> None:
    desk.take(far.message(0, b"0"))
    drop(desk.db, "service", "Billing")

    result = desk.take(far.message(1, b"1"))

    assert ([-8470], dropped(Disposition.SERVICE_NOT_FOUND)) == (codes(result), result.dropped)
    assert (["ER"], Counter()) == (desk.states, result.delivered)


@pytest.mark.promise(6)
def test_failure_of_the_store_stores_nothing_of_the_batch(desk: Desk, far: FarSide) -> None:
    trigger = "CREATE TRIGGER full BEFORE INSERT ON broker_fragment BEGIN SELECT RAISE(ABORT, 'disk is full'); END"
    desk.db.execute(trigger)

    with pytest.raises(sqlite3.Error, match=re.escape("disk is full")):
        desk.take(far.message(0), far.message(2))

    assert ([], [], False) == (desk.states, desk.bodies, desk.db.in_transaction)


# --- which database answers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", ["message", "ack"])
@pytest.mark.promise(9, "R5.1", "routing 5", "multiple 27")
def test_first_answer_binds_an_open_dialog(desk: Desk, target: FarSide, frame: str) -> None:
    result = desk.take(target.message(0) if frame == "message" else target.ack(0, 0))

    assert [target.contact.broker_instance] == desk.rows(FAR_INSTANCE)
    assert [target.contact.broker_instance] == [contact.far_broker_instance for contact in result.contacts.values()]


@pytest.mark.parametrize("frame", ["message", "ack", "fault"])
@pytest.mark.promise("R5.2", "multiple 24", "multiple 25")
def test_second_target_is_told_and_the_binding_stays(desk: Desk, dialog: Dialog, target: FarSide, frame: str) -> None:
    """Its fault is not answered."""
    desk.take(target.ack(1, 0))
    other = far_target(desk.db, dialog.conversation_id, broker_instance=ELSEWHERE)
    frames = {"message": other.message(0, b"me too"), "ack": other.ack(1, 0), "fault": other.fault(-8490)}

    result = desk.take(frames[frame])

    if frame != "fault":
        ((contact, fault),) = result.faults
        assert (ELSEWHERE, "//far/Billing") == (contact.far_broker_instance, contact.far_service)
        assert Fault(-8495, "another instance of the service has this conversation") == fault
    assert ReceiveResult(dropped=dropped(Disposition.OTHER_INSTANCE), faults=result.faults) == result
    assert ([target.contact.broker_instance], ["CO"], []) == (desk.rows(FAR_INSTANCE), desk.states, desk.bodies)
    assert (frame == "fault") == (result.faults == [])


@pytest.mark.parametrize(
    ("spoil", "disposition"),
    [
        (lambda far: far.ack(5, 0), Disposition.OUT_OF_SEQUENCE),
        (lambda far: far.message(0, stored=(5, 0)), Disposition.OUT_OF_SEQUENCE),
        (lambda far: far.message(EARLY_WINDOW), Disposition.OUT_OF_SEQUENCE),
        (lambda far: far.fragment((0, 0), b"no envelope", flags=LAST), Disposition.CORRUPTED),
        (lambda far: far.fragment((0, 0), b"", flags=LAST), Disposition.CORRUPTED),
        (lambda far: with_body(far.ack(1, 0), b"\xc1"), Disposition.MALFORMED),
    ],
    ids=["acknowledges too much", "message that does so", "beyond the window", "no envelope", "no body", "no runs"],
)
@pytest.mark.promise("R5.1")
def test_invalid_frame_binds_nothing_and_does_nothing(
    desk: Desk, target: FarSide, spoil: Callable[[FarSide], bytes], disposition: Disposition
) -> None:
    assert ReceiveResult(dropped=dropped(disposition)) == desk.take(spoil(target))
    assert ([None], ["CO"]) == (desk.rows(FAR_INSTANCE), desk.states)

    desk.take(target.ack(1, 0))
    assert [target.contact.broker_instance] == desk.rows(FAR_INSTANCE)


# --- acknowledgements of what was sent here -----------------------------------------------------------------------


def acknowledging(far: FarSide, place: tuple[int, int], *runs: tuple[int, int, int]) -> bytes:
    header, _ = decode_dialog(far.ack(*place))
    return encode_dialog(header, encode_stored(Stored(runs)))


@pytest.mark.parametrize("place", [(4, 1), (5, 0), (2**63, 0), (2**64 - 1, 2**32 - 1)])
@pytest.mark.promise(8)
def test_acknowledgement_of_what_was_never_sent_is_ignored_and_counted(
    desk: Desk, target: FarSide, place: tuple[int, int]
) -> None:
    desk.take(target.ack(0, 0))

    result = desk.take(acknowledging(target, place, (3, 0, 0)))

    assert dropped(Disposition.OUT_OF_SEQUENCE) == result.dropped
    assert ({}, {}) == (result.acknowledged, result.held_there)
    assert 4 == len(desk.rows("SELECT 1 FROM broker_transmission"))


@pytest.mark.parametrize(
    ("acks", "place", "held"),
    [
        ([((1, 0), (2, 0, 3), (3, 1, 1))], (1, 0), ((2, 0, 3), (3, 1, 1))),
        ([((0, 0), (1, 0, 0))], (0, 0), ((1, 0, 0),)),
        ([((1, 0), (3, 0, 0)), ((2, 0),), ((1, 0), (2, 0, 0))], (2, 0), ()),
    ],
    ids=["runs", "without a place", "the newest counts"],
)
def test_what_the_far_side_holds_out_of_order_is_passed_on(
    desk: Desk,
    target: FarSide,
    acks: list[tuple[tuple[int, int], *tuple[tuple[int, int, int], ...]]],
    place: tuple[int, int],
    held: tuple[tuple[int, int, int], ...],
) -> None:
    result = desk.take(*[acknowledging(target, *one) for one in acks])

    assert ({1: place}, {1: held}) == (result.acknowledged, result.held_there)


@pytest.mark.parametrize("run", [(4, 0, 0), (2**63, 0, 0), (-1, 0, 0), (2, 3, 1), (2, -1, 0)])
def test_run_of_what_was_never_sent_is_counted_and_left_out(
    desk: Desk, target: FarSide, run: tuple[int, int, int]
) -> None:
    """And an endless list of runs is cut."""
    result = desk.take(acknowledging(target, (1, 0), run, (3, 0, 0)))

    assert ({1: ((3, 0, 0),)}, dropped(Disposition.OUT_OF_SEQUENCE)) == (result.held_there, result.dropped)
    result = desk.take(acknowledging(target, (1, 0), *[(2, number, number) for number in range(2_000)]))
    assert 1024 == len(result.held_there[1])


# --- the end and errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_body", [True, False])
@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.promise(11)
def test_end_is_read_in_its_turn(desk: Desk, far: FarSide, *, has_body: bool, is_early: bool) -> None:
    """And acknowledged at once."""
    end = far.end(2) if has_body else far.fragment((2, 0), b"", flags=LAST | Flag.END_DIALOG)
    early, late = (end, far.message(1, b"1")) if is_early else (far.message(1, b"1"), end)
    desk.take(far.message(0, b"0"), early)
    assert ["CO"] == desk.states

    assert ack_state(desk.take(late)).is_urgent

    assert ["DI"] == desk.states
    assert [("T", b"0"), ("T", b"1"), (END_DIALOG, b"")] == queued(desk.db)


@pytest.mark.parametrize("code", [0, 5, 2**63, -(2**31) - 1])
def test_fault_with_a_code_that_brokers_do_not_send_is_an_error_of_validation(
    desk: Desk, target: FarSide, code: int
) -> None:
    desk.take(target.fault(code, "why"))

    ((kind, body),) = queued(desk.db)
    assert (ERROR, ["ER"]) == (kind, desk.states)
    assert b"-8430" in body
    assert f"with the code {code}, ".encode() in body
    assert b"why" in body


def test_far_side_that_does_not_know_the_dialog_fails_it_once_it_has_known_it(
    desk: Desk, far: FarSide, target: FarSide
) -> None:
    """An initiator far away has made the dialog, so it has known it."""
    early = desk.take(target.fault(-8462))
    assert (["CO"], dropped(Disposition.OUT_OF_SEQUENCE)) == (desk.states, early.dropped)

    desk.take(target.ack(1, 0), far.message(0))
    desk.take(target.fault(-8462), far.fault(-8462))

    assert ["ER", "ER"] == desk.states


# --- large messages, headers, traces ----------------------------------------------------------------------------


def large(far: FarSide, *, flags: int = 0) -> list[bytes]:
    """Frames of a message above LARGE_BYTES, the second of its dialog."""
    piece = b"x" * 300_000
    last = LARGE_BYTES // len(piece)
    bodies = [encode_envelope(far.envelope) + piece, *[piece] * last]
    return [
        far.fragment((1, number), body, flags=flags | (LAST if number == last else 0))
        for number, body in enumerate(bodies)
    ]


@pytest.mark.parametrize("step", [1, -1])
def test_large_message_is_delivered_in_its_fragments(desk: Desk, far: FarSide, step: int) -> None:
    desk.take(far.message(0))

    for frame in large(far)[::step]:
        result = desk.take(frame)

    columns = "message_sequence_number, message_body, body_fragments"
    assert [(1, None, 4)] == desk.rows(f"SELECT {columns} FROM broker_message WHERE queuing_order = 2")
    assert (2, 0) == ack_state(result).place
    desk.take(far.message(2, b"after it"), far.end(3))
    assert [(1, 0), (1, 1), (1, 2), (1, 3)] == desk.kept


@pytest.mark.parametrize("flag", [Flag.END_DIALOG, Flag.ERROR])
def test_end_or_error_is_never_large(desk: Desk, far: FarSide, flag: Flag) -> None:
    desk.take(far.message(0))

    result = desk.take(*large(far, flags=flag))

    assert ([-8430], ["ER"]) == (codes(result), desk.states)


@pytest.mark.parametrize("headers", [None, {}, {"traceparent": "00-ab-cd-01", "Ä": "ß"}])
def test_headers_are_kept_with_the_message(desk: Desk, far: FarSide, headers: dict[str, str] | None) -> None:
    far.envelope = Envelope(type="T", contract="C", lifetime=60, headers=headers)

    desk.take(far.message(0, b"body"))

    (found,) = rows(desk.db, "SELECT headers FROM broker_message")
    assert (headers or None) == (found and json.loads(found))


def test_spans_of_traced_messages_are_returned(desk: Desk, far: FarSide) -> None:
    """Also of one that arrived early, in fragments."""
    far.envelope = Envelope(type="T", contract="C", lifetime=60, headers={"traceparent": "p"})
    trace, conversation = Flag.TRACE, far.contact.conversation_id

    late = desk.take(far.message(1, flags=LAST | trace), far.message(2))
    result = desk.take(far.message(0, flags=LAST | trace))
    desk.take(far.message(1), far.message(2))
    desk.take(far.fragment((3, 1), b"b", flags=trace), far.fragment((3, 2), b"c", flags=LAST | trace))
    joined = desk.take(far.message(3, b"a", flags=trace))

    assert ({}, {(conversation, False, 0): "p"}) == (late.traced, result.traced)
    assert ({(conversation, False, 3): "p"}, b"abc") == (joined.traced, desk.bodies[-1])


# --- verdicts ---------------------------------------------------------------------------------------------------


def test_each_frame_has_a_verdict(desk: Desk, far: FarSide) -> None:
    """Also where two dialogs are in one batch; a message is delivered though it acknowledges what was never sent."""
    delivered, duplicate, other = Disposition.DELIVERED, Disposition.DUPLICATE, far_initiator()
    frames = (far.message(0), far.message(2), far.message(2), other.message(0, stored=(7, 0)), far.message(0))

    result = desk.take(*frames, far.ack(9, 0), bytes(8), other.message(1))

    early = Disposition.OUT_OF_SEQUENCE
    expected = [delivered, delivered, duplicate, delivered, duplicate, early, Disposition.MALFORMED, delivered]
    assert expected == result.verdicts()
    assert 2 == result.dropped[early]
    assert [(1, 0), (2, 0)] == stored(result)


def test_frame_that_closes_a_gap_is_delivered_though_what_arrived_early_is_corrupted(desk: Desk, far: FarSide) -> None:
    desk.take(far.message(0))
    early = desk.take(far.fragment((2, 0), b"\xff" * 20, flags=LAST))

    result = desk.take(far.message(1))

    assert [Disposition.DELIVERED] == early.verdicts() == result.verdicts()
    assert dropped(Disposition.CORRUPTED) == result.dropped
    last = result.last_dropped[Disposition.CORRUPTED]
    assert last is not None
    assert (far.contact.conversation_id, (2, 0)) == (last.conversation_id, last.place)


# --- a queue that is off ------------------------------------------------------------------------------------------


@pytest.mark.promise("statements 5")
def test_dialog_goes_on_where_it_was_when_its_queue_is_on_again(desk: Desk, far: FarSide) -> None:
    """Off, only what is stored already is acknowledged; what waits here can be acknowledged by the far side."""
    desk.take(far.message(0))
    put_queue(desk.db, QUEUE, is_receive_enabled=False)

    assert [(1, 0)] == stored(desk.take(far.message(0)))
    result = desk.take(far.message(1), far.message(3), far.end(4))
    assert ([(1, 0)], {}, []) == ([place for _, place in result.refused], result.stored, desk.kept)
    assert (["CO"], 1) == (desk.states, len(desk.bodies))
    put_queue(desk.db, QUEUE, is_receive_enabled=True)
    desk.take(far.message(1), far.message(2), far.message(3), far.end(4))
    assert (["DI"], 5) == (desk.states, len(desk.bodies))


def test_acknowledgement_that_says_why_nothing_is_stored_binds_nothing(desk: Desk, target: FarSide) -> None:
    refusal = AckNote(11219, "queue disabled")
    result = desk.take(ack_frame(target.contact, Travel(), bytes(16), (0, 0), note=refusal))

    assert ([refusal], [None]) == (list(result.said.values()), desk.rows(FAR_INSTANCE))
    assert [NO_NOTE] == list(desk.take(target.ack(1, 0)).said.values())


# --- a service that is an exclusive target ------------------------------------------------------------------------


@pytest.fixture
def exclusive(desk: Desk) -> Desk:
    """With Billing as an exclusive target."""
    put_service(desk.db, "Billing", 1, frozenset(), is_exclusive_target=True)
    return desk


def naming(desk: Desk, far: FarSide) -> FarSide:
    """The same initiator, which names this database from now on."""
    return replace(far, contact=far.contact.bound_to(broker_instance(desk.db)))


def can_be_received(desk: Desk) -> list[bytes]:
    with writing(desk.db):
        return [message.body for message in receive(desk.db, queue=QUEUE, top=10)]


@pytest.mark.parametrize("proof", ["message", "end", "ack"])
@pytest.mark.promise("statements 6")
def test_messages_for_an_exclusive_target_wait_until_it_is_named(exclusive: Desk, far: FarSide, proof: str) -> None:
    first = exclusive.take(far.message(0))
    before = can_be_received(exclusive)
    known = naming(exclusive, far)
    frame = {"message": known.message(1), "end": known.end(1), "ack": known.ack(0, 0)}[proof]
    second = exclusive.take(frame)

    assert ([(1, 0)], True, []) == (stored(first), ack_state(first).is_confirmation_wanted, before)
    assert {"message": 2, "end": 2, "ack": 1}[proof] == len(can_be_received(exclusive))
    assert not any(state.is_confirmation_wanted for state in second.stored.values())


def test_dialog_that_names_its_target_from_the_start_needs_no_confirmation(exclusive: Desk, known: FarSide) -> None:
    assert not ack_state(exclusive.take(known.message(0))).is_confirmation_wanted
    assert 1 == len(can_be_received(exclusive))


@pytest.mark.parametrize("end", [False, True])
@pytest.mark.promise("statements 6")
def test_target_that_lost_keeps_only_a_tombstone(exclusive: Desk, far: FarSide, end: bool) -> None:  # noqa: FBT001
    exclusive.take(far.message(0), *([far.end(1)] if end else []))
    exclusive.take(naming(exclusive, far).fault(-8495))

    assert ([], [], []) == (exclusive.states, exclusive.bodies, can_be_received(exclusive))
    assert 1 == len(exclusive.rows("SELECT 1 FROM broker_tombstone"))


def test_service_that_is_no_exclusive_target_any_longer_shows_what_it_has(exclusive: Desk, far: FarSide) -> None:
    exclusive.take(far.message(0))
    assert 1 == len(unconfirmed_sides(exclusive.db, broker_instance(exclusive.db)))
    put_service(exclusive.db, "Billing", 1, frozenset())

    assert {} == unconfirmed_sides(exclusive.db, broker_instance(exclusive.db))
    assert 1 == len(can_be_received(exclusive))


def test_initiator_that_is_asked_names_its_target_even_when_its_side_is_closed(desk: Desk, target: FarSide) -> None:
    asking = ack_frame(target.contact, Travel(), bytes(16), (4, 0), note=CONFIRM)
    open_side = desk.take(asking)
    close(desk.db, 1, NOW, FailureReason.CLEANUP)

    for result in (open_side, desk.take(asking)):
        assert [target.contact.broker_instance] == [contact.far_broker_instance for contact, _ in result.asked]

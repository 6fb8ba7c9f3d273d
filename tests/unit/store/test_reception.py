"""What frames do to a side that lives here, beyond order and duplicates: what is told, believed, refused, counted."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.client.dialog import Dialog, begin_dialog
from broker.conversation.frames import EARLY_WINDOW
from broker.conversation.message_types import DIALOG_TIMER, END_DIALOG, ERROR, LIFETIME_MAX, SentBy, Validation
from broker.flow import Disposition
from broker.protocol.frame import Envelope, Stored, decode_dialog, encode_dialog, encode_envelope, encode_stored
from broker.protocol.layout import HEADERS_MAX, HEADERS_MAX_BYTES, Flag
from broker.store.port import AckState, Receipt
from broker.store.sqlite import reassembly as assembly
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.metadata import put_contract, put_message_type
from broker.store.sqlite.receive import receive_in_writer
from broker.store.sqlite.schema import LARGE_BYTES
from tests.support.dialog import LAST, FarSide, far_initiator, far_target, open_database, queued, rows, states

NOW = 1_750_000_000.0

Take = Callable[..., Receipt]


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = open_database(tmp_path / "bank.db", "Billing", "Orders")
    yield db
    db.close()


@pytest.fixture
def take(db: sqlite3.Connection) -> Take:
    return lambda *frames: receive_in_writer(db, broker_instance(db), frames, NOW)


@pytest.fixture
def far() -> FarSide:
    return far_initiator()


@pytest.fixture
def dialog(db: sqlite3.Connection) -> Dialog:
    """A dialog begun here, with four messages sent."""
    dialog = begin_dialog(db, from_service="Orders", to_service="//far/Billing")
    for body in (b"0", b"1", b"2", b"3"):
        dialog.send(body)
    return dialog


@pytest.fixture
def target(db: sqlite3.Connection, dialog: Dialog) -> FarSide:
    return far_target(db, dialog.conversation_id)


def standing(receipt: Receipt) -> AckState:
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

    told = standing(take(far.message(3), far.fragment((5, 1), b"x"), far.fragment((5, 2), b"x")))

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
    frames = {"end": far.end(1), "error": far.message(1, flags=LAST | Flag.ERROR), "duplicate": far.message(0)}

    assert standing(take(frames[frame])).is_urgent


def test_acknowledgement_alone_is_not_answered(take: Take, dialog: Dialog, target: FarSide) -> None:
    assert {} == take(target.ack(1, 0)).stored


def test_too_much_out_of_order_is_not_kept_and_comes_again(
    db: sqlite3.Connection, take: Take, far: FarSide, monkeypatch: pytest.MonkeyPatch
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


def test_what_the_far_side_holds_out_of_order_is_handed_on(take: Take, target: FarSide) -> None:
    receipt = take(ack(target, (1, 0), (2, 0, 3), (3, 1, 1)))

    assert ({1: (1, 0)}, {1: ((2, 0, 3), (3, 1, 1))}) == (receipt.acknowledged, receipt.held_there)


def test_newest_word_on_what_is_held_counts(take: Take, target: FarSide) -> None:
    receipt = take(ack(target, (1, 0), (3, 0, 0)), ack(target, (2, 0)), ack(target, (1, 0), (2, 0, 0)))

    assert ({1: (2, 0)}, {1: ()}) == (receipt.acknowledged, receipt.held_there)


def test_held_without_a_place_is_believed(take: Take, target: FarSide) -> None:
    receipt = take(ack(target, (0, 0), (1, 0, 0)))

    assert ({1: (0, 0)}, {1: ((1, 0, 0),)}) == (receipt.acknowledged, receipt.held_there)


@pytest.mark.parametrize("run", [(4, 0, 0), (2**63, 0, 0), (-1, 0, 0), (2, 3, 1), (2, -1, 0)])
def test_run_of_what_was_never_sent_is_counted_and_left_out(
    take: Take, target: FarSide, run: tuple[int, int, int]
) -> None:
    receipt = take(ack(target, (1, 0), run, (3, 0, 0)))

    assert {1: ((3, 0, 0),)} == receipt.held_there
    assert Counter({Disposition.OUT_OF_SEQUENCE: 1}) == receipt.dropped


def test_nothing_is_believed_of_who_acknowledges_what_was_never_sent(take: Take, target: FarSide) -> None:
    receipt = take(ack(target, (9, 0), (3, 0, 0)))

    assert ({}, {}) == (receipt.acknowledged, receipt.held_there)


def test_endless_list_of_runs_is_cut(take: Take, target: FarSide) -> None:
    receipt = take(ack(target, (1, 0), *[(2, number, number) for number in range(50_000)]))

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


def test_first_message_may_be_the_one_that_is_refused(db: sqlite3.Connection, take: Take, strict: FarSide) -> None:
    strict.envelope = Envelope(type="Xml", contract="C")

    receipt = take(strict.message(0, b"no XML"))

    assert ([-9616], ["ER"]) == ([fault.code for _, fault in receipt.faults], states(db))


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
    db: sqlite3.Connection, take: Take, target: FarSide
) -> None:
    take(target.ack(1, 0))

    take(target.ack(2, 0), target.fault(-8408), target.ack(3, 0))
    receipt = take(target.ack(4, 0))

    assert {"error from the far side": 2} == ledger(db)
    assert [2] == rows(db, "SELECT acknowledged_sequence FROM broker_conversation")
    assert {} == receipt.acknowledged


def test_failure_here_is_counted_as_such(db: sqlite3.Connection, take: Take, target: FarSide) -> None:
    take(target.message(0, stored=(1, 0)), target.fragment((1, 0), b"no envelope", flags=LAST))

    assert {"error at this side": 3} == ledger(db)


def test_error_from_the_application_there_ends_the_sending_here(
    db: sqlite3.Connection, take: Take, target: FarSide
) -> None:
    receipt = take(target.message(0, stored=(1, 0), flags=LAST | Flag.ERROR))

    assert ({1}, {"error from the far side": 3}) == (receipt.finished, ledger(db))
    assert [11] == rows(db, "SELECT priority FROM broker_message")


def test_end_is_read_in_its_turn_and_what_waits_here_is_still_sent(
    db: sqlite3.Connection, take: Take, target: FarSide
) -> None:
    take(target.end(0, stored=(1, 0)))

    assert (["DI"], [END_DIALOG], {}) == (states(db), [name for name, _ in queued(db)], ledger(db))
    assert 3 == len(rows(db, "SELECT 1 FROM broker_transmission"))


def test_what_was_held_when_this_side_ended_need_not_be_sent_again(
    db: sqlite3.Connection, take: Take, dialog: Dialog, target: FarSide
) -> None:
    take(target.message(1), target.message(2))
    dialog.end()

    receipt = take(target.message(0))

    assert ((3, 0), ()) == (standing(receipt).place, standing(receipt).held)
    assert [] == queued(db)


# --- a far side that knows nothing ------------------------------------------------------------------------------


def test_far_side_that_has_forgotten_the_dialog_fails_it(db: sqlite3.Connection, take: Take, target: FarSide) -> None:
    take(target.ack(1, 0))

    take(target.fault(-8462))

    assert ["ER"] == states(db)


def test_far_side_that_has_not_heard_of_the_dialog_yet_does_not(
    db: sqlite3.Connection, take: Take, target: FarSide
) -> None:
    receipt = take(target.fault(-8462))

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
    db: sqlite3.Connection, take: Take, target: FarSide, spoil: Callable[[FarSide], bytes], disposition: Disposition
) -> None:
    assert take(spoil(target)) == Receipt(dropped=Counter({disposition: 1}))
    assert rows(db, "SELECT far_broker_instance, state FROM broker_conversation") == [(None, "CO")]

    take(target.ack(1, 0))
    assert rows(db, "SELECT far_broker_instance FROM broker_conversation") == [target.contact.broker_instance]


def test_first_answer_may_begin_with_a_later_fragment(db: sqlite3.Connection, take: Take, target: FarSide) -> None:
    early = take(target.fragment((0, 1), b"\xfftail", flags=LAST))
    bound = rows(db, "SELECT far_broker_instance FROM broker_conversation")

    take(target.message(0, b"head", flags=0))

    assert ([target.contact.broker_instance], Counter()) == (bound, early.dropped)
    assert [("T", b"head\xfftail")] == queued(db)


def _with_body(frame: bytes, body: bytes) -> bytes:
    header, _ = decode_dialog(frame)
    return encode_dialog(header, body)


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("kind", ["message", "ack", "fault"])
def test_frame_of_another_service_is_not_of_this_dialog(
    db: sqlite3.Connection, take: Take, dialog: Dialog, target: FarSide, kind: str, *, is_bound: bool
) -> None:
    if is_bound:
        take(target.ack(0, 0))
    other = far_target(db, dialog.conversation_id, service_name="//far/Other")
    before = rows(db, "SELECT * FROM broker_conversation")

    frame = {"message": other.message(0), "ack": other.ack(1, 0), "fault": other.fault(-8490)}[kind]

    why = "its dialog is between '//far/Billing' and 'Orders', and it is from '//far/Other' to 'Orders'"
    dropped = Counter({Disposition.NOT_OF_THIS_DIALOG: 1})
    assert take(frame) == Receipt(dropped=dropped, refusals={Disposition.NOT_OF_THIS_DIALOG: why})
    assert rows(db, "SELECT * FROM broker_conversation") == before


# --- what far sides say that no broker says ---------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 5, 2**63, -(2**31) - 1])
def test_fault_with_a_code_that_is_no_brokers_is_an_error_of_validation(
    db: sqlite3.Connection, take: Take, target: FarSide, code: int
) -> None:
    take(target.fault(code, "why"))

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
    db: sqlite3.Connection, take: Take, far: FarSide, headers: dict[str, str] | None
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
    take(far.fragment((1, 1), b"b", flags=Flag.TRACE), far.fragment((1, 2), b"c", flags=LAST | Flag.TRACE))

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

    receipt = take(far.message(0), far.message(2), far.message(2), far.message(0), far.ack(9, 0), bytes(8))

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


def test_all_frames_of_a_dialog_that_is_not_begun_are_dropped(take: Take, far: FarSide) -> None:
    receipt = take(far.message(1), far.message(2), far.ack(1, 0))

    assert [Disposition.UNKNOWN_CONVERSATION] * 3 == receipt.verdicts()

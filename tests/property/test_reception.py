"""
Any arrivals in any order at one side of a dialog, against a slow model that is obviously right.

The model knows sets and lists only: which fragments are here, how many messages were sent, acknowledged, failed. After
every step the file says what the model says, and the ledger holds: sent = acknowledged + held + failed.
"""

import sqlite3
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from broker.client.dialog import Dialog, begin_dialog
from broker.client.receiving import receive
from broker.conversation.frames import Contact
from broker.conversation.message_types import END_DIALOG, ERROR, LIFETIME_MAX
from broker.protocol.frame import Envelope, Header, decode_dialog, encode_dialog, encode_envelope
from broker.protocol.layout import NO_GUID, Flag, FrameKind
from broker.store.port import ReceiveResult
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.expiry import Maintenance
from broker.store.sqlite.inspect import read_balance
from tests.support.dialog import LAST, QUEUE, FarSide, far_initiator, far_target, open_database, receive_frames, rows
from tests.support.tiers import examples

NOW = 1_700_000_000.0  # long before the applications' own clock, so that tombstones stay
FAR = bytes(range(16))
TAKES = ("SI", "SO", "CO")
Place = tuple[int, int]


@dataclass
class Model:
    """What has to be true. Shape: `state` empty before there is a side; `unread` (priority, type, body)."""

    is_target: bool
    state: str = ""
    here: dict[Place, tuple[int, bytes]] = field(default_factory=dict)
    expected: Place = (0, 0)
    body: bytes = b""
    unread: list[tuple[int, str, bytes]] = field(default_factory=list)
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    end_sequence: int | None = None
    is_bound: bool = False

    @property
    def held(self) -> int:
        return self.sent - self.acknowledged - self.failed

    def batch(self, frames: list[tuple[Header, bytes]]) -> bool:
        """
        Frames of one batch, those with a wrong checksum left out; whether something is to be acknowledged.

        A message is, and the first answer: what is sent back names the target that it fixed.
        """
        if not self.state:
            if not any(header.kind == FrameKind.MESSAGE and header.place == (0, 0) for header, _ in frames):
                return False
            self.state = "SI"
        has_tombstone, is_due = self.state == "CD", False
        for header, body in frames:
            was_bound = self.is_bound
            if not (has_tombstone or self.hears(header)):
                continue
            is_due |= header.kind == FrameKind.MESSAGE or self.is_bound > was_bound
            self.acknowledge(header)
            if header.kind == FrameKind.MESSAGE and has_tombstone:
                self.throw_away(header.place, header.flags)
            elif header.kind == FrameKind.MESSAGE:
                self.message(header.place, header.flags, body)
            elif header.kind == FrameKind.FAULT:
                self.fail()
        if self.state == "DO" and self.end_sequence is not None and self.acknowledged > self.end_sequence:
            self.close()
        return is_due

    def hears(self, header: Header) -> bool:
        """The first answer fixes the target, unless it cannot be true."""
        if self.is_target or self.is_bound or header.kind == FrameKind.FAULT:
            return True
        is_true = (header.ack_sequence, header.ack_fragment) <= (self.sent, 0)
        is_near = header.kind != FrameKind.MESSAGE or header.sequence_number < self.expected[0] + 4096
        self.is_bound = is_true and is_near
        return self.is_bound

    def acknowledge(self, header: Header) -> None:
        place = (header.ack_sequence, header.ack_fragment)
        if place <= (self.sent, 0) and self.state not in ("ER", "CD"):
            self.acknowledged = max(self.acknowledged, place[0])

    def message(self, place: Place, flags: int, body: bytes) -> None:
        if self.state not in TAKES:
            if place == self.expected:
                self.move(flags)
                while self.expected in self.here:
                    self.move(self.here.pop(self.expected)[0])
            return
        if place >= self.expected and place[0] < self.expected[0] + 4096:
            self.here.setdefault(place, (flags, body))
        while self.state in TAKES and self.expected in self.here:
            flags, body = self.here.pop(self.expected)
            sequence = self.expected[0]
            self.move(flags)
            self.body += body
            if flags & LAST:
                self.whole(sequence, flags)

    def throw_away(self, place: Place, flags: int) -> None:
        """What a tombstone acknowledges is not kept, so a gap is none."""
        if self.expected <= place and place[0] < self.expected[0] + 4096:
            self.expected = place
            self.move(flags)

    def move(self, flags: int) -> None:
        sequence, fragment = self.expected
        self.expected = (sequence + 1, 0) if flags & LAST else (sequence, fragment + 1)

    def whole(self, sequence: int, flags: int) -> None:
        payload, self.body = self.body[len(ENVELOPE) :], b""
        if flags & Flag.END_DIALOG:
            self.state = "DI"
            self.unread.append((5, END_DIALOG, b""))
        elif flags & Flag.ERROR:
            self.unread.append((11, ERROR, payload))
            self.failed += self.held
            self.state = "ER"
        else:
            self.state = "CO"
            self.unread.append((5, "T", payload))
        if self.state not in TAKES:
            self.here.clear()

    def fail(self) -> None:
        if self.state == "DO":
            self.close()
        elif self.state not in ("ER", "CD"):
            self.unread.append((11, ERROR, b""))
            self.failed += self.held
            self.state = "ER"
            self.here.clear()

    def close(self) -> None:
        self.failed += self.held
        self.state = "CD"
        self.unread.clear()
        self.here.clear()


ENVELOPE = encode_envelope(Envelope(type="T", contract="C", lifetime=LIFETIME_MAX))


def cut(far: FarSide, sequence: int, payload: bytes, flags: int) -> list[bytes]:
    """A message as frames of three bytes of payload each."""
    pieces = [payload[at : at + 3] for at in range(0, len(payload), 3)] or [b""]
    pieces[0] = ENVELOPE + pieces[0]
    return [
        far.fragment((sequence, number), piece, flags=flags | (LAST if number + 1 == len(pieces) else 0))
        for number, piece in enumerate(pieces)
    ]


class ReceptionMachine(RuleBasedStateMachine):
    """Rules are what the far side, the network, the application and time may do."""

    @initialize(
        is_target=st.booleans(),
        payloads=st.lists(st.binary(max_size=9), min_size=1, max_size=5),
        end=st.sampled_from([0, Flag.END_DIALOG, Flag.ERROR]),
    )
    def begin(self, payloads: list[bytes], end: int, *, is_target: bool) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.db = open_database(Path(self.directory.name) / "side.db", "Here")
        self.instance = broker_instance(self.db)
        self.model = Model(is_target)
        self.housekeeping = Maintenance()
        self.now = NOW
        if is_target:
            self.far = far_initiator("Here")
        else:
            dialog = begin_dialog(self.db, from_service="Here", to_service="//far/Billing", lifetime=LIFETIME_MAX)
            self.far = far_target(self.db, dialog.conversation_id, far_service="Here")
            self.model.state = "SO"
            self.send(b"opening")
        flags = [0] * (len(payloads) - 1) + [int(end)]
        self.frames = [
            frame
            for sequence, (payload, flag) in enumerate(zip(payloads, flags, strict=True))
            for frame in cut(self.far, sequence, payload, flag)
        ]
        self.frames.append(self.far.message(len(payloads) + 5000))  # far too early

    # --- what arrives ---

    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        frame = st.one_of(
            st.sampled_from(self.frames),
            st.sampled_from(self.frames[:2]),
            st.sampled_from(self.frames).map(_spoilt),
            st.builds(self.far.ack, st.integers(0, self.model.sent + 2), st.integers(0, 1)),
            st.builds(_acknowledging, st.sampled_from(self.frames), st.integers(0, self.model.sent + 1)),
        )
        self.take(data.draw(st.lists(frame, min_size=1, max_size=6)))

    @rule(data=st.data())
    def arrive_in_order(self, data: st.DataObject) -> None:
        self.take(self.frames[: data.draw(st.integers(1, len(self.frames)))])

    @precondition(lambda self: self.model.state)
    @rule(index=st.integers(0, 3), is_alone=st.booleans())
    def fault(self, index: int, *, is_alone: bool) -> None:
        frames = [] if is_alone else [self.far.ack(index, 0), self.frames[0], self.far.ack(self.model.sent, 0)]
        self.take([*frames[:1], self.far.fault(-8490), *frames[1:]])

    def take(self, frames: list[bytes]) -> None:
        sound = [(header, body) for header, body in map(decode_dialog, frames) if header.message_id != SPOILT]

        receipt = receive_frames(self.db, frames, self.now)

        self.check_told(receipt, is_due=self.model.batch(sound))

    def check_told(self, receipt: ReceiveResult, *, is_due: bool) -> None:
        told = [(standing.place, standing.held) for standing in receipt.stored.values()]
        told += [(place, ()) for _, place in receipt.closed]
        held = {(sequence, n) for _, runs in told for sequence, first, last in runs for n in range(first, last + 1)}
        assert [place for place, _ in told] == ([self.model.expected] if is_due and self.model.state else [])
        assert not is_due or held == set(self.model.here)

    # --- what the application does ---

    @property
    def dialog(self) -> Dialog:
        (row,) = rows(self.db, "SELECT endpoint_id, conversation_handle, conversation_id FROM broker_conversation")
        return Dialog(self.db, *row)

    @precondition(lambda self: self.model.state in ("SO", "CO"))
    @rule(body=st.binary(max_size=5))
    def send(self, body: bytes) -> None:
        self.dialog.send(body)
        self.model.sent += 1
        self.model.state = "CO"

    @precondition(lambda self: self.model.state in ("SI", "CO", "DI", "ER"))
    @rule(is_error=st.booleans())
    def end(self, *, is_error: bool) -> None:
        self.dialog.end(error=1 if is_error else None, description="why" if is_error else "")
        if self.model.state in ("DI", "ER"):
            self.model.close()
        else:
            self.model.end_sequence = self.model.sent
            self.model.sent += 1
            self.model.state = "DO"
            self.model.unread.clear()

    @rule()
    def read(self) -> None:
        expected = sorted(self.model.unread, key=lambda message: -message[0])

        messages = receive(self.db, queue=QUEUE)

        assert [name for _, name, _ in expected] == [message.type for message in messages]
        assert [body for _, name, body in expected if name == "T"] == [m.body for m in messages if m.type == "T"]
        self.model.unread.clear()

    # --- what time does ---

    @rule()
    def keep(self) -> None:
        self.housekeeping.run(self.db, self.now)

    @precondition(lambda self: self.model.state not in ("", "CD"))
    @rule()
    def outlive(self) -> None:
        """Past its lifetime, and back: that of the dialog is not over for the rules that follow."""
        key = "UPDATE broker_conversation SET lifetime = "
        self.db.execute(f"{key} ?", (self.now,))
        Maintenance().run(self.db, self.now)
        self.db.execute(f"{key} ?", (self.now + LIFETIME_MAX,))
        if self.model.state != "DI" or self.model.held:
            self.model.fail()

    # --- what always holds ---

    @invariant()
    def the_file_says_what_the_model_says(self) -> None:
        if not hasattr(self, "db"):
            return
        model = self.model
        ledger = dict(rows(self.db, "SELECT entry, messages FROM broker_ledger"))
        sums = (
            "SELECT coalesce(sum(send_sequence), 0), coalesce(sum(acknowledged_sequence), 0) FROM broker_conversation"
        )
        ((sent, acknowledged),) = rows(self.db, sums)
        sent, acknowledged = sent + ledger.pop("sent", 0), acknowledged + ledger.pop("acknowledged", 0)
        (held,) = rows(self.db, "SELECT count(*) FROM broker_transmission")
        assert sent == acknowledged + held + sum(ledger.values())
        assert (model.sent, model.acknowledged, model.held, model.failed) == (
            sent,
            acknowledged,
            held,
            sum(ledger.values()),
        )
        assert [(model.state, *model.expected)] * bool(model.state) == rows(
            self.db,
            "SELECT state, receive_sequence, receive_sequence_frag FROM broker_conversation"
            " UNION ALL SELECT 'CD', receive_sequence, receive_sequence_frag FROM broker_tombstone",
        )
        assert len(model.unread) == len(rows(self.db, "SELECT 1 FROM broker_message"))

    def teardown(self) -> None:
        """Whatever was left behind is removed, but what waits for its turn or for its reader."""
        if hasattr(self, "db"):
            while self.housekeeping.run(self.db, self.now)[1]:
                pass
            if self.model.state not in TAKES:
                assert [] == rows(self.db, "SELECT * FROM broker_fragment") or self.model.state == "DO"
            self.db.close()
            self.directory.cleanup()


SPOILT = b"spoilt".ljust(16)


def _spoilt(frame: bytes) -> bytes:
    header, body = decode_dialog(frame)
    return encode_dialog(replace(header, message_id=SPOILT, body_checksum=header.body_checksum ^ 1 or 1), body)


def _acknowledging(frame: bytes, sequence: int) -> bytes:
    header, body = decode_dialog(frame)
    return encode_dialog(replace(header, ack_sequence=sequence), body)


@pytest.mark.promise(7, 8, 11, "R5.2", "R5.3", "R6.6", "forwarding 15")
def test_the_store_takes_what_comes_as_the_model_does() -> None:
    run_state_machine_as_test(ReceptionMachine, settings=settings(max_examples=40, stateful_step_count=20))


# --- frames that no broker would send ---

numbers = st.one_of(st.integers(0, 3), st.sampled_from([2**32 - 1, 2**63, 2**64 - 1]))
halves = st.one_of(st.integers(0, 3), st.just(2**32 - 1))


@st.composite
def junk(draw: st.DrawFn, conversation_id: bytes, instance: bytes) -> bytes:
    contact = Contact(
        conversation_id,
        draw(st.booleans()),
        draw(st.sampled_from(["Here", "//far/Billing"])),
        draw(st.sampled_from([FAR, instance, bytes(16)])),
        "Here",
        draw(st.sampled_from([NO_GUID, instance])),
    )
    body = draw(st.sampled_from([b"", ENVELOPE, b"\x81\xa6stored\x91\x93\x01\x00\x00", b"\xff" * 9]))
    header, _ = decode_dialog(FarSide(contact, Envelope()).fragment((0, 0), body))
    flags = draw(st.sampled_from([0, LAST, LAST | Flag.END_DIALOG, LAST | Flag.ERROR, 0x3F & ~Flag.SEALED]))
    changed = replace(
        header,
        kind=draw(st.sampled_from([FrameKind.MESSAGE, FrameKind.MESSAGE, FrameKind.ACK, FrameKind.FAULT, 0x20])),
        flags=(header.flags & Flag.FROM_TARGET) | flags,
        sequence_number=draw(numbers),
        fragment_number=draw(halves),
        ack_sequence=draw(numbers),
        ack_fragment=draw(halves),
        body_checksum=0,
    )
    return encode_dialog(changed, body)


@given(st.data())
@settings(max_examples=examples(60))
def test_no_frame_whatever_breaks_the_store_or_its_ledger(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        db = open_database(Path(directory) / "side.db", "Here")
        dialog = begin_dialog(db, from_service="Here", to_service="//far/Billing")
        for body in (b"a", b"b"):
            dialog.send(body)
        frames = junk(dialog.conversation_id.bytes, broker_instance(db))

        for batch in data.draw(st.lists(st.lists(frames, min_size=1, max_size=5), max_size=8)):
            before = _places(db)
            receive_frames(db, batch, NOW)
            after = _places(db)
            assert all(after.get(key, place) >= place for key, place in before.items())
            assert read_balance(db).unaccounted == 0
        db.close()


def _places(db: sqlite3.Connection) -> dict[tuple[bytes, int], Place]:
    found = rows(
        db,
        "SELECT conversation_id, is_initiator, receive_sequence, receive_sequence_frag FROM broker_conversation UNION"
        " SELECT conversation_id, is_initiator, receive_sequence, receive_sequence_frag FROM broker_tombstone",
    )
    return {(conversation, side): (sequence, fragment) for conversation, side, sequence, fragment in found}

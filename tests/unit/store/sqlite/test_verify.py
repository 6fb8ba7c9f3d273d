"""What of the frames that arrive is believed: by the row of their side, by who sealed them, and by where they began."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from broker.conversation.frames import Contact, Fragment, Seal, Travel, ack_frame, fault_frame, message_frame
from broker.flow import Disposition
from broker.protocol.frame import Envelope, Fault, encode_envelope
from broker.protocol.layout import NO_GUID, Flag
from broker.security.grants import Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal
from broker.security.secured import Mode, Secured
from broker.security.session import FRESH_SECONDS, DialogCredentials, Sealer
from broker.store.port import ReceiveResult, WriteBatch
from broker.store.sqlite import verify as module
from broker.store.sqlite.metadata import put_permission
from broker.store.sqlite.receive import store_frames
from broker.store.sqlite.session_keys import load_secured
from broker.store.sqlite.transaction import writing
from broker.store.sqlite.verify import FrameVerifier
from tests.support.dialog import open_database, queued, rows
from tests.support.identities import credentials, signing
from tests.support.sealed import BILLING, CONVERSATION, HERE, NOW, ORDERS, THERE, draw

FULL, ANONYMOUS = Secured(Mode.FULL, "billing"), Secured(Mode.ANONYMOUS, "billing", b"s" * 32)
ENVELOPE = encode_envelope(Envelope(type="T", contract="C", lifetime=600))
LAST = int(Flag.LAST_FRAGMENT)
INSIDE = {0: Secured(None)}  # the first frame, of a dialog that never leaves
MAY_LEAVE = {0: Secured(None, "CN=orders")}  # its initiator's binding seals
MAY_LEAVE_UNNAMED = {0: Secured(None, secret=b"s" * 32)}  # its initiator's binding is anonymous


class Far:
    """The initiator of a dialog with the database under test, which may seal, or not."""

    def __init__(self, secured: Secured | None = FULL, name: str = "orders", service: str = ORDERS) -> None:
        self.contact = Contact(CONVERSATION, True, service, HERE, BILLING, NO_GUID, secured)
        self.credentials = credentials(name, "billing")
        self.sealer = Sealer(secured or FULL, self.contact.direction(), self.credentials, draw)
        self._number = 0

    def seal(self) -> Seal | None:
        return None if self.contact.secured is None else Seal(self.sealer, NOW, with_packet=True)

    def message(self, sequence: int, body: bytes = b"body", *, is_clear: bool = False) -> bytes:
        fragment = Fragment((sequence, 0), LAST, ENVELOPE + body, (0, 0))
        return message_frame(self.contact, Travel(), self._id(), fragment, None if is_clear else self.seal())

    def ack(self) -> bytes:
        return ack_frame(self.contact, Travel(), self._id(), (1, 0), seal=self.seal())

    def fault(self) -> bytes:
        return fault_frame(self.contact, Travel(), self._id(), Fault(-8462, "x"), self.seal())

    def _id(self) -> bytes:
        self._number += 1
        return self._number.to_bytes(16, "big")


class Database:
    """The target."""

    def __init__(self, path: Path) -> None:
        self.db = open_database(path, BILLING)
        self.verifier = FrameVerifier(credentials("billing", "orders", "mallory"))

    def take(
        self,
        *frames: bytes,
        now: float = NOW,
        inside: Mapping[int, Secured] | None = None,
        origins: Sequence[object] = (),
    ) -> ReceiveResult:
        with writing(self.db):
            batch = WriteBatch(now, list(frames), origins=origins, inside=inside or {})
            return store_frames(self.db, THERE, batch, self.verifier)

    def permit(self, principal: str) -> None:
        rule = PermissionRule(Permission.SEND, BILLING, parse_principal(principal), PermissionState.GRANT)
        put_permission(self.db, rule)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in queued(self.db)]

    @property
    def secured(self) -> Secured | None:
        return load_secured(self.db, CONVERSATION, is_initiator=False)


@pytest.fixture
def billing(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "billing.db")
    database.permit("CN=orders")
    yield database
    database.db.close()


@pytest.fixture
def open_house(billing: Database) -> Database:
    """Everybody may send, sealed or not."""
    billing.permit("public")
    return billing


# --- dialogs that begin -------------------------------------------------------------------------------------


CLEAR = (None, None, None)
SEALED = (FULL, Secured(Mode.FULL, "CN=orders"), "orders")
UNNAMED = (ANONYMOUS, Secured(Mode.ANONYMOUS, secret=b"s" * 32), None)


@pytest.mark.parametrize(("binding", "secured", "certificate"), [SEALED, UNNAMED, CLEAR])
def test_a_dialog_begins_and_stays_as_it_is_secured(
    open_house: Database, binding: Secured | None, secured: Secured | None, certificate: str | None
) -> None:
    far = Far(binding)

    receipt = open_house.take(far.message(0), far.message(1))

    assert [b"body", b"body"] == open_house.bodies
    assert secured == open_house.secured
    kept = None if certificate is None else f"sha256:{signing(certificate).fingerprint.hex()}"
    assert [kept] * (secured is not None) == rows(open_house.db, "SELECT far_certificate FROM broker_session_key")
    (standing,) = receipt.stored.values()
    assert secured == standing.contact.secured
    assert ({(CONVERSATION, False)} if secured else set()) == set(receipt.keys)


@pytest.mark.parametrize("secured", [ANONYMOUS, None])
def test_without_a_right_of_the_public_neither_anonymous_nor_clear_dialogs_begin(
    billing: Database, secured: Secured | None
) -> None:
    receipt = billing.take(Far(secured).message(0))

    assert Counter({Disposition.NOT_PERMITTED: 1}) == receipt.dropped
    ((contact, fault),) = receipt.faults
    assert -8494 == fault.code
    assert "no GRANT SEND ON SERVICE::[//shop/Billing] TO [public]" in fault.text
    assert (None if secured is None else Secured(Mode.ANONYMOUS, secret=b"s" * 32)) == contact.secured
    assert ([], None) == (billing.bodies, billing.secured)


def test_who_may_not_send_is_told_under_seal(billing: Database) -> None:
    receipt = billing.take(Far(name="mallory").message(0))

    ((contact, fault),) = receipt.faults
    assert -8494 == fault.code
    assert "[CN=mallory]" in fault.text
    assert Secured(Mode.FULL, "CN=mallory") == contact.secured
    assert fault.text.endswith(receipt.refusals[Disposition.NOT_PERMITTED])


def test_what_cannot_be_resolved_is_dropped_in_silence(billing: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """No seal is broken, so what its sender brings later is opened."""
    monkeypatch.setattr(module, "FAILURES_MAX", 1)
    known, billing.verifier.credentials.peers = billing.verifier.credentials.peers, credentials("billing").peers

    receipt = billing.take(Far().message(0))
    billing.verifier.credentials.peers = known
    later = billing.take(Far().message(0))

    assert Counter({Disposition.SECURITY_UNRESOLVED: 1}) == receipt.dropped
    assert ([], {}, []) == (receipt.faults, receipt.stored, receipt.unknown_dialogs)
    assert "sha256:" in receipt.refusals[Disposition.SECURITY_UNRESOLVED]
    assert Counter() == later.dropped


def test_a_packet_that_is_not_fresh_begins_nothing(billing: Database) -> None:
    frame = Far().message(0)

    receipt = billing.take(frame, now=NOW + FRESH_SECONDS)

    assert Counter({Disposition.SECURITY_UNRESOLVED: 1}) == receipt.dropped
    assert ([], []) == (receipt.faults, rows(billing.db, "SELECT * FROM broker_conversation"))
    assert "compare the clocks" in receipt.refusals[Disposition.SECURITY_UNRESOLVED]


def test_a_dialog_that_begins_sealed_and_in_clear_at_once_is_sealed(open_house: Database) -> None:
    """And of two principals that begin one dialog the first has it."""
    far, mallory = Far(), Far(name="mallory")

    receipt = open_house.take(far.message(0, b"made up", is_clear=True), far.message(0), mallory.message(0, b"2"))

    assert [b"body"] == open_house.bodies
    assert Counter({Disposition.NOT_SEALED: 1, Disposition.SESSION_KEY_UNKNOWN: 1}) == receipt.dropped


# --- dialogs that go on -------------------------------------------------------------------------------------


def test_a_sealed_fault_ends_a_sealed_dialog(billing: Database) -> None:
    far = Far()
    billing.take(far.message(0))

    billing.take(far.fault())

    assert ["ER"] == rows(billing.db, "SELECT state FROM broker_conversation")


def test_a_dialog_that_began_in_clear_stays_in_clear(open_house: Database) -> None:
    """Else who begins it before the true initiator does would have its messages taken for the initiator's."""
    far = Far()
    open_house.take(far.message(0, is_clear=True))

    receipt = open_house.take(far.message(0), far.message(1))

    assert Counter({Disposition.NOT_SECURED: 2}) == receipt.dropped
    assert ({}, None) == (receipt.stored, open_house.secured)


@pytest.mark.parametrize(
    ("is_key_known", "why"), [(False, Disposition.SECURITY_UNRESOLVED), (True, Disposition.SESSION_KEY_UNKNOWN)]
)
def test_who_is_known_and_permitted_has_no_part_in_the_dialog_of_another(
    open_house: Database, *, is_key_known: bool, why: Disposition
) -> None:
    """Nor with a key of a message that is not the first, which was taken before the other began the dialog."""
    mallory = Far(name="mallory")
    if is_key_known:
        open_house.take(mallory.message(1))
    open_house.take(Far().message(0))

    receipt = open_house.take(mallory.message(1))

    assert Counter({why: 1}) == receipt.dropped
    assert [b"body"] == open_house.bodies


def test_a_new_certificate_of_the_far_side_is_noted(billing: Database) -> None:
    far = Far()
    billing.take(far.message(0))
    billing.db.execute("UPDATE broker_session_key SET far_certificate = 'sha256:before'")

    billing.take(far.message(1))
    known = rows(billing.db, "SELECT far_certificate FROM broker_session_key")
    billing.take(Far().message(2))

    assert ["sha256:before"] == known
    assert [f"sha256:{signing('orders').fingerprint.hex()}"] == rows(
        billing.db, "SELECT far_certificate FROM broker_session_key"
    )


def test_a_tombstone_answers_under_seal_and_goes_with_its_key(billing: Database) -> None:
    far = Far()
    billing.take(far.message(0))
    billing.db.execute("UPDATE broker_conversation SET state = 'DI', end_dialog_sequence = 0, send_sequence = 1")
    fragment = Fragment((1, 0), LAST | Flag.END_DIALOG, ENVELOPE, (1, 0))
    end = message_frame(far.contact, Travel(), b"e" * 16, fragment, far.seal())
    billing.db.execute("UPDATE broker_conversation SET state = 'DO'")
    billing.take(end)

    again, clear = billing.take(far.message(0)), billing.take(far.message(0, is_clear=True))

    assert [Secured(Mode.FULL, "CN=orders")] == [contact.secured for contact, _ in again.closed]
    assert ([], Counter({Disposition.NOT_SEALED: 1})) == (clear.closed, clear.dropped)


# --- inside the instance ------------------------------------------------------------------------------------


def test_frames_from_inside_are_taken_in_clear_and_nobody_asks_who_sent_them(billing: Database) -> None:
    receipt = billing.take(Far().message(0, is_clear=True), inside=INSIDE)

    assert [b"body"] == billing.bodies
    assert Secured(None) == billing.secured
    assert Counter() == receipt.dropped


@pytest.mark.parametrize(
    ("binding", "inside", "secured"),
    [
        (FULL, MAY_LEAVE, Secured(Mode.FULL, "CN=orders")),
        (ANONYMOUS, MAY_LEAVE_UNNAMED, Secured(Mode.ANONYMOUS, secret=b"s" * 32)),
    ],
    ids=["full", "anonymous"],
)
def test_a_dialog_that_began_inside_is_sealed_as_soon_as_its_initiator_seals_it(
    billing: Database, binding: Secured, inside: Mapping[int, Secured], secured: Secured
) -> None:
    """One of its databases has moved to another instance; the packet may be old, for the dialog has begun."""
    far = Far(binding)
    billing.take(far.message(0, is_clear=True), inside=inside)

    receipt = billing.take(far.message(1, b"made up", is_clear=True), far.message(1), now=NOW + FRESH_SECONDS)
    later = billing.take(far.message(2, is_clear=True))
    back = billing.take(far.message(2, b"back", is_clear=True), inside=INSIDE)

    assert [b"body", b"body", b"back"] == billing.bodies
    assert secured == billing.secured
    assert [secured] == [contact.secured for contact in receipt.contacts.values()]
    assert Counter({Disposition.NOT_SEALED: 1}) == receipt.dropped == later.dropped
    assert Counter() == back.dropped


@pytest.mark.parametrize("kind", ["message", "ack", "fault"])
@pytest.mark.parametrize("inside", [INSIDE, MAY_LEAVE, MAY_LEAVE_UNNAMED], ids=["stays", "full", "anonymous"])
def test_another_service_of_its_initiator_s_principal_does_not_take_over_a_dialog_that_began_inside(
    open_house: Database, inside: Mapping[int, Secured], kind: str
) -> None:
    """Of other principals `tests/property/test_exchanged_fields.py` shows it."""
    open_house.take(Far().message(0, is_clear=True), inside=inside)
    before, other = list(open_house.db.iterdump()), Far(FULL, "orders", "//shop/Returns")
    frame = {"message": other.message(1, b"made up"), "ack": other.ack(), "fault": other.fault()}[kind]

    receipt = open_house.take(frame)
    assert before == list(open_house.db.iterdump())
    true = open_house.take(Far().message(1, b"true", is_clear=True), inside=inside)

    assert 1 == receipt.dropped.total()
    assert ([], [], {}) == (receipt.faults, receipt.unknown_dialogs, receipt.stored)
    assert Counter() == true.dropped
    assert [b"body", b"true"] == open_house.bodies


def test_a_frame_from_inside_begins_the_dialog_before_a_sealed_one_of_the_same_batch(open_house: Database) -> None:
    made_up = Far(name="mallory").message(0, b"made up")

    receipt = open_house.take(made_up, Far().message(0, is_clear=True), inside={1: Secured(None)})

    assert Counter({Disposition.NOT_SECURED: 1}) == receipt.dropped
    assert ([b"body"], Secured(None)) == (open_house.bodies, open_house.secured)


def test_an_initiator_without_a_binding_takes_answers_from_inside_only(tmp_path: Path) -> None:
    db = open_database(tmp_path / "orders.db", ORDERS)
    from broker.client.dialog import begin_dialog

    dialog = begin_dialog(db, from_service=ORDERS, to_service=BILLING, encryption=True)
    conversation = dialog.conversation_id.bytes
    contact = Contact(conversation, False, BILLING, THERE, ORDERS, HERE)
    frame = message_frame(contact, Travel(), b"m" * 16, Fragment((0, 0), LAST, ENVELOPE, (0, 0)))

    verifier = FrameVerifier(DialogCredentials())
    with writing(db):
        outside = store_frames(db, HERE, WriteBatch(NOW, [frame]), verifier)
        inside = store_frames(db, HERE, WriteBatch(NOW, [frame], inside=INSIDE), verifier)

    assert Counter({Disposition.NOT_SEALED: 1}) == outside.dropped
    assert Counter({ORDERS: 1}) == inside.delivered
    db.close()


def test_who_brings_many_broken_seals_is_not_trusted_with_new_keys_for_a_second(
    billing: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batches: to find that a key packet does not open costs some hundred microseconds."""
    monkeypatch.setattr(module, "FAILURES_MAX", 3)
    junk = [frame[:-90] + bytes(90) for frame in (Far(ANONYMOUS).message(0) for _ in range(5))]

    first = billing.take(*junk[:2], origins=["bad"] * 2)
    crowd = billing.take(*junk[2:], Far().message(0), Far().message(0), origins=[*["bad"] * 4, "good"], now=NOW + 0.5)
    later = billing.take(Far().message(0), now=NOW + 1, origins=["bad"])

    assert Counter({Disposition.SEAL_BROKEN: 2}) == first.dropped
    assert Counter({Disposition.SEAL_BROKEN: 1, Disposition.SESSION_KEY_UNKNOWN: 3}) == crowd.dropped
    assert Counter({Disposition.DUPLICATE: 1}) == later.dropped
    assert [b"body"] == billing.bodies

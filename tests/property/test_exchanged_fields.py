"""
Frames that are valid, and not of the dialog that they name: none has an effect, and none has more than one answer.

A side is found by the conversation id, and permissions are asked of the service that a frame names. So each field that
identifies a dialog is exchanged for that of another dialog of the same database, alone and together, for every kind of
frame, in clear and sealed, by a peer that may send to every service here and whose certificate is known here.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import begin_dialog
from broker.client.receiving import receive
from broker.conversation.frames import Contact, Fragment, Seal, Travel, ack_frame, fault_frame, message_frame
from broker.flow import Disposition
from broker.protocol.frame import Envelope, Fault, decode_dialog, encode_dialog, encode_envelope
from broker.protocol.layout import Flag
from broker.security.grants import Permission, PermissionRule, PermissionState
from broker.security.principal import parse_principal
from broker.security.secured import Mode, Secured
from broker.security.session import Sealer
from broker.store.port import ReceiveResult, WriteBatch
from broker.store.sqlite.database import broker_instance
from broker.store.sqlite.ledger import FailureReason, close
from broker.store.sqlite.metadata import put_permission
from broker.store.sqlite.receive import store_frames
from broker.store.sqlite.session_keys import put_secured
from broker.store.sqlite.transaction import DaemonConnection, writing
from broker.store.sqlite.verify import FrameVerifier
from tests.support.dialog import QUEUE, open_database
from tests.support.identities import credentials
from tests.support.sealed import NOW, draw

FIELDS = ("conversation_id", "is_initiator", "service_name", "broker_instance", "far_service", "far_broker_instance")
EXCHANGES = [names for count in (0, 1, 2, 5, 6) for names in itertools.combinations(FIELDS, count)]
MODES = [None, Mode.FULL, Mode.ANONYMOUS]
SECRET, ENVELOPE, LAST = b"s" * 32, encode_envelope(Envelope(type="T", contract="C", lifetime=600)), Flag.LAST_FRAGMENT
MESSAGES = {"message": LAST, "end": LAST | Flag.END_DIALOG, "error": LAST | Flag.ERROR}


def secured_with(principal: str, mode: Mode | None) -> Secured | None:
    return None if mode is None else Secured(mode, principal, SECRET if mode is Mode.ANONYMOUS else b"")


def frame_of(contact: Contact, kind: str, sequence: int, by: str = "orders", stored: tuple[int, int] = (1, 0)) -> bytes:
    """A frame of this side, sealed by this principal as the contact says, or in clear."""
    seal = None
    if contact.secured is not None:
        seal = Seal(
            Sealer(contact.secured, contact.direction(), credentials(by, "billing"), draw), NOW, with_packet=True
        )
    if kind == "ack":
        return ack_frame(contact, Travel(), draw(16), (1, 0), ((1, 0, 0),), seal=seal)
    if kind == "fault":
        return fault_frame(contact, Travel(), draw(16), Fault(-8490, "x"), seal)
    return message_frame(contact, Travel(), draw(16), Fragment((sequence, 0), MESSAGES[kind], ENVELOPE, stored), seal)


@dataclass
class Stage:
    """
    A database with two dialogs.

    Shape: `mine` and `theirs` as the far sides see them; `sequence` of what a far side sends next; `inside` what their
    targets know of the initiators, where those are databases of this instance.
    """

    db: DaemonConnection
    mine: Contact
    theirs: Contact
    sequence: int = 1
    inside: Secured | None = None

    def __post_init__(self) -> None:
        self._verifier = FrameVerifier(credentials("billing", "orders", "mallory"))
        self._instance = broker_instance(self.db)

    def take(self, frame: bytes, inside: Mapping[int, Secured] | None = None) -> ReceiveResult:
        with writing(self.db):
            return store_frames(self.db, self._instance, WriteBatch(NOW, [frame], inside=inside or {}), self._verifier)

    def take_genuine(self, contact: Contact, sequence: int, stored: tuple[int, int] = (1, 0)) -> ReceiveResult:
        if self.inside is None:
            return self.take(frame_of(contact, "message", sequence, stored=stored))
        return self.take(frame_of(replace(contact, secured=None), "message", sequence, stored=stored), {0: self.inside})

    def exchanged(self, names: tuple[str, ...]) -> Contact:
        """Mine, with these fields of theirs, with the other direction, with a database that is none of the two."""
        values: dict[str, Any] = {name: getattr(self.theirs, name) for name in FIELDS}
        values |= {"is_initiator": not self.mine.is_initiator, "far_broker_instance": b"x" * 16}
        return replace(self.mine, **{name: values[name] for name in names})

    def is_of_a_dialog(self, contact: Contact) -> bool:
        """Whether it names one of the two as it is; any instance may answer one that is open."""
        known: dict[str, Any] = {} if self.sequence else {"broker_instance": contact.broker_instance}
        return any(replace(contact, secured=one.secured) == replace(one, **known) for one in (self.mine, self.theirs))


def open_targets(db: DaemonConnection, mode: Mode | None, inside: Secured | None = None) -> Stage:
    """Two dialogs that were begun by far sides, elsewhere or, in clear, within this instance."""
    far = [
        Contact(name * 16, True, f"//far/{name!r}", name * 16, f"//here/{name!r}", broker_instance(db))
        for name in (b"1", b"2")
    ]
    mine, theirs = (replace(one, secured=secured_with("billing", mode)) for one in far)
    stage = Stage(db, mine, theirs, inside=inside)
    for one in (stage.mine, stage.theirs):
        assert not stage.take_genuine(one, 0, stored=(0, 0)).dropped
    with writing(db):
        for message in receive(db, queue=QUEUE):
            message.dialog.send(b"to be acknowledged")
            message.dialog.send(b"and this")
    return stage


def open_initiators(db: DaemonConnection, mode: Mode | None, *, is_bound: bool = True) -> Stage:
    far = []
    for name in (b"1", b"2"):
        here, there = f"//here/{name!r}", f"//far/{name!r}"
        dialog = begin_dialog(db, from_service=here, to_service=there, encryption=False)
        dialog.send(b"to be acknowledged")
        dialog.send(b"and this")
        id_, secured = dialog.conversation_id.bytes, secured_with("orders", mode)
        if secured is not None:
            put_secured(db, id_, secured, NOW, is_initiator=True)
        far.append(Contact(id_, False, there, name * 16, here, broker_instance(db), secured_with("billing", mode)))
    stage = Stage(db, far[0], far[1], sequence=int(is_bound))
    for one in far if is_bound else ():
        assert not stage.take_genuine(one, 0).dropped
    return stage


def closed(stage: Stage) -> Stage:
    for (endpoint_id,) in stage.db.execute("SELECT endpoint_id FROM broker_conversation").fetchall():
        close(stage.db, endpoint_id, NOW, FailureReason.CLEANUP)
    return stage


STAGES: dict[str, Callable[[DaemonConnection, Mode | None], Stage]] = {
    "target": open_targets,
    "initiator": open_initiators,
    "open initiator": lambda db, mode: open_initiators(db, mode, is_bound=False),
    "closed target": lambda db, mode: closed(open_targets(db, mode)),
    "closed initiator": lambda db, mode: closed(open_initiators(db, mode)),
    "inside": lambda db, mode: open_targets(
        db, mode, Secured(None, "CN=orders") if mode is Mode.FULL else Secured(None, secret=SECRET if mode else b"")
    ),
}


@pytest.fixture
def db(tmp_path: Path) -> Iterator[DaemonConnection]:
    services = [f"//here/{name!r}" for name in (b"1", b"2")]
    db = open_database(tmp_path / "billing.db", *services)
    for service in services:
        put_permission(db, PermissionRule(Permission.SEND, service, parse_principal("public"), PermissionState.GRANT))
    yield db
    db.close()


def forged(stage: Stage, contact: Contact, kind: str) -> Iterator[tuple[str, bytes]]:
    """What others than the far side can send with these ends, as they are, or in the place of its own frame."""
    is_clear_dialog = stage.mine.secured is None and stage.inside is None
    if not (is_clear_dialog and stage.is_of_a_dialog(contact)):
        yield "clear", frame_of(replace(contact, secured=None), kind, stage.sequence)
    for mode in (Mode.FULL, Mode.ANONYMOUS):
        secured = Secured(mode, "billing", b"m" * 32 if mode is Mode.ANONYMOUS else b"")
        yield f"mallory {mode}", frame_of(replace(contact, secured=secured), kind, stage.sequence, by="mallory")
    if stage.mine.secured is not None and not stage.is_of_a_dialog(contact):
        _, body = decode_dialog(frame_of(stage.mine, kind, stage.sequence))
        header, _ = decode_dialog(frame_of(contact, kind, stage.sequence))
        yield "altered on the way", encode_dialog(header, body)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("where", STAGES)
def test_a_frame_with_exchanged_fields_has_no_effect(db: DaemonConnection, where: str, mode: Mode | None) -> None:
    stage = STAGES[where](db, mode)
    for kind, names in itertools.product([*MESSAGES, "ack", "fault"], EXCHANGES):
        contact = stage.exchanged(names)
        if where == "open initiator" and "is_initiator" in names and kind in MESSAGES:
            continue  # it begins another dialog
        for how, frame in forged(stage, contact, kind):
            before = db.total_changes

            receipt = stage.take(frame)

            case = (kind, names, how)
            assert before == db.total_changes, case
            assert [Disposition.DELIVERED] != receipt.verdicts(), case
            assert (0, {}, {}) == (receipt.delivered.total(), receipt.acknowledged, receipt.contacts), case
            answers = len(receipt.faults) + len(receipt.unknown_dialogs) + len(receipt.closed) + len(receipt.stored)
            assert answers <= 1, case
    for one in (stage.mine, stage.theirs):  # and the dialogs go on
        before = db.total_changes
        genuine = stage.take_genuine(one, stage.sequence)
        assert before < db.total_changes
        assert genuine.dropped.keys() <= {Disposition.CONVERSATION_ENDED}

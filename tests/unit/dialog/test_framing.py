"""Frames are sealed where they leave the instance, and it is said why one cannot be."""

from __future__ import annotations

import time

import pytest

from broker.conversation.frames import Contact, Fragment, Travel
from broker.conversation.outbound import Outgoing
from broker.dialog import transmitter as module
from broker.dialog.transmitter import NO_BINDING, NO_CERTIFICATE, Framing
from broker.flow import Disposition
from broker.forwarding.sink import DatabaseSink, DropSink
from broker.forwarding.way import Way
from broker.security.key_packet import Mode
from broker.security.opening import Opener
from broker.security.seal import read_box
from broker.security.session import CannotSealError, Credentials, Secured
from broker.store.receipt import Heard
from broker.wire.frame import (
    Envelope,
    Fault,
    decode_dialog,
    decode_envelope,
    decode_fault,
    decode_stored,
    encode_envelope,
)
from broker.wire.layout import Flag, Kind
from tests.support.identities import credentials
from tests.support.sealed import initiator, target

INSIDE = Way(DatabaseSink(b"b" * 16, lambda *_: None, lambda *_: None), Disposition.DELIVERED, kind=Kind.MESSAGE)
OUTSIDE = Way(DropSink(Disposition.NO_ROUTE, lambda *_: None), Disposition.FORWARDED, kind=Kind.MESSAGE)
FULL = Secured(Mode.FULL, "billing")
NONE = Secured(None)
FRAGMENT = Fragment((0, 0), 2, b"text", (0, 0))
ORDERS = credentials("orders", "billing")


def framing(known: Credentials = ORDERS) -> Framing:
    return Framing(Travel(), known)


def is_sealed(frame: bytes | None) -> bool:
    assert frame is not None
    return bool(decode_dialog(frame)[0].flags & Flag.SEALED)


def opened(frame: bytes | None) -> bytes:
    assert frame is not None
    header, body = decode_dialog(frame)
    return Opener(credentials("billing", "orders")).open(header, frame, body, lambda: None, time.time()).body


def test_what_leaves_the_instance_is_sealed() -> None:
    made = framing()
    contact = initiator(FULL)

    message = made.message(contact, FRAGMENT, made.seal(contact, OUTSIDE, with_packet=False))
    ack = made.ack(contact, OUTSIDE, (1, 0), ((3, 0, 0),))
    fault = made.fault(contact, OUTSIDE, Fault(-8470, "dropped"))

    assert is_sealed(message)
    assert is_sealed(ack)
    assert is_sealed(fault)
    assert b"text" == opened(message)
    assert ((3, 0, 0),) == decode_stored(opened(ack)).stored
    assert Fault(-8470, "dropped") == decode_fault(opened(fault))


@pytest.mark.parametrize(
    ("contact", "way"),
    [
        (initiator(None), OUTSIDE),
        (initiator(FULL), INSIDE),
        (initiator(NONE), INSIDE),
        (target(FULL), INSIDE),
        (target(NONE), OUTSIDE),
    ],
    ids=["in clear", "inside", "inside without a binding", "answer inside", "its far side has moved away"],
)
def test_what_stays_or_is_in_clear_is_not_sealed(contact: Contact, way: Way) -> None:
    made = framing()

    assert made.seal(contact, way, with_packet=True) is None
    assert not is_sealed(made.ack(contact, way, (1, 0)))
    assert not is_sealed(made.fault(contact, way, Fault(-1, "x")))


def test_what_cannot_be_sealed_is_not_made() -> None:
    made, contact = framing(credentials("orders")), initiator(FULL)

    with pytest.raises(CannotSealError, match="no certificate of billing is among the peers"):
        made.seal(contact, OUTSIDE, with_packet=False)

    assert made.ack(contact, OUTSIDE, (1, 0)) is None
    assert made.fault(contact, OUTSIDE, Fault(-1, "x")) is None
    assert made.final(contact) is None, "the certificate may still come"


@pytest.mark.parametrize(
    ("contact", "known", "code", "what"),
    [
        (initiator(NONE), ORDERS, NO_BINDING, "CREATE REMOTE SERVICE BINDING name TO SERVICE '//shop/Billing'"),
        (initiator(FULL), credentials(None, "billing"), NO_CERTIFICATE, "this database has no certificate"),
    ],
)
def test_what_will_never_be_sealed_has_an_error_with_the_number_of_the_original(
    contact: Contact, known: Credentials, code: int, what: str
) -> None:
    made = framing(known)

    with pytest.raises(CannotSealError):
        made.seal(contact, OUTSIDE, with_packet=False)
    fault = made.final(contact)

    assert fault is not None
    assert code == fault.code
    assert what in fault.text


def test_a_target_without_its_certificate_waits_for_it() -> None:
    """It has begun with one."""
    made = framing(credentials(None, "orders"))

    assert made.final(target(Secured(Mode.FULL, "CN=orders"))) is None


def packet_of(frame: bytes | None) -> bytes:
    assert frame is not None
    return read_box(decode_dialog(frame)[1]).packet


def test_the_packet_stays_away_when_the_far_side_has_named_the_key() -> None:
    made, contact = framing(), initiator(FULL)
    first = made.ack(contact, OUTSIDE, (1, 0), is_urgent=False)
    assert first is not None
    key_id = read_box(decode_dialog(first)[1]).key_id

    made.heard(contact.conversation_id, Heard(key_id[:8], b"k" * 16), is_initiator=True)
    made.heard(b"another dialog!!", Heard(key_id[:8], b"k" * 16), is_initiator=True)

    assert packet_of(first)
    assert b"" == packet_of(made.ack(contact, OUTSIDE, (2, 0), is_urgent=False))
    assert packet_of(made.ack(contact, OUTSIDE, (2, 0), is_urgent=True))


def test_a_dialog_that_is_secured_otherwise_has_another_key() -> None:
    made = framing()
    one = made.seal(initiator(FULL), OUTSIDE, with_packet=False)
    same = made.seal(initiator(FULL), OUTSIDE, with_packet=False)
    other = made.seal(initiator(Secured(Mode.FULL, "CN=billing")), OUTSIDE, with_packet=False)

    assert one is not None
    assert same is not None
    assert other is not None
    assert one.sealer is same.sealer is not other.sealer


def test_keys_that_are_kept_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEALERS_MAX", 2)
    made = framing()
    contacts = [initiator(FULL, bytes([number]) * 16) for number in range(3)]

    seals = [made.seal(contact, OUTSIDE, with_packet=False) for contact in contacts]
    kept = [made.seal(contact, OUTSIDE, with_packet=False) for contact in (contacts[2], contacts[1], contacts[0])]

    assert [True, True, False] == [
        one is not None and other is not None and one.sealer is other.sealer
        for one, other in zip(reversed(seals), kept, strict=True)
    ]


def test_ids_of_transmissions_are_all_different() -> None:
    made = framing()

    assert 1000 == len({made.message_id() for _ in range(1000)})
    assert {16} == {len(made.message_id()) for _ in range(10)}


# --- what is told anew ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("waits", "told"), [(0.0, 60), (10.5, 49), (59.5, 1), (1000.0, 1)])
def test_lifetime_told_is_what_is_left_when_the_message_goes_out(
    monkeypatch: pytest.MonkeyPatch, waits: float, told: int
) -> None:
    envelope = Envelope(type="T", contract="C", lifetime=60, headers={"a": "b"})
    fragment = Outgoing((0, 0), 2, encode_envelope(envelope) + b"payload", lifetime=1060.0)
    monkeypatch.setattr(module, "time", type("Clock", (), {"time": staticmethod(lambda: 1000.0 + waits)}))

    body = framing().body(fragment)

    expected = Envelope(type="T", contract="C", lifetime=told, headers={"a": "b"})
    assert (expected, b"payload") == decode_envelope(body)


def test_clock_that_went_back_since_adds_nothing_to_the_lifetime_told(monkeypatch: pytest.MonkeyPatch) -> None:
    body = encode_envelope(Envelope(type="T", contract="C", lifetime=60))
    fragment = Outgoing((0, 0), 2, body, lifetime=1060.0, enqueued_at=1000.0)
    monkeypatch.setattr(module, "time", type("Clock", (), {"time": staticmethod(lambda: -800.0)}))

    assert 60 == decode_envelope(framing().body(fragment))[0].lifetime


def test_body_without_a_lifetime_goes_out_as_it_is() -> None:
    fragment = Outgoing((1, 0), 2, b"whatever this is")

    assert fragment.body is framing().body(fragment)

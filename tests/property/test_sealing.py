"""Sealed frames under any change: no single bit, no cut, no swap is believed, and what was not changed is."""

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.conversation.frames import Contact, Fragment, Seal, Travel, message_frame
from broker.errors import FrameMalformedError
from broker.protocol.frame import decode_dialog
from broker.security.seal import SealRefusedError
from broker.security.secured import Mode, Secured
from broker.security.session import DialogCredentials, Opener, Sealer
from tests.support.identities import credentials
from tests.support.sealed import HERE, NOW, THERE, draw
from tests.support.tiers import examples

MAY_CHANGE = {6, 12, 13, 14, 15}  # hop_count, time_consumed
INITIATOR = {
    Mode.FULL: (Secured(Mode.FULL, "billing"), credentials("orders", "billing")),
    Mode.ANONYMOUS: (Secured(Mode.ANONYMOUS, "billing", b"s" * 32), credentials(None, "billing")),
}
TARGET = {
    Mode.FULL: (Secured(Mode.FULL, "CN=orders"), credentials("billing", "orders")),
    Mode.ANONYMOUS: (Secured(Mode.ANONYMOUS, secret=b"s" * 32), credentials("billing", "orders")),
}

names = (
    st.text(min_size=1, max_size=40)
    .filter(lambda name: 1 <= len(name.encode("utf-8", "ignore")) <= 512)
    .map(lambda name: name.encode("utf-8", "ignore").decode() or "x")
)
guids = st.binary(min_size=16, max_size=16)


class Sent(NamedTuple):
    """A sealed frame, and what its receiver knows."""

    frame: bytes
    body: bytes
    receiver: DialogCredentials
    row: Secured


@st.composite
def sent(draw_: st.DrawFn) -> Sent:
    """Any frame of either side in either mode, with its packet or without."""
    mode = draw_(st.sampled_from(list(Mode)))
    is_initiator, has_arrived = draw_(st.booleans()), draw_(st.booleans())
    (secured, known), (row, receiver) = (
        (INITIATOR[mode], TARGET[mode]) if is_initiator else (TARGET[mode], INITIATOR[mode])
    )
    contact = Contact(
        draw_(guids),
        is_initiator,
        draw_(names),
        HERE,
        draw_(names),
        draw_(st.sampled_from([THERE, bytes(16)])),
        secured,
    )
    sealer = Sealer(secured, contact.direction(), known, draw)
    body = draw_(st.binary(max_size=300))
    place = draw_(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)))
    flags = draw_(st.sampled_from([0, 2, 10, 18, 34]))
    if has_arrived:
        frame = _frame(contact, sealer, body, flags, place)
        sealer.heard(decode_dialog(frame)[1][2:10], b"k" * 16)
    return Sent(_frame(contact, sealer, body, flags, place), body, receiver, row)


def _frame(contact: Contact, sealer: Sealer, body: bytes, flags: int, place: tuple[int, int]) -> bytes:
    fragment = Fragment(place, flags, body, (place[1], 7))
    return message_frame(contact, Travel(), b"m" * 16, fragment, Seal(sealer, NOW, with_packet=False))


def opened(one: Sent, frame: bytes) -> bytes | None:
    """What comes out of a frame; None when it is refused. Without its packet a key of full mode is not known."""
    try:
        header, body = decode_dialog(frame)
        return Opener(one.receiver).open(header, frame, body, lambda: one.row, NOW).body
    except (FrameMalformedError, SealRefusedError):
        return None


def is_known(one: Sent) -> bool:
    return one.row.mode is Mode.ANONYMOUS or bool(int.from_bytes(decode_dialog(one.frame)[1][38:40], "big"))


@given(sent(), st.data())
@settings(max_examples=examples(400))
def test_what_was_not_changed_is_opened_and_a_bit_that_was_is_noticed(one: Sent, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(one.frame) * 8 - 1))
    spoilt = bytearray(one.frame)
    spoilt[at // 8] ^= 1 << at % 8

    expected = one.body if is_known(one) else None
    assert expected == opened(one, one.frame)
    assert (expected if at // 8 in MAY_CHANGE else None) == opened(one, bytes(spoilt))


@given(sent(), guids, st.data())
def test_what_was_cut_off_or_moved_to_another_dialog_or_direction_is_noticed(
    one: Sent, other: bytes, data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(one.frame) - 1))
    cut = one.frame[:end]
    moved = one.frame[:32] + other + one.frame[48:]
    turned = one.frame[:5] + bytes([one.frame[5] ^ 1]) + one.frame[6:]

    assert opened(one, cut) is None
    assert opened(one, end.to_bytes(4, "big") + cut[4:]) is None
    assert opened(one, turned) is None
    assert moved == one.frame or opened(one, moved) is None

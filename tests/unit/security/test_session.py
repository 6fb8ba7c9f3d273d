"""The sending half: when a key is made, when its packet goes along, and what keeps a dialog from being sealed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broker.protocol.frame import decode_dialog
from broker.security import session
from broker.security.identity import KnownPeers, parse_own, parse_peers
from broker.security.issue import Issued, Validity, issue_sealing
from broker.security.seal import CLEAR, NO_ECHO, TAG_BYTES, Box, Mode, read_box, read_packet
from broker.security.session import KEY_SECONDS, REWRAP_SECONDS, CannotSealError, DialogCredentials, Sealer, Secured
from tests.support.identities import AGES, credentials, issue, issued, own, signing
from tests.support.sealed import NOW, initiator, sealed, sealer, target

FULL = Secured(Mode.FULL, "billing")
ANONYMOUS = Secured(Mode.ANONYMOUS, "billing", b"s" * 32)
ORDERS = credentials("orders", "billing")
NOBODY = credentials(None, "billing")
WAYS = [(FULL, ORDERS), (ANONYMOUS, NOBODY)]


def box_of(frame: bytes) -> Box:
    return read_box(decode_dialog(frame)[1])


class Side:
    """An initiator that sends."""

    def __init__(self, secured: Secured = FULL, known: DialogCredentials = ORDERS) -> None:
        self.contact = initiator(secured)
        self.sealer = sealer(self.contact, known)

    def send(self, now: float = NOW, *, again: bool = False) -> Box:
        return box_of(sealed(self.contact, self.sealer, now=now, again=again))

    def arrived(self, box: Box) -> None:
        """The far side names the key."""
        self.sealer.heard(box.key_id[:8], b"far key" + bytes(9))


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_the_packet_goes_along_until_the_far_side_has_named_the_key(secured: Secured, known: DialogCredentials) -> None:
    side = Side(secured, known)

    first, second = side.send(), side.send()
    side.arrived(first)
    third, fourth = side.send(), side.send(again=True)

    assert first.packet == second.packet == fourth.packet != b""
    assert b"" == third.packet
    assert {first.key_id} == {second.key_id, third.key_id, fourth.key_id}
    assert secured.mode is read_packet(first.packet).mode


def test_a_frame_in_steady_state_is_longer_by_what_is_in_clear_and_the_tag() -> None:
    side = Side()
    side.arrived(side.send())

    frame = sealed(side.contact, side.sealer, b"x" * 100)

    assert 100 + CLEAR.size + TAG_BYTES == len(decode_dialog(frame)[1])


def test_no_nonce_comes_twice_under_a_key() -> None:
    side = Side()

    boxes = [side.send() for _ in range(100)]

    assert 100 == len({(box.key_id, box.nonce) for box in boxes})


def test_what_was_heard_is_named_in_what_is_sent() -> None:
    side = Side()

    before = side.send()
    side.sealer.heard(NO_ECHO, b"k" * 16)

    assert (NO_ECHO, b"k" * 8) == (before.echo, side.send().echo)


def test_a_far_side_that_names_no_key_any_more_gets_the_packet_again() -> None:
    side = Side()
    side.arrived(side.send())

    side.sealer.heard(NO_ECHO, b"k" * 16)

    assert side.send().packet


def test_a_database_with_another_certificate_signs_a_new_packet() -> None:
    """Whoever has put the new one in place of the old believes no key that the old one has signed."""
    known = credentials("orders", "billing")
    side = Side(known=known)
    first = side.send()
    side.arrived(first)
    renewed = issue("orders")

    known.own = parse_own(renewed.certificate_pem, renewed.key_pem)
    later = side.send()

    assert first.key_id != later.key_id
    assert known.own.signing.fingerprint == read_packet(later.packet).signer


def test_a_far_side_that_names_another_key_changes_nothing() -> None:
    side = Side()

    side.sealer.heard(b"another!", b"k" * 16)

    assert side.send().packet


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_a_key_that_has_not_arrived_is_made_anew_while_its_packet_is_fresh(
    secured: Secured, known: DialogCredentials
) -> None:
    side = Side(secured, known)

    first, same = side.send(NOW), side.send(NOW + REWRAP_SECONDS - 1)
    later = side.send(NOW + REWRAP_SECONDS)

    assert first.key_id == same.key_id != later.key_id
    assert int(NOW + REWRAP_SECONDS) == read_packet(later.packet).made_at


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_a_key_lives_for_a_day(secured: Secured, known: DialogCredentials) -> None:
    side = Side(secured, known)
    first = side.send()
    side.arrived(first)

    last, next_day = side.send(NOW + KEY_SECONDS - 1), side.send(NOW + KEY_SECONDS)

    assert first.key_id == last.key_id != next_day.key_id
    assert next_day.packet


def test_a_key_seals_so_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "KEY_FRAMES", 3)
    side = Side()

    keys = [side.send().key_id for _ in range(7)]

    assert [3, 3, 1] == [keys.count(one) for one in dict.fromkeys(keys)]


def test_a_clock_that_goes_back_makes_a_new_key() -> None:
    """Else a packet of the future would be sent for long, and nobody would begin a dialog by it."""
    side = Side()

    assert side.send().key_id != side.send(NOW - REWRAP_SECONDS - 1).key_id


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_two_sealers_of_one_side_have_different_keys(secured: Secured, known: DialogCredentials) -> None:
    """A process that starts anew uses no key of the one before."""
    assert Side(secured, known).send().key_id != Side(secured, known).send().key_id


def test_a_target_in_anonymous_mode_sends_no_packet() -> None:
    contact = target(Secured(Mode.ANONYMOUS, secret=b"s" * 32))
    by = sealer(contact, credentials("billing"))

    assert b"" == box_of(sealed(contact, by)).packet
    assert b"" == box_of(sealed(contact, by, again=True, now=NOW + KEY_SECONDS)).packet
    assert by.far is None


def test_the_certificate_that_is_sealed_to_is_known() -> None:
    side = Side()
    side.send()

    assert signing("billing").sealing[0] == side.sealer.far


# --- peers that change --------------------------------------------------------------------------------------


def test_a_far_certificate_that_is_no_peer_any_more_is_not_sealed_to() -> None:
    known = credentials("orders", "billing")
    side = Side(FULL, known)
    side.arrived(side.send())

    known.peers = KnownPeers()

    for _ in range(2):
        with pytest.raises(CannotSealError, match="no certificate of billing is among the peers of this database"):
            side.sealer.check(NOW)


def test_a_key_is_renewed_for_the_sealing_certificate_that_is_left() -> None:
    made = issued("billing")
    other = issue_sealing(made.certificates[0], made.keys[0], AGES)  # type: ignore[arg-type]
    known = DialogCredentials(own("orders"), KnownPeers([signing("billing")]))
    side = Side(FULL, known)
    first = side.send()
    side.arrived(first)

    known.peers = KnownPeers(parse_peers(Issued((made.certificates[0], *other.certificates), ()).certificate_pem))
    second = side.send()

    assert first.key_id != second.key_id
    assert read_packet(first.packet).receiver != read_packet(second.packet).receiver


@pytest.mark.parametrize(("secured", "by"), WAYS)
def test_a_key_stays_when_peers_are_loaded_anew_and_the_far_one_is_among_them(
    secured: Secured, by: DialogCredentials
) -> None:
    known = DialogCredentials(by.own, by.peers)
    side = Side(secured, known)
    first = side.send()

    known.peers = KnownPeers([signing("billing"), signing("mallory")])

    assert first.key_id == side.send().key_id


def test_an_anonymous_dialog_keeps_its_key_without_the_far_certificate() -> None:
    known = DialogCredentials(None, NOBODY.peers)
    side = Side(ANONYMOUS, known)
    first = side.send()
    side.arrived(first)

    known.peers = KnownPeers()

    assert first.key_id == side.send().key_id


# --- what keeps it from being sealed ------------------------------------------------------------------------


def problem_of(secured: Secured, known: DialogCredentials, now: float = NOW) -> str:
    by = Sealer(secured, initiator(secured).direction(), known, bytes)
    with pytest.raises(CannotSealError) as caught:
        by.check(now)
    return str(caught.value)


def test_without_a_binding_nothing_is_sealed() -> None:
    assert "there is no remote service binding" == problem_of(Secured(None), ORDERS)


def test_without_a_certificate_there_is_no_full_mode() -> None:
    assert "this database has no certificate" == problem_of(FULL, NOBODY)


@pytest.mark.parametrize("secured", [FULL, ANONYMOUS])
def test_without_the_far_certificate_nothing_is_sealed(secured: Secured) -> None:
    found = problem_of(secured, credentials("orders"))

    assert "no certificate of billing is among the peers of this database" == found


def test_a_certificate_of_ones_own_that_is_over_signs_nothing() -> None:
    over = issue("orders", Validity(AGES.begins, datetime(2025, 1, 1, tzinfo=UTC)))
    known = DialogCredentials(parse_own(over.certificate_pem, over.key_pem), KnownPeers([signing("billing")]))

    assert "the certificate of this database, CN=orders, is not valid today" == problem_of(FULL, known)


def test_an_anonymous_dialog_goes_on_when_the_far_certificate_is_over() -> None:
    """The far side has the secret; only in full mode a new key has to be wrapped."""
    over = datetime(2027, 1, 20, tzinfo=UTC)
    made = issued("billing")
    sealing = issue_sealing(made.certificates[0], made.keys[0], Validity(AGES.begins, over))  # type: ignore[arg-type]
    known = DialogCredentials(
        None, KnownPeers(parse_peers(Issued((made.certificates[0], *sealing.certificates), ()).certificate_pem))
    )
    side = Side(ANONYMOUS, known)
    side.arrived(side.send())

    box = side.send(over.timestamp() + KEY_SECONDS)

    assert b"" == box.packet


def test_credentials_say_who_the_database_is() -> None:
    assert ("CN=orders", None) == (ORDERS.principal, NOBODY.principal)
    assert own("orders") is ORDERS.own


def test_a_secret_is_not_shown() -> None:
    assert "ssss" not in repr(ANONYMOUS)

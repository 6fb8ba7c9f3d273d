"""The sending half: when a key is made, when its packet goes along, and what keeps a dialog from being sealed."""

from datetime import UTC, datetime, timedelta

import pytest

from broker.conversation.frames import Contact
from broker.flow import Disposition
from broker.protocol.frame import decode_dialog
from broker.security import session
from broker.security.identity import KnownPeers, parse_own, parse_peers
from broker.security.issue import Issued, Validity, issue_sealing
from broker.security.principal import NOBODY
from broker.security.seal import NO_ECHO, Box, SealRefusedError, read_box, read_packet
from broker.security.secured import Mode, Secured
from broker.security.session import (
    FRESH_SECONDS,
    KEY_SECONDS,
    REWRAP_SECONDS,
    CannotSealError,
    DialogCredentials,
    KeySource,
    Opened,
    Opener,
    Sealer,
)
from broker.store.sqlite.ledger import REPLAY_GUARD
from tests.support.identities import AGES, credentials, issue, issued, own, signing
from tests.support.sealed import NOW, initiator, sealed, sealer, target

# --- opening ---
# The receiving half: whose frames are believed for which side, and when a dialog may begin.


SECRET = b"s" * 32
FULL, ANONYMOUS = Secured(Mode.FULL, "billing"), Secured(Mode.ANONYMOUS, "billing", SECRET)
AT_TARGET = {Mode.FULL: Secured(Mode.FULL, "CN=orders"), Mode.ANONYMOUS: Secured(Mode.ANONYMOUS, secret=SECRET)}
BILLING = credentials("billing", "orders")


def opened(opener: Opener, frame: bytes, secured: Secured | None = None, now: float = NOW) -> Opened:
    header, body = decode_dialog(frame)
    return opener.open(header, frame, body, lambda: secured, now)


def refusal(opener: Opener, frame: bytes, secured: Secured | None = None, now: float = NOW) -> Disposition:
    with pytest.raises(SealRefusedError) as caught:
        opened(opener, frame, secured, now)
    assert caught.value.why
    return caught.value.disposition


class Initiator:
    """The side that sends to Billing."""

    def __init__(self, secured: Secured = FULL, known: DialogCredentials | None = None) -> None:
        self.contact: Contact = initiator(secured)
        self.sealer: Sealer = sealer(self.contact, known or credentials("orders", "billing"))

    def send(self, now: float = NOW, *, again: bool = False) -> bytes:
        return sealed(self.contact, self.sealer, b"text", now=now, again=again)

    def box(self, now: float = NOW, *, again: bool = False) -> Box:
        return box_of(self.send(now, again=again))

    def arrived(self, box: Box) -> None:
        """The far side names the key."""
        self.sealer.heard(box.key_id[:8], b"far key" + bytes(9))

    def lean(self) -> bytes:
        """A frame without its packet, as one sends when the far side has the key."""
        self.arrived(self.box())
        return self.send()


def box_of(frame: bytes) -> Box:
    return read_box(decode_dialog(frame)[1])


@pytest.mark.parametrize("secured", [FULL, ANONYMOUS])
def test_a_frame_that_begins_a_dialog_says_how_it_is_secured(secured: Secured) -> None:
    found = opened(Opener(BILLING), Initiator(secured).send())

    assert secured.mode is not None
    who = signing("orders").who if secured is FULL else NOBODY
    expected = b"text", KeySource(AT_TARGET[secured.mode], who, int(NOW)), True
    assert expected == (found.body, found.source, found.is_new)


@pytest.mark.parametrize("secured", [FULL, ANONYMOUS])
def test_a_key_that_is_known_needs_no_packet_and_no_row(secured: Secured) -> None:
    opener, far = Opener(BILLING), Initiator(secured)
    opened(opener, far.send())

    def asked() -> Secured | None:
        raise AssertionError("asked for the row of a key that is known")

    frame = far.lean()
    opened(opener, far.send())
    header, body = decode_dialog(frame)
    found = opener.open(header, frame, body, asked, NOW)

    assert (b"text", False) == (found.body, found.is_new)


def test_in_full_mode_a_receiver_that_has_lost_the_key_asks_for_nothing_and_gets_it_by_the_resend() -> None:
    far = Initiator()
    lean = far.lean()
    opener = Opener(BILLING)

    assert Disposition.SESSION_KEY_UNKNOWN is refusal(opener, lean, AT_TARGET[Mode.FULL])
    assert b"text" == opened(opener, far.send(again=True), AT_TARGET[Mode.FULL]).body


def test_in_anonymous_mode_a_target_derives_the_key_again() -> None:
    lean = Initiator(ANONYMOUS).lean()

    assert b"text" == opened(Opener(BILLING), lean, AT_TARGET[Mode.ANONYMOUS]).body


def test_a_signer_who_is_no_peer_any_more_is_not_believed_by_a_key_that_is_known() -> None:
    known = credentials("billing", "orders", "mallory")
    opener, far, other = Opener(known), Initiator(), Initiator(known=credentials("mallory", "billing"))
    lean, others = far.lean(), other.lean()
    opened(opener, far.send(again=True))
    opened(opener, other.send(again=True))

    known.peers = credentials("billing", "orders").peers

    assert b"text" == opened(opener, lean).body
    assert Disposition.SESSION_KEY_UNKNOWN is refusal(opener, others)
    assert Disposition.SECURITY_UNRESOLVED is refusal(opener, other.send(again=True))


def test_keys_that_are_kept_have_a_bound() -> None:
    """The one that was not used for the longest goes first."""
    opener = Opener(BILLING, keys_max=2)
    one, two, three = Initiator(), Initiator(), Initiator()
    opened(opener, one.send())
    opened(opener, two.send())
    opened(opener, one.lean())
    opened(opener, three.send())

    assert b"text" == opened(opener, one.lean()).body
    assert Disposition.SESSION_KEY_UNKNOWN is refusal(opener, two.lean())


# --- who is believed ---


def test_who_is_known_but_not_the_far_principal_is_not_believed() -> None:
    opener = Opener(credentials("billing", "orders", "mallory"))
    mallory = Initiator(known=credentials("mallory", "billing"))

    assert Disposition.SECURITY_UNRESOLVED is refusal(opener, mallory.send(), AT_TARGET[Mode.FULL])
    assert "CN=mallory" == opened(opener, mallory.send()).source.secured.far_principal


def with_certificate(made: Issued) -> DialogCredentials:
    """Of a database that knows billing."""
    return DialogCredentials(parse_own(made.certificate_pem, made.key_pem), KnownPeers([signing("billing")]))


def test_the_same_principal_may_have_a_new_certificate() -> None:
    renewed = issue("orders")
    here = DialogCredentials(BILLING.own, KnownPeers([signing("orders"), *parse_peers(renewed.certificate_pem)]))
    far = Initiator(known=with_certificate(renewed))

    found = opened(Opener(here), far.send(), AT_TARGET[Mode.FULL])

    assert AT_TARGET[Mode.FULL] == found.source.secured
    assert signing("orders").who != found.source.who


def test_a_certificate_that_is_over_signs_nothing_any_more() -> None:
    day = datetime.fromtimestamp(NOW, UTC)
    over = issue("orders", Validity(AGES.begins, day + timedelta(hours=1)))
    frame = Initiator(known=with_certificate(over)).send()
    opener = Opener(DialogCredentials(BILLING.own, KnownPeers(parse_peers(over.certificate_pem))))

    assert Disposition.SECURITY_UNRESOLVED is refusal(opener, frame, None, NOW + 3600)
    assert b"text" == opened(opener, frame).body


REFUSED = [
    # a dialog stays in its mode
    (credentials("billing", "orders"), ANONYMOUS, AT_TARGET[Mode.FULL], Disposition.SESSION_KEY_UNKNOWN),
    (credentials("billing", "orders"), FULL, AT_TARGET[Mode.ANONYMOUS], Disposition.SESSION_KEY_UNKNOWN),
    # anybody may wrap another secret for the target's certificate
    (
        credentials("billing", "orders"),
        Secured(Mode.ANONYMOUS, "billing", b"m" * 32),
        AT_TARGET[Mode.ANONYMOUS],
        Disposition.SESSION_KEY_UNKNOWN,
    ),
    # without a certificate a database opens nothing
    (credentials(None, "orders"), FULL, None, Disposition.SECURITY_UNRESOLVED),
]


@pytest.mark.parametrize(("here", "secured", "row", "disposition"), REFUSED)
def test_what_does_not_go_with_the_dialog_is_refused(
    here: DialogCredentials, secured: Secured, row: Secured | None, disposition: Disposition
) -> None:
    assert disposition is refusal(Opener(here), Initiator(secured).send(), row)


@pytest.mark.parametrize(
    ("answers", "row", "disposition"),
    [
        # somebody who knows its certificate, if it has one, is not the target yet
        (Secured(Mode.ANONYMOUS, secret=b"m" * 32), ANONYMOUS, Disposition.SEAL_BROKEN),
        (AT_TARGET[Mode.FULL], None, Disposition.NOT_SECURED),
        (AT_TARGET[Mode.FULL], Secured(None), Disposition.NOT_SECURED),
    ],
)
def test_an_anonymous_initiator_takes_no_packet_and_one_in_clear_nothing_sealed(
    answers: Secured, row: Secured | None, disposition: Disposition
) -> None:
    contact = target(answers)
    answer = sealed(contact, sealer(contact, BILLING))

    assert disposition is refusal(Opener(credentials("orders", "billing")), answer, row)


def test_a_frame_that_did_not_open_is_not_remembered() -> None:
    opener, far = Opener(BILLING, keys_max=1), Initiator()
    good, spoilt = far.send(), bytearray(far.send())
    opened(opener, good)
    other = bytearray(Initiator().send())
    for frame in (spoilt, other):
        frame[-1] ^= 1
        assert Disposition.SEAL_BROKEN is refusal(opener, bytes(frame))

    assert b"text" == opened(opener, far.lean()).body


# --- when a dialog may begin ---


@pytest.mark.parametrize(
    ("age", "is_fresh"),
    [(0, True), (FRESH_SECONDS - 1, True), (FRESH_SECONDS, False), (1 - FRESH_SECONDS, True), (-FRESH_SECONDS, False)],
)
def test_only_a_fresh_packet_begins_a_dialog(age: float, *, is_fresh: bool) -> None:
    """One of yesterday still opens what has begun."""
    frame = Initiator().send()

    assert is_fresh is opened(Opener(BILLING), frame).source.is_fresh(NOW + age)
    assert b"text" == opened(Opener(BILLING), frame, AT_TARGET[Mode.FULL], NOW + KEY_SECONDS).body


def test_what_is_not_fresh_any_more_is_older_than_nothing_that_a_tombstone_forgets() -> None:
    """Taken at the latest as one of the future, and again when the tombstone is gone at the earliest."""
    taken = NOW - FRESH_SECONDS + 1

    assert not KeySource(FULL, made_at=NOW).is_fresh(taken + REPLAY_GUARD)


ORDERS, UNPROVED = credentials("orders", "billing"), credentials(None, "billing")
WAYS = [(FULL, ORDERS), (ANONYMOUS, UNPROVED)]


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_the_packet_goes_along_until_the_far_side_has_named_the_key(secured: Secured, known: DialogCredentials) -> None:
    side = Initiator(secured, known)

    first, second = side.box(), side.box()
    side.arrived(first)
    third, fourth = side.box(), side.box(again=True)

    assert first.packet == second.packet == fourth.packet != b""
    assert b"" == third.packet
    assert {first.key_id} == {second.key_id, third.key_id, fourth.key_id}
    assert secured.mode is read_packet(first.packet).mode


def test_no_nonce_comes_twice_under_a_key() -> None:
    side = Initiator()

    boxes = [side.box() for _ in range(100)]

    assert 100 == len({(box.key_id, box.nonce) for box in boxes})


def test_what_was_heard_is_named_in_what_is_sent() -> None:
    side = Initiator()

    before = side.box()
    side.sealer.heard(NO_ECHO, b"k" * 16)

    assert (NO_ECHO, b"k" * 8) == (before.echo, side.box().echo)


def test_a_far_side_that_names_no_key_or_another_one_gets_the_packet_again() -> None:
    side = Initiator()

    side.sealer.heard(b"another!", b"k" * 16)
    another = side.box()
    side.arrived(another)
    side.sealer.heard(NO_ECHO, b"k" * 16)

    assert another.packet
    assert side.box().packet


def test_a_database_with_another_certificate_signs_a_new_packet() -> None:
    """Whoever has put the new one in place of the old believes no key that the old one has signed."""
    known = credentials("orders", "billing")
    side = Initiator(known=known)
    first = side.box()
    side.arrived(first)
    renewed = issue("orders")

    known.own = parse_own(renewed.certificate_pem, renewed.key_pem)
    later = side.box()

    assert first.key_id != later.key_id
    assert known.own.signing.fingerprint == read_packet(later.packet).signer


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_a_key_that_has_not_arrived_is_made_anew_while_its_packet_is_fresh(
    secured: Secured, known: DialogCredentials
) -> None:
    side = Initiator(secured, known)

    first, same = side.box(NOW), side.box(NOW + REWRAP_SECONDS - 1)
    later = side.box(NOW + REWRAP_SECONDS)

    assert first.key_id == same.key_id != later.key_id
    assert int(NOW + REWRAP_SECONDS) == read_packet(later.packet).made_at


@pytest.mark.parametrize(("secured", "known"), WAYS)
def test_a_key_lives_for_a_day(secured: Secured, known: DialogCredentials) -> None:
    side = Initiator(secured, known)
    first = side.box()
    side.arrived(first)

    last, next_day = side.box(NOW + KEY_SECONDS - 1), side.box(NOW + KEY_SECONDS)

    assert first.key_id == last.key_id != next_day.key_id
    assert next_day.packet


def test_a_key_seals_so_many_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "KEY_FRAMES", 3)
    side = Initiator()

    keys = [side.box().key_id for _ in range(7)]

    assert [3, 3, 1] == [keys.count(one) for one in dict.fromkeys(keys)]


def test_a_target_in_anonymous_mode_sends_no_packet() -> None:
    contact = target(Secured(Mode.ANONYMOUS, secret=b"s" * 32))
    by = sealer(contact, credentials("billing"))

    assert b"" == box_of(sealed(contact, by)).packet
    assert b"" == box_of(sealed(contact, by, again=True, now=NOW + KEY_SECONDS)).packet
    assert by.far is None


# --- peers that change ---


def test_a_far_certificate_that_is_no_peer_any_more_is_not_sealed_to() -> None:
    known = credentials("orders", "billing")
    side = Initiator(FULL, known)
    side.arrived(side.box())

    known.peers = KnownPeers()

    for _ in range(2):
        with pytest.raises(CannotSealError, match="no certificate of billing is among the peers of this database"):
            side.sealer.check(NOW)


def resealed(validity: Validity) -> bytes:
    """The certificates of billing with another one to seal to."""
    made = issued("billing")
    other = issue_sealing(made.certificates[0], made.keys[0], validity)  # type: ignore[arg-type]
    return Issued((made.certificates[0], *other.certificates), ()).certificate_pem


def test_a_key_is_renewed_for_the_sealing_certificate_that_is_left() -> None:
    known = DialogCredentials(own("orders"), KnownPeers([signing("billing")]))
    side = Initiator(FULL, known)
    first = side.box()
    side.arrived(first)

    known.peers = KnownPeers(parse_peers(resealed(AGES)))
    second = side.box()

    assert first.key_id != second.key_id
    assert read_packet(first.packet).receiver != read_packet(second.packet).receiver


@pytest.mark.parametrize(("secured", "by"), WAYS)
def test_a_key_stays_when_peers_are_loaded_anew_and_the_far_one_is_among_them(
    secured: Secured, by: DialogCredentials
) -> None:
    known = DialogCredentials(by.own, by.peers)
    side = Initiator(secured, known)
    first = side.box()

    known.peers = KnownPeers([signing("billing"), signing("mallory")])

    assert first.key_id == side.box().key_id


def test_an_anonymous_dialog_keeps_its_key_without_the_far_certificate() -> None:
    known = DialogCredentials(None, UNPROVED.peers)
    side = Initiator(ANONYMOUS, known)
    first = side.box()
    side.arrived(first)

    known.peers = KnownPeers()

    assert first.key_id == side.box().key_id


# --- what keeps it from being sealed ---


def over(name: str) -> DialogCredentials:
    return with_certificate(issue(name, Validity(AGES.begins, datetime(2025, 1, 1, tzinfo=UTC))))


@pytest.mark.parametrize(
    ("secured", "known", "problem"),
    [
        (Secured(None), ORDERS, "there is no remote service binding"),
        (FULL, credentials("orders"), "no certificate of billing is among the peers of this database"),
        (ANONYMOUS, credentials("orders"), "no certificate of billing is among the peers of this database"),
        (FULL, over("orders"), "the certificate of this database, CN=orders, is not valid today"),
        (FULL, UNPROVED, "this database has no certificate"),
    ],
    ids=["binding", "far", "far, anonymous", "own is over", "none"],
)
def test_what_keeps_a_dialog_from_being_sealed(secured: Secured, known: DialogCredentials, problem: str) -> None:
    by = Sealer(secured, initiator(secured).direction(), known, bytes)

    with pytest.raises(CannotSealError) as caught:
        by.check(NOW)

    assert problem == str(caught.value)


def test_an_anonymous_dialog_goes_on_when_the_far_certificate_is_over() -> None:
    """The far side has the secret; only in full mode a new key has to be wrapped."""
    over = datetime(2027, 1, 20, tzinfo=UTC)
    side = Initiator(ANONYMOUS, DialogCredentials(None, KnownPeers(parse_peers(resealed(Validity(AGES.begins, over))))))
    side.arrived(side.box())

    box = side.box(over.timestamp() + KEY_SECONDS)

    assert b"" == box.packet


def test_a_secret_is_not_shown() -> None:
    assert "ssss" not in repr(ANONYMOUS)

"""Tokens, offers and proofs: what is read back, and what a damaged or foreign one comes to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from broker.routing.address import NetworkAddress
from broker.security.issue import Holder, Validity, certificates_pem, issue_database, issue_endpoint, make_authority
from broker.security.pairing import (
    PREFIX,
    Meeting,
    Offer,
    OfferError,
    Token,
    TokenError,
    accepting_proof,
    decode_token,
    encode_token,
    inviting_proof,
    is_accepting,
    is_inviting,
    offer_bytes,
    partner_of,
    read_offer,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
YEAR = Validity(NOW, NOW + timedelta(days=365))
TOKEN = Token("192.0.2.7", 4023, "tcp://a.example:4022", b"c" * 32, b"i" * 32, b"s" * 32, 1_800_000_000)
ENDPOINT, DATABASE = issue_endpoint(Holder("a"), YEAR, None), issue_database(Holder("orders"), YEAR, None)
OFFER = Offer(
    "a", "tcp://A.example", "//shop/Orders", ENDPOINT.certificate_pem.decode(), DATABASE.certificate_pem.decode()
)
MEETING = Meeting(b"c" * 32, b"1" * 32, b"2" * 32)
SECRET = b"s" * 32


def test_token_is_one_word_and_read_as_it_was_made() -> None:
    text = encode_token(TOKEN)

    assert TOKEN == decode_token(text)
    assert TOKEN == decode_token(f"  {text[:100]}\n {text[100:]}\n")
    assert text.replace("-", "").replace("_", "").isalnum()
    assert len(text) < 300


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"this is no token: it begins with {PREFIX}"),
        ("ey...", f"this is no token: it begins with {PREFIX}"),
        (PREFIX + "x" * 5000, f"this is no token: it begins with {PREFIX}"),
        (PREFIX, "the token is damaged: copy all of it"),
        (PREFIX + "é", "the token is damaged: copy all of it"),
        (encode_token(TOKEN)[:-1], "the token is damaged: copy all of it"),
    ],
    ids=["nothing", "another one", "too long", "no more than the beginning", "no base64", "cut"],
)
def test_what_is_no_token_is_told(text: str, problem: str) -> None:
    with pytest.raises(TokenError, match=problem):
        decode_token(text)


def test_every_wrong_letter_is_found() -> None:
    text = encode_token(TOKEN)
    word = text.removeprefix(PREFIX)
    unused_bits = 1 if len(word) % 4 else 0  # of the last letter base64 may ignore some bits

    for number in range(len(word) - unused_bits):
        other = "A" if word[number] != "A" else "B"
        with pytest.raises(TokenError):
            decode_token(PREFIX + word[:number] + other + word[number + 1 :])


def encoded(data: bytes) -> str:
    from base64 import urlsafe_b64encode
    from binascii import crc32

    return PREFIX + urlsafe_b64encode(data + crc32(data).to_bytes(4, "big")).decode().rstrip("=")


def test_token_of_another_release_says_so() -> None:
    with pytest.raises(TokenError, match="is of version 2, and this program knows 1"):
        decode_token(encoded(b"\x02" + msgspec.msgpack.encode(TOKEN)))


@pytest.mark.parametrize(
    "fields",
    [
        {"port": 0},
        {"port": 65536},
        {"host": ""},
        {"secret": b"short"},
        {"certificate": b""},
        {"expires_at": "soon"},
    ],
    ids=str,
)
def test_token_whose_parts_are_none_is_refused(fields: dict[str, object]) -> None:
    values = {name: getattr(TOKEN, name) for name in TOKEN.__struct_fields__} | fields

    with pytest.raises(TokenError, match="the token is damaged: "):
        decode_token(encoded(b"\x01" + msgspec.msgpack.encode(list(values.values()))))


# --- offers -------------------------------------------------------------------------------------------------


def test_offer_is_read_as_it_was_made_and_names_its_side() -> None:
    partner = partner_of(read_offer(offer_bytes(OFFER)))

    assert (OFFER, NetworkAddress("a.example", 4022)) == (partner.offer, partner.address)
    assert ("CN=a", "CN=orders") == (partner.endpoint.name, partner.identity.who.name)
    assert (partner.endpoint.fingerprint, partner.identity.who.fingerprint) == (
        partner.certificate.hex(),
        partner.identity.fingerprint.hex(),
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\xff", offer_bytes(OFFER)[:-1] + b',"more":1}'],
    ids=["nothing", "nothing said", "no text", "more than an offer"],
)
def test_what_is_no_offer_is_refused(data: bytes) -> None:
    with pytest.raises(OfferError, match="what the other side says of itself cannot be read"):
        read_offer(data)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"address": "a.example:4022"}, "is neither tcp://host:port"),
        ({"address": "LOCAL"}, "has no address: LOCAL"),
        ({"certificate": "none"}, "what 'a' says of itself is not right"),
        ({"identity": OFFER.certificate}, "no signing certificate"),
        ({"service": "ä" * 257}, "the name of a service has at most 512 bytes"),
    ],
    ids=["no scheme", "no address", "no certificate", "another certificate", "long name"],
)
def test_offer_that_does_not_hold_together_is_refused(fields: dict[str, str], problem: str) -> None:
    with pytest.raises(OfferError, match=problem):
        partner_of(msgspec.structs.replace(OFFER, **fields))


def test_what_else_comes_with_the_certificates_is_left_out() -> None:
    authority = certificates_pem(make_authority("any", YEAR).roots).decode()
    other = issue_database(Holder("other"), YEAR, None).certificate_pem.decode()

    partner = partner_of(
        msgspec.structs.replace(
            OFFER, certificate=OFFER.certificate + authority, identity=OFFER.identity + other + authority
        )
    )

    assert (ENDPOINT.certificate_pem, DATABASE.certificate_pem) == (partner.certificate_pem, partner.identity_pem)


@pytest.mark.parametrize("kind", ["an authority", "nothing said", "an authority, first of two"])
def test_certificate_that_could_let_others_in_is_refused(kind: str) -> None:
    authority = certificates_pem(make_authority("any", YEAR).roots).decode()
    name = x509.Name([])
    key = ec.generate_private_key(ec.SECP256R1())
    bare = x509.CertificateBuilder(name, name, key.public_key(), 1, YEAR.begins, YEAR.ends).sign(key, SHA256())
    pem = {
        "an authority": authority,
        "nothing said": bare.public_bytes(Encoding.PEM).decode(),
        "an authority, first of two": authority + OFFER.certificate,
    }[kind]

    with pytest.raises(OfferError, match="the certificate of 'a' may be an authority's"):
        partner_of(msgspec.structs.replace(OFFER, certificate=pem))


# --- proofs -------------------------------------------------------------------------------------------------


def test_each_side_believes_the_proof_of_the_other() -> None:
    accepting, inviting = offer_bytes(OFFER), b"what the other says"

    proof = accepting_proof(SECRET, MEETING, accepting)
    answer = inviting_proof(SECRET, MEETING, inviting, accepting)

    assert is_accepting(proof, SECRET, MEETING, accepting)
    assert is_inviting(answer, SECRET, MEETING, inviting, accepting)
    assert not is_inviting(proof, SECRET, MEETING, inviting, accepting)
    assert not is_accepting(answer, SECRET, MEETING, accepting)


@pytest.mark.parametrize(
    ("secret", "meeting", "offer"),
    [
        (b"t" * 32, MEETING, b"offer"),
        (SECRET, Meeting(b"d" * 32, b"1" * 32, b"2" * 32), b"offer"),
        (SECRET, Meeting(b"c" * 32, b"3" * 32, b"2" * 32), b"offer"),
        (SECRET, Meeting(b"c" * 32, b"1" * 32, b"3" * 32), b"offer"),
        (SECRET, MEETING, b"other"),
    ],
    ids=["secret", "certificate", "inviting nonce", "accepting nonce", "offer"],
)
def test_proof_is_good_for_one_secret_one_connection_and_one_offer(
    secret: bytes, meeting: Meeting, offer: bytes
) -> None:
    assert not is_accepting(accepting_proof(secret, meeting, offer), SECRET, MEETING, b"offer")
    assert not is_inviting(inviting_proof(secret, meeting, b"mine", offer), SECRET, MEETING, b"mine", b"offer")
    assert not is_inviting(inviting_proof(secret, meeting, offer, b"its"), SECRET, MEETING, b"offer", b"its")
    assert not is_accepting(b"", SECRET, MEETING, b"offer")

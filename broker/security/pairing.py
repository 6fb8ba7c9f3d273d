"""
Pairing two instances: the token that is carried from one to the other, and what each then tells the other of itself.

The token names where to connect and, by its SHA-256, the certificate that answers there, so that whoever accepts it
speaks to nobody else; and a secret, drawn for this one pairing, by which both prove that they have the token: an HMAC
over the random numbers of both, that certificate, and what either side says of itself. What is said before both proofs
is nothing that a stranger could use.

Nothing is drawn here, no clock is read and nothing is sent.

Source: RFC 2104 (HMAC), RFC 4648 section 5 (base64url).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import crc32
from dataclasses import dataclass
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Meta

from broker.protocol.layout import NAME_MAX_BYTES
from broker.routing.address import Keyword, NetworkAddress, parse_address
from broker.security.certificate import load_pem, reading
from broker.security.identity import Signing, parse_peers, who_of
from broker.security.principal import Who

VERSION = 1
SECRET_BYTES = NONCE_BYTES = HASH_BYTES = 32
TOKEN_MAX = 2048  # characters; a real one has some 300
PEM_MAX = 64 * 1024  # characters of certificates in one offer
PREFIX = "broker-pair-"
_CHECK_BYTES = 4

_Hash = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX_BYTES)]


class Token(msgspec.Struct, frozen=True, array_like=True):
    """
    What is carried to the other side.

    Shape: `host` and `port` where the invitation waits; `address` of the endpoint, as routes name it; `certificate`
    SHA-256 of what it shows there, `identity` that of the database's signing certificate; `secret` for this pairing
    alone; `expires_at` UTC seconds since 1970.
    """

    host: _Name
    port: Annotated[int, Meta(ge=1, le=65535)]
    address: _Name
    certificate: _Hash
    identity: _Hash
    secret: _Hash
    expires_at: int


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    What a side says of itself; as it comes, not yet looked at: see `partner_of`.

    Shape: `certificate` and `identity` PEM, as others trust an endpoint and a database; `address` of the endpoint.
    """

    name: _Name
    address: _Name
    service: _Name
    certificate: Annotated[str, Meta(max_length=PEM_MAX)]
    identity: Annotated[str, Meta(max_length=PEM_MAX)]


@dataclass(frozen=True, slots=True)
class Partner:
    """
    The other side, as far as its offer holds together.

    Shape: `certificate` SHA-256 of its endpoint's, of which `endpoint` says whose it is; `identity` of its database;
    `certificate_pem` and `identity_pem` just these, whatever else came with them.
    """

    offer: Offer
    address: NetworkAddress
    endpoint: Who
    certificate: bytes
    identity: Signing
    certificate_pem: bytes
    identity_pem: bytes


class TokenError(ValueError):
    """A text that is no token, or a damaged one; its sentence says what to do."""


class OfferError(ValueError):
    """An offer that does not hold together; its sentence says where."""


def encode_token(token: Token) -> str:
    """One word without blanks, as people carry it."""
    data = bytes([VERSION]) + msgspec.msgpack.encode(token)
    return PREFIX + urlsafe_b64encode(data + _check(data)).decode().rstrip("=")


def decode_token(text: str) -> Token:
    """
    Read a token.

    Raises:
        TokenError: it is none, or not all of one.
    """
    text = "".join(text.split())  # a mail program may have broken it
    if not text.startswith(PREFIX) or len(text) > TOKEN_MAX:
        raise TokenError(f"this is no token: it begins with {PREFIX}")
    word = text.removeprefix(PREFIX)
    try:
        data = urlsafe_b64decode(word + "=" * (-len(word) % 4))
    except ValueError:
        data = b""
    if len(data) <= _CHECK_BYTES or _check(data[:-_CHECK_BYTES]) != data[-_CHECK_BYTES:]:
        raise TokenError("the token is damaged: copy all of it, from its first to its last letter")
    if data[0] != VERSION:
        raise TokenError(f"the token is of version {data[0]}, and this program knows {VERSION}: use the same release")
    try:
        return msgspec.msgpack.decode(data[1:-_CHECK_BYTES], type=Token)
    except msgspec.MsgspecError as error:
        raise TokenError(f"the token is damaged: {error}") from None


def offer_bytes(offer: Offer) -> bytes:
    """An offer as it is sent, and proved."""
    return msgspec.json.encode(offer)


def read_offer(data: bytes) -> Offer:
    """What came. Raises OfferError."""
    try:
        return msgspec.json.decode(data, type=Offer)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OfferError(f"what the other side says of itself cannot be read: {error}") from None


def partner_of(offer: Offer) -> Partner:
    """
    Look at an offer.

    Raises:
        OfferError: an address, a name or a certificate in it is none.
    """
    try:
        address = parse_address(offer.address)
        certificate = load_pem(offer.certificate.encode())[0]
        [identity, *_] = parse_peers(offer.identity.encode())
        others = load_pem(offer.identity.encode())
    except ValueError as error:
        raise OfferError(f"what {offer.name!r} says of itself is not right: {error}") from None
    if isinstance(address, Keyword):
        raise OfferError(f"{offer.name!r} has no address: {offer.address}")
    if len(offer.service.encode()) > NAME_MAX_BYTES:
        raise OfferError(f"the name of a service has at most {NAME_MAX_BYTES} bytes: {offer.service!r}")
    if not _is_leaf(certificate):
        hint = "it would let in whomever it signs; basic constraints have to say that it is none"
        raise OfferError(f"the certificate of {offer.name!r} may be an authority's: {hint}")
    own = {identity.fingerprint, *(one.fingerprint for one in identity.sealing)}
    return Partner(
        offer,
        address,
        who_of(certificate),
        certificate.fingerprint(SHA256()),
        identity,
        certificate_pem=certificate.public_bytes(Encoding.PEM),
        identity_pem=b"".join(one.public_bytes(Encoding.PEM) for one in others if one.fingerprint(SHA256()) in own),
    )


def _is_leaf(certificate: x509.Certificate) -> bool:
    try:
        with reading():
            return not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        return False


# --- proofs -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Meeting:
    """
    One connection between the two. Shape: the certificate that was shown on it (SHA-256) and a random number of each
    side, 32 bytes each.
    """

    certificate: bytes
    inviting_nonce: bytes
    accepting_nonce: bytes


def accepting_proof(secret: bytes, meeting: Meeting, offer: bytes) -> bytes:
    """By which whoever accepts proves to have the token, and to say just this."""
    return _accepting(secret, meeting, offer).finalize()


def is_accepting(proof: bytes, secret: bytes, meeting: Meeting, offer: bytes) -> bool:
    """Whether a proof is that of `accepting_proof`; takes as long for any other."""
    return _is(proof, _accepting(secret, meeting, offer))


def inviting_proof(secret: bytes, meeting: Meeting, offer: bytes, accepted: bytes) -> bytes:
    """By which whoever invites proves the same, once it knows what the other has said."""
    return _inviting(secret, meeting, offer, accepted).finalize()


def is_inviting(proof: bytes, secret: bytes, meeting: Meeting, offer: bytes, accepted: bytes) -> bool:
    """Whether a proof is that of `inviting_proof`; takes as long for any other."""
    return _is(proof, _inviting(secret, meeting, offer, accepted))


def _accepting(secret: bytes, meeting: Meeting, offer: bytes) -> HMAC:
    return _mac(secret, b"broker pair 1 accept\0", meeting, offer)


def _inviting(secret: bytes, meeting: Meeting, offer: bytes, accepted: bytes) -> HMAC:
    return _mac(secret, b"broker pair 1 invite\0", meeting, offer, accepted)


def _mac(secret: bytes, label: bytes, meeting: Meeting, *offers: bytes) -> HMAC:
    """Every part is of a fixed length, the label ends with zero: no two lists of parts make the same bytes."""
    mac = HMAC(secret, SHA256())
    mac.update(label + meeting.certificate + meeting.inviting_nonce + meeting.accepting_nonce)
    for offer in offers:
        mac.update(_hash(offer))
    return mac


def _is(proof: bytes, mac: HMAC) -> bool:
    try:
        mac.verify(proof)
    except InvalidSignature:
        return False
    return True


def _hash(data: bytes) -> bytes:
    digest = Hash(SHA256())
    digest.update(data)
    return digest.finalize()


def _check(data: bytes) -> bytes:
    """That nothing was lost in copying; it protects from nobody."""
    return crc32(data).to_bytes(_CHECK_BYTES, "big")

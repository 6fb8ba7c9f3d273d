"""
The identity of a database, and the databases that it knows: certificates and keys of dialog security.

A database has one *signing* certificate (Ed25519 or ECDSA on P-256), by which others know it, and *sealing*
certificates (X25519) of the same subject, each signed by that signing key, so that they can be renewed alone. A file
holds the signing certificate first; other certificates in it (those of a CA) are ignored. A far database is known by
the certificate itself, as in the original, so no one can make another that is accepted. Of several valid ones of one
subject, the one that is valid the longest is used to seal.

Every fault of a certificate is a ValueError: the library raises other errors for some parts, and parses most parts only
when they are read. Bytes and instants are arguments: no file and no clock is read.

Source: Service Broker documentation, "Certificates for Dialog Security"; RFC 8410; RFC 5280; RFC 4514.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import NameOID

from broker.security.principal import Principal, Who

FINGERPRINT_BYTES = 32  # SHA-256
CERTIFICATES_MAX = 4096  # of all far databases that one database knows
SigningKey = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
VerifyingKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey
PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_UNREAD = (
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
    UnsupportedAlgorithm,
    TypeError,  # a part of a name of a type that the library does not show
)


# --- who a database is, and whom it knows ---


@dataclass(frozen=True, slots=True)
class Sealing:
    """A sealing certificate; its fingerprint has 32 bytes, its period is UTC seconds since 1970."""

    fingerprint: bytes
    key: x25519.X25519PublicKey
    begins: float
    ends: float

    def is_valid_at(self, now: float) -> bool:
        """Whether its dates say so."""
        return self.begins <= now < self.ends


@dataclass(frozen=True, slots=True)
class Signing:
    """
    A signing certificate, and the sealing certificates that it has signed.

    Attributes:
        fingerprint: 32 bytes.
        begins, ends: UTC seconds since 1970.
        sealing: The one that is valid the longest first.
    """

    who: Who
    fingerprint: bytes
    key: VerifyingKey
    begins: float
    ends: float
    sealing: tuple[Sealing, ...]

    def is_valid_at(self, now: float) -> bool:
        """Whether its dates say so."""
        return self.begins <= now < self.ends

    def sealing_at(self, now: float) -> Sealing | None:
        """The sealing certificate to seal to."""
        return next((one for one in self.sealing if one.is_valid_at(now)), None)


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """The keys and certificates of a database; `opening` are its sealing keys by fingerprints of their certificates."""

    signing: Signing
    signing_key: SigningKey
    opening: dict[bytes, x25519.X25519PrivateKey]


class KnownPeers:
    """The far databases that one database knows, by their signing certificates."""

    def __init__(self, known: Iterable[Signing] = ()) -> None:
        self.known = {one.fingerprint: one for one in known}
        self._covered: dict[str, tuple[Signing, ...]] = {}  # by principal: asked again for every key of every dialog

    def by_fingerprint(self, fingerprint: bytes) -> Signing | None:
        """The certificate with this SHA-256."""
        return self.known.get(fingerprint)

    def named(self, principal: Principal, now: float) -> tuple[Signing, Sealing] | None:
        """A peer that a principal names and that can be sealed to now; of several, whose certificate ends last."""
        found = [
            (one, sealing)
            for one in self._of(principal)
            if one.is_valid_at(now) and (sealing := one.sealing_at(now)) is not None
        ]
        return max(found, key=lambda pair: (pair[0].ends, pair[1].ends), default=None)

    def missing(self, principal: Principal, now: float) -> str:
        """Why `named` finds no peer, as the end of a sentence."""
        signing = self._of(principal)
        if not signing:
            return f"no certificate of {principal.text} is among the peers of this database"
        valid = [one for one in signing if one.is_valid_at(now)]
        if not valid:
            end = max(one.ends for one in signing)
            return f"no certificate of {principal.text} is valid today: the last one {_dated(end, now)}"
        sealing = [sealing for one in valid for sealing in one.sealing]
        if not sealing:
            return f"the peers have no sealing certificate (X25519) of {principal.text}, signed by its signing key"
        end = max(one.ends for one in sealing)
        return f"no sealing certificate of {principal.text} is valid today: the last one {_dated(end, now)}"

    def _of(self, principal: Principal) -> tuple[Signing, ...]:
        found = self._covered.get(principal.text)
        if found is None:
            found = tuple(one for one in self.known.values() if principal.covers(one.who))
            self._covered[principal.text] = found
        return found


def parse_own(certificate_pem: bytes, key_pem: bytes) -> OwnIdentity:
    """
    Return the identity of a database.

    Args:
        certificate_pem: Its signing certificate first; its sealing certificates anywhere after it.
        key_pem: The private keys of all of them, PKCS #8 without a password, in any order.

    Raises:
        ValueError: a part that is missing or does not fit, in a sentence that says which.
    """
    certificates = _certificates(certificate_pem)
    signing = _signing(certificates[0], certificates[1:])
    if signing is None:
        raise ValueError("the first certificate is not a signing certificate: its key is neither Ed25519 nor EC P-256")
    keys = _keys(key_pem)
    signing_key = next((key for key in keys if key.public_key() == signing.key), None)
    if signing_key is None or isinstance(signing_key, x25519.X25519PrivateKey):
        raise ValueError("the private key of the first certificate is not among the private keys")
    if not signing.sealing:
        raise ValueError("no X25519 certificate of the same subject, signed by the first one, follows it")
    opening = {  # also those of a signing certificate before this one: what is on its way is sealed to them
        one.fingerprint(SHA256()): key
        for one in certificates
        for key in keys
        if isinstance(key, x25519.X25519PrivateKey) and key.public_key() == public_key(one)
    }
    if signing.sealing[0].fingerprint not in opening:
        raise ValueError("the private key of the X25519 certificate is not among the private keys")
    return OwnIdentity(signing, signing_key, opening)


def parse_peers(pem: bytes) -> list[Signing]:
    """
    Return the signing certificates in a file, each with the sealing certificates that it has signed; CAs are skipped.

    Raises:
        ValueError: no signing certificate with a sealing one is in it, or its content is not a certificate.
    """
    certificates = _certificates(pem)
    found = [signing for one in certificates if (signing := _signing(one, certificates)) is not None]
    databases = [one for one in found if one.sealing]
    if not databases:
        raise ValueError("no signing certificate (Ed25519 or EC P-256) with an X25519 certificate that it has signed")
    return databases


def who_of(certificate: x509.Certificate) -> Who:
    """
    Identity of a certificate's holder; of several common names the most specific, which is the last one.

    Raises:
        ValueError: it is one that no sensible CA makes.
    """
    others = alternative_names(certificate)
    uris = () if others is None else tuple(others.get_values_for_type(x509.UniformResourceIdentifier))
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Who(
        subject=certificate.subject.rfc4514_string(),
        common_name=str(names[-1].value) if names else "",
        uris=uris,
        fingerprint=certificate.fingerprint(SHA256()).hex(),
    )


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Names and addresses that a certificate is for, in lower case; raises ValueError."""
    names = alternative_names(certificate)
    if names is None:
        return ()
    hosts = [name.lower().rstrip(".") for name in names.get_values_for_type(x509.DNSName)]
    return (*hosts, *map(str, names.get_values_for_type(x509.IPAddress)))


def _signing(certificate: x509.Certificate, others: Iterable[x509.Certificate]) -> Signing | None:
    """A signing certificate with what it has signed of others; None when its key cannot sign here."""
    key = public_key(certificate)
    if not isinstance(key, ed25519.Ed25519PublicKey) and not (
        isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
    ):
        return None
    sealing = [one for other in others if (one := _sealing(other, certificate)) is not None]
    return Signing(
        who_of(certificate),
        certificate.fingerprint(SHA256()),
        key,
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
        tuple(sorted(sealing, key=lambda one: one.ends, reverse=True)),
    )


def _sealing(certificate: x509.Certificate, signing: x509.Certificate) -> Sealing | None:
    """A sealing certificate of this signer; None when it is none, or another's."""
    key = public_key(certificate)
    if not isinstance(key, x25519.X25519PublicKey) or certificate.subject != signing.subject:
        return None
    if not is_signed_by(certificate, signing):
        return None
    begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return Sealing(certificate.fingerprint(SHA256()), key, begins, ends)


def _certificates(pem: bytes) -> list[x509.Certificate]:
    try:
        found = load_pem(pem)
    except ValueError as error:
        raise ValueError("it holds no certificate in PEM") from error
    if len(found) > CERTIFICATES_MAX:
        raise ValueError(f"it holds {len(found)} certificates; {CERTIFICATES_MAX} are the most")
    return found


def _keys(pem: bytes) -> list[SigningKey | x25519.X25519PrivateKey]:
    try:
        keys = load_keys(pem)
    except ValueError as error:
        raise ValueError("a private key in it cannot be read: it has to be PKCS #8 without a password") from error
    found = [key for key in keys if isinstance(key, SigningKey | x25519.X25519PrivateKey)]
    if not found:
        raise ValueError("it holds no private key in PEM (Ed25519 or EC P-256, and X25519)")
    return found


def _dated(ends: float, now: float) -> str:
    end = f"{datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"ended {end}" if ends <= now else "is not valid yet"


# --- what a certificate says ---


class Use(StrEnum):
    """The purpose of a certificate; `transport` is any certificate that TLS accepts."""

    AUTHORITY = "authority"
    TRANSPORT = "transport"
    SIGNING = "dialog signing"
    SEALING = "dialog sealing"


def use_of(certificate: x509.Certificate) -> Use:
    """The purpose of a certificate; raises ValueError."""
    key = public_key(certificate)
    if isinstance(key, x25519.X25519PublicKey):
        return Use.SEALING
    if _is_authority(certificate):
        return Use.AUTHORITY
    is_for_tls = any(isinstance(one.value, x509.ExtendedKeyUsage) for one in certificate.extensions)
    return Use.SIGNING if isinstance(key, ed25519.Ed25519PublicKey) and not is_for_tls else Use.TRANSPORT


def key_of(certificate: x509.Certificate) -> str:
    """The kind of its key, in words."""
    key = public_key(certificate)
    match key:
        case None:
            return "unknown"
        case ec.EllipticCurvePublicKey():
            return f"EC {key.curve.name}"
        case rsa.RSAPublicKey():
            return f"RSA {key.key_size}"
        case _:
            return type(key).__name__.strip("_").removesuffix("PublicKey")


def is_signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    """Whether one certificate vouches for another: names and signature, not dates."""
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def may_issue(certificate: x509.Certificate) -> bool:
    """
    Whether a trusted certificate counts as an authority, so that the certificates it issued are trusted as well.

    It has to say CA:TRUE. `openssl req -x509` says so unasked, also in a server's own certificate. A certificate that
    names a host as well therefore has to list keyCertSign in its key usage.
    """
    return _is_authority(certificate) and (lists_cert_sign(certificate) or not hosts_of(certificate))


def lists_cert_sign(certificate: x509.Certificate) -> bool:
    """Whether the key usage of a certificate lists keyCertSign."""
    usage = _extension(certificate, x509.KeyUsage)
    return usage is not None and usage.key_cert_sign


def _is_authority(certificate: x509.Certificate) -> bool:
    limits = _extension(certificate, x509.BasicConstraints)
    return limits is not None and limits.ca


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


# --- reading certificates ---


@contextmanager
def reading() -> Iterator[None]:
    """In this block certificates of others are read; raises ValueError for one that cannot be read."""
    try:
        yield
    except _UNREAD as error:
        raise ValueError(f"a certificate cannot be read: {error}") from None


def load_pem(data: bytes) -> list[x509.Certificate]:
    """The certificates in a text, at least one; raises ValueError."""
    with reading():
        return [_with_names(one) for one in x509.load_pem_x509_certificates(data)]


def load_keys(data: bytes) -> list[PrivateKeyTypes]:
    """The private keys in a text, of whatever kind, without a password; raises ValueError for one that is none."""
    try:
        return [load_pem_private_key(part, None) for part in PRIVATE_KEY.findall(data)]
    except (TypeError, UnsupportedAlgorithm, InternalError) as error:
        raise ValueError(str(error).partition(". ")[0]) from error


def load_der(data: bytes) -> x509.Certificate:
    """One certificate; raises ValueError."""
    with reading():
        return _with_names(x509.load_der_x509_certificate(data))


def _with_names(certificate: x509.Certificate) -> x509.Certificate:
    """The same, whose names the library would read only when it is asked for them."""
    _ = certificate.subject, certificate.issuer
    return certificate


def alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    """The names that it has besides its subject; None when it has none; raises ValueError."""
    with reading():
        return _extension(certificate, x509.SubjectAlternativeName)


def public_key(certificate: x509.Certificate) -> object:
    """The key that it is about; None where that is of a kind that the library does not know."""
    try:
        return certificate.public_key()
    except UnsupportedAlgorithm:
        return None

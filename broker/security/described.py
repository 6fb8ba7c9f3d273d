"""
What a certificate says, for people: what it is for, whose it is, until when.

No file is read here and no clock.

Source: RFC 5280; RFC 4514 (how a subject is written).
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

SUBJECT_MAX = 256  # characters that are shown


class Use(StrEnum):
    """What a certificate is for; `transport` is whatever TLS can take."""

    AUTHORITY = "authority"
    TRANSPORT = "transport"
    SIGNING = "dialog signing"
    SEALING = "dialog sealing"


class CertificateSummary(NamedTuple):
    """
    A certificate in words.

    Shape: `subject` and `issuer` as RFC 4514 writes them; `hosts` names and addresses, `uris` likewise from the subject
    alternative names; `fingerprint` "sha256:" and 64 lower-case hexadecimal digits; `begins` and `ends` UTC.
    """

    use: Use
    subject: str
    common_name: str
    issuer: str
    hosts: tuple[str, ...]
    uris: tuple[str, ...]
    fingerprint: str
    begins: datetime
    ends: datetime
    key: str

    def is_valid_at(self, now: datetime) -> bool:
        """Whether its dates say so."""
        return self.begins <= now < self.ends

    def days_left(self, now: datetime) -> int:
        """Whole days until its end; negative once it is over."""
        return (self.ends - now).days


def describe(certificate: x509.Certificate) -> CertificateSummary:
    """
    Read a certificate.

    Raises:
        ValueError: parts of it are none.
    """
    names = _alternative_names(certificate)
    hosts: list[str] = []
    uris: list[str] = []
    if names is not None:
        hosts += names.get_values_for_type(x509.DNSName)
        hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        uris += names.get_values_for_type(x509.UniformResourceIdentifier)
    return CertificateSummary(
        use=_use(certificate),
        subject=certificate.subject.rfc4514_string()[:SUBJECT_MAX],
        common_name=_common_name(certificate),
        issuer=certificate.issuer.rfc4514_string()[:SUBJECT_MAX],
        hosts=tuple(hosts),
        uris=tuple(uris),
        fingerprint=f"sha256:{certificate.fingerprint(SHA256()).hex()}",
        begins=certificate.not_valid_before_utc,
        ends=certificate.not_valid_after_utc,
        key=_key(certificate),
    )


def is_signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    """Whether one certificate vouches for another: names and signature, not dates."""
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def is_self_signed(certificate: x509.Certificate) -> bool:
    """Whether nobody else vouches for it."""
    return is_signed_by(certificate, certificate)


def may_issue(certificate: x509.Certificate) -> bool:
    """
    Whether a trusted certificate counts as an authority, so that the certificates it issued are trusted as well.

    It has to say CA:TRUE. `openssl req -x509` says so unasked, also in a server's own certificate. A certificate that
    names a host as well therefore has to list keyCertSign in its key usage.
    """
    names_host = any(isinstance(one, x509.DNSName | x509.IPAddress) for one in _alternative_names(certificate) or ())
    return _is_authority(certificate) and (lists_cert_sign(certificate) or not names_host)


def lists_cert_sign(certificate: x509.Certificate) -> bool:
    """Whether the key usage of a certificate lists keyCertSign."""
    try:
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return False


def _common_name(certificate: x509.Certificate) -> str:
    """The most specific one; empty where there is none."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[-1].value) if found else ""


def _use(certificate: x509.Certificate) -> Use:
    key = public_key(certificate)
    if isinstance(key, x25519.X25519PublicKey):
        return Use.SEALING
    if _is_authority(certificate):
        return Use.AUTHORITY
    is_for_tls = any(isinstance(one.value, x509.ExtendedKeyUsage) for one in certificate.extensions)
    return Use.SIGNING if isinstance(key, ed25519.Ed25519PublicKey) and not is_for_tls else Use.TRANSPORT


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None


def public_key(certificate: x509.Certificate) -> object:
    """The key that it is about; None where that is of a kind that the library does not know."""
    try:
        return certificate.public_key()
    except UnsupportedAlgorithm:
        return None


def _key(certificate: x509.Certificate) -> str:
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

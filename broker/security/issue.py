"""
Certificates and keys, made with the `cryptography` library: of an authority, of an endpoint, of a database.

- An *endpoint* proves to its neighbours who it is: an elliptic curve key (P-256), for both sides of TLS.
- A *database* has two: an Ed25519 key that signs, and an X25519 key that others seal to, whose certificate has the same
  subject and is signed by the former, so that it can be renewed alone.
- An *authority* signs for others. When it gets a new key its old certificate stays next to the new one, and the new key
  is signed by the old one as well, for those who know the old one only.

No file is read here and no clock; serial numbers and keys are drawn by the library.

Source: RFC 5280 (certificates, key usage), RFC 8410 (Ed25519 and X25519 in them), RFC 4210 section 4.4 (an authority
renews its key).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, x25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.security.identity import SigningKey, VerifyingKey, alternative_names

NAME_MAX = 64  # characters of a common name: RFC 5280, ub-common-name
HOST_MAX = 253
URI_MAX = 2048  # SPIFFE ID, section 2.3

PrivateKey = SigningKey | x25519.X25519PrivateKey
PublicKey = VerifyingKey | x25519.X25519PublicKey

_KEY_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 ._@-]*")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SPIFFE = re.compile(r"spiffe://[a-z0-9._-]{1,255}(/[A-Za-z0-9._-]+)+")


@dataclass(frozen=True, slots=True)
class Validity:
    """From when until when, UTC."""

    begins: datetime
    ends: datetime

    def within(self, certificate: x509.Certificate) -> Validity:
        """
        The part of it within the validity of the signer.

        Raises:
            ValueError: nothing of it does.
        """
        begins = max(self.begins, certificate.not_valid_before_utc)
        ends = min(self.ends, certificate.not_valid_after_utc)
        if ends <= begins:
            raise ValueError(f"the signer is valid until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC")
        return Validity(begins, ends)


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """
    Who a certificate is for.

    Args:
        name: The common name.
        hosts: Names, wildcards for one whole label (`*.example`) or IP addresses, as others dial them.
        uri: A SPIFFE id, or empty.

    Raises:
        ValueError: one of them is none; the sentence says what would be.
    """

    name: str
    hosts: tuple[str, ...] = ()
    uri: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > NAME_MAX:
            hint = "letters, digits, spaces and ._@- , the first one a letter, a digit or _"
            raise ValueError(f"{self.name!r} is not a name of 1 to {NAME_MAX} characters: {hint}")
        for host in self.hosts:
            _general_name(host)
        if self.uri and (not _SPIFFE.fullmatch(self.uri) or len(self.uri) > URI_MAX):
            raise ValueError(f"{self.uri!r} is no SPIFFE id: write spiffe://domain/path, the domain in lower case")


Holder = CertificateSubject | x509.Certificate
"""Who a certificate is for; a certificate means its own holder, who gets a new one with a new key."""


@dataclass(frozen=True, slots=True)
class Issued:
    """Certificates, the holder's own first, and the private keys that belong to them."""

    certificates: tuple[x509.Certificate, ...]
    keys: tuple[PrivateKey, ...]

    @property
    def certificate_pem(self) -> bytes:
        """Certificates as a file holds them."""
        return certificates_pem(self.certificates)

    @property
    def key_pem(self) -> bytes:
        """Keys as a file holds them: PKCS #8, without a password."""
        return b"".join(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) for key in self.keys)


@dataclass(frozen=True, slots=True)
class Authority:
    """
    Certificate authority that signs for others.

    Attributes:
        roots: Its own certificates, that of `key` first, then older ones that are still valid.
        cross_certificates: Certificates of the same subject, each for the key of one root and signed by that of the
            root before it.
    """

    roots: tuple[x509.Certificate, ...]
    key: ec.EllipticCurvePrivateKey
    cross_certificates: tuple[x509.Certificate, ...] = ()


def certificates_pem(certificates: tuple[x509.Certificate, ...]) -> bytes:
    """Certificates as a file holds them, in their order."""
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates)


def is_key_of(key: PrivateKey, certificate: x509.Certificate) -> bool:
    """Whether a private key belongs to a certificate."""
    return key.public_key() == certificate.public_key()


# --- authorities ---


def make_authority(name: str, validity: Validity) -> Authority:
    """A new authority. Raises ValueError: no name."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject, _ = _names_of(CertificateSubject(name))
    return Authority((_root(subject, key, validity),), key)


def renew_authority(authority: Authority, validity: Validity, *, now: datetime) -> Authority:
    """The same authority with a new key; what is no longer valid at `now` (UTC) is left out."""
    old = authority.roots[0]
    key = ec.generate_private_key(ec.SECP256R1())
    roots = (_root(old.subject, key, validity), *authority.roots)
    cross_certificates = authority.cross_certificates
    if old.not_valid_after_utc > now:
        cross = _build(old.subject, old.subject, key.public_key(), validity.within(old))
        cross = _add_authority(cross).add_extension(_issued_by(old), critical=False)
        cross_certificates = (cross.sign(authority.key, SHA256()), *cross_certificates)
    return Authority(_valid(roots, now), key, _valid(cross_certificates, now))


def _root(subject: x509.Name, key: ec.EllipticCurvePrivateKey, validity: Validity) -> x509.Certificate:
    return _add_authority(_build(subject, subject, key.public_key(), validity)).sign(key, SHA256())


def _add_authority(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    limits = x509.BasicConstraints(ca=True, path_length=None)  # of several renewals each certificate signs the next
    return builder.add_extension(limits, critical=True).add_extension(
        _usage("key_cert_sign", "crl_sign"), critical=True
    )


def _valid(certificates: tuple[x509.Certificate, ...], now: datetime) -> tuple[x509.Certificate, ...]:
    return tuple(one for one in certificates if one.not_valid_after_utc > now)


# --- endpoints ---


def issue_endpoint(holder: Holder, validity: Validity, authority: Authority | None) -> Issued:
    """Issue the certificate that an endpoint shows its neighbours, signed by an authority or by itself."""
    subject, names = _names_of(holder)
    key = ec.generate_private_key(ec.SECP256R1())
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _leaf(subject, names, key.public_key(), _usage("digital_signature"))
    return _sign(builder.add_extension(uses, critical=False), key, subject, validity, authority)


# --- databases ---


def issue_database(holder: Holder, validity: Validity, authority: Authority | None) -> Issued:
    """Issue a database's signing certificate, signed by an authority or by itself, and its sealing certificate."""
    subject, names = _names_of(holder)
    key = ed25519.Ed25519PrivateKey.generate()
    builder = _leaf(subject, names, key.public_key(), _usage("digital_signature"))
    signing = _sign(builder, key, subject, validity, authority)
    sealing = issue_sealing(signing.certificates[0], key, validity)
    return Issued((*signing.certificates, *sealing.certificates), (key, *sealing.keys))


def issue_sealing(signing: x509.Certificate, key: SigningKey, validity: Validity) -> Issued:
    """A sealing certificate, with its own key, for the holder of a signing one."""
    own = x25519.X25519PrivateKey.generate()
    builder = _leaf(signing.subject, alternative_names(signing), own.public_key(), _usage("key_agreement"))
    builder = _dated(builder, validity.within(signing)).issuer_name(signing.subject)
    return Issued((_signed(builder.add_extension(_issued_by(signing), critical=False), key),), (own,))


# --- parts of a certificate ---


def _sign(
    builder: x509.CertificateBuilder, key: SigningKey, subject: x509.Name, validity: Validity, by: Authority | None
) -> Issued:
    """Sign by an authority, adding the certificates that lead from its key to its older ones, or by the key itself."""
    if by is None:
        own = _signed(_dated(builder, validity).issuer_name(subject), key)
        return Issued((own,), (key,))
    root = by.roots[0]
    builder = _dated(builder, validity.within(root)).issuer_name(root.subject)
    own = _signed(builder.add_extension(_issued_by(root), critical=False), by.key)
    return Issued((own, *by.cross_certificates), (key,))


def _signed(builder: x509.CertificateBuilder, key: SigningKey) -> x509.Certificate:
    return builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else SHA256())


def _leaf(
    subject: x509.Name, names: x509.SubjectAlternativeName | None, key: PublicKey, usage: x509.KeyUsage
) -> x509.CertificateBuilder:
    builder = _named(subject, key).add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return builder if names is None else builder.add_extension(names, critical=False)


def _build(subject: x509.Name, issuer: x509.Name, key: PublicKey, validity: Validity) -> x509.CertificateBuilder:
    return _dated(_named(subject, key), validity).issuer_name(issuer)


def _named(subject: x509.Name, key: PublicKey) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _dated(builder: x509.CertificateBuilder, validity: Validity) -> x509.CertificateBuilder:
    return builder.not_valid_before(validity.begins).not_valid_after(validity.ends)


def _issued_by(signer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    key = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key)


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{one: one in uses for one in _KEY_USES})


def _names_of(holder: Holder) -> tuple[x509.Name, x509.SubjectAlternativeName | None]:
    """The subject, and the names besides it."""
    if isinstance(holder, x509.Certificate):
        return holder.subject, alternative_names(holder)
    names = [_general_name(host) for host in holder.hosts]
    if holder.uri:
        names.append(x509.UniformResourceIdentifier(holder.uri))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, holder.name)])
    return subject, x509.SubjectAlternativeName(names) if names else None


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        name = host.lower().rstrip(".")
    labels = name.removeprefix("*.").split(".")
    is_number = labels[-1].isdigit()  # an address with a mistake in it is not a name
    if not all(map(_LABEL.fullmatch, labels)) or len(name) > HOST_MAX or is_number:
        hint = "write a name such as gateway.example or *.example, or an IP address, without a port"
        raise ValueError(f"{host!r} is not a host: {hint}")
    return x509.DNSName(name)

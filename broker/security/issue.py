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
from collections.abc import Iterable
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
_Extension = tuple[x509.ExtensionType, bool]  # with whether it is critical

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
    return Authority((_certificate(subject, key.public_key(), validity, key, extensions=_AUTHORITY),), key)


def renew_authority(authority: Authority, validity: Validity, *, now: datetime) -> Authority:
    """The same authority with a new key; what is no longer valid at `now` (UTC) is left out."""
    old = authority.roots[0]
    key = ec.generate_private_key(ec.SECP256R1())
    root = _certificate(old.subject, key.public_key(), validity, key, extensions=_AUTHORITY)
    crosses = authority.cross_certificates
    if old.not_valid_after_utc > now:
        cross = _certificate(old.subject, key.public_key(), validity, authority.key, by=old, extensions=_AUTHORITY)
        crosses = (cross, *crosses)
    return Authority(_valid((root, *authority.roots), now), key, _valid(crosses, now))


def _valid(certificates: tuple[x509.Certificate, ...], now: datetime) -> tuple[x509.Certificate, ...]:
    return tuple(one for one in certificates if one.not_valid_after_utc > now)


# --- endpoints and databases ---


def issue_endpoint(holder: Holder, validity: Validity, authority: Authority | None) -> Issued:
    """Issue the certificate that an endpoint shows its neighbours, signed by an authority or by itself."""
    uses = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return _issue(holder, ec.generate_private_key(ec.SECP256R1()), validity, authority, (uses, False))


def issue_database(holder: Holder, validity: Validity, authority: Authority | None) -> Issued:
    """Issue a database's signing certificate, signed by an authority or by itself, and its sealing certificate."""
    key = ed25519.Ed25519PrivateKey.generate()
    signing = _issue(holder, key, validity, authority)
    sealing = issue_sealing(signing.certificates[0], key, validity)
    return Issued((*signing.certificates, *sealing.certificates), (key, *sealing.keys))


def issue_sealing(signing: x509.Certificate, key: SigningKey, validity: Validity) -> Issued:
    """A sealing certificate, with its own key, for the holder of a signing one."""
    own = x25519.X25519PrivateKey.generate()
    extensions = _of_holder(alternative_names(signing), "key_agreement")
    made = _certificate(signing.subject, own.public_key(), validity, key, by=signing, extensions=extensions)
    return Issued((made,), (own,))


# --- parts of a certificate ---


def _issue(
    holder: Holder, key: SigningKey, validity: Validity, authority: Authority | None, *more: _Extension
) -> Issued:
    """Sign by an authority, adding the certificates that lead from its key to its older ones, or by the key itself."""
    subject, names = _names_of(holder)
    extensions = (*_of_holder(names, "digital_signature"), *more)
    if authority is None:
        return Issued((_certificate(subject, key.public_key(), validity, key, extensions=extensions),), (key,))
    root = authority.roots[0]
    own = _certificate(subject, key.public_key(), validity, authority.key, by=root, extensions=extensions)
    return Issued((own, *authority.cross_certificates), (key,))


def _certificate(
    subject: x509.Name,
    key: PublicKey,
    validity: Validity,
    signing_key: SigningKey,
    *,
    by: x509.Certificate | None = None,
    extensions: Iterable[_Extension],
) -> x509.Certificate:
    """Make a certificate, signed by the key of the certificate `by` and valid as long as that at most, or by itself."""
    valid = validity if by is None else validity.within(by)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject if by is None else by.subject)
    builder = builder.public_key(key).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(valid.begins).not_valid_after(valid.ends)
    identifiers: list[_Extension] = [(x509.SubjectKeyIdentifier.from_public_key(key), False)]
    if by is not None:
        signer = by.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        identifiers.append((x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), False))
    for extension, is_critical in (*identifiers, *extensions):
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(signing_key, None if isinstance(signing_key, ed25519.Ed25519PrivateKey) else SHA256())


def _of_holder(names: x509.SubjectAlternativeName | None, use: str) -> tuple[_Extension, ...]:
    """The extensions of a certificate that signs no others."""
    limits = x509.BasicConstraints(ca=False, path_length=None)
    return (limits, True), (_usage(use), True), *([] if names is None else [(names, False)])


def _usage(*uses: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{one: one in uses for one in _KEY_USES})


_AUTHORITY: tuple[_Extension, ...] = (
    (x509.BasicConstraints(ca=True, path_length=None), True),  # of several renewals each certificate signs the next
    (_usage("key_cert_sign", "crl_sign"), True),
)


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

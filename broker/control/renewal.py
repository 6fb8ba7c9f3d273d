"""
Renewing what an endpoint or a database shows others, so that nothing stops in between.

Where peers trust an authority, a certificate signed by it takes the place of the old one, and that is all. Where they
trust the very certificate, they have to have the new one first. So it can be *prepared*: it waits beside the old one,
and both are in a file to hand out; later it takes the old one's place, and whoever has that file trusts it already.

    NAME.pem  NAME.key              in use
    NAME.next.pem  NAME.next.key    prepared
    NAME.trust.pem                  for those who trust the very certificate: the new one and the old one

A key to seal to is renewed alone; the old one stays beside it, for what was sealed to it is still on its way. Where all
of a database's is prepared, the new key to seal to opens from then on: peers use it as soon as they have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from broker.control.certificate_file import Content, read_certificates, read_keys
from broker.errors import CertificateUnusableError
from broker.security.described import Use, describe, is_self_signed, is_signed_by
from broker.security.issue import (
    Authority,
    Issued,
    PrivateKey,
    SigningKey,
    Validity,
    certificates_pem,
    is_key_of,
    issue_sealing,
    renew_database,
    renew_endpoint,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Where certificates and their keys are. Shape: the names that belong to it are made of that of `certificate`."""

    certificate: Path
    private_key: Path

    @property
    def prepared(self) -> Pair:
        """Where those wait that will take their place."""
        return Pair(
            *(path.with_name(f"{path.stem}.next{path.suffix}") for path in (self.certificate, self.private_key))
        )

    @property
    def bundle(self) -> Path:
        """What to hand to those who trust the very certificates."""
        return self.certificate.with_name(f"{self.certificate.stem}.trust.pem")

    def files(self, issued: Issued) -> dict[Path, Content]:
        """Both, as `store_files` takes them."""
        return {
            self.private_key: Content(issued.key_pem, is_secret=True),
            self.certificate: Content(issued.certificate_pem),
        }


def read_pair(pair: Pair) -> Issued:
    """
    What a pair holds.

    Raises:
        CertificateUnusableError: it cannot be read, or the keys are not those of the certificates.
    """
    certificates, keys = read_certificates(pair.certificate), read_keys(pair.private_key)
    if not is_key_of(keys[0], certificates[0]):
        problem = f"does not begin with the key of {pair.certificate}"
        hint = "name the file that was made together with the certificate"
        raise CertificateUnusableError("private_key", str(pair.private_key), problem, hint)
    return Issued(tuple(certificates), tuple(keys))


def is_trusted_itself(issued: Issued) -> bool:
    """Whether nobody vouches for it, so that peers can only trust the very certificate."""
    return is_self_signed(issued.certificates[0])


def renewed(old: Issued, validity: Validity, authority: Authority | None) -> Issued:
    """
    The same holder with new keys.

    Args:
        old: What is to be renewed, an endpoint's or a database's.
        validity: Of the new ones; ends with the authority's.
        authority: Who signs; None for those that are signed by themselves.

    Raises:
        CertificateUnusableError: the authority is not the one that signed it.
    """
    own = old.certificates[0]
    if authority is not None and not any(is_signed_by(own, root) for root in authority.roots):
        issuer = describe(own).issuer
        problem, hint = f"is not signed by this authority but by {issuer}", "name the directory of that one with --ca"
        raise CertificateUnusableError("certificate", describe(own).subject, problem, hint)
    renew = renew_database if describe(own).use is Use.SIGNING else renew_endpoint
    return renew(own, validity, authority)


def with_new_sealing(old: Issued, validity: Validity, *, now: datetime) -> Issued:
    """
    A database's certificates and keys with another one to seal to; older ones stay while they are valid at `now` (UTC).

    Raises:
        CertificateUnusableError: they are not a database's.
    """
    signing, key = old.certificates[0], old.keys[0]
    if describe(signing).use is not Use.SIGNING or isinstance(key, X25519PrivateKey):
        problem, hint = "is no identity of a database", "name the file that broker certs issue --database has made"
        raise CertificateUnusableError("certificate", describe(signing).subject, problem, hint)
    refuse_expired(signing, describe(signing).subject, now=now, hint="renew it as well, with --signing")
    assert isinstance(key, SigningKey)
    new = issue_sealing(signing, key, validity)
    return _beside(Issued((*_but_sealing(old), *new.certificates), (key, *new.keys)), old, now=now)


def with_prepared(current: Issued, prepared: Issued, *, now: datetime) -> Issued:
    """What is in use while another one waits: a database opens also what is sealed to that."""
    return _beside(current, prepared, now=now)


def succeeding(new: Issued, old: Issued, *, now: datetime) -> Issued:
    """What takes the place of another one: a database still opens what is sealed to that."""
    return _beside(new, old, now=now)


def _beside(own: Issued, other: Issued, *, now: datetime) -> Issued:
    """The one with what the other has to be sealed to and is valid at `now`; of an endpoint just the one."""
    certificates = [
        one
        for one in other.certificates
        if describe(one).use is Use.SEALING and one.not_valid_after_utc > now and one not in own.certificates
    ]
    keys: list[PrivateKey] = [key for key in other.keys if any(is_key_of(key, one) for one in certificates)]
    return Issued((*own.certificates, *certificates), (*own.keys, *keys))


def _but_sealing(issued: Issued) -> list[x509.Certificate]:
    return [one for one in issued.certificates if describe(one).use is not Use.SEALING]


def refuse_expired(certificate: x509.Certificate, name: str, *, now: datetime, hint: str) -> None:
    """Raise CertificateUnusableError: it can sign nothing any more at `now` (UTC)."""
    ends = certificate.not_valid_after_utc
    if ends <= now:
        raise CertificateUnusableError("certificate", name, f"expired at {ends:%Y-%m-%d %H:%M:%S} UTC", hint)


def bundle_of(new: Issued, old: Issued, *, now: datetime) -> Content:
    """What those trust who trust the very certificates, while the old ones are valid."""
    own = [*_own(new), *(one for one in _own(old) if one.not_valid_after_utc > now)]
    return Content(certificates_pem(tuple(dict.fromkeys(own))))


def _own(issued: Issued) -> list[x509.Certificate]:
    """The holder's own, without those of an authority."""
    return [one for one in issued.certificates if describe(one).use is not Use.AUTHORITY]

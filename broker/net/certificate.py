"""
A certificate, as far as links ask: who it names, which hosts it covers, when it is valid.

Parsed once a connection by the `cryptography` library, because the standard library tells only what OpenSSL verified.
No file is read here.

Source: RFC 5280 (certificates), RFC 9525 (which names count: subject alternative names only, a wildcard for one whole
label), RFC 4514 (how a subject is written).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256

from broker.security.certificate import alternative_names, load_der
from broker.security.identity import who_of
from broker.security.principal import NOBODY, Who

PRINCIPAL_MAX = 256  # characters of a subject that are shown; what a peer's CA allows
ISSUERS_MAX = 256  # certificates of CAs that are remembered, a few KiB each


@dataclass(frozen=True, slots=True)
class Identity:
    """
    Who a certificate says its holder is.

    Shape: `principal_name` its subject, else its first name; `fingerprint` SHA-256 in lower-case hexadecimal digits;
    `hosts` names and addresses it covers, in lower case; `is_pinned` when it was itself named as trusted; `not_before`
    and `not_after` UTC; `who` it is where permissions are asked.
    """

    principal_name: str
    fingerprint: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    is_pinned: bool = False
    who: Who = NOBODY

    def covers(self, host: str) -> bool:
        """Whether the holder may speak for a host, a name or an IP address."""
        host = host.lower().rstrip(".")
        if host in self.hosts:
            return True
        if _is_ip(host):
            return False
        _, dot, domain = host.partition(".")
        return bool(dot) and f"*.{domain}" in self.hosts and "." in domain


def identify(der: bytes, *, pinned: frozenset[str] = frozenset()) -> Identity:
    """
    Read a certificate.

    Args:
        der: As it is sent.
        pinned: Fingerprints of those that are themselves named as trusted.

    Raises:
        ValueError: it is none, or one that no sensible CA makes.
    """
    certificate = load_der(der)
    fingerprint = certificate.fingerprint(SHA256()).hex()
    hosts = _hosts(certificate)
    subject = certificate.subject.rfc4514_string() or (hosts[0] if hosts else fingerprint)
    return Identity(
        principal_name=subject[:PRINCIPAL_MAX],
        fingerprint=fingerprint,
        hosts=hosts,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_pinned=fingerprint in pinned,
        who=who_of(certificate),
    )


@lru_cache(maxsize=ISSUERS_MAX)
def identify_issuer(der: bytes) -> Identity:
    """Read the certificate of a CA, of which there are few and each stands above many peers; raises ValueError."""
    return identify(der)


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    names = alternative_names(certificate)
    if names is None:
        return ()
    hosts = [name.lower().rstrip(".") for name in names.get_values_for_type(x509.DNSName)]
    hosts += [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return tuple(hosts)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True

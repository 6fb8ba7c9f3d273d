"""
TLS of an endpoint: its certificate and key, the certificates that it trusts, and the two contexts made of them.

TLS 1.3 only, ALPN `sbrk/1`. With authentication both sides show a certificate, and each checks that the other's is, or
leads to, a trusted one, and is valid today. The side that dialled checks whether the certificate covers the host. Files
are read whole, and a `Security` is never changed. When files change a new one is made, because OpenSSL can only add
certificates to those that a context trusts. Certificates are parsed once a connection by the `cryptography` library,
because the standard library returns only what OpenSSL verified.

Source: docs/protocol.md, "Transport"; RFC 5280 (certificates), RFC 9525 (which names count: subject alternative names
only, a wildcard for one whole label), RFC 4514 (how a subject is written).
"""

from __future__ import annotations

import glob
import os
import shlex
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache, partial
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from broker.errors import CertificateTooEarlyError, CertificateUnusableError
from broker.security.certificate_files import read_certificates, read_file
from broker.security.identity import hosts_of, load_der, may_issue, who_of
from broker.security.principal import NOBODY, Who

ALPN = "sbrk/1"
TICKETS = 0  # a resumed session would save a millisecond on connections that live for days
PRINCIPAL_MAX = 256  # characters of a subject that are shown; what a peer's CA allows
LABEL_DIGITS = 16
HOSTS_SHOWN = 5
ISSUERS_MAX = 256  # certificates of CAs that are remembered, a few KiB each


class Encryption(StrEnum):
    """Whether connections are encrypted: `supported` takes and makes both kinds."""

    DISABLED = "disabled"
    SUPPORTED = "supported"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Identity:
    """
    A certificate, as far as links use it.

    Attributes:
        principal_name: The subject of the certificate, or its first name if it has no subject.
        fingerprint: SHA-256 in lower-case hexadecimal digits.
        hosts: Names and addresses that the certificate covers, in lower case.
        is_self_issued: Whether it names no CA as its issuer.
        who: The holder of the certificate, for permissions.
    """

    principal_name: str
    fingerprint: str
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    is_self_issued: bool = False
    who: Who = NOBODY

    @property
    def label(self) -> str:
        """The certificate in short, for sentences; the digits are the first of its fingerprint."""
        begin, end = (f"{at:%Y-%m-%d %H:%M}" for at in (self.not_before, self.not_after))
        return f"{self.principal_name}, {begin} to {end} UTC, sha256:{self.fingerprint[:LABEL_DIGITS]}"

    @property
    def for_hosts(self) -> str:
        """A sentence about the hosts that the certificate covers."""
        names = ", ".join(self.hosts[:HOSTS_SHOWN]) or "no host"
        return f"the certificate of {self.principal_name} is for {names}"

    def covers(self, host: str) -> bool:
        """Whether the holder may speak for a host, a name or an IP address."""
        host = host.lower().rstrip(".")
        if host in self.hosts:
            return True
        if is_ip(host):
            return False
        _, dot, domain = host.partition(".")
        return bool(dot) and f"*.{domain}" in self.hosts and "." in domain


@dataclass(frozen=True, slots=True)
class Security:
    """
    The certificates, keys and contexts of an endpoint for TLS; immutable.

    Attributes:
        server: Context of the side that is dialled; None where encryption is disabled.
        client: Context of the side that dials; None where encryption is disabled.
        own: This instance's certificate.
        own_chain: Certificates that are sent after it.
        trusted: Certificates that `trust` and `peers` name.
        pinned: Fingerprints of the `trusted` certificates.
        authorities: Fingerprints of certificates that may issue certificates of peers.
        files: The files in which each certificate was found, by fingerprint.
        peers: The paths and patterns of `endpoint.peers`.
    """

    encryption: Encryption = Encryption.DISABLED
    is_authenticating: bool = False
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None
    own: Identity | None = None
    own_chain: tuple[Identity, ...] = ()
    trusted: tuple[Identity, ...] = ()
    pinned: frozenset[str] = frozenset()
    authorities: frozenset[str] = frozenset()
    files: Mapping[str, frozenset[Path]] = field(default_factory=dict, repr=False)
    peers: tuple[str, ...] = ()

    def accepts(self, chain: Sequence[Identity]) -> bool:
        """
        Whether a peer with this chain is trusted: its own certificate is named, or an authority issued it.

        OpenSSL does not know the difference: it follows every CA:TRUE certificate that a context has.

        Args:
            chain: What OpenSSL verified, from the peer's own certificate to the one that was trusted.
        """
        return (
            not self.is_authenticating
            or any(one.fingerprint in self.pinned for one in chain[:1])
            or any(one.fingerprint in self.authorities for one in chain[1:])
        )

    def refusal(self, chain: Sequence[Identity]) -> str:
        """Why a peer with this chain is not accepted, and what to do."""
        for one in chain[1:]:
            if one.fingerprint in self.pinned:
                return (
                    f"the peer's certificate ({chain[0].principal_name}) was issued by {one.principal_name}, which is "
                    "trusted as a peer's own certificate and not as a CA: if it is a CA, make it with CA:TRUE and "
                    "keyCertSign, and name it in trust and not in peers"
                )
        shown = f" ({chain[0].label})" if chain else ""
        return f"the peer's certificate is no longer trusted{shown}: {add_to_peers(self.peers)}"


def add_to_peers(peers: Sequence[str] = ()) -> str:
    """The remedy for a certificate that is not trusted; the argument is as `Security.peers`."""
    names = f" ({', '.join(peers)})" if peers else ""
    return f"put that certificate into endpoint.peers{names} here, or its CA into endpoint.trust"


NO_SECURITY = Security()


# --- certificates ---


def identify(certificate: x509.Certificate) -> Identity:
    """
    Read a certificate.

    Raises:
        ValueError: it is one that no sensible CA makes.
    """
    fingerprint = certificate.fingerprint(SHA256()).hex()
    hosts = hosts_of(certificate)
    subject = certificate.subject.rfc4514_string() or (hosts[0] if hosts else fingerprint)
    return Identity(
        principal_name=subject[:PRINCIPAL_MAX],
        fingerprint=fingerprint,
        hosts=hosts,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        is_self_issued=certificate.issuer == certificate.subject,
        who=who_of(certificate),
    )


def identify_chain(chain: Sequence[bytes]) -> tuple[Identity, ...]:
    """Read certificates of a peer as DER, its own first; raises ValueError for what is none."""
    return *(identify(load_der(der)) for der in chain[:1]), *map(_identify_issuer, chain[1:])


@lru_cache(maxsize=ISSUERS_MAX)
def _identify_issuer(der: bytes) -> Identity:
    """Read the certificate of a CA: there are few, each above many peers. Raises ValueError."""
    return identify(load_der(der))


def advice_for_hosts(identity: Identity, *hosts: str) -> str:
    """What to do so that a certificate covers these hosts as well, with the command."""
    named = " ".join(f"--host {shlex.quote(host)}" for host in dict.fromkeys([*identity.hosts, *hosts]))
    name = shlex.quote(identity.who.common_name or "NAME")
    command = f"broker certs issue {name} {named} --ca DIRECTORY --out DIRECTORY --force"
    return f"make the certificate again where its CA is, with {command}"


def is_ip(host: str) -> bool:
    """Whether a host is an IP address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


# --- files ---


def load_security(
    encryption: Encryption,
    *,
    certificate: Path,
    private_key: Path,
    trust: Sequence[str] = (),
    peers: Sequence[str] = (),
    is_authenticating: bool = False,
) -> Security:
    """
    Read the files and make the contexts.

    Args:
        encryption: Not disabled.
        certificate: PEM: this instance's own first, then those between it and its CA.
        private_key: PEM, without a password.
        trust: Paths and patterns of PEM files: CAs, or certificates of peers.
        peers: The same, of certificates of peers only: none of them counts as a CA, whatever it says.
        is_authenticating: Whether peers show a certificate.

    Raises:
        CertificateUnusableError: a file that is not there, not what it should be, or out of date.
    """
    own, *own_chain = _own(certificate)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False  # a certificate that is itself trusted needs no name; see `Handshaker`
    in_trust, in_peers = load_trust(trust, peers) if is_authenticating else ({}, {})
    trusted = {**in_trust, **in_peers}
    anchors = {one.fingerprint: one for some in trusted.values() for one in map(identify, some)}
    authorities = {identify(one).fingerprint for some in in_trust.values() for one in some if may_issue(one)}
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols([ALPN])
        context.verify_mode = ssl.CERT_REQUIRED if is_authenticating else ssl.CERT_NONE
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # a trusted certificate need not be a CA's
        _load_pair(context, certificate, private_key)
        if trusted:
            every = [one.public_bytes(Encoding.DER) for some in trusted.values() for one in some]
            context.load_verify_locations(cadata=b"".join(every))
    server.num_tickets = TICKETS
    return Security(
        encryption,
        is_authenticating,
        server,
        client,
        own=own,
        own_chain=tuple(own_chain),
        trusted=tuple(anchors.values()),
        pinned=frozenset(anchors),
        authorities=frozenset(authorities.difference(places_of(in_peers))),
        files=places_of(trusted),
        peers=tuple(peers),
    )


def file_problems(
    certificate: Path, private_key: Path, trust: Sequence[str] = (), peers: Sequence[str] = ()
) -> list[CertificateUnusableError]:
    """
    What is wrong with each of the files that `load_security` takes, each by itself.

    Whether certificate and key belong together is not checked.
    """
    found = []
    looks: list[Callable[[], object]] = [
        partial(_own, certificate),
        partial(_check_key, private_key),
        *([partial(load_trust, trust, peers)] if trust or peers else []),
    ]
    for look in looks:
        try:
            look()
        except CertificateUnusableError as error:
            found.append(error)
    return found


def load_trust(
    trust: Sequence[str], peers: Sequence[str] = ()
) -> tuple[dict[Path, list[x509.Certificate]], dict[Path, list[x509.Certificate]]]:
    """
    The certificates of each file of `trust` and of `peers`, in the order of the patterns.

    Raises:
        CertificateUnusableError: none, or a file that holds something else.
    """
    found = _named("trust", trust), _named("peers", peers)
    every = [one for files in found for some in files.values() for one in some]
    if not every:
        hint = "name at least one file with the CA of the peers, or with their certificates"
        raise CertificateUnusableError("trust", "trust", "no certificate is trusted, so no peer could connect", hint)
    now = datetime.now(UTC)
    if all(one.not_valid_after_utc <= now for one in every):
        hint = f"name certificates that are valid, or {_set_clock(now)}"
        setting, names = "trust" if trust else "peers", ", ".join([*trust, *peers])
        raise CertificateUnusableError(setting, names, "every certificate in it has expired", hint)
    return found


def _named(setting: str, patterns: Sequence[str]) -> dict[Path, list[x509.Certificate]]:
    found: dict[Path, list[x509.Certificate]] = {}
    for pattern in patterns:
        paths = matching(pattern)
        if not paths:
            hint = "name the CA of the peers, or their certificates" if setting == "trust" else "name files that exist"
            raise CertificateUnusableError(setting, pattern, "no such file", hint)
        found |= {path: read_certificates(path, setting) for path in paths}
    return found


def narrowed(security: Security, patterns: Sequence[str]) -> Security:
    """
    Return the security without certificates that are no longer trusted; none is added. Blocking.

    For files that cannot all be used: a certificate that was taken out of a file that can be read, or whose file is
    gone, is taken out. A file that cannot be read counts as it did before.

    Args:
        security: The `Security` in use.
        patterns: The patterns of `endpoint.trust` and `endpoint.peers`.
    """
    stay = still_named(security.files, patterns) & security.pinned
    trusted = tuple(one for one in security.trusted if one.fingerprint in stay)
    if len(stay) == len(security.pinned):
        return security
    return replace(security, trusted=trusted, pinned=frozenset(stay), authorities=security.authorities & stay)


def still_named(files: Mapping[str, frozenset[Path]], patterns: Sequence[str]) -> set[str]:
    """
    The certificates that a file still holds, or that were in a file that cannot be read now. Blocking.

    Args:
        files: As `places_of` returned them.
        patterns: Where they may be now.
    """
    present: set[str] = set()
    unreadable: set[Path] = set()
    # A directory that cannot be listed, for want of descriptors say, hides no file that is known.
    known = {path for paths in files.values() for path in paths if os.path.exists(path)}  # noqa: PTH110 - of any error
    for path in known.union(*map(matching, patterns)):
        try:
            present.update(identify(one).fingerprint for one in read_certificates(path, "trust"))
        except CertificateUnusableError:
            unreadable.add(path)
    return {one for one, paths in files.items() if one in present or paths & unreadable}


def is_readable_by_others(path: Path) -> bool:
    """Whether users other than owner and group of a file may read it; False where that is unknown."""
    try:
        return bool(path.stat().st_mode & 0o004)
    except OSError:
        return False


def verified_chain(tls: ssl.SSLObject) -> tuple[bytes, ...]:
    """
    What OpenSSL verified of a peer, as DER: its own certificate first, last the one that is trusted. Empty if nothing.

    Public from Python 3.13 on; before, the object below has it under the same name.
    """
    if hasattr(tls, "get_verified_chain"):
        return tuple(tls.get_verified_chain())
    found = tls._sslobj.get_verified_chain()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no other way
    return tuple(ssl.PEM_cert_to_DER_cert(one.public_bytes()) for one in found or ())


def matching(pattern: str) -> list[Path]:
    """The files that a path or pattern names, in the order of their names; empty where there is none. Blocking."""
    return [Path(path) for path in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - patterns are absolute


def places_of(found: Mapping[Path, Sequence[x509.Certificate]]) -> dict[str, frozenset[Path]]:
    """The files of each certificate, by its fingerprint."""
    places: dict[str, set[Path]] = {}
    for path, certificates in found.items():
        for one in certificates:
            places.setdefault(identify(one).fingerprint, set()).add(path)
    return {fingerprint: frozenset(paths) for fingerprint, paths in places.items()}


def _own(path: Path) -> list[Identity]:
    found = [identify(one) for one in read_certificates(path)]
    own = found[0]
    now = datetime.now(UTC)
    if own.not_after <= now:
        problem = f"expired at {own.not_after:%Y-%m-%d %H:%M:%S} UTC"
        raise CertificateUnusableError("certificate", str(path), problem, f"renew it, or {_set_clock(now)}")
    if own.not_before > now:
        problem = f"is not valid before {own.not_before:%Y-%m-%d %H:%M:%S} UTC"
        raise CertificateTooEarlyError("certificate", str(path), problem, f"{_set_clock(now)}, or wait")
    return found


def _set_clock(now: datetime) -> str:
    """For hints: the reader sees whether the clock is wrong. Not part of a problem, which stays the same."""
    return f"set the clock of this machine, which says {now:%Y-%m-%d %H:%M:%S} UTC"


def _check_key(path: Path) -> None:
    if b"ENCRYPTED" in read_file(path, "private_key"):
        hint = "store it without one, readable by the instance's user only"
        raise CertificateUnusableError("private_key", str(path), "is protected by a password", hint)


def _load_pair(context: ssl.SSLContext, certificate: Path, private_key: Path) -> None:
    _check_key(private_key)
    try:
        # An empty password, so that OpenSSL does not ask for one on a terminal whatever the file holds.
        context.load_cert_chain(certificate, private_key, password="")
    except ssl.SSLError as error:
        raise CertificateUnusableError("private_key", str(private_key), *_pair_problem(error, certificate)) from None


def _pair_problem(error: ssl.SSLError, certificate: Path) -> tuple[str, str]:
    """Problem and hint."""
    reason = error.reason or ""
    if reason == "KEY_VALUES_MISMATCH":
        return f"is not the key of {certificate}", "name the key that the certificate was made for"
    if reason in {"EE_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "CA_KEY_TOO_SMALL"}:
        hint = "make one with an elliptic curve key, or an RSA key of 2048 bits or more"
        return f"belongs to {certificate}, which is too weak: {reason.lower().replace('_', ' ')}", hint
    hint = "name a file with -----BEGIN PRIVATE KEY----- in it"
    return f"holds no private key in PEM form that can be read ({reason or error})", hint

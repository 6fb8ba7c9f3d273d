"""Databases that know each other: made once for all tests, valid for as long as any virtual clock shows."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from broker.security.identity import KnownPeers, OwnIdentity, Signing, parse_own, parse_peers
from broker.security.issue import CertificateSubject, Issued, Validity, issue_database
from broker.security.session import DialogCredentials

AGES = Validity(datetime(2020, 1, 1, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC))


def issue(name: str, validity: Validity = AGES) -> Issued:
    """A new identity."""
    return issue_database(CertificateSubject(name), validity, None)


@cache
def issued(name: str) -> Issued:
    """The identity of this name, the same for all tests."""
    return issue(name)


@cache
def own(name: str) -> OwnIdentity:
    """What a database of this name has."""
    made = issued(name)
    return parse_own(made.certificate_pem, made.key_pem)


@cache
def signing(name: str) -> Signing:
    """What others know of it."""
    return parse_peers(issued(name).certificate_pem)[0]


def credentials(name: str | None, *known: str) -> DialogCredentials:
    """A database that is this one, or nobody, and knows those."""
    return DialogCredentials(None if name is None else own(name), KnownPeers(map(signing, known)))


def identity_files(directory: Path, name: str, *peers: str) -> dict[str, Any]:
    """Settings of a database that is this one and knows those, with their files."""
    directory.mkdir(exist_ok=True)
    (directory / f"{name}.pem").write_bytes(issued(name).certificate_pem)
    (directory / f"{name}.key").write_bytes(issued(name).key_pem)
    for peer in peers:
        (directory / f"{name}-peer-{peer}.pem").write_bytes(issued(peer).certificate_pem)
    return {
        "certificate": str(directory / f"{name}.pem"),
        "private_key": str(directory / f"{name}.key"),
        "peers": [str(directory / f"{name}-peer-*.pem")],
    }

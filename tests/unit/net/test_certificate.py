"""Whom a certificate names, and which hosts it covers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from broker.net.tls import identify, identify_issuer
from broker.security.principal import Who
from tests.support.certificates import make


def test_certificate_tells_who_when_and_where() -> None:
    pair = make("gateway-a", "Gateway-A.example", "127.0.0.1", "::1")

    identity = identify(pair.der)

    assert "CN=gateway-a" == identity.principal_name
    assert pair.fingerprint == identity.fingerprint
    assert ("gateway-a.example", "127.0.0.1", "::1") == identity.hosts
    assert pair.certificate.not_valid_before_utc == identity.not_before
    assert pair.certificate.not_valid_after_utc == identity.not_after
    assert not identity.is_pinned


def test_certificate_that_is_itself_trusted_is_pinned() -> None:
    pair = make("a")

    assert identify(pair.der, pinned=frozenset({pair.fingerprint})).is_pinned


@pytest.mark.parametrize("hosts", [(), ("a.example",)])
def test_certificate_without_a_subject_is_called_by_its_first_name(hosts: tuple[str, ...]) -> None:
    pair = make("", *hosts)

    assert (hosts[0] if hosts else pair.fingerprint) == identify(pair.der).principal_name


def test_certificate_tells_who_it_is_where_permissions_are_asked() -> None:
    pair = make("a,b", "a.example", "spiffe://shop.example/a", "spiffe://shop.example/b")

    who = identify(pair.der).who

    uris = ("spiffe://shop.example/a", "spiffe://shop.example/b")
    assert Who(r"CN=a\,b", "a,b", uris, pair.fingerprint) == who
    assert r"CN=a\,b" == who.name


def test_certificate_without_names_is_known_by_its_fingerprint() -> None:
    pair = make("")

    assert f"sha256:{pair.fingerprint}" == identify(pair.der).who.name


def test_most_specific_common_name_counts() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.NameAttribute(NameOID.COMMON_NAME, name) for name in ("realm", "orders")]
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(x509.Name(names)).issuer_name(x509.Name(names))
    builder = builder.public_key(key.public_key()).serial_number(1).not_valid_before(now).not_valid_after(now)

    who = identify(builder.sign(key, SHA256()).public_bytes(Encoding.DER)).who

    assert ("CN=orders,CN=realm", "orders") == (who.subject, who.common_name)


def test_long_subject_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.tls.PRINCIPAL_MAX", 10)

    assert "CN=xxxxxxx" == identify(make("x" * 60).der).principal_name


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("a.example", True),
        ("A.Example.", True),
        ("b.example", False),
        ("x.wild.example", True),
        ("x.y.wild.example", False),
        ("wild.example", False),
        ("127.0.0.1", True),
        ("127.0.0.2", False),
        ("::1", True),
        ("localhost", False),
    ],
)
def test_hosts_are_covered_by_name_wildcard_or_address(host: str, *, expected: bool) -> None:
    identity = identify(make("a", "a.example", "*.wild.example", "127.0.0.1", "::1").der)

    assert expected is identity.covers(host)


def test_wildcard_for_a_whole_domain_of_the_world_covers_nothing() -> None:
    assert not identify(make("a", "*.com").der).covers("bank.com")


def test_subject_alone_covers_nothing() -> None:
    assert not identify(make("a.example").der).covers("a.example")


def test_what_is_no_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ParseError|parsing"):
        identify(b"no certificate")


def test_certificate_of_a_ca_is_read_once() -> None:
    ca = make("ca", is_authority=True)

    assert identify(ca.der) == identify_issuer(ca.der)
    assert identify_issuer(ca.der) is identify_issuer(bytes(ca.der))
    with pytest.raises(ValueError, match=r"(?i)asn|parse|der"):
        identify_issuer(b"no certificate")

"""What a certificate says, in words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from broker.security.identity import Use, describe, is_self_signed, is_signed_by, parse_own, parse_peers
from broker.security.issue import CertificateSubject, Validity, issue_database, issue_endpoint, make_authority
from tests.support.certificates import make
from tests.support.identities import issued

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = Validity(NOW - DAY, NOW + 365 * DAY)
CA = make_authority("shop CA", YEAR)


def test_every_kind_is_told() -> None:
    gateway = issue_endpoint(CertificateSubject("gateway", ("a.example",)), YEAR, CA).certificates
    database = issue_database(CertificateSubject("billing"), YEAR, None).certificates

    uses = [describe(one).use for one in (CA.roots[0], *gateway, *database, make("a", "a.example").certificate)]

    assert [Use.AUTHORITY, Use.TRANSPORT, Use.SIGNING, Use.SEALING, Use.TRANSPORT] == uses


def test_names_and_dates_are_told() -> None:
    holder = CertificateSubject("gateway", ("a.example", "::1"), "spiffe://shop/gateway")
    [one] = issue_endpoint(holder, YEAR, CA).certificates

    said = describe(one)

    assert ("CN=gateway", "gateway", "CN=shop CA") == (said.subject, said.common_name, said.issuer)
    assert (("a.example", "::1"), ("spiffe://shop/gateway",)) == (said.hosts, said.uris)
    assert f"sha256:{one.fingerprint(SHA256()).hex()}" == said.fingerprint
    assert (YEAR.begins, YEAR.ends, "EC secp256r1") == (said.begins, said.ends, said.key)


@pytest.mark.parametrize(
    ("at", "is_valid", "days"),
    [
        (YEAR.begins - DAY, False, 367),
        (YEAR.begins, True, 366),
        (YEAR.ends - timedelta(hours=1), True, 0),
        (YEAR.ends, False, 0),
        (YEAR.ends + timedelta(hours=1), False, -1),
    ],
)
def test_validity_ends_with_the_last_moment(at: datetime, days: int, *, is_valid: bool) -> None:
    said = describe(CA.roots[0])

    assert (is_valid, days) == (said.is_valid_at(at), said.days_left(at))


def test_certificate_without_names_is_described() -> None:
    said = describe(make("", "a.example").certificate)

    assert ("", "", ("a.example",)) == (said.subject, said.common_name, said.hosts)
    assert ((), ()) == (describe(make("a").certificate).hosts, describe(make("a").certificate).uris)


def signed(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A certificate with nothing but a key, as other programs make them."""
    name = x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, YEAR.begins, YEAR.ends)
    return builder.sign(key, SHA256())


def test_key_of_another_kind_is_told() -> None:
    said = describe(signed(rsa.generate_private_key(65537, 2048)))

    assert (Use.TRANSPORT, "RSA 2048", "") == (said.use, said.key, said.subject)


def strange_certificate() -> x509.Certificate:
    """One whose key is of a kind that nobody knows."""
    der = signed(ec.generate_private_key(ec.SECP256R1())).public_bytes(Encoding.DER)
    curve = bytes.fromhex("06082a8648ce3d030107")  # prime256v1; the one beside it has no implementation
    assert 1 == der.count(curve)
    return x509.load_der_x509_certificate(der.replace(curve, bytes.fromhex("06082a8648ce3d030106")))


def test_key_that_nobody_knows_is_no_databases_and_does_no_harm_in_its_file() -> None:
    strange = strange_certificate().public_bytes(Encoding.PEM)

    found = parse_peers(strange + issued("billing").certificate_pem)

    assert ["CN=billing"] == [one.who.name for one in found]
    with pytest.raises(ValueError, match="the first certificate is no signing certificate"):
        parse_own(strange, issued("billing").key_pem)


def test_key_that_nobody_knows_is_told() -> None:
    strange = strange_certificate()

    said = describe(strange)

    assert (Use.TRANSPORT, "unknown", False) == (said.use, said.key, is_self_signed(strange))


def test_who_signed_is_told_by_the_signature_not_the_name() -> None:
    other = make_authority("shop CA", YEAR)
    [one] = issue_endpoint(CertificateSubject("gateway"), YEAR, CA).certificates

    assert (True, False) == (is_signed_by(one, CA.roots[0]), is_signed_by(one, other.roots[0]))
    assert (False, True) == (is_self_signed(one), is_self_signed(CA.roots[0]))

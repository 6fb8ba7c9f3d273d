"""Certificates as they are made: what two libraries accept of them, and what they refuse."""

import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import DNSName, IPAddress
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from broker.security.issue import (
    NAME_MAX,
    Authority,
    CertificateSubject,
    Issued,
    Validity,
    is_key_of,
    issue_database,
    issue_endpoint,
    make_authority,
    renew_authority,
)

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
YEAR = Validity(NOW - DAY, NOW + 365 * DAY)
DECADE = Validity(NOW - 2 * DAY, NOW + 3650 * DAY)
GATEWAY = CertificateSubject("gateway", ("gateway.example", "192.0.2.7"), "spiffe://shop.example/gateway")
HOST = DNSName("gateway.example")


def verify(issued: Issued, *trusted: x509.Certificate, subject: DNSName | IPAddress = HOST, at: datetime = NOW) -> None:
    """By the library's own verifier, as a server and as a client. Raises VerificationError."""
    policy = PolicyBuilder().store(Store(list(trusted))).time(at)
    own, *between = issued.certificates
    policy.build_server_verifier(subject).verify(own, between)
    policy.build_client_verifier().verify(own, between)


def shake_hands(directory: Path, issued: Issued, trusted: x509.Certificate) -> None:
    """TLS 1.3 of the standard library, with itself, both sides showing the certificate. Raises SSLError."""
    path = directory / "both.pem"
    path.write_bytes(issued.key_pem + issued.certificate_pem)
    ends: list[tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]] = []
    for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(kind)
        context.minimum_version, context.verify_mode = ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
        context.load_cert_chain(path)
        context.load_verify_locations(cadata=trusted.public_bytes(Encoding.DER))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        is_server = kind is ssl.PROTOCOL_TLS_SERVER
        name = None if is_server else "gateway.example"
        ends.append((context.wrap_bio(incoming, outgoing, is_server, name), incoming, outgoing))
    (server, server_in, server_out), (client, client_in, client_out) = ends
    for _ in range(4):
        for one in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                one.do_handshake()
        server_in.write(client_out.read())
        client_in.write(server_out.read())
    assert server.getpeercert(binary_form=True) == client.getpeercert(binary_form=True)
    assert server.getpeercert(binary_form=True) is not None


@pytest.fixture(scope="module")
def ca() -> Authority:
    return make_authority("shop CA", DECADE)


def test_authority_may_sign_and_nothing_else(ca: Authority) -> None:
    [root] = ca.roots

    usage = root.extensions.get_extension_for_class(x509.KeyUsage)
    limits = root.extensions.get_extension_for_class(x509.BasicConstraints)

    assert (True, True, True) == (usage.critical, usage.value.key_cert_sign, usage.value.crl_sign)
    assert not usage.value.digital_signature
    assert (True, True) == (limits.critical, limits.value.ca)
    assert (DECADE.begins, DECADE.ends) == (root.not_valid_before_utc, root.not_valid_after_utc)


def test_endpoint_is_believed_under_each_of_its_names_by_both_libraries(ca: Authority, tmp_path: Path) -> None:
    issued = issue_endpoint(GATEWAY, YEAR, ca)

    verify(issued, *ca.roots)
    verify(issued, *ca.roots, subject=IPAddress(ip_address("192.0.2.7")))
    shake_hands(tmp_path, issued, ca.roots[0])

    names = issued.certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ["spiffe://shop.example/gateway"] == names.get_values_for_type(x509.UniformResourceIdentifier)


def test_endpoint_is_refused_under_another_name_by_another_authority_and_on_another_day(ca: Authority) -> None:
    issued = issue_endpoint(GATEWAY, YEAR, ca)

    with pytest.raises(VerificationError):
        verify(issued, *ca.roots, subject=DNSName("other.example"))
    with pytest.raises(VerificationError):
        verify(issued, *make_authority("shop CA", DECADE).roots)
    with pytest.raises(VerificationError):
        verify(issued, *ca.roots, at=YEAR.ends + DAY)


def test_self_signed_endpoint_is_believed_by_whoever_trusts_the_very_certificate(tmp_path: Path) -> None:
    issued, other = issue_endpoint(GATEWAY, YEAR, None), issue_endpoint(GATEWAY, YEAR, None)

    shake_hands(tmp_path, issued, issued.certificates[0])

    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, issued, other.certificates[0])


def test_nothing_outlives_its_signer(ca: Authority) -> None:
    issued = issue_endpoint(GATEWAY, Validity(DECADE.begins - DAY, DECADE.ends + DAY), ca)

    own = issued.certificates[0]
    assert (DECADE.begins, DECADE.ends) == (own.not_valid_before_utc, own.not_valid_after_utc)


def test_signer_that_is_over_signs_nothing() -> None:
    old = make_authority("old", Validity(NOW - 10 * DAY, NOW - 9 * DAY))

    with pytest.raises(ValueError, match="the signer is valid until"):
        issue_endpoint(GATEWAY, YEAR, old)


def test_renewed_authority_is_believed_by_those_who_know_the_old_one_only(ca: Authority, tmp_path: Path) -> None:
    new = renew_authority(ca, Validity(NOW - DAY, NOW + 5000 * DAY), now=NOW)
    newest = renew_authority(new, Validity(NOW - DAY, NOW + 6000 * DAY), now=NOW)
    before, after = issue_endpoint(GATEWAY, YEAR, ca), issue_endpoint(GATEWAY, YEAR, newest)

    verify(after, ca.roots[0])
    verify(after, newest.roots[0])
    verify(before, *newest.roots)
    for root in (ca.roots[0], new.roots[0], newest.roots[0]):
        shake_hands(tmp_path, after, root)

    assert (newest.roots[0], *new.roots) == newest.roots
    assert is_key_of(newest.key, newest.roots[0])


def test_renewed_authority_leaves_out_what_is_over() -> None:
    old = make_authority("old", Validity(NOW - 10 * DAY, NOW - 9 * DAY))

    new = renew_authority(old, DECADE, now=NOW)

    assert (1, (), old.roots[0].subject) == (len(new.roots), new.cross_certificates, new.roots[0].subject)


@pytest.mark.parametrize("is_self_signed", [False, True])
def test_database_has_a_key_that_signs_and_one_to_seal_to(ca: Authority, *, is_self_signed: bool) -> None:
    issued = issue_database(CertificateSubject("billing"), YEAR, None if is_self_signed else ca)

    signing, sealing = issued.certificates
    assert isinstance(signing.public_key(), Ed25519PublicKey)
    assert isinstance(sealing.public_key(), X25519PublicKey)
    sealing.verify_directly_issued_by(signing)
    usage = sealing.extensions.get_extension_for_class(x509.KeyUsage)
    assert (True, True, False) == (usage.critical, usage.value.key_agreement, usage.value.digital_signature)
    assert [True, True] == [is_key_of(*pair) for pair in zip(issued.keys, issued.certificates, strict=True)]
    if not is_self_signed:
        signing.verify_directly_issued_by(ca.roots[0])


@pytest.mark.parametrize("name", ["", " a", "a/b", "*", "a=b", "a,b", "a" * (NAME_MAX + 1), "a\n", "ä"])
def test_name_that_no_file_or_principal_could_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a name of 1 to 64 characters"):
        CertificateSubject(name)


@pytest.mark.parametrize(
    "host", ["", "a b", "a:4022", "-a.example", "a..b", "*", "*.*.example", "192.0.2.256", "x" * 64, "tcp://a", "a/b"]
)
def test_host_that_nobody_can_dial_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host: write a name"):
        CertificateSubject("a", (host,))


@pytest.mark.parametrize(
    "host", ["a", "A.Example.", "*.example.org", "::1", "[::1]", "127.0.0.1", "xn--bcher-kva.example"]
)
def test_host_that_one_can_dial_is_taken(host: str) -> None:
    issued = issue_endpoint(CertificateSubject("a", (host,)), YEAR, None)

    names = issued.certificates[0].extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert 1 == len(list(names))


@pytest.mark.parametrize(
    "uri", ["http://a/b", "spiffe://", "spiffe://A/b", "spiffe://a", "spiffe://a/b?c", "spiffe://a/b#c"]
)
def test_uri_that_is_no_spiffe_id_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="is no SPIFFE id"):
        CertificateSubject("a", uri=uri)

"""Identities: what is read from files, whom a principal stands for, and what is said when nobody is found."""

import base64
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa, x25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from broker.security.identity import (
    KnownPeers,
    Sealing,
    Signing,
    Use,
    is_signed_by,
    key_of,
    load_der,
    load_pem,
    parse_own,
    parse_peers,
    reading,
    use_of,
)
from broker.security.issue import (
    CertificateSubject,
    Issued,
    Validity,
    certificates_pem,
    issue_database,
    issue_endpoint,
    issue_sealing,
    make_authority,
)
from broker.security.principal import Principal, parse_principal
from tests.support.certificates import make
from tests.support.identities import AGES, issue, issued

# --- certificate ---
# Certificates that the library reads with errors of its own are refused like all others.


GOOD = make("gateway", "gateway.example")
VERSION_3, VERSION_29 = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x1c"
NONE = GOOD.der.replace(VERSION_3, VERSION_29, 1)  # of a version that there is not
NONE_PEM = ssl.DER_cert_to_PEM_cert(NONE)


@pytest.mark.parametrize("read", [lambda: load_der(NONE), lambda: load_pem(NONE_PEM.encode())])
def test_one_of_a_version_that_there_is_not_is_a_value_error(read: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="28 is not a valid X509 version"):
        read()


@pytest.mark.parametrize(
    "error",
    [
        x509.DuplicateExtension("twice", x509.ObjectIdentifier("1.2.3")),
        x509.UnsupportedGeneralNameType("other"),
        UnsupportedAlgorithm("none"),
    ],
)
def test_every_error_of_the_library_is_a_value_error(error: Exception) -> None:
    with pytest.raises(ValueError, match="a certificate cannot be read"), reading():
        raise error


# --- described ---
# What a certificate says, in words.


NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = Validity(NOW - DAY, NOW + 365 * DAY)
CA = make_authority("shop CA", YEAR)


def signed(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> x509.Certificate:
    """A certificate with nothing but a key, as other programs make them."""
    name = x509.Name([])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, YEAR.begins, YEAR.ends)
    return builder.sign(key, SHA256())


def test_key_of_another_kind_is_told() -> None:
    found = signed(rsa.generate_private_key(65537, 2048))

    assert (Use.TRANSPORT, "RSA 2048") == (use_of(found), key_of(found))


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
    with pytest.raises(ValueError, match="the first certificate is not a signing certificate"):
        parse_own(strange, issued("billing").key_pem)


def test_who_signed_is_told_by_the_signature_not_the_name() -> None:
    other = make_authority("shop CA", YEAR)
    [one] = issue_endpoint(CertificateSubject("gateway"), YEAR, CA).certificates

    assert (True, False) == (is_signed_by(one, CA.roots[0]), is_signed_by(one, other.roots[0]))
    assert (False, True) == (is_signed_by(one, one), is_signed_by(CA.roots[0], CA.roots[0]))


ED25519 = b"\x06\x03\x2b\x65\x70"  # its object identifier

TODAY = datetime(2026, 5, 1, tzinfo=UTC).timestamp()


def until(year: int, month: int = 1, *, begins: int = 2020) -> Validity:
    return Validity(datetime(begins, 1, 1, tzinfo=UTC), datetime(year, month, 1, tzinfo=UTC))


def known(*made: Issued) -> KnownPeers:
    return KnownPeers(one for pair in made for one in parse_peers(pair.certificate_pem))


def principal(text: str = "billing") -> Principal:
    return parse_principal(text)


def of_p256(name: str) -> Issued:
    """As `issue_database` makes it, but signed with ECDSA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(7).not_valid_before(AGES.begins).not_valid_after(AGES.ends)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    signing = builder.sign(key, SHA256())
    sealing = issue_sealing(signing, key, AGES)
    return Issued((signing, *sealing.certificates), (key, *sealing.keys))


# --- files ---


@pytest.mark.parametrize("make", [issue, of_p256], ids=["Ed25519", "P-256"])
def test_an_identity_is_what_was_issued(make: Callable[[str], Issued]) -> None:
    made = make("billing")

    own = parse_own(made.certificate_pem, made.key_pem)

    signing, sealing = (one.fingerprint(SHA256()) for one in made.certificates)
    assert ("CN=billing", signing) == (own.signing.who.name, own.signing.fingerprint)
    assert [sealing] == list(own.opening) == [one.fingerprint for one in own.signing.sealing]
    assert [own.signing] == parse_peers(made.certificate_pem)


def test_certificates_of_authorities_in_the_file_do_no_harm() -> None:
    authority = make_authority("ca", AGES)
    made = issue_database(CertificateSubject("billing"), AGES, authority)
    with_chain = Issued((made.certificates[0], *authority.roots, *made.certificates[1:]), made.keys)

    own = parse_own(with_chain.certificate_pem, with_chain.key_pem)

    assert 1 == len(own.signing.sealing)
    assert [own.signing] == parse_peers(with_chain.certificate_pem)


def test_a_sealing_certificate_of_another_subject_does_not_count() -> None:
    """Its signer may be an authority for others as well."""
    made = issue("billing")
    signing, sealing = made.certificates
    other = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orders")])
    builder = x509.CertificateBuilder().subject_name(other).issuer_name(signing.subject).serial_number(7)
    builder = builder.public_key(x25519.X25519PrivateKey.generate().public_key())
    foreign = builder.not_valid_before(AGES.begins).not_valid_after(AGES.ends).sign(made.keys[0], None)  # type: ignore[arg-type]
    assert is_signed_by(foreign, signing)

    [peer] = parse_peers(certificates_pem((signing, foreign, sealing)))

    assert [sealing.fingerprint(SHA256())] == [one.fingerprint for one in peer.sealing]


def test_certificates_are_valid_from_their_first_instant_on_and_not_at_their_last() -> None:
    [signing] = parse_peers(issued("billing").certificate_pem)

    dated: list[Signing | Sealing] = [signing, *signing.sealing]
    for one in dated:
        assert [False, True, False] == [one.is_valid_at(at) for at in (one.begins - 1, one.begins, one.ends)]


def test_a_sealing_certificate_of_another_signer_does_not_count() -> None:
    mine, other = issue("billing"), issue("billing")
    mixed = Issued((mine.certificates[0], other.certificates[1]), (mine.keys[0], other.keys[1]))

    with pytest.raises(ValueError, match="no X25519 certificate of the same subject, signed by the first one"):
        parse_own(mixed.certificate_pem, mixed.key_pem)


@pytest.mark.parametrize(
    ("certificates", "keys", "problem"),
    [
        (b"", issued("a").key_pem, "no certificate in PEM"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", issued("a").key_pem, "no certificate"),
        (certificates_pem(issued("a").certificates[::-1]), issued("a").key_pem, "neither Ed25519 nor EC P-256"),
        (issued("a").certificate_pem, b"", "no private key in PEM"),
        (
            issued("a").certificate_pem,
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
            "cannot be read",
        ),
        (issued("a").certificate_pem, issued("b").key_pem, "the private key of the first certificate is not among"),
        (
            issued("a").certificate_pem,
            Issued((), issued("a").keys[:1]).key_pem,
            "the private key of the X25519 certificate",
        ),
        (certificates_pem(issued("a").certificates[:1]), issued("a").key_pem, "no X25519 certificate"),
    ],
)
def test_what_is_missing_is_said(certificates: bytes, keys: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_own(certificates, keys)


def test_a_file_without_a_database_or_with_too_many_is_refused() -> None:
    endpoint = issue_endpoint(CertificateSubject("gateway", ("gateway.example",)), AGES, None)

    with pytest.raises(ValueError, match="no signing certificate"):
        parse_peers(endpoint.certificate_pem)
    with pytest.raises(ValueError, match="it holds 4097 certificates; 4096 are the most"):
        parse_peers(certificates_pem(issued("a").certificates[:1]) * 4097)


# --- whom a principal stands for ---


def chosen(peers: KnownPeers, text: str = "billing", now: float = TODAY) -> Signing | None:
    found = peers.named(principal(text), now)
    return None if found is None else found[0]


def test_a_peer_is_found_by_subject_name_uri_and_fingerprint() -> None:
    made = issue_database(CertificateSubject("billing", (), "spiffe://shop.example/billing"), AGES, None)
    peers = known(issued("orders"), made)
    fingerprint = made.certificates[0].fingerprint(SHA256())

    texts = "billing", "CN=billing", "spiffe://shop.example/billing", f"sha256:{fingerprint.hex()}"
    for found in (*(chosen(peers, text) for text in texts), peers.by_fingerprint(fingerprint)):
        assert found is not None
        assert "CN=billing" == found.who.name
    assert peers.by_fingerprint(bytes(32)) is None


def test_the_certificate_that_ends_last_is_used() -> None:
    early, late = issue("billing", until(2027)), issue("billing", until(2028))

    for peers in (known(early, late), known(late, early)):
        found = chosen(peers)
        assert found is not None
        assert late.certificates[0].fingerprint(SHA256()) == found.fingerprint


def without_sealing(made: Issued) -> KnownPeers:
    (signing,) = parse_peers(made.certificate_pem)
    return KnownPeers([Signing(signing.who, signing.fingerprint, signing.key, signing.begins, signing.ends, ())])


def sealed_until(made: Issued, year: int) -> KnownPeers:
    sealing = issue_sealing(made.certificates[0], made.keys[0], until(year))  # type: ignore[arg-type]
    return known(Issued((made.certificates[0], *sealing.certificates), ()))


@pytest.mark.parametrize(
    ("peers", "sentence"),
    [
        (known(issued("orders")), "no certificate of billing is among the peers of this database"),
        (
            known(issue("billing", until(2025))),
            "no certificate of billing is valid today: the last one ended 2025-01-01 00:00:00 UTC",
        ),
        (
            known(issue("billing", until(2035, begins=2027))),
            "no certificate of billing is valid today: the last one is not valid yet",
        ),
        (
            without_sealing(issued("billing")),
            "the peers have no sealing certificate (X25519) of billing, signed by its signing key",
        ),
        (
            sealed_until(issue("billing", until(2030)), 2025),
            "no sealing certificate of billing is valid today: the last one ended 2025-01-01 00:00:00 UTC",
        ),
    ],
)
def test_it_is_said_why_nobody_is_found(peers: KnownPeers, sentence: str) -> None:
    assert peers.named(principal(), TODAY) is None
    assert sentence == peers.missing(principal(), TODAY)


def test_private_key_of_a_kind_that_nobody_knows_is_refused_like_any_other() -> None:
    made = issued("orders")
    first = made.key_pem.decode().partition("-----END PRIVATE KEY-----")[0]
    der = base64.b64decode("".join(first.splitlines()[1:]))
    unknown = base64.b64encode(der.replace(ED25519, b"\x06\x03\x2b\x65\x01")).decode()

    with pytest.raises(ValueError, match="a private key in it cannot be read"):
        parse_own(made.certificate_pem, f"-----BEGIN PRIVATE KEY-----\n{unknown}\n-----END PRIVATE KEY-----\n".encode())


def test_key_that_nobody_knows_is_told() -> None:
    strange = strange_certificate()

    assert (Use.TRANSPORT, "unknown", False) == (use_of(strange), key_of(strange), is_signed_by(strange, strange))

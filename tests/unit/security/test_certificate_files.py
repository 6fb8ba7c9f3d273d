"""The directory of an authority."""

import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from broker.errors import CertificateUnusableError
from broker.security.certificate_files import (
    Content,
    Pair,
    authority_files,
    bundle_of,
    is_trusted_itself,
    read_authority,
    read_keys,
    read_pair,
    refuse_expired,
    renewed,
    store_files,
    with_new_sealing,
    with_sealing_of,
)
from broker.security.identity import parse_own, parse_peers
from broker.security.issue import (
    Authority,
    CertificateSubject,
    Issued,
    Validity,
    issue_database,
    issue_endpoint,
    make_authority,
    renew_authority,
)

NOW = datetime.now(UTC).replace(microsecond=0)
YEAR = Validity(NOW - timedelta(days=1), NOW + timedelta(days=365))


def stored(directory: Path) -> Authority:
    made = make_authority("shop CA", YEAR)
    store_files(authority_files(made, directory), is_replacing=False)
    return made


@pytest.mark.parametrize("is_renewed", [False, True])
def test_authority_is_read_as_it_was_stored(tmp_path: Path, *, is_renewed: bool) -> None:
    made = stored(tmp_path)
    if is_renewed:
        made = renew_authority(made, YEAR, now=NOW)
        store_files(authority_files(made, tmp_path), is_replacing=True)

    found = read_authority(tmp_path)

    assert (made.roots, made.cross_certificates) == (found.roots, found.cross_certificates)
    assert (1 + is_renewed, is_renewed) == (len(found.roots), len(found.cross_certificates))
    assert made.key.private_numbers() == found.key.private_numbers()
    files = {"ca.pem", "ca.key"} | ({"ca.cross.pem"} if is_renewed else set())
    assert files == {path.name for path in tmp_path.iterdir()}


def test_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    (tmp_path / "ca.key").write_bytes(issue_database(CertificateSubject("a"), YEAR, None).key_pem)

    with pytest.raises(CertificateUnusableError, match="is not the key of the first certificate in"):
        read_authority(tmp_path)
    with pytest.raises(CertificateUnusableError, match="cannot be read: No such file"):
        read_authority(tmp_path / "none")


# --- certificate file ---
# Files of certificates and keys: who may read them, what replaces what, and what is told of a bad one.


BILLING = issue_database(CertificateSubject("billing"), Validity(NOW, NOW + timedelta(days=1)), None)
SECRET, OPEN = Content(BILLING.key_pem, is_secret=True), Content(BILLING.certificate_pem)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_key_is_its_owners_alone_from_the_first_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    usual = os.fsync

    def watch(handle: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        usual(handle)

    monkeypatch.setattr(os, "fsync", watch)
    before = os.umask(0)
    try:
        store_files({tmp_path / "a.key": SECRET, tmp_path / "a.pem": OPEN}, is_replacing=False)
    finally:
        os.umask(before)

    assert [0o600, 0o644] == modes[:2]
    assert (0o600, 0o644) == (mode(tmp_path / "a.key"), mode(tmp_path / "a.pem"))


@pytest.mark.parametrize("is_late", [False, True])
def test_file_that_is_there_or_appears_meanwhile_is_kept_and_the_others_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    usual = os.link

    def race(source: Path, target: Path) -> None:
        if target.name == "a.pem":
            target.write_text("mine")
        usual(source, target)

    if is_late:
        monkeypatch.setattr(os, "link", race)
    else:
        (tmp_path / "a.pem").write_text("mine")

    with pytest.raises(FileExistsError):
        store_files({tmp_path / "a.key": SECRET, tmp_path / "a.pem": OPEN}, is_replacing=False)

    assert "mine" == (tmp_path / "a.pem").read_text()
    assert ["a.pem"] == [path.name for path in tmp_path.iterdir()]


def test_what_replaces_a_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.write_text("old")
    path.chmod(0o640)

    store_files({path: SECRET}, is_replacing=True)

    assert (0o640, SECRET.data) == (mode(path), path.read_bytes())


def test_left_over_of_a_killed_process_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f".a.key.{os.getpid()}.part").write_text("half")

    store_files({tmp_path / "a.key": SECRET}, is_replacing=False)

    assert ["a.key"] == [path.name for path in tmp_path.iterdir()]


def pkcs8(password: str = "") -> bytes:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    return rsa.generate_private_key(65537, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no private key in PEM form without a password"),
        (BILLING.certificate_pem, "holds no private key in PEM form without a password"),
        (pkcs8("secret"), "holds a private key that cannot be read (Password was not given"),
        (pkcs8(), "holds a key of another kind than those made here (RSAPrivateKey)"),
        (b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "holds a private key that cannot be read"),
        (  # X448 with the length of X25519
            b"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VvBCIEI" + b"A" * 43 + b"\n-----END PRIVATE KEY-----\n",
            "holds a private key that cannot be read",
        ),
    ],
    ids=["empty", "certificate", "password", "RSA", "garbage", "another length"],
)
def test_file_without_keys_says_what_it_is(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(content)

    with pytest.raises(CertificateUnusableError) as caught:
        read_keys(path)

    assert caught.value.problem.startswith(problem)


# --- renewal ---
# What takes the place of certificates, and what stays beside it so that nothing stops.


DAY = timedelta(days=1)
NEXT_YEAR = Validity(NOW - DAY, NOW + 730 * DAY)
LAST_YEAR = Validity(NOW - 730 * DAY, NOW - 365 * DAY)
GATEWAY, BILLING_SUBJECT = CertificateSubject("gateway", ("a.example",)), CertificateSubject("billing")


@pytest.fixture(scope="module")
def ca() -> Authority:
    return make_authority("shop CA", NEXT_YEAR)


def opens(issued: Issued, sealed_to: Issued) -> bool:
    """Whether a database with the one opens what is sealed to the other."""
    [peer] = parse_peers(sealed_to.certificate_pem)
    used = peer.sealing_at(NOW.timestamp())
    return used is not None and used.fingerprint in parse_own(issued.certificate_pem, issued.key_pem).opening


def test_pair_is_read_as_it_was_stored_and_another_key_is_refused(tmp_path: Path) -> None:
    pair, issued = (
        Pair(tmp_path / "a.pem", tmp_path / "a.key"),
        issue_database(BILLING_SUBJECT, YEAR, None),
    )
    store_files(pair.files(issued), is_replacing=False)

    assert issued.certificates == read_pair(pair).certificates
    pair.private_key.write_bytes(issue_database(BILLING_SUBJECT, YEAR, None).key_pem)
    with pytest.raises(CertificateUnusableError, match="does not begin with the key of"):
        read_pair(pair)


def test_who_vouches_decides_how_it_is_renewed(ca: Authority) -> None:
    assert is_trusted_itself(issue_endpoint(GATEWAY, YEAR, None))
    assert not is_trusted_itself(issue_endpoint(GATEWAY, YEAR, ca))


@pytest.mark.parametrize("make", [issue_endpoint, issue_database])
def test_renewed_holder_stays_what_it_was(ca: Authority, make: type) -> None:
    old = make(GATEWAY if make is issue_endpoint else BILLING_SUBJECT, YEAR, ca)

    new = renewed(old, NEXT_YEAR, renew_authority(ca, NEXT_YEAR, now=NOW))

    assert [type(key) for key in old.keys] == [type(key) for key in new.keys]
    assert old.certificates[0].subject == new.certificates[0].subject
    assert NEXT_YEAR.ends == new.certificates[0].not_valid_after_utc


def test_authority_that_did_not_sign_does_not_renew(ca: Authority) -> None:
    old = issue_endpoint(GATEWAY, YEAR, ca)

    with pytest.raises(CertificateUnusableError, match="is not signed by this authority but by CN=shop CA"):
        renewed(old, NEXT_YEAR, make_authority("shop CA", NEXT_YEAR))


def test_database_opens_what_is_sealed_to_its_old_key_and_to_its_new_one() -> None:
    old = issue_database(BILLING_SUBJECT, YEAR, None)

    new = with_new_sealing(old, YEAR, now=NOW)

    assert [True, True, False] == [opens(new, old), opens(new, new), opens(old, new)]
    assert old.certificates[0] == new.certificates[0]


def test_key_that_signs_no_more_gets_no_new_one_to_seal_to() -> None:
    with pytest.raises(CertificateUnusableError, match=r"expired at .* with --signing"):
        with_new_sealing(issue_database(BILLING_SUBJECT, LAST_YEAR, None), YEAR, now=NOW)
    with pytest.raises(CertificateUnusableError, match="is not an identity of a database"):
        with_new_sealing(issue_endpoint(GATEWAY, YEAR, None), YEAR, now=NOW)


def test_database_opens_from_the_preparation_on_what_is_sealed_to_the_next_one() -> None:
    old = issue_database(BILLING_SUBJECT, YEAR, None)
    new = renewed(old, NEXT_YEAR, None)

    waiting, after = with_sealing_of(old, new, now=NOW), with_sealing_of(new, old, now=NOW)

    assert [True] * 4 == [opens(waiting, old), opens(waiting, new), opens(after, old), opens(after, new)]
    assert old.certificates[0] == waiting.certificates[0]
    assert new.certificates[0] == after.certificates[0]
    assert new == with_sealing_of(new, waiting, now=NOW + 10_000 * DAY)


def test_bundle_holds_both_while_both_are_valid(ca: Authority) -> None:
    old, new = issue_endpoint(GATEWAY, YEAR, None), issue_endpoint(GATEWAY, NEXT_YEAR, None)
    signed = issue_endpoint(GATEWAY, YEAR, renew_authority(ca, NEXT_YEAR, now=NOW))

    for first, second, now, expected in (
        (new, old, NOW, [*new.certificates, *old.certificates]),
        (new, old, NOW + 400 * DAY, [*new.certificates]),
        (signed, signed, NOW, [signed.certificates[0]]),
    ):
        assert expected == x509.load_pem_x509_certificates(bundle_of(first, second, now=now).data)


def test_what_is_over_is_refused(ca: Authority) -> None:
    refuse_expired(ca.roots[0], "ca.pem", now=NOW, hint="renew it")

    with pytest.raises(CertificateUnusableError, match=r"ca\.pem: expired at .* UTC; renew it"):
        refuse_expired(ca.roots[0], "ca.pem", now=NEXT_YEAR.ends, hint="renew it")

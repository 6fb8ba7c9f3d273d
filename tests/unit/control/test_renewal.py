"""What takes the place of certificates, and what stays beside it so that nothing stops."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from broker.errors import CertificateUnusableError
from broker.security.certificate_files import (
    Pair,
    bundle_of,
    is_trusted_itself,
    read_pair,
    refuse_expired,
    renewed,
    store_files,
    succeeding,
    with_new_sealing,
    with_prepared,
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
DAY = timedelta(days=1)
YEAR, NEXT_YEAR = Validity(NOW - DAY, NOW + 365 * DAY), Validity(NOW - DAY, NOW + 730 * DAY)
LAST_YEAR = Validity(NOW - 730 * DAY, NOW - 365 * DAY)
GATEWAY, BILLING = CertificateSubject("gateway", ("a.example",)), CertificateSubject("billing")


@pytest.fixture(scope="module")
def ca() -> Authority:
    return make_authority("shop CA", NEXT_YEAR)


def opens(issued: Issued, sealed_to: Issued) -> bool:
    """Whether a database with the one opens what is sealed to the other."""
    [peer] = parse_peers(sealed_to.certificate_pem)
    used = peer.sealing_at(NOW.timestamp())
    return used is not None and used.fingerprint in parse_own(issued.certificate_pem, issued.key_pem).opening


def test_names_of_a_pair_are_made_of_the_certificates() -> None:
    pair = Pair(Path("tls/b.dialog.pem"), Path("keys/b.dialog.key"))

    assert Pair(Path("tls/b.dialog.next.pem"), Path("keys/b.dialog.next.key")) == pair.prepared
    assert Path("tls/b.dialog.trust.pem") == pair.bundle


def test_pair_is_read_as_it_was_stored_and_another_key_is_refused(tmp_path: Path) -> None:
    pair, issued = Pair(tmp_path / "a.pem", tmp_path / "a.key"), issue_database(BILLING, YEAR, None)
    store_files(pair.files(issued), is_replacing=False)

    assert issued.certificates == read_pair(pair).certificates
    pair.private_key.write_bytes(issue_database(BILLING, YEAR, None).key_pem)
    with pytest.raises(CertificateUnusableError, match="does not begin with the key of"):
        read_pair(pair)


def test_who_vouches_decides_how_it_is_renewed(ca: Authority) -> None:
    assert is_trusted_itself(issue_endpoint(GATEWAY, YEAR, None))
    assert not is_trusted_itself(issue_endpoint(GATEWAY, YEAR, ca))


@pytest.mark.parametrize("make", [issue_endpoint, issue_database])
def test_renewed_holder_stays_what_it_was(ca: Authority, make: type) -> None:
    old = make(GATEWAY if make is issue_endpoint else BILLING, YEAR, ca)

    new = renewed(old, NEXT_YEAR, renew_authority(ca, NEXT_YEAR, now=NOW))

    assert [type(key) for key in old.keys] == [type(key) for key in new.keys]
    assert old.certificates[0].subject == new.certificates[0].subject
    assert NEXT_YEAR.ends == new.certificates[0].not_valid_after_utc


def test_authority_that_did_not_sign_does_not_renew(ca: Authority) -> None:
    old = issue_endpoint(GATEWAY, YEAR, ca)

    with pytest.raises(CertificateUnusableError, match="is not signed by this authority but by CN=shop CA"):
        renewed(old, NEXT_YEAR, make_authority("shop CA", NEXT_YEAR))


def test_database_opens_what_is_sealed_to_its_old_key_and_to_its_new_one() -> None:
    old = issue_database(BILLING, YEAR, None)

    new = with_new_sealing(old, YEAR, now=NOW)

    assert opens(new, old)
    assert opens(new, new)
    assert not opens(old, new)
    assert old.certificates[0] == new.certificates[0]


def test_old_key_to_seal_to_is_gone_once_it_is_over() -> None:
    once = with_new_sealing(issue_database(BILLING, YEAR, None), Validity(NOW - DAY, NOW + DAY), now=NOW)

    twice = with_new_sealing(once, YEAR, now=NOW + 2 * DAY)

    assert (4 - 1, 4 - 1) == (len(twice.certificates), len(twice.keys))


def test_endpoint_has_nothing_to_seal_to() -> None:
    with pytest.raises(CertificateUnusableError, match="is no identity of a database"):
        with_new_sealing(issue_endpoint(GATEWAY, YEAR, None), YEAR, now=NOW)


def test_key_that_signs_no_more_gets_no_new_one_to_seal_to() -> None:
    with pytest.raises(CertificateUnusableError, match=r"expired at .* with --signing"):
        with_new_sealing(issue_database(BILLING, LAST_YEAR, None), YEAR, now=NOW)


def test_database_opens_from_the_preparation_on_what_is_sealed_to_the_next_one() -> None:
    old = issue_database(BILLING, YEAR, None)
    new = renewed(old, NEXT_YEAR, None)

    waiting, after = with_prepared(old, new, now=NOW), succeeding(new, old, now=NOW)

    assert [True] * 4 == [opens(waiting, old), opens(waiting, new), opens(after, old), opens(after, new)]
    assert old.certificates[0] == waiting.certificates[0]
    assert new.certificates[0] == after.certificates[0]
    assert new == succeeding(new, waiting, now=NOW + 10_000 * DAY)


def test_endpoint_that_is_prepared_changes_nothing_yet() -> None:
    old = issue_endpoint(GATEWAY, YEAR, None)
    new = renewed(old, NEXT_YEAR, None)

    assert (old, new) == (with_prepared(old, new, now=NOW), succeeding(new, old, now=NOW))


def test_bundle_holds_both_while_both_are_valid(ca: Authority) -> None:
    old, new = issue_endpoint(GATEWAY, YEAR, None), issue_endpoint(GATEWAY, NEXT_YEAR, None)
    signed = issue_endpoint(GATEWAY, YEAR, renew_authority(ca, NEXT_YEAR, now=NOW))

    assert [*new.certificates, *old.certificates] == certificates_in(bundle_of(new, old, now=NOW).data)
    assert [*new.certificates] == certificates_in(bundle_of(new, old, now=NOW + 400 * DAY).data)
    assert [signed.certificates[0]] == certificates_in(bundle_of(signed, signed, now=NOW).data)


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


def test_what_is_over_is_refused(ca: Authority) -> None:
    refuse_expired(ca.roots[0], "ca.pem", now=NOW, hint="renew it")

    with pytest.raises(CertificateUnusableError, match=r"ca\.pem: expired at .* UTC; renew it"):
        refuse_expired(ca.roots[0], "ca.pem", now=NEXT_YEAR.ends, hint="renew it")

"""What an endpoint brings to TLS: files that are good, and each way in which one is not."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from broker.errors import CertificateUnusableError
from broker.net import tls
from broker.net.tls import (
    NO_SECURITY,
    Encryption,
    identify,
    identify_issuer,
    is_readable_by_others,
    load_security,
    load_trust,
    narrowed,
    verified_chain,
)
from broker.security.principal import Who
from tests.support.certificates import DAY, Pair, authority, make, security
from tests.support.exhaustion import no_descriptors

# --- test_certificate ---
# Whom a certificate names, and which hosts it covers.


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


CLOCK = f"set the clock of this machine, which says {datetime.now(UTC):%Y-}"  # whoever reads it sees if that is wrong


@pytest.fixture(scope="module")
def pair() -> Pair:
    return make("here", "localhost")


def load(directory: Path, **changes: Any) -> tls.Security:
    settings: dict[str, Any] = {
        "certificate": directory / "a.pem",
        "private_key": directory / "a.key",
        "trust": [str(directory / "*.pem")],
        "is_authenticating": True,
    }
    return load_security(Encryption.REQUIRED, **(settings | changes))


def test_nothing_is_brought_where_encryption_is_disabled() -> None:
    assert (Encryption.DISABLED, None, None) == (NO_SECURITY.encryption, NO_SECURITY.server, NO_SECURITY.client)


def test_contexts_take_tls_1_3_only_and_ask_for_certificates(tmp_path: Path, pair: Pair) -> None:
    side = security(tmp_path, "a", pair, authority(), pair)

    for context in (side.server, side.client):
        assert context is not None
        assert ssl.TLSVersion.TLSv1_3 == context.minimum_version
        assert ssl.CERT_REQUIRED == context.verify_mode
        assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert side.own is not None
    assert pair.fingerprint == side.own.fingerprint
    assert pair.fingerprint in side.pinned
    assert side.is_authenticating


def test_nobody_is_asked_without_authentication(tmp_path: Path, pair: Pair) -> None:
    side = security(tmp_path, "a", pair)

    assert {ssl.CERT_NONE} == {side.server.verify_mode, side.client.verify_mode}  # type: ignore[union-attr]
    assert (frozenset(), False) == (side.pinned, side.is_authenticating)


def test_trusted_files_are_found_by_pattern_in_order(tmp_path: Path) -> None:
    pairs = [make(name) for name in "abc"]
    for one, name in zip(pairs, "abc", strict=True):
        one.store(tmp_path, name)

    expected = {tmp_path / f"{name}.pem": [one.certificate] for one, name in zip(pairs, "abc", strict=True)}
    found, _ = load_trust([str(tmp_path / "*.pem")])
    assert list(expected.items()) == list(found.items())


class Trusted:
    """A directory with what an endpoint trusts, loaded once."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.patterns = [str(directory / "*.pem")]
        self.pairs = {name: make(name) for name in names}
        for name, one in self.pairs.items():
            one.store(directory, name)
        self.security = load(directory)

    def left(self) -> set[str]:
        """Who is trusted still, by name."""
        found = narrowed(self.security, self.patterns)
        assert {one.fingerprint for one in found.trusted} == found.pinned
        return {name for name, one in self.pairs.items() if one.fingerprint in found.pinned}


def test_nobody_is_taken_out_whose_file_is_there(tmp_path: Path) -> None:
    trusted = Trusted(tmp_path, "a", "b")

    assert trusted.security is narrowed(trusted.security, trusted.patterns)


def test_whose_file_is_gone_is_taken_out_also_beside_one_that_cannot_be_read(tmp_path: Path) -> None:
    trusted = Trusted(tmp_path, "a", "b", "c")
    (tmp_path / "b.pem").unlink()
    (tmp_path / "c.pem").write_text("half a certif")

    assert {"a", "c"} == trusted.left()


def test_who_is_in_another_file_now_stays_and_who_was_exchanged_does_not(tmp_path: Path) -> None:
    trusted = Trusted(tmp_path, "a", "b", "c")
    (tmp_path / "c.pem").write_bytes((tmp_path / "b.pem").read_bytes())
    (tmp_path / "b.pem").write_text("half a certif")

    assert {"a", "b"} == trusted.left()


def test_nobody_is_taken_out_because_a_directory_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = Trusted(tmp_path, "a", "b")
    (tmp_path / "b.pem").unlink()
    monkeypatch.setattr(os, "scandir", no_descriptors)

    assert {"a"} == trusted.left()


def test_nobody_is_trusted_when_no_file_is_left_and_nobody_is_added(tmp_path: Path) -> None:
    trusted = Trusted(tmp_path, "a")
    make("new").store(tmp_path, "new")
    (tmp_path / "a.pem").unlink()

    found = narrowed(trusted.security, trusted.patterns)

    assert ((), frozenset()) == (found.trusted, found.pinned)
    assert not found.accepts([identify(trusted.pairs["a"].der)])


def _missing(directory: Path) -> dict[str, Any]:
    return {"certificate": directory / "none.pem"}


def _no_key(directory: Path) -> dict[str, Any]:
    return {"private_key": directory / "none.key"}


def _other_key(directory: Path) -> dict[str, Any]:
    make("other").store(directory, "other")
    return {"private_key": directory / "other.key"}


def _locked_key(directory: Path) -> dict[str, Any]:
    (directory / "a.key").write_bytes(make("x").key_pem("secret"))
    return {}


def _nonsense_key(directory: Path) -> dict[str, Any]:
    (directory / "a.key").write_text("no key")
    return {}


def _nonsense(directory: Path) -> dict[str, Any]:
    (directory / "a.pem").write_text("no certificate")
    return {}


def _broken(directory: Path) -> dict[str, Any]:
    (directory / "a.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    return {}


def _cut_off(directory: Path) -> dict[str, Any]:
    (directory / "a.pem").write_bytes((directory / "a.pem").read_bytes()[:300])
    return {}


def _swapped(directory: Path) -> dict[str, Any]:
    (directory / "a.pem").write_bytes((directory / "a.key").read_bytes())
    return {}


def _expired(directory: Path) -> dict[str, Any]:
    make("a", ends=timedelta(seconds=-1)).store(directory, "a")
    return {}


def _early(directory: Path) -> dict[str, Any]:
    make("a", begins=DAY / 2).store(directory, "a")
    return {}


def _trust_missing(directory: Path) -> dict[str, Any]:
    return {"trust": [str(directory / "peers/*.pem")]}


def _trust_empty(_: Path) -> dict[str, Any]:
    return {"trust": []}


def _peers_missing(directory: Path) -> dict[str, Any]:
    return {"peers": [str(directory / "peers/*.pem")]}


def _trust_expired(directory: Path) -> dict[str, Any]:
    make("old", ends=timedelta(seconds=-1)).store(directory, "old")
    return {"trust": [str(directory / "old.pem")]}


def _trust_directory(directory: Path) -> dict[str, Any]:
    (directory / "peers.pem").mkdir()
    return {"trust": [str(directory / "peers.pem")]}


def _huge(directory: Path) -> dict[str, Any]:
    (directory / "a.pem").write_bytes(bytes(tls.FILE_MAX_BYTES + 1))
    return {}


@pytest.mark.parametrize(
    ("spoil", "setting", "words"),
    [
        (_missing, "certificate", "none.pem: cannot be read: No such file or directory; name a file that exists"),
        (_no_key, "private_key", "none.key: cannot be read"),
        (_other_key, "private_key", "is not the key of"),
        (_locked_key, "private_key", "is protected by a password; store it without one"),
        (_nonsense_key, "private_key", "holds no private key in PEM form"),
        (_nonsense, "certificate", "holds no certificate in PEM form"),
        (_broken, "certificate", "it is cut off or damaged; copy all of it again"),
        (_cut_off, "certificate", "it is cut off or damaged; copy all of it again"),
        (_swapped, "certificate", "holds a private key and no certificate; name a file with"),
        (_expired, "certificate", f"UTC; renew it, or {CLOCK}"),
        (_early, "certificate", f"UTC; {CLOCK}"),
        (_trust_missing, "trust", "no such file; name the CA"),
        (_trust_empty, "trust", "nobody is trusted"),
        (_peers_missing, "peers", "no such file"),
        (_trust_expired, "trust", f"every certificate in it has expired; name certificates that are valid, or {CLOCK}"),
        (_trust_directory, "trust", "cannot be read: Is a directory"),
        (_huge, "certificate", "is above 4 MiB"),
    ],
)
def test_file_that_cannot_be_used_is_named_with_what_to_do(
    spoil: Callable[[Path], dict[str, Any]], setting: str, words: str, tmp_path: Path, pair: Pair
) -> None:
    pair.store(tmp_path, "a")
    changes = spoil(tmp_path)

    with pytest.raises(CertificateUnusableError) as caught:
        load(tmp_path, **changes)

    assert setting == caught.value.setting
    assert words in str(caught.value)


def test_weak_key_is_told() -> None:
    error = ssl.SSLError(1, "text")
    error.reason = "EE_KEY_TOO_SMALL"

    problem, hint = tls._pair_problem(error, Path("a.pem"))

    assert "belongs to a.pem, which is too weak: ee key too small" == problem
    assert "2048 bits" in hint


@pytest.mark.parametrize(("mode", "expected"), [(0o600, False), (0o640, False), (0o644, True)])
def test_key_that_everybody_may_read_is_found(mode: int, *, expected: bool, tmp_path: Path) -> None:
    key = tmp_path / "a.key"
    key.touch()
    key.chmod(mode)

    assert expected is is_readable_by_others(key)


def test_nobody_can_tell_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert not is_readable_by_others(tmp_path / "none")


def test_certificates_behind_ones_own_are_those_that_are_sent(tmp_path: Path) -> None:
    root = authority("root")
    between = make("between", by=root, is_authority=True)
    leaf = make("leaf", "localhost", by=between)
    certificate, key = leaf.store(tmp_path, "leaf")
    certificate.write_bytes(leaf.pem + between.pem)

    security = load_security(Encryption.REQUIRED, certificate=certificate, private_key=key)

    assert ("CN=leaf", ["CN=between"]) == (
        security.own.principal_name,  # type: ignore[union-attr]
        [one.principal_name for one in security.own_chain],
    )


def test_peer_is_accepted_as_long_as_one_of_its_chain_is_trusted(tmp_path: Path) -> None:
    ca, other, leaf = authority(), authority("other CA"), make("leaf")
    chain = [identify(one.der) for one in (leaf, ca)]

    sides = {
        name: security(tmp_path, name, make(name), *pairs)
        for name, pairs in {"by its CA": [ca, other], "itself": [leaf], "no more": [other], "nobody asks": []}.items()
    }

    assert {"by its CA": True, "itself": True, "no more": False, "nobody asks": True} == {
        name: side.accepts(chain) for name, side in sides.items()
    }
    assert not sides["by its CA"].accepts([])
    assert not sides["by its CA"].accepts(chain[:1])


@pytest.mark.parametrize(
    ("peer", "is_in_peers", "is_authority"),
    [
        (make("peer", is_authority=True), True, False),
        (make("peer", is_authority=True, lists_cert_sign=True), True, False),
        (make("peer", "peer.example", is_authority=True), False, False),
        (make("peer", "peer.example", is_authority=True, lists_cert_sign=True), False, True),
        (make("peer", is_authority=True), False, True),
        (make("peer"), False, False),
    ],
)
def test_certificate_of_a_peer_vouches_for_itself_and_for_nobody_else(
    peer: Pair, *, is_in_peers: bool, is_authority: bool, tmp_path: Path
) -> None:
    """What `openssl req -x509` makes says CA:TRUE, whatever it is for."""
    side = security(tmp_path, "a", make("a"), peer, authority(), peers=[peer] if is_in_peers else [])
    forged = make("another", by=peer)

    assert side.accepts([identify(peer.der)])
    assert is_authority == side.accepts([identify(one.der) for one in (forged, peer)])
    assert is_authority == (peer.fingerprint in side.authorities)


def test_peer_that_was_issued_by_another_peer_is_refused_with_both_names(tmp_path: Path) -> None:
    peer, other = make("peer", is_authority=True), authority()
    side = security(tmp_path, "a", make("a"), other, peers=[peer])

    told = side.refusal([identify(one.der) for one in (make("forged", by=peer), peer)])

    assert "(CN=forged) was issued by CN=peer, which is trusted as a peer's own certificate" in told
    assert "not trusted any more" in side.refusal([identify(make("gone").der)])


def test_authority_that_is_taken_out_is_none_any_more_beside_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    trusted = Trusted(tmp_path, "a")
    ca = authority()
    ca.store(tmp_path, "ca")
    before = load(tmp_path)
    (tmp_path / "ca.pem").unlink()
    (tmp_path / "a.pem").write_text("half a certif")

    after = narrowed(before, trusted.patterns)

    assert (frozenset({ca.fingerprint}), frozenset()) == (before.authorities, after.authorities)


def test_whom_to_trust_is_known_by_name_each_once(tmp_path: Path) -> None:
    ca, other = authority(), authority("other CA")

    side = security(tmp_path, "a", make("a"), ca, other, ca)

    assert ["CN=test CA", "CN=other CA"] == [one.principal_name for one in side.trusted]
    assert {ca.fingerprint, other.fingerprint} == side.pinned


def test_nothing_is_verified_before_the_handshake() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="a")

    assert () == verified_chain(tls)

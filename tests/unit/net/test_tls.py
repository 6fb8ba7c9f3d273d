"""What an endpoint brings to TLS: files that are good, and each way in which one is not."""

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.errors import CertificateUnusableError
from broker.net import tls
from broker.net.tls import Encryption, identify, load_security, narrowed
from broker.security.certificate_files import FILE_MAX_BYTES
from broker.security.principal import Who
from tests.support.certificates import DAY, Pair, authority, make, security
from tests.support.exhaustion import no_descriptors

# --- certificates ---


def test_certificate_tells_who_when_and_where() -> None:
    pair = make("gateway-a", "Gateway-A.example", "127.0.0.1", "::1", "spiffe://shop.example/a")

    identity = identify(pair.certificate)

    assert ("CN=gateway-a", pair.fingerprint) == (identity.principal_name, identity.fingerprint)
    assert ("gateway-a.example", "127.0.0.1", "::1") == identity.hosts
    assert pair.certificate.not_valid_before_utc == identity.not_before
    assert pair.certificate.not_valid_after_utc == identity.not_after
    assert Who("CN=gateway-a", "gateway-a", ("spiffe://shop.example/a",), pair.fingerprint) == identity.who


def test_certificate_without_a_subject_is_called_by_its_first_name_or_its_fingerprint() -> None:
    named, nameless = make("", "a.example"), make("")

    assert ["a.example", nameless.fingerprint] == [
        identify(one.certificate).principal_name for one in (named, nameless)
    ]
    assert f"sha256:{nameless.fingerprint}" == identify(nameless.certificate).who.name


def test_hosts_are_covered_by_name_wildcard_or_address_and_not_by_the_subject() -> None:
    identity = identify(make("subject.example", "a.example", "*.wild.example", "*.com", "127.0.0.1", "::1").certificate)
    covered = ["a.example", "A.Example.", "x.wild.example", "127.0.0.1", "::1"]
    others = ["b.example", "x.y.wild.example", "wild.example", "127.0.0.2", "localhost", "bank.com", "subject.example"]

    assert covered == [host for host in (*covered, *others) if identity.covers(host)]


# --- files ---


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


def test_contexts_take_tls_1_3_only_and_ask_for_certificates(tmp_path: Path, pair: Pair) -> None:
    side = security(tmp_path, "a", pair, authority(), pair)

    for context in (side.server, side.client):
        assert context is not None
        assert (ssl.TLSVersion.TLSv1_3, ssl.CERT_REQUIRED) == (context.minimum_version, context.verify_mode)
        assert context.verify_flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert side.own is not None
    assert (pair.fingerprint, True) == (side.own.fingerprint, pair.fingerprint in side.pinned)


class Trusted:
    """A directory with what an endpoint trusts, loaded once: certificates, and the authority `ca`."""

    def __init__(self, directory: Path, *names: str) -> None:
        self.patterns = [str(directory / "*.pem")]
        self.pairs = {name: make(name) for name in names} | {"ca": authority()}
        for name, one in self.pairs.items():
            one.store(directory, name)
        self.security = load(directory)

    def left(self) -> set[str]:
        """Who is trusted still, by name."""
        found = narrowed(self.security, self.patterns)
        assert {one.fingerprint for one in found.trusted} == found.pinned
        assert found.authorities == {self.pairs["ca"].fingerprint} & found.pinned
        return {name for name, one in self.pairs.items() if one.fingerprint in found.pinned}


def test_whose_file_is_gone_is_taken_out_and_a_file_that_cannot_be_read_counts_as_before(tmp_path: Path) -> None:
    trusted = Trusted(tmp_path, *"abcde")
    assert trusted.security is narrowed(trusted.security, trusted.patterns)

    for name in ("b", "ca"):
        (tmp_path / f"{name}.pem").unlink()
    (tmp_path / "d.pem").write_bytes((tmp_path / "c.pem").read_bytes())
    for name in "ce":
        (tmp_path / f"{name}.pem").write_text("half a certif")

    assert {"a", "c", "e"} == trusted.left()


def test_nobody_is_taken_out_because_a_directory_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trusted = Trusted(tmp_path, "a", "b")
    (tmp_path / "b.pem").unlink()
    monkeypatch.setattr(os, "scandir", no_descriptors)

    assert {"a", "ca"} == trusted.left()


def written(name: str, data: bytes) -> Callable[[Path], dict[str, Any]]:
    """A file that holds this."""

    def spoil(directory: Path) -> dict[str, Any]:
        (directory / name).write_bytes(data)
        return {}

    return spoil


def stored(name: str, **changes: Any) -> Callable[[Path], dict[str, Any]]:
    """Another certificate with its key."""

    def spoil(directory: Path) -> dict[str, Any]:
        made = {key: value for key, value in changes.items() if key in {"ends", "begins"}}
        make(name, **made).store(directory, name)
        return {key: value(directory) for key, value in changes.items() if key not in made}

    return spoil


def directory_of_peers(directory: Path) -> dict[str, Any]:
    (directory / "peers.pem").mkdir()
    return {"trust": [str(directory / "peers.pem")]}


BROKEN = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
NO_ISSUER = ssl.DER_cert_to_PEM_cert(make("unread").der.replace(b"unread", b"\xff" * 6, 1)).encode()
ENDED = timedelta(seconds=-1)


@pytest.mark.parametrize(
    ("spoil", "setting", "words"),
    [
        (lambda at: {"certificate": at / "none.pem"}, "certificate", "none.pem: cannot be read: No such file or"),
        (lambda at: {"private_key": at / "none.key"}, "private_key", "none.key: cannot be read"),
        (stored("other", private_key=lambda at: at / "other.key"), "private_key", "is not the key of"),
        (written("a.key", make("x").key_pem("secret")), "private_key", "by a password; store it without one"),
        (written("a.key", b"no key"), "private_key", "holds no private key in PEM form"),
        (written("a.pem", b"no certificate"), "certificate", "holds no certificate in PEM form"),
        (written("a.pem", BROKEN), "certificate", "it is cut off or damaged; copy all of it again"),
        (written("a.pem", NO_ISSUER), "certificate", "it is cut off or damaged; copy all of it again"),
        (written("a.pem", make("a").pem[:300]), "certificate", "it is cut off or damaged; copy all of it again"),
        (written("a.pem", make("a").key_pem()), "certificate", "holds a private key and no certificate; name a file"),
        (written("a.pem", bytes(FILE_MAX_BYTES + 1)), "certificate", "is above 4 MiB"),
        (stored("a", ends=ENDED), "certificate", f"UTC; renew it, or {CLOCK}"),
        (stored("a", begins=DAY / 2), "certificate", f"UTC; {CLOCK}"),
        (lambda at: {"trust": [str(at / "peers/*.pem")]}, "trust", "no such file; name the CA"),
        (lambda _: {"trust": []}, "trust", "no certificate is trusted"),
        (lambda at: {"peers": [str(at / "peers/*.pem")]}, "peers", "no such file"),
        (
            stored("old", ends=ENDED, trust=lambda at: [str(at / "old.pem")]),
            "trust",
            f"certificates that are valid, or {CLOCK}",
        ),
        (directory_of_peers, "trust", "cannot be read: Is a directory"),
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

    assert ("belongs to a.pem, which is too weak: ee key too small", True) == (problem, "2048 bits" in hint)


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
    chain = [identify(one.certificate) for one in (leaf, ca)]

    by_ca = security(tmp_path, "by its CA", make("a"), ca, other)
    assert [True, False, False] == [by_ca.accepts(one) for one in (chain, chain[:1], [])]
    assert security(tmp_path, "itself", make("b"), leaf).accepts(chain)
    assert not security(tmp_path, "no more", make("c"), other).accepts(chain)
    assert security(tmp_path, "nobody asks", make("d")).accepts(chain)


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

    assert side.accepts([identify(peer.certificate)])
    assert is_authority == side.accepts([identify(one.certificate) for one in (forged, peer)])
    assert is_authority == (peer.fingerprint in side.authorities)


def test_peer_that_was_issued_by_another_peer_is_refused_with_both_names(tmp_path: Path) -> None:
    peer, other = make("peer", is_authority=True), authority()
    side = security(tmp_path, "a", make("a"), other, peers=[peer])

    told = side.refusal([identify(one.certificate) for one in (make("forged", by=peer), peer)])

    assert "(CN=forged) was issued by CN=peer, which is trusted as a peer's own certificate" in told
    assert "no longer trusted" in side.refusal([identify(make("gone").certificate)])

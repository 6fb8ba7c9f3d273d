"""Keys and certificates made, shown and renewed from the shell."""

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from broker.net.tls import Encryption, load_security
from broker.security.certificate_files import Pair, read_certificates, read_pair
from broker.security.identity import OwnIdentity, parse_own, parse_peers
from tests.support.certificates import make
from tests.support.command import run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def certs(*arguments: object) -> Result:
    result = run("certs", *arguments)
    assert 0 == result.exit_code, result.stderr
    return result


def told(*arguments: object) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(certs(*arguments, "-o", "json").stdout)
    return values


def own(path: str) -> Any:
    return read_certificates(Path(path))[0]


def all_bytes(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_what_is_issued_and_printed_is_what_an_endpoint_loads(tmp_path: Path) -> None:
    trust = tomllib.loads(certs("init", 'c"a').stdout)["trust"]
    printed = certs("issue", "gateway", "--host", "gateway.example", "--ca", 'c"a', "--out", "tls").stdout

    endpoint = tomllib.loads(printed)["endpoint"]
    security = load_security(
        Encryption(endpoint["encryption"]),
        certificate=Path(endpoint["certificate"]),
        private_key=Path(endpoint["private_key"]),
        trust=endpoint["trust"],
        is_authenticating=endpoint["authentication"] == "certificate",
    )
    assert security.own is not None
    assert ("CN=gateway", ("gateway.example",)) == (security.own.principal_name, security.own.hosts)
    assert 0o600 == (tmp_path / "tls" / "gateway.key").stat().st_mode & 0o777
    assert [str(tmp_path / 'c"a' / "ca.pem")] == trust == endpoint["trust"]
    assert str(tmp_path / "tls" / "gateway.pem") == endpoint["certificate"], "in whatever directory the file is"


def test_what_is_made_has_the_names_and_the_length_that_were_said() -> None:
    certs("init", "ca", "--days", "100")

    short = told("issue", "a", "--ca", "ca", "--days", "10")
    clipped = told("issue", "b", "--ca", "ca")
    own = told("init", "--self-signed", "tls", "--name", "gateway", "--host", "127.0.0.1")
    usual = told("issue", "--database", "billing", "--spiffe", "spiffe://shop/billing")

    assert [9, 99, 364, 364] == [made["certificates"][0]["days_left"] for made in (short, clipped, own, usual)]
    assert ["tls/gateway.key", "tls/gateway.pem"] == own["files"]
    assert ("transport", "CN=gateway", "CN=gateway", "127.0.0.1", "EC secp256r1") == tuple(
        own["certificates"][0][key] for key in ("for", "subject", "issuer", "hosts", "key")
    )
    assert "spiffe://shop/billing" == usual["certificates"][0]["hosts"]
    signing = dialog_identity("billing").signing.who
    assert ("CN=billing", ("spiffe://shop/billing",)) == (signing.subject, signing.uris)


def dialog_identity(name: str) -> OwnIdentity:
    """The identity of a database, as dialogs load it."""
    return parse_own(Path(f"{name}.dialog.pem").read_bytes(), Path(f"{name}.dialog.key").read_bytes())


@pytest.mark.parametrize("again", ["init ca", "init --self-signed . --name a", "issue a --ca ca", "issue --database a"])
def test_nothing_that_is_there_is_replaced_unless_asked_for(tmp_path: Path, again: str) -> None:
    certs("init", "ca")
    certs("issue", "a", "--ca", "ca")
    certs("issue", "--database", "a")
    before = all_bytes(tmp_path)

    result = run("certs", *again.split())

    assert (6, before) == (result.exit_code, all_bytes(tmp_path))
    assert "is there already: say --force to replace it" in result.stderr
    certs(*again.split(), "--force")
    assert before != all_bytes(tmp_path)


def test_no_authority_or_one_that_is_over_signs_nothing() -> None:
    Path("ca").mkdir()

    without = run("certs", "issue", "b", "--ca", "ca")
    make("old", is_authority=True, begins=timedelta(days=-9), ends=timedelta(days=-1)).store(Path("ca"), "ca")
    over = run("certs", "issue", "b", "--ca", "ca")

    assert (1, 1) == (without.exit_code, over.exit_code)
    assert "ca/ca.pem: cannot be read: No such file or directory" in without.stderr
    assert "ca/ca.pem: expired at" in over.stderr
    assert "renew it first: broker certs renew ca/ca.pem" in over.stderr
    certs("renew", "ca/ca.pem")
    certs("issue", "b", "--ca", "ca")


def test_show_tells_whose_certificates_are_in_files_and_which_setting_uses_them() -> None:
    certs("init", "ca", "--name", "shop CA")
    certs("issue", "a", "--ca", "ca")
    certs("issue", "--database", "billing", "--ca", "ca")
    Path("broker.toml").write_text('[endpoint]\nencryption="required"\ncertificate="a.pem"\nprivate_key="a.key"\n')

    def show(*words: str) -> Any:
        return json.loads(certs("show", *words, "-o", "json").stdout)

    rows = show("ca/ca.pem", "billing.dialog.pem")
    assert [("authority", "CN=shop CA"), ("dialog signing", "CN=billing"), ("dialog sealing", "CN=billing")] == [
        (row["for"], row["subject"]) for row in rows
    ]
    assert "billing.dialog.pem" == rows[1]["file"]
    assert all(row["fingerprint"].startswith("sha256:") for row in rows)
    used, named = show("-c", "broker.toml"), show("-c", "broker.toml", "ca/ca.pem", "a.pem")
    assert [
        [(str(Path("a.pem").absolute()), "endpoint.certificate")],
        [("ca/ca.pem", ""), ("a.pem", used[0]["setting"])],
    ] == [[(row["file"], row["setting"]) for row in rows] for rows in (used, named)]


def test_an_authority_and_what_it_signed_are_renewed_at_once() -> None:
    certs("init", "ca")
    certs("issue", "a", "--host", "a.example", "--ca", "ca")
    old, old_root = own("a.pem"), own("ca/ca.pem")

    certs("renew", "ca/ca.pem")
    certs("renew", "a.pem", "--ca", "ca", "--days", "30")

    root, kept = read_certificates(Path("ca/ca.pem"))
    new, cross = read_certificates(Path("a.pem"))
    assert old_root == kept
    new.verify_directly_issued_by(root)
    cross.verify_directly_issued_by(kept)
    assert (old.subject, True) == (new.subject, old.public_key() != new.public_key())
    assert (datetime.now(UTC) + timedelta(days=30)) - new.not_valid_after_utc < timedelta(minutes=1)
    read_pair(Pair(Path("a.pem"), Path("a.key")))


def test_self_signed_one_is_replaced_after_its_peers_have_the_new_one_or_when_that_is_said(tmp_path: Path) -> None:
    certs("init", "--self-signed", ".", "--name", "a")
    before, old = all_bytes(tmp_path), own("a.pem")

    refused = run("certs", "renew", "a.pem")

    assert (6, before) == (refused.exit_code, all_bytes(tmp_path))
    assert "all would be cut off: begin with --prepare, or say --at-once" in refused.stderr
    certs("renew", "a.pem", "--prepare")
    new = own("a.next.pem")
    assert [old, [new, old]] == [own("a.pem"), read_certificates(Path("a.trust.pem"))]
    assert before[str(tmp_path / "a.key")] == Path("a.key").read_bytes()
    certs("renew", "a.pem")
    assert [new, [new, old]] == [own("a.pem"), read_certificates(Path("a.trust.pem"))]
    read_pair(Pair(Path("a.pem"), Path("a.key")))
    assert {"a.pem", "a.key", "a.trust.pem"} == {path.name for path in Path().iterdir()}
    certs("renew", "a.pem", "--at-once")
    assert [own("a.pem"), new] == read_certificates(Path("a.trust.pem"))
    assert new != own("a.pem")


def test_key_to_seal_to_is_renewed_alone_and_the_old_one_still_opens() -> None:
    certs("issue", "--database", "billing")
    before = dialog_identity("billing")

    printed = certs("renew", "billing.dialog.pem").stdout

    after = dialog_identity("billing")
    assert before.signing.fingerprint == after.signing.fingerprint
    assert (1, 2, True) == (len(before.opening), len(after.opening), set(before.opening) < set(after.opening))
    assert "renew that with --signing before" in printed


def test_database_is_prepared_handed_out_and_put_in_place() -> None:
    certs("issue", "--database", "billing")
    old = dialog_identity("billing")

    certs("renew", "billing.dialog.pem", "--signing", "--prepare")
    bundle = {one.fingerprint: one for one in parse_peers(Path("billing.dialog.trust.pem").read_bytes())}
    waiting = dialog_identity("billing")
    certs("renew", "billing.dialog.pem")
    after = dialog_identity("billing")

    assert {old.signing.fingerprint, after.signing.fingerprint} == set(bundle)
    sealed_to = {sealing.fingerprint for one in bundle.values() for sealing in one.sealing}
    assert old.signing.fingerprint == waiting.signing.fingerprint
    assert (sealed_to, sealed_to) == (set(waiting.opening), set(after.opening))


@pytest.mark.parametrize(
    ("arguments", "exit_code", "problem"),
    [
        ("a.pem", 2, "a.pem is signed by an authority: give its authority with --ca DIRECTORY"),
        ("self.pem --ca ca", 2, "self.pem is signed by itself: leave out --ca, which did not sign it"),
        ("a.pem --ca other", 1, "CN=a: is not signed by this authority but by CN=broker CA"),
        ("a.pem --ca ca --key self.key", 1, "self.key: does not begin with the key of a.pem"),
        ("copy.pem", 2, "an authority is renewed in its own directory: name its ca.pem"),
    ],
)
def test_what_cannot_be_renewed_stays(tmp_path: Path, arguments: str, exit_code: int, problem: str) -> None:
    certs("init", "ca")
    certs("init", "other")
    certs("issue", "a", "--ca", "ca")
    certs("init", "--self-signed", ".", "--name", "self")
    Path("copy.pem").write_bytes(Path("ca/ca.pem").read_bytes())
    before = all_bytes(tmp_path)

    result = run("certs", "renew", *arguments.split())

    assert (exit_code, before) == (result.exit_code, all_bytes(tmp_path))
    assert problem in " ".join(result.stderr.split())

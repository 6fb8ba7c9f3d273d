"""Keys and certificates made, shown and renewed from the shell."""

from __future__ import annotations

import json
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from broker.net.tls import Encryption, load_security
from broker.security.certificate_files import Pair, read_certificates, read_pair
from broker.security.identity import parse_own, parse_peers
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


# --- init, issue ---


def test_authority_and_what_it_issues_are_what_an_endpoint_loads(tmp_path: Path) -> None:
    certs("init", "ca")
    printed = certs("issue", "gateway", "--host", "gateway.example", "--ca", "ca", "--out", "tls").stdout

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


def test_what_is_printed_holds_in_a_configuration_of_any_directory(tmp_path: Path) -> None:
    told = [
        tomllib.loads(certs(*words).stdout)
        for words in (
            ("init", 'c"a'),
            ("issue", "gateway", "--ca", 'c"a', "--out", "tls"),
            ("issue", "--database", "billing", "--out", "dialog"),
        )
    ]

    endpoint, database = told[1]["endpoint"], told[2]["databases"]["billing"]
    assert [str(tmp_path / 'c"a' / "ca.pem")] == told[0]["trust"] == endpoint["trust"]
    assert str(tmp_path / "tls" / "gateway.pem") == endpoint["certificate"]
    assert str(tmp_path / "dialog" / "billing.dialog.key") == database["private_key"]


def test_database_is_what_dialog_security_loads() -> None:
    printed = certs("issue", "--database", "billing", "--spiffe", "spiffe://shop/billing").stdout

    settings = tomllib.loads(printed)["databases"]["billing"]
    identity = parse_own(Path(settings["certificate"]).read_bytes(), Path(settings["private_key"]).read_bytes())
    assert ("CN=billing", ("spiffe://shop/billing",)) == (identity.signing.who.subject, identity.signing.who.uris)


def test_identity_on_its_own_is_signed_by_itself() -> None:
    values = told("init", "--self-signed", "tls", "--name", "gateway", "--host", "127.0.0.1")

    assert ["tls/gateway.key", "tls/gateway.pem"] == values["files"]
    [row] = values["certificates"]
    assert ("transport", "CN=gateway", "CN=gateway", "127.0.0.1") == tuple(
        row[key] for key in ("for", "subject", "issuer", "hosts")
    )


def test_it_is_valid_for_as_long_as_was_said_and_no_longer_than_its_authority() -> None:
    certs("init", "ca", "--days", "100")

    short = told("issue", "a", "--ca", "ca", "--days", "10")["certificates"][0]
    clipped = told("issue", "b", "--ca", "ca")["certificates"][0]

    assert (9, 99) == (short["days_left"], clipped["days_left"])
    usual = told("issue", "--database", "c")["certificates"]
    assert [364, 364] == [one["days_left"] for one in usual]


@pytest.mark.parametrize(
    "again",
    [
        ("init", "ca"),
        ("init", "--self-signed", "tls", "--name", "a"),
        ("issue", "a", "--ca", "ca", "--out", "tls"),
        ("issue", "--database", "a", "--out", "tls"),
    ],
    ids=" ".join,
)
def test_nothing_that_is_there_is_replaced_unless_asked_for(tmp_path: Path, again: tuple[str, ...]) -> None:
    certs("init", "ca")
    certs("issue", "a", "--ca", "ca", "--out", "tls")
    certs("issue", "--database", "a", "--out", "tls")
    before = all_bytes(tmp_path)

    result = run("certs", *again)

    assert 6 == result.exit_code
    assert "is there already: say --force to replace it" in result.stderr
    assert before == all_bytes(tmp_path)
    assert 0 == run("certs", *again, "--force").exit_code
    assert before != all_bytes(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("issue",), "give either the NAME of an endpoint or --database NAME"),
        (("issue", "a", "--database", "b"), "give either the NAME of an endpoint or --database NAME"),
        (("issue", "a"), "give --ca DIRECTORY, or make it on its own with broker certs init --self-signed"),
        (("issue", "--database", "a", "--host", "b"), "a database is on no host"),
        (("issue", "--database", "a", "--days", "826"), "--days 826 is above 825"),
        (("issue", "--database", "a/b"), "'a/b' is not a name of 1 to 64 characters"),
        (("issue", "--database", "a", "--spiffe", "http://a"), "is no SPIFFE id"),
        (("init", "ca", "--host", "a"), "an authority has neither hosts nor a SPIFFE id"),
        (("init", "--self-signed", "d", "--name", "a", "--host", "a:1"), "'a:1' is not a host"),
        (("init", "ca", "--days", "99999999"), "is beyond the last day there is"),
        (("show",), "name files, or a configuration with -c FILE"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_wrong_usage_makes_nothing(tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    result = run("certs", *arguments)

    assert 2 == result.exit_code
    assert problem in " ".join(result.stderr.split())
    assert {} == all_bytes(tmp_path)


def test_directory_that_is_no_authority_is_told() -> None:
    certs("issue", "--database", "a", "--out", "tls")

    result = run("certs", "issue", "b", "--ca", "tls")

    assert 1 == result.exit_code
    assert "tls/ca.pem: cannot be read: No such file or directory" in result.stderr


def test_authority_that_is_over_signs_nothing() -> None:
    old = make("old", is_authority=True, begins=timedelta(days=-9), ends=timedelta(days=-1))
    Path("ca").mkdir()
    old.store(Path("ca"), "ca")

    result = run("certs", "issue", "b", "--ca", "ca")

    assert 1 == result.exit_code
    assert "ca/ca.pem: expired at" in result.stderr
    assert "renew it first: broker certs renew ca/ca.pem" in result.stderr
    certs("renew", "ca/ca.pem")
    certs("issue", "b", "--ca", "ca")


# --- show ---


def test_show_tells_whose_certificates_are_in_files() -> None:
    certs("init", "ca", "--name", "shop CA")
    certs("issue", "--database", "billing", "--ca", "ca")

    rows = json.loads(certs("show", "ca/ca.pem", "billing.dialog.pem", "-o", "json").stdout)

    assert [("authority", "CN=shop CA"), ("dialog signing", "CN=billing"), ("dialog sealing", "CN=billing")] == [
        (row["for"], row["subject"]) for row in rows
    ]
    assert "billing.dialog.pem" == rows[1]["file"]
    assert all(row["fingerprint"].startswith("sha256:") for row in rows)


def test_show_tells_which_setting_uses_a_file() -> None:
    certs("init", "ca")
    certs("issue", "a", "--ca", "ca")
    Path("broker.toml").write_text('[endpoint]\nencryption="required"\ncertificate="a.pem"\nprivate_key="a.key"\n')

    all_of_it = json.loads(certs("show", "-c", "broker.toml", "-o", "json").stdout)
    one = json.loads(certs("show", "-c", "broker.toml", "ca/ca.pem", "a.pem", "-o", "json").stdout)

    assert [(str(Path("a.pem").absolute()), "endpoint.certificate")] == [
        (row["file"], row["setting"]) for row in all_of_it
    ]
    assert [("ca/ca.pem", ""), ("a.pem", "endpoint.certificate")] == [(row["file"], row["setting"]) for row in one]


# --- renew ---


def test_what_an_authority_signed_is_renewed_at_once() -> None:
    certs("init", "ca")
    certs("issue", "a", "--host", "a.example", "--ca", "ca")
    old = own("a.pem")

    certs("renew", "a.pem", "--ca", "ca", "--days", "30")

    new = own("a.pem")
    new.verify_directly_issued_by(own("ca/ca.pem"))
    assert old.subject == new.subject
    assert old.public_key() != new.public_key()
    assert (datetime.now(UTC) + timedelta(days=30)) - new.not_valid_after_utc < timedelta(minutes=1)
    read_pair(Pair(Path("a.pem"), Path("a.key")))


def test_renewed_authority_keeps_both_certificates_and_sends_the_way_to_the_old_one() -> None:
    certs("init", "ca")
    old = own("ca/ca.pem")

    certs("renew", "ca/ca.pem")

    new, kept = read_certificates(Path("ca/ca.pem"))
    assert old == kept
    certs("issue", "a", "--ca", "ca")
    leaf, cross = read_certificates(Path("a.pem"))
    leaf.verify_directly_issued_by(new)
    cross.verify_directly_issued_by(old)


def test_self_signed_one_is_not_replaced_before_its_peers_have_the_new_one(tmp_path: Path) -> None:
    certs("init", "--self-signed", ".", "--name", "a")
    before = all_bytes(tmp_path)

    result = run("certs", "renew", "a.pem")

    assert 6 == result.exit_code
    assert "all would be cut off: begin with --prepare, or say --at-once" in result.stderr
    assert before == all_bytes(tmp_path)


def test_self_signed_one_is_prepared_handed_out_and_put_in_place() -> None:
    certs("init", "--self-signed", ".", "--name", "a")
    old, old_key = own("a.pem"), Path("a.key").read_bytes()

    certs("renew", "a.pem", "--prepare")
    assert (old, old_key) == (own("a.pem"), Path("a.key").read_bytes())
    new = own("a.next.pem")
    assert [new, old] == read_certificates(Path("a.trust.pem"))
    certs("renew", "a.pem")

    assert new == own("a.pem")
    read_pair(Pair(Path("a.pem"), Path("a.key")))
    assert [new, old] == read_certificates(Path("a.trust.pem"))
    assert {"a.pem", "a.key", "a.trust.pem"} == {path.name for path in Path().iterdir()}


def test_self_signed_one_is_replaced_at_once_when_that_is_said() -> None:
    certs("init", "--self-signed", ".", "--name", "a")
    old = own("a.pem")

    certs("renew", "a.pem", "--at-once")

    assert [own("a.pem"), old] == read_certificates(Path("a.trust.pem"))
    assert old != own("a.pem")


def test_key_to_seal_to_is_renewed_alone_and_the_old_one_still_opens() -> None:
    certs("issue", "--database", "billing")
    [before] = parse_peers(Path("billing.dialog.pem").read_bytes())

    printed = certs("renew", "billing.dialog.pem").stdout

    pem = Path("billing.dialog.pem").read_bytes()
    [after], own_one = parse_peers(pem), parse_own(pem, Path("billing.dialog.key").read_bytes())
    now = datetime.now(UTC).timestamp()
    old, new = before.sealing_at(now), after.sealing_at(now)
    assert old is not None
    assert new is not None
    assert before.fingerprint == after.fingerprint
    assert old.fingerprint != new.fingerprint
    assert {old.fingerprint, new.fingerprint} == set(own_one.opening)
    assert "renew that with --signing before" in printed


def test_database_is_prepared_handed_out_and_put_in_place() -> None:
    certs("issue", "--database", "billing")
    [old] = parse_peers(Path("billing.dialog.pem").read_bytes())

    certs("renew", "billing.dialog.pem", "--signing", "--prepare")
    bundle = {one.fingerprint: one for one in parse_peers(Path("billing.dialog.trust.pem").read_bytes())}
    waiting = parse_own(Path("billing.dialog.pem").read_bytes(), Path("billing.dialog.key").read_bytes())
    certs("renew", "billing.dialog.pem")
    after = parse_own(Path("billing.dialog.pem").read_bytes(), Path("billing.dialog.key").read_bytes())

    assert {old.fingerprint, after.signing.fingerprint} == set(bundle)
    sealed_to = {sealing.fingerprint for one in bundle.values() for sealing in one.sealing}
    assert old.fingerprint == waiting.signing.fingerprint
    assert (sealed_to, sealed_to) == (set(waiting.opening), set(after.opening))


@pytest.mark.parametrize(
    ("arguments", "exit_code", "problem"),
    [
        (("a.pem",), 2, "a.pem is signed by an authority: give its authority with --ca DIRECTORY"),
        (("self.pem", "--ca", "ca"), 2, "self.pem is signed by itself: leave out --ca, which did not sign it"),
        (("a.pem", "--ca", "other"), 1, "CN=a: is not signed by this authority but by CN=broker CA"),
        (("a.pem", "--ca", "ca", "--key", "self.key"), 1, "self.key: does not begin with the key of a.pem"),
        (("a.pem", "--ca", "ca", "--key", "none.key"), 1, "none.key: cannot be read"),
        (("copy.pem",), 2, "an authority is renewed in its own directory: name its ca.pem"),
        (("a.key",), 1, "a.key: holds a private key and no certificate"),
        (("none.pem",), 2, "does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_renewed_stays(tmp_path: Path, arguments: tuple[str, ...], exit_code: int, problem: str) -> None:
    certs("init", "ca")
    certs("init", "other")
    certs("issue", "a", "--ca", "ca")
    certs("init", "--self-signed", ".", "--name", "self")
    Path("copy.pem").write_bytes(Path("ca/ca.pem").read_bytes())
    before = all_bytes(tmp_path)

    result = run("certs", "renew", *arguments)

    assert exit_code == result.exit_code
    assert problem in " ".join(result.stderr.split())
    assert before == all_bytes(tmp_path)

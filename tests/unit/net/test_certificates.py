"""The certificate files that settings name, loaded and judged."""

import asyncio
import os
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.errors import SettingError
from broker.net import certificates as certificate_watch
from broker.net.certificates import (
    CertificateWatch,
    certificate_errors,
    certificate_uses,
    certificate_warnings,
    plain_text_told,
    security_of,
)
from broker.net.tls import NO_SECURITY, Security
from tests.support.certificates import Pair, authority, make

# --- certificate use ---


def test_each_file_is_listed_with_every_setting_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    for name in ("a.pem", "b.pem", "c.dialog.pem"):
        (tmp_path / "tls" / name).write_text("")
    (tmp_path / "broker.toml").write_text(
        '[endpoint]\nencryption="required"\nauthentication="certificate"\n'
        'certificate="tls/a.pem"\nprivate_key="a.key"\ntrust=["tls/?.pem", "none.pem"]\npeers=["tls/b.pem"]\n'
        '[databases.orders]\npath="o.db"\ncertificate="tls/c.dialog.pem"\nprivate_key="c.key"\npeers=["tls/*.dialog.pem"]\n'
    )

    uses = certificate_uses(load_settings(tmp_path / "broker.toml", environ={}))

    assert {
        tmp_path / "tls" / "a.pem": ("endpoint.certificate", "endpoint.trust"),
        tmp_path / "tls" / "b.pem": ("endpoint.trust", "endpoint.peers"),
        tmp_path / "none.pem": ("endpoint.trust",),
        tmp_path / "tls" / "c.dialog.pem": ("databases.orders.certificate", "databases.orders.peers"),
    } == uses


# --- certificate watch ---


class Files:
    """The files of an endpoint; `used` what was put to use, in order."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = authority()
        self.used: list[Security] = []
        self.write(make("one", "localhost", by=self.ca))
        (directory / "trust").mkdir()
        (directory / "trust" / "ca.pem").write_bytes(self.ca.pem)
        endpoint = {
            "listen": ["127.0.0.1:0"],
            "encryption": "required",
            "authentication": "certificate",
            "certificate": str(directory / "own.pem"),
            "private_key": str(directory / "own.key"),
            "trust": [str(directory / "trust" / "*.pem")],
        }
        self.watch = CertificateWatch(Settings.read({"endpoint": endpoint}))
        self.watch.load()
        self.watch._use = self.used.append

    def write(self, pair: Pair) -> None:
        pair.store(self.directory, "own")

    async def poll(self, times: int = 2) -> None:
        for _ in range(times):
            await self.watch.poll()

    @property
    def names(self) -> list[str]:
        return [one.own.principal_name for one in self.used if one.own is not None]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_changed_certificate_is_used_once_two_looks_find_the_same(files: Files, logs: list[Any]) -> None:
    files.write(make("two", "localhost", by=files.ca))

    await files.poll(1)
    assert [] == files.used
    await files.poll(3)

    assert (["CN=two"], 1, "") == (files.names, files.watch.reloads, files.watch.problem)
    assert files.used[-1] is files.watch.security
    assert [("certificates loaded", "CN=two")] == [(entry["event"], entry["principal"]) for entry in logs]


async def test_file_put_in_the_place_of_another_is_seen_whatever_its_time_and_size(files: Files) -> None:
    path, new = files.directory / "own.pem", files.directory / "new"
    there = path.stat()
    new.write_bytes(path.read_bytes())
    os.utime(new, ns=(there.st_atime_ns, there.st_mtime_ns))

    new.replace(path)
    await files.poll()

    assert 1 == files.watch.reloads


@pytest.mark.parametrize(
    ("break_it", "told"),
    [
        (lambda files: (files.directory / "own.pem").write_text("no certificate"), "holds no certificate"),
        (lambda files: (files.directory / "own.key").unlink(), "cannot be read: No such file"),
        (lambda files: files.write(make("old", by=files.ca, ends=timedelta(seconds=-1))), "expired at"),
    ],
)
async def test_files_that_cannot_be_used_leave_everything_as_it_was_and_are_told_once(
    files: Files, logs: list[Any], break_it: Any, told: str
) -> None:
    before = files.watch.security

    break_it(files)
    await files.poll(6)

    assert ([], True, 1) == (files.used, files.watch.security is before, files.watch.failures)
    assert (True, True) == (told in files.watch.problem, files.watch.problem.startswith("endpoint."))
    [entry] = logs
    assert ("error", True) == (entry["log_level"], told in entry["problem"])
    with pytest.raises(SettingError, match=told):
        CertificateWatch(files.watch._settings).load()


async def test_who_is_trusted_no_more_is_out_whatever_else_is_broken(files: Files, logs: list[Any]) -> None:
    other = authority("other CA")
    (files.directory / "trust" / "other.pem").write_bytes(other.pem)
    await files.poll()
    (files.directory / "trust" / "other.pem").unlink()
    (files.directory / "own.pem").write_text("half of a certif")
    await files.poll(4)

    pinned = [set(one.pinned) for one in files.used]
    assert [{files.ca.fingerprint, other.fingerprint}, {files.ca.fingerprint}] == pinned
    assert ("CN=one", True) == (files.names[-1], files.watch.security is files.used[-1])
    assert files.watch.problem
    [entry] = [entry for entry in logs if entry["event"] == "trust withdrawn"]
    assert (["CN=other CA"], 1) == (entry["principals"], entry["trusted"])


async def test_certificate_is_used_when_its_day_has_come_without_another_change(files: Files) -> None:
    files.write(make("soon", "localhost", by=files.ca, begins=timedelta(seconds=1)))
    await files.poll()
    assert "is not valid before" in files.watch.problem

    async with asyncio.timeout(10):
        while files.watch.problem:
            await files.poll()

    assert (["CN=soon"], 1) == (files.names, files.watch.failures)


async def test_files_that_change_while_they_are_loaded_are_left_for_the_next_look(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_and_change(settings: Settings) -> Security:
        found = security_of(settings)
        files.write(make("three", "localhost", by=files.ca))
        return found

    files.write(make("two", "localhost", by=files.ca))
    monkeypatch.setattr(certificate_watch, "security_of", load_and_change)
    await files.poll()
    assert [] == files.used
    monkeypatch.setattr(certificate_watch, "security_of", security_of)
    await files.poll()

    assert ["CN=three"] == files.names


async def test_look_that_fails_is_not_the_last(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate_watch, "POLL_SECONDS", 0.01)
    mark, looks = files.watch._mark, iter([RuntimeError("can't start new thread")])

    def fail_once() -> Any:
        for error in looks:
            raise error
        return mark()

    monkeypatch.setattr(files.watch, "_mark", fail_once)
    is_used = asyncio.Event()
    async with AsyncExitStack() as stack:
        files.watch.start(stack, lambda _: is_used.set())
        files.write(make("two", "localhost", by=files.ca))

        await asyncio.wait_for(is_used.wait(), 10)


async def test_where_nothing_is_encrypted_nobody_looks(logs: list[Any]) -> None:
    watch = CertificateWatch(Settings.read({"endpoint": {"listen": ["127.0.0.1:0"]}}))

    async with AsyncExitStack() as stack:
        assert NO_SECURITY is watch.load()
        watch.warn(connects=False)
        watch.start(stack, lambda _: None)
        assert {asyncio.current_task()} == asyncio.all_tasks()

    assert ["endpoint.encryption"] == [one["setting"] for one in logs if "not encrypted" in one["problem"]]


async def test_other_settings_are_used_at_once_and_their_files_looked_at(files: Files, tmp_path: Path) -> None:
    """The files of before are looked at no more, and none where nothing is encrypted."""
    certificate, key = make("two", "localhost", by=files.ca).store(tmp_path, "other")
    endpoint = files.watch._settings.endpoint.replace(certificate=certificate, private_key=key)
    settings = Settings(endpoint=endpoint)

    files.watch.use(settings, security_of(settings))
    files.write(make("nobody", "localhost", by=files.ca))
    await files.poll(3)
    make("three", "localhost", by=files.ca).store(tmp_path, "other")
    await files.poll(2)
    assert ["CN=two", "CN=three"] == files.names

    files.watch.use(Settings.read({"endpoint": {"listen": ["127.0.0.1:0"], "encryption": "disabled"}}), NO_SECURITY)
    make("four", "localhost", by=files.ca).store(tmp_path, "other")
    await files.poll(3)
    assert (3, NO_SECURITY) == (len(files.used), files.used[-1])


def settings_with(directory: Path, *, days: float = 365, by: Pair | None = None, **endpoint: Any) -> Settings:
    certificate, key = make("a", "localhost", ends=timedelta(days=days), by=by).store(directory, "a")
    named = {"encryption": "required", "certificate": str(certificate), "private_key": str(key)}
    return Settings.read({"endpoint": named | endpoint})


@pytest.mark.parametrize(("days", "told"), [(29.5, "29 days"), (0.21, "5 hours")])
def test_certificate_that_ends_soon_is_a_warning_with_what_to_do(tmp_path: Path, days: float, told: str) -> None:
    settings = settings_with(tmp_path, days=days)

    [warning] = certificate_warnings(settings)

    assert "endpoint.certificate" == warning.key
    assert f"{tmp_path}/a.pem ends in {told}, at " in warning.problem
    assert "renew it" in warning.hint


@pytest.mark.parametrize("is_self_signed", [False, True])
def test_advertised_host_that_the_certificate_does_not_name_is_a_warning(
    tmp_path: Path, *, is_self_signed: bool
) -> None:
    """Peers name a self-signed certificate itself, which needs no name of a host."""
    ca = authority()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    named: dict[str, Any] = {"peers": [str(tmp_path / "ca.pem")], "advertise": ["tcp://localhost", "tcp://a.example"]}
    by = None if is_self_signed else ca

    warnings = certificate_warnings(settings_with(tmp_path, by=by, authentication="certificate", **named))

    command = "broker certs issue a --host localhost --host a.example --ca DIRECTORY --out DIRECTORY --force"
    assert ([] if is_self_signed else ["endpoint.advertise[1]"]) == [one.key for one in warnings]
    assert all("the certificate of CN=a is for localhost, so" in one.problem for one in warnings)
    assert all(one.hint.endswith(command) for one in warnings)


def test_every_file_that_cannot_be_used_is_told_in_one_run(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, authentication="certificate", trust=[str(tmp_path / "none.pem")])
    (tmp_path / "a.pem").write_text("no certificate")
    (tmp_path / "a.key").write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\n")

    errors = certificate_errors(settings)

    assert ["endpoint.certificate", "endpoint.private_key", "endpoint.trust"] == [error.key for error in errors]
    assert "is protected by a password" in errors[1].problem


def test_key_that_everybody_may_read_is_a_warning(tmp_path: Path) -> None:
    settings = settings_with(tmp_path)
    (tmp_path / "a.key").chmod(0o644)

    [warning] = certificate_warnings(settings)

    assert ("endpoint.private_key", f"chmod 600 {tmp_path}/a.key") == (warning.key, warning.hint)


def trusting(directory: Path, pair: Pair, **more: Any) -> list[SettingError]:
    """The warnings where an endpoint trusts this certificate."""
    pair.store(directory, "peer")
    trust = [str(directory / "peer.pem")]
    return certificate_warnings(settings_with(directory, authentication="certificate", trust=trust, **more))


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        (make("m", is_authority=True), "says CA:TRUE, so its holder can issue certificates in the name of every peer"),
        (make("m", "m.example", is_authority=True, lists_cert_sign=True), "can issue certificates in the name of"),
        (make("m", "m.example", is_authority=True), "as a peer's own certificate only, because it names m.exam"),
        (make("m", is_authority=True, lists_cert_sign=True), ""),
        (make("m", "m.example"), ""),
    ],
)
def test_trusted_certificate_that_may_be_a_peers_own_and_an_authority_is_a_warning(
    pair: Pair, told: str, tmp_path: Path
) -> None:
    warnings = trusting(tmp_path, pair)

    assert ["endpoint.trust"] * bool(told) == [warning.key for warning in warnings]
    for warning in warnings:
        assert f"CN=m in {tmp_path}/peer.pem says CA:TRUE" in warning.problem
        assert told in warning.problem
        assert "name it in endpoint.peers" in warning.hint
    assert [] == trusting(tmp_path, pair, peers=[str(tmp_path / "peer.pem")])


def test_certificate_of_a_client_of_the_admin_port_is_a_warning_too(tmp_path: Path) -> None:
    make("clerk", is_authority=True).store(tmp_path, "clerk")

    [warning] = certificate_warnings(Settings.read({"admin": {"trust": [str(tmp_path / "clerk.pem")]}}))

    assert ("admin.trust", True) == (warning.key, "admin.peers" in warning.hint)


@pytest.mark.parametrize(
    ("endpoint", "is_told"),
    [
        ({}, True),
        ({"listen": ["127.0.0.1:4022", "[::]:4022"]}, True),
        ({"listen": ["127.0.0.1:4022", "[::1]:4022", "localhost:4022"]}, False),
        ({"listen": []}, False),
        ({"encryption": "disabled"}, False),
    ],
)
def test_plain_text_has_to_be_spelled_out_where_other_machines_are(endpoint: dict[str, Any], *, is_told: bool) -> None:
    settings = Settings.read({"endpoint": endpoint})

    errors = certificate_errors(settings)

    assert ["endpoint.encryption"] * is_told == [error.key for error in errors]
    for error in errors:
        assert 'encryption = "required" with certificate and private_key' in error.hint
        with pytest.raises(SettingError, match="is not set"):
            security_of(settings)


NEAR, PLAIN = ["127.0.0.1:4022"], "connections are not encrypted"


@pytest.mark.parametrize(
    ("encryption", "listen", "connects", "told"),
    [
        ("disabled", NEAR, False, PLAIN),
        ("supported", NEAR, False, f"{PLAIN} where the peer has no TLS"),
        ("required", NEAR, True, ""),
        ("disabled", [], True, PLAIN),
        ("disabled", [], False, ""),
    ],
)
def test_plain_text_is_a_warning_wherever_it_is_possible(
    tmp_path: Path, encryption: str, listen: list[str], told: str, *, connects: bool
) -> None:
    settings = settings_with(tmp_path, encryption=encryption, listen=listen)

    warnings = certificate_warnings(settings, connects=connects)

    assert told == plain_text_told(settings.endpoint, connects=connects)
    assert [f'is "{encryption}": {told}'] * bool(told) == [one.problem for one in warnings]

"""The certificate files that settings name, loaded and judged."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from broker.config.settings import Settings
from broker.errors import SettingError
from broker.net.certificates import certificate_errors, certificate_warnings, plain_text_told, security_of
from broker.net.tls import NO_SECURITY, Encryption
from tests.support.certificates import DAY, Pair, authority, make


def settings_with(directory: Path, *, days: float = 365, **endpoint: Any) -> Settings:
    certificate, key = make("a", "localhost", ends=timedelta(days=days)).store(directory, "a")
    named = {"encryption": "required", "certificate": str(certificate), "private_key": str(key)}
    return Settings.read({"endpoint": named | endpoint})


def test_files_become_what_the_endpoint_brings(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, authentication="certificate", trust=[str(tmp_path / "*.pem")])

    security = security_of(settings)

    assert (Encryption.REQUIRED, True) == (security.encryption, security.is_authenticating)
    assert "CN=a" == security.own.principal_name  # type: ignore[union-attr]
    assert ([], []) == (certificate_errors(settings), certificate_warnings(settings))


def test_disabled_endpoint_reads_no_file(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, encryption="disabled", certificate="/none", private_key="/none")

    assert NO_SECURITY is security_of(settings)
    assert ([], []) == (certificate_errors(settings), certificate_warnings(settings))


@pytest.mark.parametrize(("days", "told"), [(29.5, "29 days"), (0.21, "5 hours")])
def test_certificate_that_ends_soon_is_a_warning_with_what_to_do(tmp_path: Path, days: float, told: str) -> None:
    settings = settings_with(tmp_path, days=days)

    [warning] = certificate_warnings(settings)

    assert "endpoint.certificate" == warning.key
    assert f"{tmp_path}/a.pem ends in {told}, at " in warning.problem
    assert "renew it" in warning.hint


def test_file_that_cannot_be_used_is_an_error_of_its_setting(tmp_path: Path) -> None:
    settings = settings_with(tmp_path, private_key=str(tmp_path / "none"))

    [error] = certificate_errors(settings)

    assert "endpoint.private_key" == error.key
    assert f"{tmp_path}/none: cannot be read: No such file or directory" == error.problem
    with pytest.raises(SettingError, match="cannot be read"):
        security_of(settings)


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
        (
            make("m", "m.example", is_authority=True),
            "trusted as a peer's own certificate only, because it names m.exam",
        ),
        (make("m", is_authority=True, lists_cert_sign=True), ""),
        (make("m", "m.example"), ""),
    ],
)
def test_trusted_certificate_that_may_be_a_peers_own_and_an_authority_is_a_warning(
    pair: Pair, told: str, tmp_path: Path
) -> None:
    warnings = trusting(tmp_path, pair)

    assert bool(told) == bool(warnings)
    for warning in warnings:
        assert "endpoint.trust" == warning.key
        assert f"CN=m in {tmp_path}/peer.pem says CA:TRUE" in warning.problem
        assert told in warning.problem
        assert "name it in endpoint.peers" in warning.hint
    assert [] == trusting(tmp_path, pair, peers=[str(tmp_path / "peer.pem")])


def test_authority_of_the_instance_itself_is_no_warning(tmp_path: Path) -> None:
    ca = authority()
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    certificate, key = make("a", "localhost", by=ca, ends=365 * DAY).store(tmp_path, "a")
    files = {"certificate": str(certificate), "private_key": str(key)}
    endpoint = {"encryption": "required", "authentication": "certificate", "trust": [str(tmp_path / "ca.pem")]}

    assert [] == certificate_warnings(Settings.read({"endpoint": files | endpoint}))


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

    assert is_told == bool(errors)
    for error in errors:
        assert ("endpoint.encryption", True) == (error.key, "connections would not be encrypted" in error.problem)
        assert 'encryption = "required" with certificate and private_key' in error.hint
        with pytest.raises(SettingError, match="is not set"):
            security_of(settings)


@pytest.mark.parametrize(
    ("encryption", "told"),
    [
        ("disabled", ["connections are not encrypted"]),
        ("supported", ["connections are not encrypted where the peer has no TLS"]),
        ("required", []),
    ],
)
def test_plain_text_is_a_warning_wherever_it_is_possible(tmp_path: Path, encryption: str, told: list[str]) -> None:
    settings = settings_with(tmp_path, encryption=encryption, listen=["127.0.0.1:4022"])

    assert told == [one for one in [plain_text_told(encryption)] if one]
    assert [f'is "{encryption}": {one}' for one in told] == [one.problem for one in certificate_warnings(settings)]

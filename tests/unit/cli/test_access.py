"""Configuration and daemon, found by what the command line says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from broker.cli.access import (
    admin_client,
    credentials,
    is_nothing_given,
    nothing_to_read,
    overrides_from,
    read_settings,
)
from broker.errors import CertificateUnusableError
from tests.support.command import run


def test_settings_come_from_the_file_and_the_environment(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ENDPOINT__MAX_HOPS", "4")

    settings = read_settings(configuration)

    assert (["orders"], 4) == (list(settings.databases), settings.endpoint.max_hops)


def test_the_usual_file_is_read_when_none_is_named(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("broker.cli.access.DEFAULT_CONFIG", tmp_path / "usual.toml")
    assert [] == list(read_settings(None).databases)

    (tmp_path / "usual.toml").write_text(configuration.read_text())

    assert ["orders"] == list(read_settings(None).databases)


def test_flags_count_more_than_the_environment(configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ENDPOINT__MAX_HOPS", "4")

    settings = read_settings(configuration, overrides_from(["endpoint.max_hops=5", "instance.name=a=b"]))

    assert (5, "a=b") == (settings.endpoint.max_hops, settings.instance.name)


@pytest.mark.parametrize(
    ("variable", "flags", "has_file", "is_nothing"),
    [
        ("BROKER_CONFIGURATION", [], False, True),
        ("BROKER_ENDPOINT__MAX_HOPS", [], False, False),
        ("BROKER_X", ["endpoint.max_hops=4"], False, False),
        ("BROKER_X", [], True, False),
    ],
)
def test_it_is_known_when_nothing_is_given(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variable: str,
    flags: list[str],
    *,
    has_file: bool,
    is_nothing: bool,
) -> None:
    monkeypatch.setattr("broker.cli.access.DEFAULT_CONFIG", tmp_path / "usual.toml")
    monkeypatch.setenv(variable, "4")
    if has_file:
        (tmp_path / "usual.toml").write_text("# all as it is without\n")

    assert is_nothing == is_nothing_given(None, flags)


@pytest.mark.parametrize(("flags", "is_nothing"), [([], True), (["endpoint.max_hops=4"], False)])
def test_an_empty_file_gives_nothing(tmp_path: Path, flags: list[str], *, is_nothing: bool) -> None:
    path = tmp_path / "broker.toml"
    path.touch()

    assert is_nothing == is_nothing_given(path, flags)
    assert nothing_to_read(path).startswith(f"{path} is empty, and nothing else says what to run: write the settings")


@pytest.mark.parametrize("path", [Path("/dev/null"), Path("/nonexistent/broker.toml"), Path("a\0b")])
def test_of_what_is_no_file_whoever_reads_it_tells(path: Path) -> None:
    assert not is_nothing_given(path, [])


def test_the_socket_of_the_command_line_goes_before_the_configurations(
    configuration: Path, fake_admin: Any, tmp_path: Path
) -> None:
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})
    missing = tmp_path / "none.toml"

    assert {"name": "one"} == admin_client(missing, fake_admin.path).get("/v1/status")
    assert {"name": "one"} == admin_client(configuration, None).get("/v1/status")


# --- what is shown to a daemon ---


def test_the_url_of_the_environment_comes_before_the_configuration(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_ADMIN_URL", "https://gateway:9422")

    found = [admin_client(configuration, where).where for where in (None, Path("a.sock"), "http://127.0.0.1:1")]

    assert ["https://gateway:9422", Path("a.sock"), "http://127.0.0.1:1"] == found


def test_a_token_comes_from_the_environment_or_from_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("BROKER_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    of_file = credentials()
    monkeypatch.setenv("BROKER_ADMIN_TOKEN", "of-the-variable")

    assert ["of-the-file", "of-the-variable"] == [of_file.token, credentials().token]


def test_a_certificate_without_a_key_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ADMIN_CERTIFICATE", "a.pem")

    with pytest.raises(click.UsageError, match="are set together"):
        credentials()


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_token_file_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("BROKER_ADMIN_TOKEN_FILE", str(path))

    with pytest.raises(CertificateUnusableError, match=str(path)):
        credentials()


def test_a_token_that_would_go_through_a_network_in_plain_text_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ADMIN_TOKEN", "secret")

    with pytest.raises(click.UsageError, match="in plain text: use https"):
        admin_client(None, "http://gateway:9422")


# --- where the daemon is, by a file that is wrong ---


WRONG = '[instance]\nname = "a"\nstate_dir = "state"\n[endpoint]\nlisten = ["127.0.0.1'


@pytest.mark.parametrize(
    "command", [["status"], ["drain"], ["sql", "SELECT 1"], ["config", "show", "--running"]], ids=" ".join
)
def test_a_file_that_is_wrong_asks_nobody_and_says_how(fake_admin: Any, tmp_path: Path, command: list[str]) -> None:
    """Another instance may be at the default."""
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})
    config = tmp_path / "broker.toml"
    config.write_text(WRONG.replace('"state"', '"."'))

    result = run(*command, "-c", config)

    assert (1, []) == (result.exit_code, fake_admin.asked)
    assert result.stderr.startswith(f"{config}:5:21: TOML: Unterminated string")
    unknown = "admin.socket: is not known, so the daemon was not asked; name its socket with --socket"
    assert unknown == result.stderr.splitlines()[-1]


def test_with_the_socket_named_a_file_that_is_wrong_does_no_harm(fake_admin: Any, tmp_path: Path) -> None:
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})
    config = tmp_path / "broker.toml"
    config.write_text(WRONG)

    result = run("status", "-c", config, "--socket", fake_admin.path, "-o", "json")

    assert {"name": "one"} == json.loads(result.stdout)

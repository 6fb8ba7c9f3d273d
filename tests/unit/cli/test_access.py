"""Configuration and daemon, found by what the command line says."""

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
    with_config,
)
from broker.errors import CertificateUnusableError
from tests.support.command import run

GUID = "00000000-0000-0000-0000-00000000000A"


def test_settings_come_from_flags_the_environment_and_the_file(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BROKER_ENDPOINT__MAX_HOPS", "4")
    monkeypatch.setattr("broker.cli.access.DEFAULT_CONFIG", tmp_path / "usual.toml")
    without = read_settings(None)
    configuration.rename(tmp_path / "usual.toml")

    settings = read_settings(None)
    overridden = read_settings(tmp_path / "usual.toml", overrides_from(["endpoint.max_hops=5", "instance.name=a=b"]))

    assert [([], 4), (["orders"], 4), (["orders"], 5)] == [
        (list(one.databases), one.endpoint.max_hops) for one in (without, settings, overridden)
    ]
    assert "a=b" == overridden.instance.name


def test_it_is_known_when_nothing_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usual, empty = tmp_path / "usual.toml", tmp_path / "broker.toml"
    monkeypatch.setattr("broker.cli.access.DEFAULT_CONFIG", usual)
    monkeypatch.setenv("BROKER_CONFIGURATION", "4")
    empty.touch()

    assert (True, True) == (is_nothing_given(None, []), is_nothing_given(empty, []))
    assert (False, False) == (is_nothing_given(None, ["a=b"]), is_nothing_given(empty, ["a=b"]))
    for other in (Path("/dev/null"), Path("/nonexistent/broker.toml"), Path("a\0b")):
        assert not is_nothing_given(other, []), "its reader reports it"
    assert nothing_to_read(empty).startswith(f"{empty} is empty, and nothing else says what to run: write the settings")
    monkeypatch.setenv("BROKER_ENDPOINT__MAX_HOPS", "4")
    assert not is_nothing_given(None, [])
    monkeypatch.delenv("BROKER_ENDPOINT__MAX_HOPS")
    usual.write_text("# all as it is without\n")
    assert not is_nothing_given(None, [])


def test_the_command_line_goes_before_the_environment_and_that_before_the_configuration(
    configuration: Path, fake_admin: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})
    missing = tmp_path / "none.toml"

    assert {"name": "one"} == admin_client(missing, fake_admin.path).get("/v1/status")
    assert {"name": "one"} == admin_client(configuration, None).get("/v1/status")
    monkeypatch.setenv("BROKER_ADMIN_URL", "https://gateway:9422")
    found = [admin_client(missing, where).where for where in (None, Path("a.sock"), "http://127.0.0.1:1")]
    assert ["https://gateway:9422", Path("a.sock"), "http://127.0.0.1:1"] == found


def test_a_token_comes_from_the_environment_or_from_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-the-file\n")
    monkeypatch.setenv("BROKER_ADMIN_TOKEN_FILE", str(tmp_path / "token"))
    of_file = credentials()
    monkeypatch.setenv("BROKER_ADMIN_TOKEN", "of-the-variable")

    assert ["of-the-file", "of-the-variable"] == [of_file.token, credentials().token]


def test_credentials_that_cannot_be_used_are_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_ADMIN_TOKEN", "secret")
    with pytest.raises(click.UsageError, match="in plain text: use https"):
        admin_client(None, "http://gateway:9422")

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


WRONG = '[instance]\nname = "a"\nstate_dir = "."\n[endpoint]\nlisten = ["127.0.0.1'


@pytest.mark.parametrize(
    "command", [["status"], ["drain"], ["sql", "SELECT 1"], ["config", "show", "--running"]], ids=" ".join
)
def test_a_file_that_is_wrong_asks_nobody_and_says_how(fake_admin: Any, tmp_path: Path, command: list[str]) -> None:
    """Another instance may be at the default."""
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})
    config = tmp_path / "broker.toml"
    config.write_text(WRONG)

    result = run(*command, "-c", config)

    assert (1, []) == (result.exit_code, fake_admin.asked)
    assert result.stderr.startswith(f"{config}:5:11: TOML: a string is not closed")
    assert result.stderr.splitlines()[-1].startswith("daemon: was not asked, ")
    assert "admin.socket" not in result.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("broker why lists them", "broker why -c a.toml lists them"),
        ("broker quarantine list -d x", "broker quarantine list -c a.toml -d x"),
        ("broker quarantine resume -c b.toml -d x", "broker quarantine resume -c b.toml -d x"),
        ("broker reload --prune drops it", "broker reload -c a.toml --prune drops it"),
        (f"broker why {GUID} has it", f"broker why {GUID} -c a.toml has it"),
        (f"broker why {GUID} there has it", f"broker why {GUID} there has it"),
        ("broker why at its sender", "broker why at its sender"),
        ("broker dialogs retry at the sender", "broker dialogs retry at the sender"),
        ("broker database keep x -c b.toml; or", "broker database keep x -c b.toml; or"),
        ("broker reload; broker x -c y", "broker reload -c a.toml; broker x -c y"),
    ],
)
def test_commands_of_a_text_name_the_configuration(text: str, named: str) -> None:
    assert named == with_config(text, Path("a.toml"))


def test_commands_of_a_text_that_ask_the_daemon_name_its_socket() -> None:
    text = "run broker reload; broker quarantine list -d x"

    assert text == with_config(text, None)
    assert "run broker reload --socket 'a b'; broker quarantine list -d x" == with_config(text, None, Path("a b"))
    both = with_config(text, Path("a b.toml"), "http://h:1")
    assert "run broker reload -c 'a b.toml' --socket http://h:1; broker quarantine list -c 'a b.toml' -d x" == both

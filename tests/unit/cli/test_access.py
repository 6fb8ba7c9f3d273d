"""Configuration, daemon and database, found by what the command line says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from broker.admin.client import Credentials
from broker.cli.access import admin_client, credentials, is_nothing_given, open_database, overrides_from, read_settings
from broker.errors import CertificateUnusableError, ConversationError, StoreUnavailableError


def services(db: sqlite3.Connection) -> list[Any]:
    return db.execute("SELECT name FROM broker_service").fetchall()


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
        (tmp_path / "usual.toml").touch()

    assert is_nothing == is_nothing_given(None, flags)


def test_the_socket_of_the_command_line_goes_before_the_configurations(
    configuration: Path, fake_admin: Any, tmp_path: Path
) -> None:
    fake_admin.answers["/v1/status"] = (200, {"name": "one"})
    missing = tmp_path / "none.toml"

    assert {"name": "one"} == admin_client(missing, fake_admin.path).get("/v1/status")
    assert {"name": "one"} == admin_client(configuration, None).get("/v1/status")


def test_a_database_is_found_by_its_name_in_the_configuration(configuration: Path, shop: Path) -> None:
    with open_database(configuration, "orders") as db:
        assert [("Orders",)] == services(db)


@pytest.mark.parametrize("configured", [True, False])
def test_a_database_is_found_by_its_file(configuration: Path, shop: Path, *, configured: bool) -> None:
    with open_database(configuration if configured else None, str(shop)) as db:
        assert [("Orders",)] == services(db)

    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        db.execute("SELECT 1")


def test_a_database_that_is_not_there_is_911_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConversationError, match="give the path of one") as caught:
        open_database(None, str(tmp_path / "none.db"))

    assert 911 == caught.value.number
    assert [] == list(tmp_path.iterdir())


def test_a_name_that_the_configuration_does_not_have_is_answered_with_those_it_has(configuration: Path) -> None:
    with pytest.raises(ConversationError, match=r"the configuration has \['orders'\]"):
        open_database(configuration, "bill")


def test_a_file_that_is_no_database_of_the_broker_is_refused(tmp_path: Path) -> None:
    text, plain = tmp_path / "passwd", tmp_path / "plain.db"
    text.write_text("root:x:0:0:" * 200)
    with closing(sqlite3.connect(plain)) as db:
        db.execute("CREATE TABLE mine (x)")

    with pytest.raises(StoreUnavailableError, match="passwd: "):
        open_database(None, str(text))
    with pytest.raises(StoreUnavailableError, match="no database of the broker; name it in a daemon's configuration"):
        open_database(None, str(plain))


# --- what is shown to a daemon -------------------------------------------------------------------------------


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


def test_nothing_is_shown_unless_it_is_said() -> None:
    assert Credentials() == credentials()


def test_certificate_key_and_authority_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA", "CERTIFICATE", "KEY"):
        monkeypatch.setenv(f"BROKER_ADMIN_{name}", f"{name}.pem")

    assert Credentials("", Path("CA.pem"), Path("CERTIFICATE.pem"), Path("KEY.pem")) == credentials()


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

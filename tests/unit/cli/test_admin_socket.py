"""The admin socket, read out of a configuration, is the one that the settings have."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cli.admin_socket import MSDB, SOCKET, plain_database, plain_file, plain_socket
from broker.control.administration import AdminSettings
from broker.control.load import load_settings

PLAIN = 'instance = { name = "a", state_dir = "state" }\n'


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN + '[admin]\nsocket = "other.sock"\n',
        PLAIN + '[admin]\nsocket = "/run/broker/a.sock"\n',
        PLAIN.replace('"state"', '"/var/lib/broker"'),
        PLAIN.replace('"state"', '"."'),
    ],
)
def test_the_socket_is_the_one_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    for path in (config, Path("broker.toml")):
        assert load_settings(path, environ={}).admin.socket == plain_socket(path, {"PATH": "x", "BROKER_ADMIN_CA": "y"})


def test_a_file_with_a_mistake_elsewhere_tells_it_too(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(PLAIN + "endpoint.max_hopz = 1\n", encoding="utf-8")

    assert tmp_path / "state" / SOCKET == plain_socket(config, {})


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (PLAIN, {"BROKER_INSTANCE__STATE_DIR": "/x"}),
        (PLAIN, {"BROKER_ADMIN__SOCKET": "/x"}),
        ("instance = 1", {}),
        ("instance = {}", {}),
        (PLAIN + "admin = 1", {}),
        (PLAIN + "admin.socket = 1", {}),
        (PLAIN + 'admin.socket = ""', {}),
        (PLAIN + 'admin.socket = "~/a.sock"', {}),
        (PLAIN + 'admin.socket = "../run/a.sock"', {}),
        ("instance = [", {}),
        ("", {}),
    ],
)
def test_what_is_not_plainly_there_is_left_to_all_the_rules(tmp_path: Path, text: str, environ: dict[str, str]) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text, encoding="utf-8")

    assert plain_socket(config, environ) is None


def test_a_file_that_is_none_is_left_to_them_too(tmp_path: Path) -> None:
    assert plain_socket(tmp_path, {}) is None
    assert plain_socket(tmp_path / "missing", {}) is None


def test_the_default_is_that_of_the_setting() -> None:
    assert Path(SOCKET) == Path(AdminSettings().socket)


DATABASE = PLAIN + '[databases.orders]\npath = "orders.db"\n'


@pytest.mark.parametrize(
    "text",
    [DATABASE, DATABASE.replace('"orders.db"', '"/srv/orders.db"'), DATABASE.replace('"state"', '"/var/lib/broker"')],
)
def test_the_file_of_a_database_is_the_one_of_the_settings(tmp_path: Path, text: str) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text, encoding="utf-8")

    assert load_settings(config, environ={}).databases["orders"].path == plain_database(config, "orders", {})


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (DATABASE, {"BROKER_DATABASES__ORDERS__PATH": "/x"}),
        (DATABASE, {"BROKER_Databases__ORDERS__PATH": "/x"}),
        (DATABASE, {"BROKER_INSTANCE__STATE_DIR": "/x"}),
        (DATABASE.replace("orders]", "others]"), {}),
        (DATABASE.replace('"orders.db"', '"../orders.db"'), {}),
        (DATABASE.replace('"orders.db"', "1"), {}),
        ("databases.orders.path = 'orders.db'", {}),
        (PLAIN + "databases = 1", {}),
        ("[", {}),
    ],
)
def test_a_file_of_a_database_that_is_not_plainly_there_is_left_to_them_too(
    tmp_path: Path, text: str, environ: dict[str, str]
) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(text, encoding="utf-8")

    assert plain_database(config, "orders", environ) is None


def test_the_state_directory_and_the_file_of_a_name_or_path_are_those_of_the_settings(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(DATABASE, encoding="utf-8")
    settings = load_settings(config, environ={})
    named, copy = settings.databases["orders"].path, tmp_path / "copy.db"
    named.parent.mkdir()
    for file in (named, copy):
        file.touch()

    assert (settings.instance.state_dir, named) == plain_file(config, "orders", {})
    assert (settings.instance.state_dir, copy) == plain_file(config, str(copy), {})


@pytest.mark.parametrize(
    ("text", "name", "environ"),
    [
        (DATABASE, "orders", {}),  # whose file is not there
        (DATABASE, MSDB, {}),
        (DATABASE, "COPY", {"BROKER_DATABASES__ORDERS__PATH": "/x"}),
        (DATABASE, "COPY", {"BROKER_INSTANCE__STATE_DIR": "/x"}),
        (DATABASE.replace('"state"', '"../state"'), "COPY", {}),
        ("instance = 1", "COPY", {}),
        (PLAIN + "databases = 1", "COPY", {}),
        ("[", "COPY", {}),
    ],
)
def test_what_is_not_plainly_there_is_left_to_the_settings(
    tmp_path: Path, text: str, name: str, environ: dict[str, str]
) -> None:
    config, copy = tmp_path / "broker.toml", tmp_path / "copy.db"
    config.write_text(text, encoding="utf-8")
    copy.touch()

    assert plain_file(config, str(copy) if name == "COPY" else name, environ) is None

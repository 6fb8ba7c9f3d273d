"""What only the machine can say of the settings: users, files, libraries."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.check import admin_errors, journal_errors
from broker.config.admin_access import AdminRole, new_token
from broker.config.load import load_settings
from broker.config.settings import Settings
from tests.support.certificates import authority, make

NOW = datetime(2026, 11, 22, tzinfo=UTC)
TLS = 'certificate = "gateway.pem"\nprivate_key = "gateway.key"\n'


@pytest.fixture
def base(tmp_path: Path) -> Path:
    ca = authority()
    make("gateway", "127.0.0.1", by=ca).store(tmp_path, "gateway")
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    return tmp_path


def _load(base: Path, admin: str) -> Settings:
    file = base / "broker.toml"
    file.write_text(f'[instance]\nname = "one"\nstate_dir = "."\n[admin]\n{admin}')
    return load_settings(file, environ={})


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('[admin.roles]\n"user:no-such-user" = "viewer"', "there is no user 'no-such-user' on this machine"),
        ('[admin.roles]\n"group:no-such-group" = "viewer"', "there is no group 'no-such-group' on this machine"),
        ('socket_group = "no-such-group"', "there is no group 'no-such-group' on this machine"),
        ('listen = "127.0.0.1:0"\nloopback_role = "none"', "no client can use"),
        (f'{TLS}listen = "0.0.0.0:0"', "no client can use"),
        (
            'listen = "127.0.0.1:0"\ncertificate = "none.pem"\nprivate_key = "broker.toml"',
            "cannot be read: No such file",
        ),
        (f'{TLS}listen = "127.0.0.1:0"\ntrust = ["none*.pem"]', "no such file"),
        ('tokens = "/proc/tokens"', "cannot be written"),
        ('audit = "/proc/audit"', "cannot be written"),
    ],
)
def test_what_the_machine_does_not_have_is_found_by_a_check(base: Path, admin: str, problem: str) -> None:
    errors = [str(error) for error in admin_errors(_load(base, admin))]

    assert 1 == len(errors)
    assert problem in errors[0]


def test_a_token_is_a_way_in_unless_others_may_read_it(base: Path) -> None:
    new_token(base / "tokens", "ci", AdminRole.VIEWER, now=NOW, expires_at=None)
    settings = _load(base, f'{TLS}listen = "0.0.0.0:0"')
    assert [] == admin_errors(settings)

    (base / "tokens").chmod(0o644)

    assert "may be used by others" in str(*admin_errors(settings))


@pytest.mark.parametrize(
    "admin", ["", 'listen = "127.0.0.1:0"', f'{TLS}listen = "0.0.0.0:0"\ntrust = ["ca.pem"]', 'socket_group = "0"']
)
def test_good_settings_are_good(base: Path, admin: str) -> None:
    assert [] == admin_errors(_load(base, admin))


def test_directory_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "flows").write_text("a file")

    one = Settings.read({"journal": {"directory": str(tmp_path / "state" / "flows")}})
    (error,) = journal_errors(one)

    assert "journal.directory" in str(error)
    assert "is not a directory" in str(error)

from __future__ import annotations

import os
import pwd
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.catalog.check import admin_errors, check_ways_in
from broker.config.admin_access import holders_of, is_owner, new_token, socket_group_of, user_name
from broker.config.consistency import setting_warnings
from broker.config.load import load_settings
from broker.config.settings import Settings
from broker.config.values import AdminRole
from broker.errors import SettingError, SettingsError
from broker.net.certificates import admin_security_of
from tests.support.certificates import authority, make

NOW = datetime(2026, 11, 22, tzinfo=UTC)


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


TLS = 'certificate = "gateway.pem"\nprivate_key = "gateway.key"\n'


def _refused(base: Path, admin: str) -> str:
    with pytest.raises(SettingsError) as caught:
        _load(base, admin)
    return str(caught.value)


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('listen = "0.0.0.0:9422"', "can be reached from other machines, and there is no TLS"),
        ('listen = "gateway.example:9422"', "can be reached from other machines, and there is no TLS"),
        ('certificate = "gateway.pem"', "admin.certificate: is set, and there is no private_key"),
        ('private_key = "gateway.key"', "admin.private_key: is set, and there is no certificate"),
        ('trust = ["ca.pem"]', "clients show certificates over TLS only"),
        ('loopback_role = "root"', 'allowed is "none", "viewer", "operator", "admin"'),
        ('roles = "admin"', "is no table of roles"),
        ('[admin.roles]\n"user:alice" = "none"', 'allowed is "viewer", "operator", "admin"'),
        ('[admin.roles]\n"user:alice" = 1', "is no role for"),
        ('[admin.roles]\nalice = "viewer"', "names nobody"),
        ('[admin.roles]\n"token:a b" = "viewer"', "no name of a token"),
    ],
)
def test_what_cannot_be_meant_is_refused(base: Path, admin: str, problem: str) -> None:
    assert problem in _refused(base, admin)


def test_a_holder_that_is_none_is_shown_at_its_line(base: Path) -> None:
    assert "broker.toml:6:9" in _refused(base, '[admin.roles]\nalice = "viewer"')


def test_roles_come_from_the_environment_as_json() -> None:
    settings = load_settings(None, environ={"BROKER_ADMIN__ROLES": '{"token:ci": "operator"}'})

    assert {"token:ci": "operator"} == settings.admin.roles


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('[admin.roles]\n"user:root" = "viewer"', "cannot open the socket, which has mode 0600"),
        ('[admin.roles]\n"certificate:CN=a" = "viewer"', "no certificate of a client is asked for"),
        (TLS, "is not used without listen"),
        ('listen = "127.0.0.1:0"', "every user of this machine has the role admin on 127.0.0.1:0"),
    ],
)
def test_what_is_probably_not_meant_is_a_warning(base: Path, admin: str, problem: str) -> None:
    warnings = [str(warning) for warning in setting_warnings(_load(base, admin))]

    assert any(problem in warning for warning in warnings)


@pytest.mark.parametrize("admin", ["", f'{TLS}listen = "0.0.0.0:0"', 'listen = "127.0.0.1:0"\nloopback_role = "admin"'])
def test_a_role_of_everybody_that_is_spelled_out_or_on_no_port_is_no_warning(base: Path, admin: str) -> None:
    assert "every user" not in " ".join(str(warning) for warning in setting_warnings(_load(base, admin)))


def test_paths_are_relative_to_where_they_are_written(base: Path) -> None:
    admin = _load(base, f'{TLS}listen = "127.0.0.1:0"\ntrust = ["ca.pem"]').admin

    assert [base / "gateway.pem", base / "gateway.key", base / "tokens", base / "audit.jsonl"] == [
        admin.certificate,
        admin.private_key,
        admin.tokens,
        admin.audit,
    ]
    assert (f"{base}/ca.pem",) == admin.trust


def test_holders_are_told_by_number_and_the_highest_role_counts(base: Path) -> None:
    roles = '"user:root" = "viewer"\n"user:0" = "operator"\n"group:0" = "viewer"\n"token:ci" = "admin"\n'
    holders = holders_of(_load(base, f'[admin.roles]\n{roles}"certificate:CN=ops" = "operator"'))

    assert {0: AdminRole.OPERATOR} == holders.users
    assert {0: AdminRole.VIEWER} == holders.groups
    assert {"ci": AdminRole.ADMIN} == holders.tokens
    assert [("CN=ops", AdminRole.OPERATOR)] == [(holder.name, role) for holder, role in holders.certificates]


@pytest.mark.parametrize(
    ("admin", "problem"),
    [
        ('[admin.roles]\n"user:no-such-user" = "viewer"', "there is no user 'no-such-user' on this machine"),
        ('[admin.roles]\n"group:no-such-group" = "viewer"', "there is no group 'no-such-group' on this machine"),
        ('socket_group = "no-such-group"', "there is no group 'no-such-group' on this machine"),
        ('listen = "127.0.0.1:0"\nloopback_role = "none"', "nobody could ask on"),
        (f'{TLS}listen = "0.0.0.0:0"', "nobody could ask on"),
        (
            'listen = "127.0.0.1:0"\ncertificate = "none.pem"\nprivate_key = "broker.toml"',
            "cannot be read: No such file",
        ),
        (f'{TLS}listen = "127.0.0.1:0"\ntrust = ["none*.pem"]', "no such file"),
        ('tokens = "/proc/tokens"', "cannot be written"),
        ('audit = "/proc/audit"', "cannot be written"),
    ],
)
def test_what_the_machine_does_not_have_is_told_by_a_check(base: Path, admin: str, problem: str) -> None:
    errors = [str(error) for error in admin_errors(_load(base, admin))]

    assert 1 == len(errors)
    assert problem in errors[0]


def test_tokens_that_others_may_read_are_told_by_a_check(base: Path) -> None:
    new_token(base / "tokens", "ci", AdminRole.VIEWER, now=NOW, expires_at=None)
    (base / "tokens").chmod(0o644)

    [error] = admin_errors(_load(base, 'listen = "127.0.0.1:0"'))

    assert "may be used by others" in str(error)


@pytest.mark.parametrize(
    "admin", ["", 'listen = "127.0.0.1:0"', f'{TLS}listen = "0.0.0.0:0"\ntrust = ["ca.pem"]', 'socket_group = "0"']
)
def test_good_settings_are_good(base: Path, admin: str) -> None:
    assert [] == admin_errors(_load(base, admin))


def test_a_token_is_a_way_in(base: Path) -> None:
    new_token(base / "tokens", "ci", AdminRole.VIEWER, now=NOW, expires_at=None)

    check_ways_in(_load(base, f'{TLS}listen = "0.0.0.0:0"'))


def test_plain_text_brings_nothing_to_tls(base: Path) -> None:
    assert admin_security_of(_load(base, 'listen = "127.0.0.1:0"')) is None


def test_a_group_is_told_by_number(base: Path) -> None:
    groups = [socket_group_of(_load(base, admin)) for admin in ('socket_group = "0"', "")]

    assert [0, None] == groups


def test_who_runs_the_instance_and_root_own_it() -> None:
    assert [True, True, False] == [is_owner(number) for number in (0, os.geteuid(), 2**31 - 2)]


def test_a_user_without_a_name_is_called_by_number() -> None:
    assert [pwd.getpwuid(0).pw_name, "2147483646"] == [user_name(0), user_name(2**31 - 2)]


def test_a_check_raises_what_it_reports(base: Path) -> None:
    with pytest.raises(SettingError, match="there is no user"):
        holders_of(_load(base, '[admin.roles]\n"user:no-such-user" = "viewer"'))

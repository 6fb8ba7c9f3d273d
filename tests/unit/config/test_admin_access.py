"""Roles, their holders, and the file of tokens."""

import json
import os
import pwd
import stat
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.config.admin_access import (
    TOKENS_MAX,
    AdminRole,
    HolderError,
    TokenFileError,
    find_token,
    holders_of,
    is_owner,
    new_token,
    parse_holder,
    read_tokens,
    revoke_token,
    socket_group_of,
    user_name,
)
from broker.config.settings import Settings
from broker.errors import DuplicateNameError, SettingError, UnknownNameError

NOW = datetime(2026, 11, 22, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("alice", "does not name a holder"),
        ("token:../x", "not the name of a token"),
        ("certificate:CN=a,b", "not a subject"),
        ("certificate:sha256:12", "not a fingerprint"),
        ("certificate:public", "for every client"),
    ],
)
def test_anything_else_is_refused_with_what_would_do(text: str, problem: str) -> None:
    with pytest.raises(HolderError, match=problem):
        parse_holder(text)


def test_users_and_groups_are_known_by_number_and_the_highest_role_counts() -> None:
    roles = {"user:root": "viewer", "user:0": "operator", "group:0": "viewer", "token:ci": "admin"}
    holders = holders_of(Settings.read({"admin": {"roles": {**roles, "certificate:CN=ops": "operator"}}}))

    assert {0: AdminRole.OPERATOR} == holders.users
    assert {0: AdminRole.VIEWER} == holders.groups
    assert {"ci": AdminRole.ADMIN} == holders.tokens
    assert [("CN=ops", AdminRole.OPERATOR)] == [(principal.text, role) for principal, role in holders.certificates]


@pytest.mark.parametrize("holder", ["user:no-such-one", "group:no-such-one"])
def test_holder_that_the_machine_does_not_know_is_reported(holder: str) -> None:
    with pytest.raises(SettingError, match=f"there is no {holder.partition(':')[0]} 'no-such-one'"):
        holders_of(Settings.read({"admin": {"roles": {holder: "viewer"}}}))


def test_numbers_of_the_machine() -> None:
    groups = [socket_group_of(Settings.read({"admin": {"socket_group": name}})) for name in ("0", "")]

    assert [0, None] == groups
    assert [True, True, False] == [is_owner(number) for number in (0, os.geteuid(), 2**31 - 2)]
    assert [pwd.getpwuid(0).pw_name, "2147483646"] == [user_name(0), user_name(2**31 - 2)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def _new(path: Path, name: str = "ci", role: AdminRole = AdminRole.OPERATOR, expires: datetime | None = None) -> str:
    return new_token(path, name, role, now=NOW, expires_at=expires)


def test_a_token_is_found_again_by_what_was_printed_until_it_expires(path: Path) -> None:
    secret = _new(path, expires=NOW + DAY)

    token = find_token(read_tokens(path), secret)

    assert token is not None
    assert ("ci", AdminRole.OPERATOR, NOW, NOW + DAY) == (token.name, token.role, token.made_at, token.expires_at)
    assert [True, False] == [token.is_valid_at(NOW + DAY - timedelta(seconds=1)), token.is_valid_at(NOW + DAY)]
    assert replace(token, expires_at=None).is_valid_at(datetime.max.replace(tzinfo=UTC))
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert secret.removeprefix("broker_") not in path.read_text()
    assert [path] == list(path.parent.iterdir())


def test_a_name_that_is_taken_is_refused_until_its_token_has_expired(path: Path) -> None:
    _new(path, expires=NOW + DAY)
    with pytest.raises(DuplicateNameError, match="revoke it first"):
        _new(path)

    secret = new_token(path, "ci", AdminRole.VIEWER, now=NOW + DAY, expires_at=None)

    assert [AdminRole.VIEWER] == [token.role for token in read_tokens(path)]
    assert find_token(read_tokens(path), secret) is not None


def test_a_revoked_token_is_gone_and_others_stay(path: Path) -> None:
    gone, stays = _new(path, "gone"), _new(path, "stays")

    revoked = revoke_token(path, "gone")

    assert "gone" == revoked.name
    assert find_token(read_tokens(path), gone) is None
    assert find_token(read_tokens(path), stays) is not None
    with pytest.raises(UnknownNameError, match="there is no token 'cd'; there are: stays"):
        revoke_token(path, "cd")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666])
def test_a_file_that_others_may_use_is_not_used(path: Path, mode: int) -> None:
    _new(path)
    path.chmod(mode)

    with pytest.raises(TokenFileError, match="may be used by others"):
        read_tokens(path)


def test_only_a_plain_file_is_used(path: Path, tmp_path: Path) -> None:
    assert () == read_tokens(path)
    _new(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TokenFileError, match="cannot be read"):
        read_tokens(path)
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(TokenFileError, match="is not a plain file"):
        read_tokens(path)
    with pytest.raises(TokenFileError, match="its directory cannot be opened: No such file"):
        _new(tmp_path / "none" / "tokens")


GOOD = {"name": "ci", "role": "viewer", "sha256": "0" * 64, "made_at": NOW.isoformat(), "expires_at": None}


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        "[" * 100_000,
        json.dumps({**GOOD, "role": "none"}),
        json.dumps({**GOOD, "name": "a b"}),
        json.dumps({**GOOD, "sha256": "00"}),
        json.dumps({**GOOD, "expires_at": "tomorrow"}),
        json.dumps({**GOOD, "made_at": "2026-01-01"}),
    ],
)
def test_a_line_that_is_no_token_is_told_with_its_number(path: Path, line: str) -> None:
    path.write_text(f"{json.dumps(GOOD)}\n\n{line}\n")
    path.chmod(0o600)

    with pytest.raises(TokenFileError, match="line 3 is not a token; remove the line"):
        read_tokens(path)


def test_a_full_file_takes_no_more(path: Path) -> None:
    lines = (json.dumps({**GOOD, "name": f"t{number}"}) for number in range(TOKENS_MAX))
    path.write_text("\n".join(lines))
    path.chmod(0o600)

    with pytest.raises(TokenFileError, match=f"holds {TOKENS_MAX} tokens"):
        _new(path)


def test_commands_at_once_lose_nothing(path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        secrets = list(threads.map(lambda number: _new(path, f"t{number}"), range(40)))

    tokens = read_tokens(path)
    assert 40 == len({found.name for secret in secrets if (found := find_token(tokens, secret)) is not None})

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.admin.auth import TokenStore
from broker.config.admin_access import new_token, revoke_token
from broker.config.values import AdminRole

NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def _new(path: Path, name: str = "ci", expires: datetime | None = None) -> str:
    return new_token(path, name, AdminRole.OPERATOR, now=NOW, expires_at=expires)


def test_a_change_of_the_file_counts_at_once(path: Path) -> None:
    store = TokenStore(path, {})
    before = store.find("broker_x", now=NOW)

    secret = _new(path)
    found = store.find(secret, now=NOW)
    revoke_token(path, "ci")

    assert before is None
    assert found is not None
    assert ("ci", AdminRole.OPERATOR) == (found.name, found.role)
    assert store.find(secret, now=NOW) is None


def test_the_settings_replace_the_role_of_a_token(path: Path) -> None:
    secret = _new(path)

    found = TokenStore(path, {"ci": AdminRole.VIEWER}).find(secret, now=NOW)

    assert found is not None
    assert AdminRole.VIEWER is found.role


def test_a_token_that_has_expired_is_none(path: Path) -> None:
    secret = _new(path, expires=NOW + timedelta(hours=1))
    store = TokenStore(path, {})

    assert store.find(secret, now=NOW) is not None
    assert store.find(secret, now=NOW + timedelta(hours=1)) is None


def test_a_file_that_cannot_be_used_counts_as_empty_and_is_logged_once(path: Path) -> None:
    secret = _new(path)
    store = TokenStore(path, {})
    path.chmod(0o644)

    with capture_logs() as logs:
        found = [store.find(secret, now=NOW) for _ in range(3)]
        path.chmod(0o600)
        again = store.find(secret, now=NOW)

    assert [None, None, None] == found
    assert again is not None
    assert ["tokens unusable"] == [line["event"] for line in logs]

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.config.admin_access import AdminRole, find_token, read_tokens
from tests.support.admin import audit_lines
from tests.support.command import run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nstate_dir = "."\n')
    return path


def _audit(config: Path) -> list[tuple[str, str, str]]:
    lines = audit_lines(config.parent / "audit.jsonl")
    return [(line["operation"], line["target"], line["outcome"]) for line in lines]


def test_a_token_is_printed_once_and_kept_as_a_hash(config: Path) -> None:
    result = run("token", "create", "ci", "--role", "operator", "--expires", "30d", "-c", str(config))

    [token] = read_tokens(config.parent / "tokens")
    assert 0 == result.exit_code
    assert token == find_token([token], result.stdout.strip())
    assert ("ci", AdminRole.OPERATOR) == (token.name, token.role)
    assert token.expires_at is not None
    assert 29 <= (token.expires_at - datetime.now(UTC)).days <= 30
    assert result.stderr.startswith("token ci: operator, until ")
    assert [("NEW TOKEN", "ci", "done")] == _audit(config)
    assert result.stdout.strip() not in (config.parent / "audit.jsonl").read_text()


def test_a_token_is_a_viewer_for_90_days_unless_it_is_said(config: Path) -> None:
    run("token", "create", "b", "-c", str(config))
    run("token", "create", "a", "--expires", "never", "-c", str(config))

    rows = json.loads(run("token", "list", "-c", str(config), "-o", "json").stdout)

    viewer, endless = read_tokens(config.parent / "tokens")
    assert (AdminRole.VIEWER, None) == (viewer.role, endless.expires_at)
    assert viewer.expires_at is not None
    assert 89 <= (viewer.expires_at - datetime.now(UTC)).days <= 90
    assert ["a", "b"] == [row["name"] for row in rows]
    assert {"name", "role", "made_at", "expires_at", "is_valid"} == rows[0].keys()


def test_a_revoked_token_is_gone(config: Path) -> None:
    run("token", "create", "ci", "-c", str(config))

    taken = run("token", "create", "ci", "-c", str(config))
    done, again = (run("token", "revoke", "ci", "-c", str(config)) for _ in range(2))

    assert (1, "", True) == (taken.exit_code, taken.stdout, "revoke it first" in taken.stderr)
    assert (0, "token ci revoked") == (done.exit_code, done.stderr.strip())
    assert (3, True) == (again.exit_code, "there is no token 'ci'; there are: none" in again.stderr)
    assert () == read_tokens(config.parent / "tokens")
    operations = [("NEW TOKEN", "done")] * 2 + [("NEW TOKEN", "failed")] + [("REVOKE TOKEN", "done")] * 2
    assert [*operations, ("REVOKE TOKEN", "failed")] == [
        (operation, outcome) for operation, _, outcome in _audit(config)
    ]


def test_a_token_that_cannot_be_written_down_is_not_made(config: Path) -> None:
    (config.parent / "audit.jsonl").mkdir()

    result = run("token", "create", "ci", "-c", str(config))

    assert (1, "") == (result.exit_code, result.stdout)
    assert "nothing is changed as long as no change can be written down" in result.stderr
    assert () == read_tokens(config.parent / "tokens")

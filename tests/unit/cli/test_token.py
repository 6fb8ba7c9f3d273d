from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.config.admin_access import AdminRole, find_token, read_tokens
from tests.support.command import run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nstate_dir = "."\n')
    return path


def _audit(config: Path) -> list[tuple[str, str, str]]:
    lines = map(json.loads, (config.parent / "audit.jsonl").read_text().splitlines())
    return [(line["operation"], line["target"], line["outcome"]) for line in lines]


def test_a_token_is_printed_once_and_kept_as_a_hash(config: Path) -> None:
    result = run("token", "new", "ci", "--role", "operator", "--expires", "30d", "-c", str(config))

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
    run("token", "new", "a", "-c", str(config))
    run("token", "new", "b", "--expires", "never", "-c", str(config))

    a, b = read_tokens(config.parent / "tokens")
    assert (AdminRole.VIEWER, None) == (a.role, b.expires_at)
    assert a.expires_at is not None
    assert 89 <= (a.expires_at - datetime.now(UTC)).days <= 90


def test_tokens_are_listed_by_name_without_hashes(config: Path) -> None:
    for name in ("b", "a"):
        run("token", "new", name, "-c", str(config))

    result = run("token", "list", "-c", str(config), "-o", "json")

    rows = json.loads(result.stdout)
    assert ["a", "b"] == [row["name"] for row in rows]
    assert {"name", "role", "made_at", "expires_at", "is_valid"} == rows[0].keys()


def test_a_revoked_token_is_gone(config: Path) -> None:
    run("token", "new", "ci", "-c", str(config))

    result = run("token", "revoke", "ci", "-c", str(config))

    assert (0, "token ci revoked") == (result.exit_code, result.stderr.strip())
    assert () == read_tokens(config.parent / "tokens")
    assert [("NEW TOKEN", "ci", "done"), ("REVOKE TOKEN", "ci", "done")] == _audit(config)


def test_what_is_not_there_cannot_be_revoked(config: Path) -> None:
    result = run("token", "revoke", "ci", "-c", str(config))

    assert 3 == result.exit_code
    assert "there is no token 'ci'; there are: none" in result.stderr
    assert [("REVOKE TOKEN", "ci", "done"), ("REVOKE TOKEN", "ci", "failed")] == _audit(config)


def test_a_name_that_is_taken_is_refused(config: Path) -> None:
    run("token", "new", "ci", "-c", str(config))

    result = run("token", "new", "ci", "-c", str(config))

    assert (1, "") == (result.exit_code, result.stdout)
    assert "revoke it first" in result.stderr


def test_a_token_that_cannot_be_written_down_is_not_made(config: Path) -> None:
    (config.parent / "audit.jsonl").mkdir()

    result = run("token", "new", "ci", "-c", str(config))

    assert (1, "") == (result.exit_code, result.stdout)
    assert "nothing is changed as long as no change can be written down" in result.stderr
    assert () == read_tokens(config.parent / "tokens")


@pytest.mark.parametrize(
    "arguments",
    [["a b"], ["../x"], ["x", "--expires", "soon"], ["x", "--expires", "9999999d"], ["x", "--role", "root"]],
)
def test_wrong_usage_makes_nothing(config: Path, arguments: list[str]) -> None:
    result = run("token", "new", *arguments, "-c", str(config))

    assert 2 == result.exit_code
    assert () == read_tokens(config.parent / "tokens")

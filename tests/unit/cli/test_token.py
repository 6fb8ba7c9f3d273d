import json
from datetime import UTC, datetime
from pathlib import Path

from broker.config.admin_access import AdminRole, find_token, read_tokens
from tests.support.admin import audit_lines
from tests.support.command import run


def _audit(configuration: Path) -> list[tuple[str, str, str]]:
    lines = audit_lines(configuration.parent / "audit.jsonl")
    return [(line["operation"], line["target"], line["outcome"]) for line in lines]


def test_a_token_is_printed_once_and_kept_as_a_hash(configuration: Path) -> None:
    result = run("token", "create", "ci", "--role", "operator", "--expires", "30d", "-c", configuration)

    [token] = read_tokens(configuration.parent / "tokens")
    assert 0 == result.exit_code
    assert token == find_token([token], result.stdout.strip())
    assert ("ci", AdminRole.OPERATOR) == (token.name, token.role)
    assert token.expires_at is not None
    assert 29 <= (token.expires_at - datetime.now(UTC)).days <= 30
    assert result.stderr.startswith("token ci: operator, until ")
    assert [("NEW TOKEN", "ci", "done")] == _audit(configuration)
    assert result.stdout.strip() not in (configuration.parent / "audit.jsonl").read_text()


def test_a_token_is_a_viewer_for_90_days_unless_it_is_said(configuration: Path) -> None:
    run("token", "create", "b", "-c", configuration)
    run("token", "create", "a", "--expires", "never", "-c", configuration)

    rows = json.loads(run("token", "list", "-c", configuration, "-o", "json").stdout)

    viewer, endless = read_tokens(configuration.parent / "tokens")
    assert (AdminRole.VIEWER, None) == (viewer.role, endless.expires_at)
    assert viewer.expires_at is not None
    assert 89 <= (viewer.expires_at - datetime.now(UTC)).days <= 90
    assert ["a", "b"] == [row["name"] for row in rows]
    assert {"name", "role", "made_at", "expires_at", "is_valid"} == rows[0].keys()


def test_a_revoked_token_is_gone(configuration: Path) -> None:
    run("token", "create", "ci", "-c", configuration)

    taken = run("token", "create", "ci", "-c", configuration)
    done, again = (run("token", "revoke", "ci", "-c", configuration) for _ in range(2))

    assert (1, "", True) == (taken.exit_code, taken.stdout, "revoke it first" in taken.stderr)
    assert (0, "token ci revoked") == (done.exit_code, done.stderr.strip())
    assert (3, True) == (again.exit_code, "there is no token 'ci'; there are: none" in again.stderr)
    assert () == read_tokens(configuration.parent / "tokens")
    operations = [("NEW TOKEN", "done")] * 2 + [("NEW TOKEN", "failed")] + [("REVOKE TOKEN", "done")] * 2
    assert [*operations, ("REVOKE TOKEN", "failed")] == [
        (operation, outcome) for operation, _, outcome in _audit(configuration)
    ]


def test_a_token_that_cannot_be_written_down_is_not_made(configuration: Path) -> None:
    (configuration.parent / "audit.jsonl").mkdir()

    result = run("token", "create", "ci", "-c", configuration)

    assert (1, "") == (result.exit_code, result.stdout)
    assert "nothing is changed as long as no change can be written down" in result.stderr
    assert () == read_tokens(configuration.parent / "tokens")

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.admin.audit_file import AuditFile
from broker.cli.audit import COLUMNS
from tests.support.command import run
from tests.unit.conftest import FakeAdmin

LINE = {"at": "2026-11-22T10:00:00+00:00", "who": "user:root", "operation": "DROP ROUTE", "outcome": "done"}


def test_the_daemon_is_asked_for_the_newest_and_they_are_shown_the_oldest_first(fake_admin: FakeAdmin) -> None:
    rows = [[f"2026-11-22 10:00:0{n}", *[None] * (len(COLUMNS) - 1)] for n in (2, 1)]
    fake_admin.answers["/v1/sql"] = (200, {"columns": list(COLUMNS), "rows": rows, "messages": []})

    result = run("audit", "tail", "-n", "2", "--socket", str(fake_admin.path), "-o", "json")

    assert ["2026-11-22 10:00:01", "2026-11-22 10:00:02"] == [row["audit_time"] for row in json.loads(result.stdout)]
    [(_, _, asked)] = fake_admin.asked
    assert asked["statement"].startswith("SELECT TOP 2 audit_time, ")
    assert asked["statement"].endswith(" FROM sys.dm_broker_audit ORDER BY audit_time DESC")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text('[instance]\nstate_dir = "."\n')
    return path


def test_when_no_daemon_answers_the_files_are_read(config: Path) -> None:
    file = AuditFile(config.parent / "audit.jsonl", 1 << 20, 9)
    file.append({**LINE, "target": str(n), "after": {"WEIGHT": n}} for n in range(5))

    result = run("audit", "tail", "-n", "2", "-c", str(config), "-o", "json")

    assert [("3", '{"WEIGHT": 3}'), ("4", '{"WEIGHT": 4}')] == [
        (row["target"], row["definition_after"]) for row in json.loads(result.stdout)
    ]


def test_without_a_daemon_and_a_configuration_nobody_can_be_asked(tmp_path: Path) -> None:
    assert 4 == run("audit", "tail", "--socket", str(tmp_path / "none.sock")).exit_code


def test_who_may_not_is_told_by_the_exit_code(fake_admin: FakeAdmin) -> None:
    fake_admin.answers["/v1/sql"] = (403, {"detail": "POST /v1/sql takes the role viewer"})

    result = run("audit", "tail", "--socket", str(fake_admin.path))

    assert (5, "POST /v1/sql takes the role viewer") == (result.exit_code, result.stderr.strip())

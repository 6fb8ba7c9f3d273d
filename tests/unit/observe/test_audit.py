from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from broker.errors import StoreUnavailableError
from broker.observe import views as module
from broker.observe.query import shown_value
from broker.observe.views import AUDIT_COLUMNS, audit_rows

START = datetime(2026, 11, 22, tzinfo=UTC)


def _write(path: Path, first: int, last: int) -> None:
    lines = ({"at": (START + timedelta(seconds=n)).isoformat(), "target": str(n)} for n in range(first, last))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _targets(path: Path) -> list[int]:
    index = list(AUDIT_COLUMNS).index("target")
    return [int(str(row[index])) for row in audit_rows(path)]


def test_rows_are_those_of_the_file_the_oldest_first(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 20, 23)
    _write(tmp_path / "audit.jsonl.1", 10, 13)

    assert [20, 21, 22] == _targets(path)


@pytest.mark.parametrize(
    ("line", "unsaid"),
    [
        ('{"at": "2026-11-22", "unsaid": 9223372036854775808}', ["9223372036854775808"]),
        ('{"at": "2026-11-22", "unsaid": -9223372036854775808}', [-(2**63)]),
        ('{"at": "2026-11-22", "unsaid": "\\ud800x"}', ["?x"]),
        ('{"at": "0001-01-01T00:00:00+23:59", "unsaid": 1}', []),
        ('{"at": "9999-12-31T23:59:59-23:59", "unsaid": 1}', []),
    ],
)
def test_whatever_stands_in_the_file_a_view_can_hold_it(tmp_path: Path, line: str, unsaid: list[object]) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text(line)

    rows = audit_rows(path)

    assert unsaid == [row[list(AUDIT_COLUMNS).index("unsaid")] for row in rows]
    assert all(shown_value(row[0]) for row in rows)


def test_a_row_has_the_columns_of_the_view(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    line = {"at": START.isoformat(), "who": "user:root", "statement": "DROP ROUTE [a];", "unsaid": 3}
    path.write_text(json.dumps(line))

    [row] = audit_rows(path)

    told = {name: value for name, value in zip(AUDIT_COLUMNS, row, strict=True) if value is not None}
    assert {
        "audit_time": START,
        "principal_name": "user:root",
        "statement": "DROP ROUTE [a];",
        "unsaid": 3,
    } == told


def test_a_line_that_is_none_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 0, 2)
    path.write_bytes(b"\xff\n{}\n[]\n" + b"[" * 100_000 + b"\n" + path.read_bytes() + b'{"at": "now"}\n{"at"')

    assert [0, 1] == _targets(path)


def test_without_a_file_there_are_no_rows(tmp_path: Path) -> None:
    assert [] == audit_rows(tmp_path / "audit.jsonl")


def test_of_many_rows_the_newest_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_MAX", 4)
    path = tmp_path / "audit.jsonl"
    _write(path, 0, 13)

    assert [9, 10, 11, 12] == _targets(path)


def test_of_many_bytes_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    _write(path, 100, 110)
    monkeypatch.setattr(module, "BYTES_MAX", path.stat().st_size // 2)

    assert [106, 107, 108, 109] == _targets(path)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match="Is a directory"):
        audit_rows(tmp_path)

"""The file of earlier statements: whose it is, what is in it, how large it gets."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from broker.cli.sql import KEPT, STATEMENT_MAX, PastStatements, history_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({}, Path("/home/a/.local/state/broker/sql_history")),
        ({"XDG_STATE_HOME": "/state"}, Path("/state/broker/sql_history")),
        ({"XDG_STATE_HOME": "relative"}, Path("/home/a/.local/state/broker/sql_history")),
        ({"BROKER_SQL_HISTORY": "/tmp/own"}, Path("/tmp/own")),
        ({"BROKER_SQL_HISTORY": ""}, None),
    ],
)
def test_the_file_is_where_the_environment_says(environ: dict[str, str], path: Path | None) -> None:
    assert path == history_path(environ, Path("/home/a"))


def test_statements_are_there_in_the_next_session_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"

    PastStatements(path).add("SELECT 1\nFROM x;")
    PastStatements(path).add("SELECT 'ü';")

    assert ["SELECT 1\nFROM x;", "SELECT 'ü';"] == PastStatements(path).statements
    assert (0o600, 0o700) == (mode(path), mode(path.parent))


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("SELECT 1;\n", encoding="utf-8")
    path.chmod(0o644)

    past = PastStatements(path)

    assert (0o600, ["SELECT 1;"]) == (mode(path), past.statements)


def test_the_newest_alone_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"SELECT {number};\n" for number in range(3 * KEPT)), encoding="utf-8")

    past = PastStatements(path)

    assert [f"SELECT {number};" for number in range(2 * KEPT, 3 * KEPT)] == past.statements
    assert KEPT == len(path.read_text(encoding="utf-8").splitlines())
    assert [path] == list(tmp_path.iterdir())
    assert 0o600 == mode(path)


def test_a_long_statement_is_not_kept(tmp_path: Path) -> None:
    past = PastStatements(tmp_path / "history")

    past.add("x" * (STATEMENT_MAX + 1))

    assert [] == PastStatements(tmp_path / "history").statements


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n", encoding="utf-8")
    (tmp_path / "history").symlink_to(other)

    past = PastStatements(tmp_path / "history")
    past.add("SELECT 1;")

    assert ("mine\n", []) == (other.read_text(encoding="utf-8"), past.statements)
    assert "history" in past.problem


def test_a_directory_in_its_place_is_told_and_no_error(tmp_path: Path) -> None:
    past = PastStatements(tmp_path)
    past.add("SELECT 1;")

    assert [] == past.statements
    assert past.problem


def test_without_a_file_nothing_is_kept() -> None:
    past = PastStatements(None)
    past.add("SELECT 1;")

    assert ([], "") == (past.statements, past.problem)

"""How errors become exit codes, and what standard error says."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from broker.admin.client import ProblemError, SocketNotPermittedError
from broker.cli.exit_codes import exit_code, exit_codes
from broker.errors import BrokerError, ConversationError, DaemonUnreachableError
from tests.support.command import run, run_without_privileges


@pytest.mark.parametrize(("number", "code"), [(208, 3), (911, 3), (8426, 3), (15151, 3), (102, 1), (None, 1)])
def test_a_refused_statement_is_told_and_its_number_decides_the_exit_code(
    fake_admin: Any, number: int | None, code: int
) -> None:
    problem = {"detail": "Msg and caret"} | ({} if number is None else {"number": number})
    fake_admin.answers["/v1/sql"] = (400, problem)

    result = run("sql", "--socket", fake_admin.path, "x")

    assert (code, "", "Msg and caret\n") == (result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConversationError(911, "no such database"), 3),
        (ConversationError(8489, "a lifetime of nothing"), 1),
        (DaemonUnreachableError("admin.sock", "refused"), 4),
        (SocketNotPermittedError("admin.sock", "Permission denied"), 5),
        (ProblemError(401, {"detail": "no"}), 5),
        (ProblemError(403, {"detail": "no"}), 5),
        (BrokerError("anything else"), 1),
    ],
    ids=str,
)
def test_an_error_has_the_exit_code_of_its_kind_or_number(error: BrokerError, code: int) -> None:
    assert code == exit_code(error)


def test_a_database_file_that_cannot_be_used_is_1_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, exit_codes():
        sqlite3.connect(tmp_path)  # a directory

    assert 1 == ended.value.code
    assert capsys.readouterr().err.startswith("the file cannot be opened: it has to be a plain file")


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(32, "Broken pipe"), AssertionError("a bug"), sqlite3.ProgrammingError("a bug too")],
    ids=str,
)
def test_a_reader_that_has_gone_and_a_bug_are_left_to_others(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, exit_codes():
        raise error

    assert error is caught.value


def test_a_socket_that_may_not_be_used_is_5_too(fake_admin: Any) -> None:
    fake_admin.path.chmod(0)

    done = run_without_privileges("status", "--socket", fake_admin.path)

    hint = "ask as the user of the instance or as root, or have admin.socket_group name a group of yours"
    expected = f"the socket {fake_admin.path} may not be used: Permission denied; {hint}\n"
    assert (5, expected) == (done.returncode, done.stderr)

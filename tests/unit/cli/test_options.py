"""How errors become exit codes."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from broker.admin.client import ProblemError, SocketNotPermittedError
from broker.cli.options import Where, examples, exit_code, fail, socket_option, where_option, with_exit_code
from broker.errors import BrokerError, ConversationError, DaemonUnreachableError
from broker.routing.address import NetworkAddress
from tests.support.command import run, run_without_privileges


@pytest.mark.parametrize(
    ("number", "code"), [(208, 3), (911, 3), (8426, 3), (15151, 3), (102, 1), (9744, 1), (None, 1)]
)
def test_a_refused_statement_is_told_and_its_number_decides_the_exit_code(
    fake_admin: Any, number: int | None, code: int
) -> None:
    problem = {"detail": "Msg and caret"} | ({} if number is None else {"number": number})
    fake_admin.answers["/v1/sql"] = (400, problem)

    result = run("sql", "--socket", fake_admin.path, "x")

    assert (code, "", "Msg and caret\n") == (result.exit_code, result.stdout, result.stderr)


@pytest.mark.parametrize("command", [["status"], ["sql", "SELECT 1"]])
def test_no_daemon_is_4(command: list[str], tmp_path: Path) -> None:
    result = run(*command, "--socket", tmp_path / "none.sock")

    assert 4 == result.exit_code
    assert result.stderr.startswith("no daemon answers on ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConversationError(911, "no such database"), 3),
        (ConversationError(8489, "a lifetime of nothing"), 1),
        (DaemonUnreachableError("admin.sock", "refused"), 4),
        (SocketNotPermittedError("admin.sock", "Permission denied"), 5),
        (BrokerError("anything else"), 1),
    ],
    ids=str,
)
def test_an_error_has_the_exit_code_of_its_kind_or_number(error: BrokerError, code: int) -> None:
    assert code == exit_code(error)


def test_failing_is_a_sentence_on_standard_error_and_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fail("nothing came", 7)

    assert 7 == ended.value.code
    assert ("", "nothing came\n") == capsys.readouterr()


def test_what_the_system_refuses_is_1_in_its_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    @with_exit_code
    def command() -> None:
        raise PermissionError(13, "Permission denied", "orders.db")

    with pytest.raises(SystemExit) as ended:
        command()

    assert 1 == ended.value.code
    assert "[Errno 13] Permission denied: 'orders.db'\n" == capsys.readouterr().err


def test_a_database_file_that_cannot_be_used_is_1_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @with_exit_code
    def command() -> None:
        sqlite3.connect(tmp_path)  # a directory

    with pytest.raises(SystemExit) as ended:
        command()

    assert 1 == ended.value.code
    assert capsys.readouterr().err.startswith("the file cannot be opened: it has to be a plain file")


@pytest.mark.parametrize(
    "error",
    [BrokenPipeError(32, "Broken pipe"), AssertionError("a bug"), sqlite3.ProgrammingError("a bug too")],
    ids=str,
)
def test_a_reader_that_has_gone_and_a_bug_are_left_to_others(error: Exception) -> None:
    @with_exit_code
    def command() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        command()

    assert error is caught.value


def test_a_command_without_error_gives_what_it_gives() -> None:
    @with_exit_code
    def command(number: int, *, twice: bool) -> int:
        return number * 2 if twice else number

    assert 8 == command(4, twice=True)


@pytest.mark.parametrize("status", [401, 403])
def test_who_may_not_ends_with_5(status: int) -> None:
    assert 5 == exit_code(ProblemError(status, {"detail": "no"}))


@pytest.mark.parametrize("command", ["status", "reload", "drain", "top"])
def test_a_socket_that_may_not_be_used_is_5_too(fake_admin: Any, command: str) -> None:
    fake_admin.path.chmod(0)

    done = run_without_privileges(command, "--socket", fake_admin.path)

    hint = "ask as the user of the instance or as root, or have admin.socket_group name a group of yours"
    expected = f"the socket {fake_admin.path} may not be used: Permission denied; {hint}\n"
    assert (5, expected) == (done.returncode, done.stderr)


# --- test_neighbour ---
# Where other instances can be asked: what the option --admin takes, and what it refuses.


def given(*values: str) -> tuple[Where | None, str]:
    """What a command gets, and what its user reads."""
    got: list[Where] = []

    @click.command()
    @where_option
    def command(where: Where) -> None:
        got.append(where)

    result = CliRunner().invoke(command, [word for value in values for word in ("--admin", value)])
    assert result.exit_code == (0 if got else 2)
    return (got[0] if got else None), " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ([], {}),
        (["tcp://far=http://127.0.0.1:9422"], {NetworkAddress("far", 4022): "http://127.0.0.1:9422"}),
        (["TCP://Far:1=/run/admin.sock"], {NetworkAddress("far", 1): Path("/run/admin.sock")}),
        (["tcp://[::1]:1=a=b.sock"], {NetworkAddress("::1", 1): Path("a=b.sock")}),
        (
            ["tcp://a=a.sock", "tcp://b=b.sock", "tcp://a=c.sock"],
            {NetworkAddress("a"): Path("c.sock"), NetworkAddress("b"): Path("b.sock")},
        ),
    ],
)
def test_each_address_has_a_url_or_a_socket(values: list[str], where: Where) -> None:
    assert (where, "") == given(*values)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("far=admin.sock", "'far' is"),
        ("LOCAL=admin.sock", "LOCAL is no address of one"),
        ("admin.sock", "'admin.sock' is not like tcp://gateway-b:4022=http://127.0.0.1:9422"),
        ("tcp://far", "'tcp://far' is not like"),
        ("tcp://far=", "'tcp://far=' is not like"),
        ("tcp://far=http://h/path", "'http://h/path' is no URL like http://127.0.0.1:9422"),
    ],
)
def test_anything_else_is_wrong_usage_and_says_what_is_right(value: str, problem: str) -> None:
    where, told = given(value)

    assert where is None
    assert problem in told


# --- test_option ---
# What the commands' help and usage have in common.


def test_check_takes_the_configuration_from_the_environment(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CONFIG", str(configuration))

    assert 0 == run("check", "--offline").exit_code


def test_examples_end_the_help_each_on_its_own_line() -> None:
    @examples("""
broker fly --to moon
broker fly --to mars
""")
    @click.command()
    def fly() -> None:
        """Leave."""

    text = CliRunner().invoke(fly, ["--help"]).stdout

    assert text.endswith("\n\n  Examples:\n    broker fly --to moon\n    broker fly --to mars\n")


def test_output_is_a_table_unless_it_is_asked_for_otherwise() -> None:
    for command in ("send", "receive", "status"):
        assert "[table|json]" in run(command, "--help").stdout


def test_an_instance_is_named_by_a_file_or_by_a_url() -> None:
    found = []

    @click.command()
    @socket_option
    def ask(socket: Path | str | None) -> None:
        found.append(socket)

    for arguments in (
        [],
        ["--socket", "a.sock"],
        ["--url", "https://gateway:9422"],
        ["--socket", "http://127.0.0.1:1"],
        ["--url", "a.sock"],
    ):
        CliRunner().invoke(ask, arguments, catch_exceptions=False)

    assert [None, Path("a.sock"), "https://gateway:9422", "http://127.0.0.1:1", Path("a.sock")] == found


def test_a_url_of_another_kind_is_no_file() -> None:
    result = run("status", "--url", "ftp://gateway:9422")

    assert 2 == result.exit_code
    assert "'ftp://gateway:9422' is neither a file nor a URL like http://127.0.0.1:9422" in result.stderr


@pytest.mark.parametrize(
    ("command", "code"), [(["serve"], 78), (["check"], 1), (["status"], 1), (["config", "show"], 1), (["reload"], 2)]
)
def test_a_configuration_that_may_not_be_read_is_told_by_its_reader(
    tmp_path: Path, command: list[str], code: int
) -> None:
    """Also by serve, whose exit code keeps systemd from starting it again and again."""
    config = tmp_path / "broker.toml"
    config.write_text('[instance]\nname = "a"\n')
    config.chmod(0)

    done = run_without_privileges(*command, "-c", config)

    assert (code, True) == (done.returncode, "cannot be read: Permission denied" in done.stderr), done.stderr

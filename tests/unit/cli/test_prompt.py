"""The prompt of `broker sql`: what ends a statement, what is kept of it, what is for the prompt itself."""

import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from broker.admin.client import AdminClient
from broker.cli import main
from broker.cli.prompt import (
    KEPT,
    STATEMENT_MAX,
    History,
    Prompt,
    history_path,
    is_blank,
    is_go,
    is_open,
    is_secret,
    is_whole,
    used_database,
)

ROWS = {"columns": ["name"], "rows": [["a"]], "messages": []}


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "history")


@pytest.fixture
def prompt(fake_admin: Any, history: History) -> Prompt:
    fake_admin.answers["/v1/sql"] = (200, ROWS)
    return Prompt(AdminClient(fake_admin.path), database=None, output="csv", history=history)


def typing(prompt: Prompt, *lines: str | type[BaseException]) -> list[str]:
    """Run the prompt for somebody who types these lines, an exception for Ctrl-C; the prompts that were shown."""
    left, prompts = iter(lines), []

    def read(shown: str) -> str:
        prompts.append(shown)
        line = next(left, EOFError)
        if isinstance(line, str):
            return line
        raise line

    prompt.run(read)
    return prompts


def statements(fake_admin: Any) -> list[str]:
    return [body["statement"] for _, _, body in fake_admin.asked]


@pytest.mark.parametrize("last", [(), ("exit",), ("QUIT;",), ("\\q",)], ids=["end of input", "exit", "quit", "q"])
def test_statements_end_with_a_semicolon_or_with_go(prompt: Prompt, fake_admin: Any, last: tuple[str, ...]) -> None:
    prompts = typing(prompt, "", "SELECT", "1;", "SELECT 2", "", "go", "GO", "-- nothing", ";", *last)

    assert ["SELECT\n1;", "SELECT 2"] == statements(fake_admin)
    first, more = "broker> ", "    -> "
    assert [first, first, more, first, more, more, first, first, more] == prompts[:9]


def test_an_empty_line_ends_nothing_and_says_once_how_it_would_end(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(prompt, "SELECT 1", "", "", "", KeyboardInterrupt, "SELECT 'a;", "", "GO", "exit", "b';")

    assert ["SELECT 'a;\n\nGO\nexit\nb';"] == statements(fake_admin)
    assert 1 == capsys.readouterr().err.count("end the statement with ; or with a line GO")


def test_ctrl_c_while_a_statement_runs_stops_waiting_and_stays(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AdminClient, "sql", mock.Mock(side_effect=KeyboardInterrupt))

    typing(prompt, "SELECT 1;", "\\p")

    assert "no longer waiting: a SELECT is stopped" in capsys.readouterr().err


def test_a_mistake_neither_ends_the_session_nor_stays_in_it(
    prompt: Prompt, fake_admin: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "Msg 102, Level 16, -:1:1\nincorrect syntax near 'SELCT'\nSELCT;\n^^^^^"
    fake_admin.answers["/v1/sql"] = (400, {"number": 102, "detail": problem})

    typing(prompt, "SELCT;", "SELECT", "1;", "CREATE LOGIN x WITH PASSWORD = 'y';", " SELECT 2;")

    assert ["SELCT;", "SELECT\n1;"] == statements(fake_admin)[:2]
    assert 4 == capsys.readouterr().err.count(problem)
    assert ["SELCT;", "SELECT\n1;"] == History(tmp_path / "history").statements, "others may hold a secret"


def test_use_changes_the_database_once_the_daemon_knows_it(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(prompt, "USE [orders];", "SELECT 1;")
    fake_admin.answers["/v1/sql"] = (404, {"number": 911, "detail": "database 'nowhere' does not exist"})
    typing(prompt, "use nowhere", "go")

    assert ["orders", "orders", "nowhere"] == [body["database"] for _, _, body in fake_admin.asked]
    assert "orders" == prompt.database
    captured = capsys.readouterr().err
    assert "changed database context to 'orders'" in captured
    assert "database 'nowhere' does not exist" in captured


def test_commands_of_the_prompt(prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typing(prompt, "SELECT 1;", "\\o jsonl", "SELECT", "\\p", "\\r", "SELECT 2;", "\\o yaml", "\\?", "\\wrong")

    captured = capsys.readouterr()
    assert (["SELECT 1;", "SELECT 2;"], 'name\na\n{"name": "a"}\n') == (statements(fake_admin), captured.out)
    told = [
        "SELECT\n",
        "\\o takes one of table, json, jsonl, csv; it is jsonl",
        "\\d NAME            the columns of a view or queue",
        "there is no \\wrong; \\? lists all",
    ]
    assert [] == [text for text in told if text not in captured.err]


def test_d_asks_for_views_or_for_the_columns_of_a_view_or_queue(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typing(prompt, "\\d", "\\d sys.[Rou'tes];")
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["column_id", "column_name"], "rows": [], "messages": []})
    typing(prompt, "\\d BillingQueue")

    views, columns, _, queue = statements(fake_admin)
    assert ("sys.system_views" in views, "WHERE view_name = 'rou''tes'" in columns) == (True, True)
    assert "SELECT TOP 0 * FROM BillingQueue" == queue
    columns_of_queue = "column_id,column_name\n1,column_id\n2,column_name\n"
    assert "name\na\n" * 2 + columns_of_queue == capsys.readouterr().out


def test_words_are_completed(prompt: Prompt, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["name"], "rows": [["Far"]], "messages": []})

    assert ["json", "jsonl"] == prompt.words("\\o ", "j")
    prompt.enter("ALTER")
    assert ["Far"] == prompt.words("ROUTE ", "f")


def test_answers_alone_go_to_a_file(
    fake_admin: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Standard input is a terminal, standard output is not."""
    fake_admin.answers["/v1/sql"] = (200, ROWS)
    stdin = mock.Mock(isatty=lambda: True, readline=mock.Mock(side_effect=["SELECT 1;\n", ""]))
    monkeypatch.setattr(sys, "stdin", stdin)
    monkeypatch.setenv("BROKER_SQL_HISTORY", str(tmp_path / "history"))

    with pytest.raises(SystemExit) as done:
        main(["sql", "--socket", str(fake_admin.path), "-o", "csv"])

    captured = capsys.readouterr()
    assert (0, "name\na\n") == (done.value.code, captured.out)
    assert captured.err.startswith("a statement ends with ;")


def test_the_file_is_where_the_environment_says() -> None:
    usual = Path("/home/a/.local/state/broker/sql_history")
    for environ, path in (
        ({}, usual),
        ({"XDG_STATE_HOME": "/state"}, Path("/state/broker/sql_history")),
        ({"XDG_STATE_HOME": "relative"}, usual),
        ({"BROKER_SQL_HISTORY": "/tmp/own"}, Path("/tmp/own")),
        ({"BROKER_SQL_HISTORY": ""}, None),
    ):
        assert path == history_path(environ, Path("/home/a")), environ


def test_statements_are_there_in_the_next_session_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history"

    for statement in ("SELECT 1\nFROM x;", "SELECT 'ü';", "x" * (STATEMENT_MAX + 1)):
        History(path).add(statement)

    assert ["SELECT 1\nFROM x;", "SELECT 'ü';"] == History(path).statements
    assert [0o600, 0o700] == [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)]


def test_the_newest_alone_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"SELECT {number};\n" for number in range(3 * KEPT)), encoding="utf-8")

    history = History(path)

    assert [f"SELECT {number};" for number in range(2 * KEPT, 3 * KEPT)] == history.statements
    assert KEPT == len(path.read_text(encoding="utf-8").splitlines())
    assert [path] == list(tmp_path.iterdir())
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n", encoding="utf-8")
    (tmp_path / "history").symlink_to(other)

    history = History(tmp_path / "history")
    history.add("SELECT 1;")

    assert ("mine\n", []) == (other.read_text(encoding="utf-8"), history.statements)
    assert "history" in history.problem


@pytest.mark.parametrize(
    ("rule", "so", "not_so"),
    [
        (is_go, ["GO", "go", "  Go ; "], ["GOAL", "SELECT 1 GO", ""]),
        (
            is_whole,
            ["SELECT 1 ; ", "SELECT ';';", "SELECT [a;b];", "SELECT 1; -- ; so", "SELECT 1 /* ; */;", "a\n;"],
            ["SELECT 1", "SELECT ';", "SELECT 1; -- '\nFROM x", "SELECT [a;", "SELECT 1 /* ;", "'it''s;", "-- a;"],
        ),
        (is_open, ["SELECT 'a", "SELECT [a", "/* a", 'SELECT "a'], ["SELECT 'a''b'", "-- it's"]),
        (is_blank, [" ;\n", "-- a\n/* b\n */;"], ["SELECT"]),
        (
            is_secret,
            ["x PASSWORD = 'x';", "with private key (file = 'x')", " SELECT 1;", "'brk_token_1'"],
            ["SELECT name FROM sys.routes;"],
        ),
    ],
)
def test_rules_about_statements(rule: Callable[[str], bool], so: list[str], not_so: list[str]) -> None:
    assert (so, []) == ([text for text in so if rule(text)], [text for text in not_so if rule(text)])


def test_a_use_alone_names_a_database() -> None:
    texts = ["USE orders;", "use [my orders]", "USE [a]]b];", "USE a; SELECT 1", "USED"]

    assert ["orders", "my orders", "a]b", None, None] == [used_database(text) for text in texts]

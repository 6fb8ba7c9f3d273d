"""The prompt of `broker sql`: what ends a statement, what is kept of it, what is for the prompt itself."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


class Keys:
    """Somebody who types these lines; an exception is one who presses Ctrl-C. Shape: `prompts` that were shown."""

    def __init__(self, *lines: str | type[BaseException]) -> None:
        self._lines: Iterator[str | type[BaseException]] = iter(lines)
        self.prompts: list[str] = []

    def read(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self._lines, EOFError)
        if isinstance(line, str):
            return line
        raise line


def statements(fake_admin: Any) -> list[str]:
    return [body["statement"] for _, _, body in fake_admin.asked]


@pytest.mark.parametrize("last", [(), ("exit",), ("QUIT;",), ("\\q",)], ids=["end of input", "exit", "quit", "q"])
def test_statements_end_with_a_semicolon_or_with_go(prompt: Prompt, fake_admin: Any, last: tuple[str, ...]) -> None:
    keys = Keys("", "SELECT", "1;", "SELECT 2", "", "go", "GO", "-- nothing", ";", *last)

    prompt.run(keys.read)

    assert ["SELECT\n1;", "SELECT 2"] == statements(fake_admin)
    first, more = "broker> ", "    -> "
    assert [first, first, more, first, more, more, first, first, more] == keys.prompts[:9]


def test_an_empty_line_ends_nothing_and_says_how_it_would_end(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt.run(Keys("SELECT 1", "", "", "").read)

    assert [] == statements(fake_admin)
    assert 1 == capsys.readouterr().err.count("end the statement with ; or with a line GO")


def test_lines_inside_a_text_belong_to_it(prompt: Prompt, fake_admin: Any) -> None:
    prompt.run(Keys("SELECT 'a;", "", "GO", "exit", "b';").read)

    assert ["SELECT 'a;\n\nGO\nexit\nb';"] == statements(fake_admin)


def test_ctrl_c_forgets_what_is_typed_and_stays(prompt: Prompt, fake_admin: Any) -> None:
    prompt.run(Keys("SELECT", KeyboardInterrupt, "SELECT 2;").read)

    assert ["SELECT 2;"] == statements(fake_admin)


def test_ctrl_c_while_a_statement_runs_stops_waiting_and_stays(
    prompt: Prompt, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(prompt, "_client", type("Client", (), {"sql": staticmethod(interrupted)})())

    prompt.run(Keys("SELECT 1;", "\\p").read)

    assert "no longer waiting: a SELECT is stopped" in capsys.readouterr().err


def test_a_mistake_neither_ends_the_session_nor_stays_in_it(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = "Msg 102, Level 16, -:1:1\nincorrect syntax near 'SELCT'\nSELCT;\n^^^^^"
    fake_admin.answers["/v1/sql"] = (400, {"number": 102, "detail": problem})

    prompt.run(Keys("SELCT;", "SELECT 1;").read)

    assert ["SELCT;", "SELECT 1;"] == statements(fake_admin)
    assert 2 == capsys.readouterr().err.count(problem)


def test_what_is_typed_is_kept_unless_it_may_hold_a_secret(prompt: Prompt, history: History, tmp_path: Path) -> None:
    prompt.run(Keys("SELECT", "1;", "CREATE LOGIN x WITH PASSWORD = 'y';", " SELECT 2;", "SELCT;").read)

    assert ["SELECT\n1;", "SELCT;"] == History(tmp_path / "history").statements


def test_use_changes_the_database_once_the_daemon_knows_it(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt.run(Keys("USE [orders];", "SELECT 1;").read)
    fake_admin.answers["/v1/sql"] = (404, {"number": 911, "detail": "database 'nowhere' does not exist"})
    prompt.run(Keys("use nowhere", "go").read)

    assert ["orders", "orders", "nowhere"] == [body["database"] for _, _, body in fake_admin.asked]
    assert "orders" == prompt.database
    captured = capsys.readouterr().err
    assert "changed database context to 'orders'" in captured
    assert "database 'nowhere' does not exist" in captured


def test_o_chooses_how_answers_are_shown(prompt: Prompt, capsys: pytest.CaptureFixture[str]) -> None:
    prompt.run(Keys("SELECT 1;", "\\o jsonl", "SELECT 1;", "\\o yaml", "SELECT 1;").read)

    captured = capsys.readouterr()
    assert 'name\r\na\r\n{"name": "a"}\n{"name": "a"}\n' == captured.out
    assert "\\o takes one of table, json, jsonl, csv; it is jsonl" in captured.err


def test_d_with_a_name_asks_for_its_columns(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt.run(Keys("\\d sys.[Rou'tes];").read)

    assert "WHERE view_name = 'rou''tes'" in statements(fake_admin)[0]
    assert "name\r\na\r\n" == capsys.readouterr().out


def test_d_of_a_queue_shows_what_a_select_of_it_would_have(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["column_id", "column_name"], "rows": [], "messages": []})

    prompt.run(Keys("\\d BillingQueue").read)

    assert "SELECT TOP 0 * FROM BillingQueue" == statements(fake_admin)[1]
    assert "column_id,column_name\r\n1,column_id\r\n2,column_name\r\n" == capsys.readouterr().out


def test_r_forgets_and_p_shows_what_is_typed(
    prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt.run(Keys("SELECT", "\\p", "\\r", "SELECT 2;").read)

    assert "SELECT\n" in capsys.readouterr().err
    assert ["SELECT 2;"] == statements(fake_admin)


def test_the_prompt_helps(prompt: Prompt, fake_admin: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prompt.run(Keys("\\?", "\\wrong").read)

    captured = capsys.readouterr().err
    assert "\\d NAME            the columns of a view or queue" in captured
    assert "there is no \\wrong; \\? lists all" in captured
    assert [] == statements(fake_admin)


def test_words_are_completed_over_the_lines_of_a_statement(prompt: Prompt, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["name"], "rows": [["Far"]], "messages": []})
    prompt.enter("ALTER")

    assert ["Far"] == prompt.words("ROUTE ", "f")


def test_answers_alone_go_to_a_file(
    fake_admin: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Standard input is a terminal, standard output is not."""

    class Terminal:
        def __init__(self) -> None:
            self._lines = iter(["SELECT 1;\n"])

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return next(self._lines, "")

    fake_admin.answers["/v1/sql"] = (200, ROWS)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setenv("BROKER_SQL_HISTORY", str(tmp_path / "history"))

    with pytest.raises(SystemExit) as done:
        main(["sql", "--socket", str(fake_admin.path), "-o", "csv"])

    captured = capsys.readouterr()
    assert (0, "name\r\na\r\n") == (done.value.code, captured.out)
    assert captured.err.startswith("a statement ends with ;")


# --- history ---


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

    History(path).add("SELECT 1\nFROM x;")
    History(path).add("SELECT 'ü';")

    assert ["SELECT 1\nFROM x;", "SELECT 'ü';"] == History(path).statements
    assert (0o600, 0o700) == (mode(path), mode(path.parent))


def test_the_newest_alone_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "history"
    path.write_text("".join(f"SELECT {number};\n" for number in range(3 * KEPT)), encoding="utf-8")

    history = History(path)

    assert [f"SELECT {number};" for number in range(2 * KEPT, 3 * KEPT)] == history.statements
    assert KEPT == len(path.read_text(encoding="utf-8").splitlines())
    assert [path] == list(tmp_path.iterdir())
    assert 0o600 == mode(path)


def test_a_long_statement_is_not_kept(tmp_path: Path) -> None:
    history = History(tmp_path / "history")

    history.add("x" * (STATEMENT_MAX + 1))

    assert [] == History(tmp_path / "history").statements


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine\n", encoding="utf-8")
    (tmp_path / "history").symlink_to(other)

    history = History(tmp_path / "history")
    history.add("SELECT 1;")

    assert ("mine\n", []) == (other.read_text(encoding="utf-8"), history.statements)
    assert "history" in history.problem


# --- what is typed ---


@pytest.mark.parametrize("line", ["GO", "go", "  Go ; "])
def test_a_line_with_go_ends_what_was_typed(line: str) -> None:
    assert is_go(line)


@pytest.mark.parametrize("line", ["GOAL", "SELECT 1 GO", ""])
def test_other_lines_do_not(line: str) -> None:
    assert not is_go(line)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1;", "SELECT 1 ; ", "SELECT ';';", "SELECT [a;b];", "SELECT 1; -- ; so", "SELECT 1 /* ; */;", "a\n;"],
)
def test_a_semicolon_at_the_end_makes_it_whole(text: str) -> None:
    assert is_whole(text)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "SELECT ';", "SELECT 1; -- '\nFROM x", "SELECT [a;", "SELECT 1 /* ;", "SELECT 'it''s;", "-- a;"],
)
def test_a_semicolon_in_a_text_a_name_or_a_comment_does_not(text: str) -> None:
    assert not is_whole(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 'a", True),
        ("SELECT [a", True),
        ("/* a", True),
        ('SELECT "a', True),
        ("SELECT 'a''b'", False),
        ("-- it's", False),
    ],
)
def test_what_is_not_closed_goes_on_in_the_next_line(text: str, *, expected: bool) -> None:
    assert expected is is_open(text)


@pytest.mark.parametrize(("text", "expected"), [(" ;\n", True), ("-- a\n/* b\n */;", True), ("SELECT", False)])
def test_blanks_and_comments_are_no_statement(text: str, *, expected: bool) -> None:
    assert expected is is_blank(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE LOGIN a WITH PASSWORD = 'x';", True),
        ("create certificate a with private key (file = 'x')", True),
        (" SELECT 1;", True),
        ("SELECT 'brk_token_1'", True),
        ("SELECT name FROM sys.routes;", False),
    ],
)
def test_what_may_hold_a_secret_is_known(text: str, *, expected: bool) -> None:
    assert expected is is_secret(text)


@pytest.mark.parametrize(
    ("text", "database"),
    [
        ("USE orders;", "orders"),
        ("use [my orders]", "my orders"),
        ("USE [a]]b];", "a]b"),
        ("USE a; SELECT 1", None),
        ("USED", None),
    ],
)
def test_a_use_alone_names_a_database(text: str, database: str | None) -> None:
    assert database == used_database(text)

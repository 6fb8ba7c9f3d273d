"""The commands sql and status: what is asked, and how the answer is shown."""

from __future__ import annotations

import json
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from broker.admin import client as module
from broker.admin.client import AdminClient, ProblemError
from broker.cli import main
from broker.cli import sql as script
from broker.cli.sql import (
    FRESH_SECONDS,
    KEPT,
    STATEMENT_MAX,
    Names,
    PastStatements,
    Prompt,
    completions,
    history_path,
    is_blank,
    is_go,
    is_open,
    is_secret,
    is_whole,
    run_long_script,
    used_database,
)
from broker.errors import DaemonUnreachableError
from tests.support.command import run

ROUTES = {"columns": ["name", "mirror_address"], "rows": [["a", None], ["b", "tcp://m:4022"]], "messages": []}


def test_sql_prints_rows_as_json(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    result = run("sql", "--socket", fake_admin.path, "-d", "orders", "-o", "json", "SELECT 1")

    assert 0 == result.exit_code
    assert [{"name": "a", "mirror_address": None}, {"name": "b", "mirror_address": "tcp://m:4022"}] == json.loads(
        result.stdout
    )
    assert [("POST", "/v1/sql", {"statement": "SELECT 1", "database": "orders"})] == fake_admin.asked


def test_sql_prints_rows_as_a_table(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    result = run("sql", "--socket", fake_admin.path, "SELECT 1")

    assert ["name", "mirror_address", "NULL", "tcp://m:4022"] == [
        word for word in ("name", "mirror_address", "NULL", "tcp://m:4022") if word in result.stdout
    ]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("csv", "name,mirror_address\r\na,\r\nb,tcp://m:4022\r\n"),
        ("jsonl", '{"name": "a", "mirror_address": null}\n{"name": "b", "mirror_address": "tcp://m:4022"}\n'),
    ],
)
def test_sql_prints_rows_for_other_programs(fake_admin: Any, output: str, expected: str) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    assert expected.encode() == run("sql", "--socket", fake_admin.path, "-o", output, "SELECT 1").stdout_bytes


def test_sql_tells_columns_of_one_name_apart(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["a", "a", "a_2"], "rows": [[1, 2, 3]], "messages": []})

    assert [{"a": 1, "a_2": 2, "a_2_2": 3}] == json.loads(
        run("sql", "--socket", fake_admin.path, "-o", "json", "x").stdout
    )


def test_sql_without_rows_keeps_the_columns_in_json_an_empty_list(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES | {"rows": []})

    assert [] == json.loads(run("sql", "--socket", fake_admin.path, "-o", "json", "SELECT 1").stdout)


def test_sql_reads_standard_input_and_says_what_was_done_beside_the_output(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": [], "rows": [], "messages": ["route a created"]})

    result = run("sql", "--socket", fake_admin.path, stdin="CREATE ROUTE a ...;\n")

    assert ("", "route a created\n") == (result.stdout, result.stderr)
    assert "CREATE ROUTE a ...;\n" == fake_admin.asked[0][2]["statement"]


def test_sql_says_that_there_are_more_rows(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES | {"truncated": True})

    assert "there are more rows than one answer holds" in run("sql", "--socket", fake_admin.path, "SELECT 1").stderr


def test_sql_finds_the_socket_through_the_configuration(configuration: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    assert 0 == run("sql", "-c", configuration, "SELECT 1").exit_code


STATUS = {
    "name": "one",
    "ready": True,
    "uptime_s": 1,
    "software": "broker",
    "loop": "uvloop",
    "kernel": "compiled",
    "listen": [],
    "broker_instance": "B",
    "forwarding": dict.fromkeys(
        ("enabled", "forwarded", "delivered", "held", "pool_bytes", "pool_limit_bytes", "dropped", "unaccounted"), 0
    ),
    "connections": [],
    "addresses": {},
    "databases": {},
}


def test_status_is_a_page_or_the_daemons_own_json(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)

    page = run("status", "--socket", fake_admin.path)
    text = run("status", "--socket", fake_admin.path, "-o", "json")

    assert "All is well: 0 connections, nothing waits for a next hop" == page.stdout.splitlines()[0]
    assert "\none ready, up 0:00:01" in page.stdout
    assert STATUS == json.loads(text.stdout)


def test_top_once_is_status(fake_admin: Any) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)

    pages = [run(*command, "--socket", fake_admin.path).stdout for command in (["status"], ["top", "--once"])]

    assert pages[0].splitlines()[1:] == pages[1].splitlines()[1:]


@pytest.mark.parametrize("command", [["top"], ["status", "--watch"]], ids=" ".join)
def test_watching_without_a_terminal_prints_one_state_after_the_other(
    fake_admin: Any, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)
    left = iter([None, None])

    def sleep(seconds: float) -> None:
        assert 7 == seconds
        if next(left, 0) == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr("broker.cli.status.time", SimpleNamespace(sleep=sleep))
    result = run(*command, "--socket", fake_admin.path, "--interval", "7", "-o", "json")

    assert (0, [STATUS] * 3) == (result.exit_code, [json.loads(line) for line in result.stdout.splitlines()])


def test_watching_ends_when_the_instance_refuses(fake_admin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_admin.answers["/v1/status"] = (200, STATUS)

    def sleep(_: float) -> None:
        fake_admin.answers["/v1/status"] = (403, {"detail": "no"})

    monkeypatch.setattr("broker.cli.status.time", SimpleNamespace(sleep=sleep))

    result = run("top", "--socket", fake_admin.path)

    assert (5, "no") == (result.exit_code, result.stderr.strip())


# --- test_live_names ---
# Names that a running instance has, offered to the shell.


def offered(*words: object) -> list[str]:
    """What the last word may become behind the others."""
    *before, word = map(str, words)
    found = ShellComplete(main, {}, "broker", "_BROKER_COMPLETE").get_completions(before, word)
    return [item.value for item in found]


def rows(*names: str) -> tuple[int, Any]:
    return 200, {"columns": ["name"], "rows": [[name] for name in names], "messages": []}


def test_services_of_the_instance_are_offered_where_a_service_is_named(fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = rows("//shop/Billing", "//shop/Basket", "//stock/Items")

    assert ["//shop/Basket", "//shop/Billing"] == offered("explain", "--socket", fake_admin.path, "--to", "//shop/B")
    assert any("remote_service_name" in body["statement"] for _, _, body in fake_admin.asked)


@pytest.mark.parametrize("command", ["sql", "explain"])
def test_databases_of_the_instance_are_offered_where_one_is_named(fake_admin: Any, command: str) -> None:
    fake_admin.answers["/v1/sql"] = rows("msdb", "orders")

    assert ["orders"] == offered(command, "--socket", fake_admin.path, "--database", "or")


def test_the_instance_is_found_through_its_configuration(configuration: Path, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = rows("orders")

    assert ["orders"] == offered("sql", "-c", configuration, "-d", "")


@pytest.mark.parametrize("answer", [(500, {}), (200, b"no JSON")], ids=str)
def test_an_instance_that_cannot_answer_offers_nothing(fake_admin: Any, answer: tuple[int, Any]) -> None:
    fake_admin.answers["/v1/sql"] = answer

    assert [] == offered("sql", "--socket", fake_admin.path, "-d", "")


def test_no_instance_offers_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[instance", encoding="utf-8")

    assert [] == offered("sql", "--socket", tmp_path / "none.sock", "-d", "")
    assert [] == offered("sql", "-c", broken, "-d", "")


# --- test_name_completion ---
# Which words are offered where, and what is asked for them.


COLUMNS = [("sys", "routes", "name"), ("sys", "routes", "address"), ("sys", "services", "service_id")]
LIVE: dict[str, list[str | None]] = {
    "sys.databases": ["msdb", "orders"],
    "sys.routes": ["Far", "my route"],
    "remote_service_name": ["//shop/Billing", None],
    "address": ["LOCAL", "tcp://b:4022"],
    "sys.services": ["//shop/Orders", "evil\x1b[2J"],
    "sys.service_queues": ["OrdersQueue", "Bil]l"],
}


class Daemon:
    """Answers as one with some names; `asked` is what it was asked, `now` the time."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = 1000.0

    def ask(self, question: str) -> Sequence[Sequence[Any]]:
        self.asked.append(question)
        if "system_columns" in question:
            return COLUMNS
        for word in ("remote_service_name", "address"):
            if f" {word} " in question:
                return [(name,) for name in LIVE[word]]
        return [(name,) for key, names in LIVE.items() if f"FROM {key}" in question for name in names][:2]


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def names(daemon: Daemon) -> Names:
    return Names(daemon.ask, clock=lambda: daemon.now)


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "sel", ["select"]),
        ("", "SEL", ["SELECT"]),
        ("SELECT * FROM ", "sys.r", ["sys.routes"]),
        ("SELECT * FROM ", "Or", ["OrdersQueue"]),
        ("SELECT * FROM ", "or", ["orders."]),
        ("SELECT * FROM ", "Bil", ["[Bil]]l]"]),
        ("SELECT * FROM ", "orders.sys.s", ["orders.sys.services"]),
        ("SELECT * FROM sys.routes WHERE ", "na", ["name"]),
        ("SELECT * FROM sys.routes r WHERE ", "r.ad", ["r.address"]),
        ("SELECT * FROM sys.services WHERE ", "ad", ["address"]),
        ("DROP ROUTE ", "", ["Far", "[my route]"]),
        ("ALTER ROUTE ", "my", ["[my route]"]),
        ("CREATE SERVICE s ON QUEUE ", "O", ["OrdersQueue"]),
        ("GRANT SEND ON SERVICE::", "", ["[//shop/Orders]"]),
        ("USE ", "o", ["orders"]),
        ("CREATE ROUTE r WITH SERVICE_NAME = '", "//shop/B", ["//shop/Billing"]),
        ("CREATE ROUTE r WITH ADDRESS = '", "tcp", ["tcp://b:4022"]),
        ("SELECT 'a ", "sel", []),
        ("", "zzz", []),
    ],
)
def test_what_fits_is_offered(names: Names, before: str, word: str, expected: list[str]) -> None:
    assert expected == completions(names, before, word)


def test_columns_of_the_views_that_are_named_come_first(names: Names) -> None:
    assert ["service_id"] == completions(names, "SELECT * FROM sys.services WHERE ", "serv")[:1]


def test_a_name_that_a_terminal_would_obey_is_not_offered(names: Names) -> None:
    assert [] == [name for name in names.of("service") if "\x1b" in name]


def test_names_are_asked_again_when_they_are_old_or_something_was_changed(names: Names, daemon: Daemon) -> None:
    names.of("route")
    names.of("route")
    assert 1 == len(daemon.asked)

    daemon.now += FRESH_SECONDS
    names.of("route")
    assert 2 == len(daemon.asked)

    names.forget()
    names.of("route")
    assert 3 == len(daemon.asked)


def test_a_daemon_that_does_not_answer_leaves_the_keywords() -> None:
    def ask(_: str) -> Sequence[Sequence[Any]]:
        raise DaemonUnreachableError("x", "gone")

    assert ["SELECT"] == completions(Names(ask), "", "SEL")


# --- test_past_statements ---
# The file of earlier statements: whose it is, what is in it, how large it gets.


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


# --- test_prompt ---
# The prompt of `broker sql`: what ends a statement, what it keeps, what is for the prompt itself.


ROWS = {"columns": ["name"], "rows": [["a"]], "messages": []}


@pytest.fixture
def past(tmp_path: Path) -> PastStatements:
    return PastStatements(tmp_path / "history")


@pytest.fixture
def prompt(fake_admin: Any, past: PastStatements) -> Prompt:
    fake_admin.answers["/v1/sql"] = (200, ROWS)
    return Prompt(AdminClient(fake_admin.path), database=None, output="csv", past=past)


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
    assert 1 == capsys.readouterr().err.count("when it ends with ; or with a line GO")


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

    monkeypatch.setattr(prompt, "client", type("Client", (), {"sql": staticmethod(interrupted)})())

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


def test_what_is_typed_is_kept_unless_it_may_hold_a_secret(
    prompt: Prompt, past: PastStatements, tmp_path: Path
) -> None:
    prompt.run(Keys("SELECT", "1;", "CREATE LOGIN x WITH PASSWORD = 'y';", " SELECT 2;", "SELCT;").read)

    assert ["SELECT\n1;", "SELCT;"] == PastStatements(tmp_path / "history").statements


def test_a_statement_of_several_lines_can_be_called_back(prompt: Prompt, fake_admin: Any) -> None:
    prompt.run(Keys("SELECT\n1;").read)

    assert ["SELECT\n1;"] == statements(fake_admin)


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


def test_d_lists_views_and_queues(prompt: Prompt, fake_admin: Any) -> None:
    prompt.run(Keys("\\d").read)

    assert "sys.system_views" in statements(fake_admin)[0]
    assert "sys.service_queues" in statements(fake_admin)[0]


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
    assert "there is no \\wrong; \\? lists what there is" in captured
    assert [] == statements(fake_admin)


def test_words_are_completed_over_the_lines_of_a_statement(prompt: Prompt, fake_admin: Any) -> None:
    fake_admin.answers["/v1/sql"] = (200, {"columns": ["name"], "rows": [["Far"]], "messages": []})
    prompt.take("ALTER")

    assert ["Far"] == prompt.words("ROUTE ", "f")


def test_words_behind_o_are_the_formats(prompt: Prompt) -> None:
    assert ["json", "jsonl"] == prompt.words("\\o ", "js")


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


# --- test_script ---
# A long script is sent whole, and how far it is is shown meanwhile.


TEXT = "x" * 200
ANSWER = {"messages": ["done"]}


class ScriptDaemon:
    """Answers the script once its state was asked for `looks` times."""

    def __init__(self, looks: int, error: Exception | None = None) -> None:
        self.looks = looks
        self.asked: list[Any] = []
        self.error = error
        self._enough = threading.Event()

    def sql(self, text: str, database: str | None = None) -> Any:
        self.asked.append((text, database))
        self._enough.wait()
        if self.error is not None:
            raise self.error
        return ANSWER

    def get(self, target: str) -> Any:
        assert target == "/v1/status"
        self.looks -= 1
        if self.looks <= 0:
            self._enough.set()
        if self.looks == 1:
            raise DaemonUnreachableError("socket", "a hiccup")
        other = {"size": 7, "position": 1, "statements": 1, "stage": "waiting"}
        return {"running_scripts": [other, {"size": 200, "position": 50, "statements": 1234, "stage": "running"}]}


def _run(monkeypatch: pytest.MonkeyPatch, daemon: ScriptDaemon, *, is_terminal: bool) -> Any:
    monkeypatch.setattr(module.AdminClient, "sql", daemon.sql)
    monkeypatch.setattr(module.AdminClient, "get", daemon.get)
    monkeypatch.setattr(script, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(script, "LINE_SECONDS", 0.002)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal)
    return run_long_script(AdminClient(Path("socket")), TEXT, "orders")


def test_without_a_terminal_lines_tell_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = ScriptDaemon(looks=6)

    assert _run(monkeypatch, daemon, is_terminal=False) == ANSWER

    out, err = capsys.readouterr()
    assert daemon.asked == [(TEXT, "orders")]
    assert (out, set(err.splitlines())) == ("", {"running, 1,234 statements, 25 %"})


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert _run(monkeypatch, ScriptDaemon(looks=6), is_terminal=True) == ANSWER

    out, err = capsys.readouterr()
    assert (out, "1,234 statements" in err, "25%" in err) == ("", True, True)


def test_refusal_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProblemError):
        _run(monkeypatch, ScriptDaemon(looks=1, error=ProblemError(400, {})), is_terminal=False)


# --- test_typed_batch ---
# What ends a statement at the prompt, and what is not kept of it.


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

"""The commands as people and scripts meet them: help, exit codes, what goes where, and what an import costs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from broker.cli import main
from broker.errors import BrokerError, DdlSyntaxError, ListenFailedError, SettingError, StoreUnavailableError

COMMANDS = sorted(main.commands)
SLOW_TO_IMPORT = ("aiohttp", "asyncio", "lark", "pydantic", "sqlglot", "structlog", "uvloop")


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


# --- help and usage ---


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_two_examples_of_it(name: str) -> None:
    result = run(name, "--help")

    heading, *examples = result.stdout.rstrip().splitlines()[-3:]
    assert 0 == result.exit_code
    assert "Examples:" == heading.strip()
    assert all(f"broker {name}" in example for example in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says_in_one_line_what_it_does(name: str) -> None:
    short = main.commands[name].get_short_help_str(limit=70)

    assert not short.endswith("...")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_tells_its_exit_codes_and_every_option(name: str) -> None:
    assert "Exit codes:" in " ".join(run(name, "--help").stdout.split())
    assert [] == [
        option.name for option in main.commands[name].params if isinstance(option, click.Option) and not option.help
    ]


def test_the_help_of_the_program_tells_every_exit_code() -> None:
    text = " ".join(run("--help").stdout.split())

    assert (
        "Exit codes: 0 success, 1 error, 2 usage, 3 not found, 4 daemon unreachable, 5 not permitted, 6 refused because"
        " it would do harm, 7 timed out; serve also 75 (port taken, store locked) and 78 (bad configuration)." in text
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["bogus"],
        ["status", "--bogus"],
        ["status", "-o", "yaml"],
        ["send", "-d", "x"],
        ["receive", "-d", "x"],
        ["receive", "-d", "x", "--queue", "q", "--top", "0"],
        ["receive", "-d", "x", "--queue", "q", "--wait", "-1"],
        ["send", "-d", "x", "--from", "a", "--to", "b", "--lines", "body"],
        ["demo", "--messages", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_and_points_at_the_help(arguments: list[str]) -> None:
    result = run(*arguments)

    assert 2 == result.exit_code
    assert "--help' for help." in result.stderr
    assert "" == result.stdout


def test_the_demo_wants_a_directory_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = run("demo", "--directory", tmp_path)

    assert 2 == result.exit_code
    assert "is not empty: name a new directory" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["send", "--help"],
        ["status", "--socket", "/nonexistent/admin.sock"],
        ["sql", "--socket", "/nonexistent/admin.sock", "SELECT 1"],
        ["send", "-d", "DATABASE", "--from", "Orders", "--to", "b", "x"],
        ["receive", "-d", "DATABASE", "--queue", "OrdersQueue"],
    ],
    ids=" ".join,
)
def test_a_command_imports_nothing_slow_that_it_does_not_need(arguments: list[str], shop: Path) -> None:
    program = (
        "import sys\nfrom broker.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        f"print(*sorted(set({SLOW_TO_IMPORT!r}) & set(sys.modules)), file=sys.stderr)"
    )
    words = [str(shop) if word == "DATABASE" else word for word in arguments]

    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)

    assert "" == done.stderr.splitlines()[-1]


# --- check and serve ---


def test_check_of_a_good_configuration_says_so(configuration: Path) -> None:
    result = run("check", "-c", configuration, "--offline")

    assert (0, "the configuration is good\n") == (result.exit_code, result.stdout)


def test_check_tells_what_is_unwise_and_calls_it_good(configuration: Path) -> None:
    configuration.write_text(configuration.read_text().replace("127.0.0.1:0", "0.0.0.0:4022"))

    result = run("check", "-c", configuration, "--offline")

    assert 0 == result.exit_code
    assert result.stderr.startswith(f"warning: {configuration}:4:11: endpoint.listen[0]: ")


def test_check_tells_everything_wrong_in_one_run_with_its_place(configuration: Path) -> None:
    configuration.write_text('[endpoint]\nmax_hopz = 3\nmax_frame = "1KiB"\n')

    result = run("check", "-c", configuration)

    lines = result.stderr.splitlines()
    assert 1 == result.exit_code
    assert [f"{configuration}:2:1: endpoint.max_hopz", f"{configuration}:3:13: endpoint.max_frame"] == [
        ": ".join(line.split(": ")[:2]) for line in lines
    ]
    assert "" == result.stdout


def test_check_reads_the_scripts(configuration: Path, tmp_path: Path) -> None:
    configuration.write_text(configuration.read_text() + 'scripts = ["a.sql"]\n')
    (tmp_path / "a.sql").write_text("CREAT QUEUE a;")

    result = run("check", "-c", configuration, "--offline")

    assert 1 == result.exit_code
    assert f"{tmp_path / 'a.sql'}:1:1: " in result.stderr
    assert "did you mean CREATE?" in result.stderr


def test_check_takes_the_configuration_from_the_environment(
    configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER_CONFIG", str(configuration))

    assert 0 == run("check", "--offline").exit_code


@pytest.mark.parametrize(("command", "code"), [("serve", 78), ("check", 1), ("status", 1)])
def test_a_configuration_that_is_not_there(command: str, code: int, tmp_path: Path) -> None:
    result = run(command, "-c", tmp_path / "none.toml")

    assert code == result.exit_code
    assert result.stderr.endswith("name a TOML file that exists and may be read\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ListenFailedError("127.0.0.1:4022", "in use"), 75),
        (StoreUnavailableError("a.db", "locked"), 75),
        (SettingError("endpoint.listen", "is wrong"), 78),
        (DdlSyntaxError(102, "incorrect syntax"), 78),
    ],
    ids=lambda value: type(value).__name__,
)
def test_serve_tells_a_supervisor_whether_trying_again_may_help(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, error: BrokerError, code: int
) -> None:
    def fail(settings: object) -> None:
        raise error

    monkeypatch.setattr("broker.daemon.run", fail)
    monkeypatch.setattr("broker.observe.logs.configure_logging", lambda **settings: None)

    result = run("serve", "-c", configuration)

    assert (code, f"{error}\n") == (result.exit_code, result.stderr)


# --- sql and status ---

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


STATUS = {
    "name": "one",
    "ready": True,
    "uptime_s": 1,
    "software": "broker",
    "loop": "uvloop",
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

    assert page.stdout.startswith("one ready, up 0:00:01")
    assert STATUS == json.loads(text.stdout)


class Terminal:
    """Standard input of somebody who types these lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)
        self.prompts: list[str] = []

    def isatty(self) -> bool:
        return True

    def ask(self, prompt: str) -> str:
        self.prompts.append(prompt)
        try:
            return next(self._lines)
        except StopIteration:
            raise EOFError from None


def typed(monkeypatch: pytest.MonkeyPatch, fake_admin: Any, *lines: str) -> Terminal:
    terminal = Terminal(*lines)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("builtins.input", terminal.ask)
    with pytest.raises(SystemExit) as done:
        main(["sql", "--socket", str(fake_admin.path)])
    assert 0 == done.value.code
    return terminal


@pytest.mark.parametrize("last", [(), ("exit",), ("QUIT",)], ids=["end of input", "exit", "quit"])
def test_statements_at_the_prompt_end_with_go_or_an_empty_line(
    monkeypatch: pytest.MonkeyPatch, fake_admin: Any, last: tuple[str, ...]
) -> None:
    fake_admin.answers["/v1/sql"] = (200, ROUTES)

    terminal = typed(monkeypatch, fake_admin, "", "SELECT", "1", "", "SELECT 2", "go", *last)

    assert ["SELECT\n1", "SELECT 2"] == [body["statement"] for _, _, body in fake_admin.asked]
    assert ["broker> ", "broker> ", "    -> ", "    -> ", "broker> ", "    -> ", "broker> "] == terminal.prompts


def test_a_mistake_at_the_prompt_ends_neither_the_session_nor_stays_in_it(
    monkeypatch: pytest.MonkeyPatch, fake_admin: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_admin.answers["/v1/sql"] = (400, {"detail": "incorrect syntax"})

    typed(monkeypatch, fake_admin, "SELCT", "", "SELECT", "")

    assert ["SELCT", "SELECT"] == [body["statement"] for _, _, body in fake_admin.asked]
    captured = capsys.readouterr()
    assert 2 == captured.err.count("incorrect syntax")
    assert captured.err.startswith("GO or an empty line ends a statement")

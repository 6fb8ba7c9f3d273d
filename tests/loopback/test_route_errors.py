"""
Bad input to a real daemon: each error number through every door, scripts that fail in their middle, and huge ones.

The doors are a script of the configuration, the command line, and HTTP on the admin port. What is wrong is told with
its number and its place, and nothing is changed by it: the routes are compared before and after every test. Every case
of each number is in tests/unit/catalog/test_handlers.py.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.demo.topology import Daemon, Topology, free_port
from tests.support.command import run
from tests.support.route_errors import ACCEPTED, CASES, EXISTING, NUMBERS, UNCLOSED, Case, cases_of

HUGE_MB = int(os.environ.get("BROKER_TEST_HUGE_MB", "10"))  # of the huge scripts; 100 tries what is promised
DATABASES = ("msdb", "orders", "billing")
ONE_EACH = [next(case for case in cases_of(number) if case.is_writable) for number in sorted(NUMBERS)]
STATUS = {911: 404, 2714: 409, 15151: 404}
EXIT = {911: 3, 15151: 3}
PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Daemon]:
    """One instance for all; the routes of the table are in msdb."""
    with Topology(tmp_path_factory.mktemp("routes")) as net:
        admin = {"admin": {"listen": f"127.0.0.1:{port}"}}
        daemon = net.add("one", forwarding=True, databases=DATABASES[1:], settings=admin)
        net.script("one", "msdb", EXISTING)
        net.start()
        yield daemon


def contents(daemon: Daemon, databases: Sequence[str] = DATABASES) -> list[list[dict[str, Any]]]:
    """Routes, queues and services of databases, msdb first."""
    views = [f"{database}.sys.routes" for database in databases]
    views += [f"{database}.sys.{view}" for database in databases[1:] for view in ("service_queues", "services")]
    return [daemon.query(f"SELECT * FROM {view}") for view in views]


@pytest.fixture(autouse=True)
def _unchanged(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test says to the instance has changed nothing."""
    if "daemon" not in request.fixturenames:
        yield
        return
    daemon = request.getfixturevalue("daemon")
    before = contents(daemon)
    yield
    assert before == contents(daemon)


def post(port: int, statement: str, database: str = "msdb") -> tuple[int, str | None, dict[str, Any]]:
    """Status, media type and body of the answer to a statement."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        body = json.dumps({"statement": statement, "database": database})
        connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.headers.get_content_type(), json.loads(response.read())


def broker(*arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """The program as a process of its own."""
    command = [sys.executable, "-m", "broker", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def told(case: Case) -> tuple[str, str]:
    """How the first line begins, and how the text ends."""
    return f"Msg {case.number}, Level 16, -:{case.line}:{case.column}\n", f"\n{case.caret}\n"


# --- by HTTP ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_http_tells_number_and_place_as_a_problem(daemon: Daemon, port: int, case: Case) -> None:
    status, media_type, problem = post(port, case.script)

    assert (STATUS.get(case.number, 400), PROBLEM, status) == (status, media_type, problem["status"])
    members = problem["number"], problem["line"], problem["column"], problem["caret"]
    assert (case.number, case.line, case.column, case.caret) == members
    assert problem["problem"] in problem["detail"]


def test_half_a_character_is_no_json(daemon: Daemon, port: int) -> None:
    status, media_type, problem = post(port, next(case for case in CASES if not case.is_writable).script)

    assert (400, PROBLEM) == (status, media_type)
    assert "the request is not understood" in problem["detail"]


def test_http_carries_out_what_is_just_legal(daemon: Daemon, port: int) -> None:
    status, media_type, _ = post(port, f"{ACCEPTED[0]}; DROP ROUTE r")

    assert (200, "application/json") == (status, media_type)


# --- by command line --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ONE_EACH, ids=str)
def test_the_command_line_tells_number_and_place_with_its_exit_code(daemon: Daemon, case: Case) -> None:
    result = run("sql", "--socket", daemon.directory / "admin.sock", "-d", "msdb", case.script)

    begin, end = told(case)
    assert (EXIT.get(case.number, 1), "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(begin)
    assert result.stderr.endswith(end)


@pytest.mark.parametrize("encoding", [None, "utf-8", "utf-8-sig", "utf-16"])
def test_the_program_itself_does_the_same_with_an_argument_and_with_standard_input(
    daemon: Daemon, encoding: str | None
) -> None:
    """In the encodings in which the tools of the original save a script."""
    case = next(case for case in cases_of(8412) if case.is_writable)
    command = ["sql", "-c", daemon.config, "-d", "msdb"]

    end = broker(*command, stdin=case.script.encode(encoding)) if encoding else broker(*command, case.script)

    assert (1, b"") == (end.returncode, end.stdout)
    assert end.stderr.decode().startswith(told(case)[0])
    assert end.stderr.decode().endswith(told(case)[1])


def test_standard_input_that_is_no_text_is_refused_in_a_sentence(daemon: Daemon) -> None:
    end = broker("sql", "-c", daemon.config, "-d", "msdb", stdin=b"DROP ROUTE ByName;\nDROP ROUTE \xff;\n")

    assert 1 == end.returncode
    assert b"UTF-8" in end.stderr
    assert b"Traceback" not in end.stderr


# --- by a script of the configuration ---------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path) -> Daemon:
    """An instance that was never started; the routes of the table are in its script."""
    net = Topology(tmp_path)
    daemon = net.add("one", forwarding=True, databases=["orders"])
    net.script("one", "msdb", EXISTING)
    return daemon


def findings(daemon: Daemon) -> tuple[int, list[tuple[str, int, int, str]]]:
    """Exit code of the check, and file, line, column and sentence of every error."""
    result = run("check", "-c", daemon.config, "--offline", "-o", "json")
    rows = [row for row in json.loads(result.stdout) if row["level"] == "error"]
    return result.exit_code, [(Path(row["file"]).name, row["line"], row["column"], row["text"]) for row in rows]


def test_the_check_of_a_configuration_tells_every_mistake_of_a_script_in_one_run(stopped: Daemon) -> None:
    cases = [case for case in ONE_EACH if case.is_declared_too and case not in UNCLOSED]
    script, expected = "", []
    for case in cases:
        expected.append(("msdb1.sql", script.count("\n") + case.line, case.column, case.number))
        script += f"{case.script}\n;\nUSE msdb;\n"
        if "DROP ROUTE" in case.script:
            script += f"{EXISTING}\n"
    (stopped.directory / "msdb1.sql").write_text(script, encoding="utf-8", newline="")

    exit_code, found = findings(stopped)

    assert 1 == exit_code
    assert expected == [
        (*place, number) for *place, text in found for number in NUMBERS if f": error {number}: " in text
    ]


def test_the_check_tells_what_is_not_closed(stopped: Daemon) -> None:
    case = UNCLOSED[0]
    (stopped.directory / "msdb1.sql").write_text(case.script, encoding="utf-8")

    exit_code, found = findings(stopped)

    assert (1, [("msdb1.sql", case.line, case.column)]) == (exit_code, [tuple(place) for *place, _ in found])
    assert f"error {case.number}: " in found[0][3]


def test_the_check_has_nothing_against_what_is_just_legal(stopped: Daemon) -> None:
    script = "".join(f"{script}; DROP ROUTE r;\n" for script in ACCEPTED)
    (stopped.directory / "msdb1.sql").write_text(script, encoding="utf-8")

    assert (0, []) == findings(stopped)


@pytest.mark.parametrize("number", [102, 9744, 15151])
def test_an_instance_does_not_start_with_a_mistake_in_a_script(stopped: Daemon, number: int) -> None:
    case = next(case for case in cases_of(number) if case.is_declared_too)
    path = stopped.directory / "msdb1.sql"
    path.write_text(case.script, encoding="utf-8")

    end = broker("serve", "-c", stopped.config)

    assert 78 == end.returncode
    report = end.stderr.decode()
    assert f"Msg {number}, Level 16, {path}:{case.line}:{case.column}\n" in report
    assert report.endswith(told(case)[1])


def test_a_script_that_is_no_text_is_told_by_the_check_and_by_the_start(stopped: Daemon) -> None:
    path = stopped.directory / "msdb1.sql"
    path.write_bytes(b"DROP ROUTE ByName;\nDROP ROUTE \xff;\n")

    result = run("check", "-c", stopped.config, "--offline")
    end = broker("serve", "-c", stopped.config)

    assert 1 == result.exit_code
    assert 78 == end.returncode
    for report in (result.stderr, end.stderr.decode()):
        assert str(path) in report
        assert "UTF-8" in report
        assert "Traceback" not in report


def test_two_databases_of_one_broker_instance_are_not_served(stopped: Daemon) -> None:
    """9772: a copy of a database file has the identity of its original."""
    stopped.start()
    assert 0 == stopped.stop()
    shutil.copy(stopped.directory / "orders.db", stopped.directory / "copy.db")
    with stopped.config.open("a", encoding="utf-8") as config:
        config.write('\n[databases.copy]\npath = "copy.db"\n')

    result = run("check", "-c", stopped.config, "--offline")
    end = broker("serve", "-c", stopped.config)

    assert (1, 78) == (result.exit_code, end.returncode)
    for report in (result.stderr, end.stderr.decode()):
        assert "databases.copy.path: error 9772: " in report


# --- a script that fails in its middle --------------------------------------------------------------------------

GOOD = "CREATE ROUTE good{0} WITH SERVICE_NAME = '//shop/Good{0}', ADDRESS = 'tcp://far:4022';\n"
ONE, TWO = (GOOD.format(number) for number in (1, 2))
BAD = "CREATE ROUTE bad WITH ADDRESS = «'nonsense'»;\n"
HALF_DONE = {
    "the second of two databases": f"USE orders;\n{ONE}CREATE QUEUE q;\nUSE billing;\nCREATE QUEUE q;\n{BAD}",
    "a name that is not closed": f"USE billing;\n{ONE}DROP ROUTE good1;\nUSE orders;\nDROP ROUTE «[»AutoCreatedLocal",
    "the last of several batches": f"USE orders\nGO\n{ONE}GO\nUSE billing\nGO\n{TWO}GO\n{BAD}GO",
    "the last of 10,000, database by turns": (
        "".join(f"USE {('orders', 'billing')[n % 2]};\n{GOOD.format(n)}" for n in range(9_999)) + BAD
    ),
}


@pytest.mark.parametrize("what", HALF_DONE)
def test_a_script_that_fails_in_its_middle_changes_nothing_and_names_the_place(
    daemon: Daemon, port: int, what: str
) -> None:
    case = Case(0, HALF_DONE[what])  # the number is not compared

    status, _, problem = post(port, case.script)

    assert status >= 400
    assert (case.line, case.column, case.caret) == (problem["line"], problem["column"], problem["caret"])


def test_a_declared_script_that_fails_in_its_middle_leaves_the_files_as_they_were(stopped: Daemon) -> None:
    """The next start, with the script put right, finds what was there before."""
    stopped.start()
    before = [stopped.query(f"SELECT * FROM {database}.sys.routes") for database in ("msdb", "orders")]
    stopped.stop()
    bad = stopped.directory / "msdb1.sql"
    case = Case(9744, f"DROP ROUTE Mirrored;\n{ONE}USE orders;\n{ONE}{BAD}")
    bad.write_text(case.script, encoding="utf-8")

    end = broker("serve", "-c", stopped.config)
    bad.unlink()
    stopped.start()
    after = [stopped.query(f"SELECT * FROM {database}.sys.routes") for database in ("msdb", "orders")]
    stopped.stop()

    assert 78 == end.returncode
    assert f"{bad}:{case.line}:{case.column}\n" in end.stderr.decode()
    assert before == after


# --- huge scripts -----------------------------------------------------------------------------------------------

ROUTE = (
    "CREATE ROUTE r{0:07} WITH SERVICE_NAME = '//shop/Service{0:07}',"
    " BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-{0:012}', ADDRESS = 'tcp://gateway.example:4022';"
)
ROUTE_BYTES = 600  # what a route may take while its script is under way
HUGE = HUGE_MB * 2**20
SLACK = 16 * 2**20  # what a process takes anyway when it first has something to do
UNENDING = {
    "a comment": Case(113, "DROP ROUTE AutoCreatedLocal;\n«/*»"),
    "a name": Case(105, "DROP ROUTE AutoCreatedLocal;\nDROP ROUTE «[»"),
    "a statement": Case(102, "DROP ROUTE AutoCreatedLocal;\n«C»REATE ROUTE r WITH "),
}
MARKS_IN_IT = "x = 1, "


@pytest.fixture
def own_port() -> int:
    return free_port()


@pytest.fixture
def alone(tmp_path: Path, own_port: int) -> Iterator[Daemon]:
    """An instance of its own, whose memory nothing else has touched."""
    with Topology(tmp_path) as net:
        admin = {"admin": {"listen": f"127.0.0.1:{own_port}"}}
        daemon = net.add("alone", forwarding=True, databases=["orders"], settings=admin)
        net.start()
        yield daemon


def peak_bytes(daemon: Daemon) -> int:
    """The most memory that the process ever had."""
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024


def huge_script(end: str) -> tuple[str, int]:
    """A script of routes, one a line, and how many."""
    count = HUGE // len(ROUTE.format(0))
    return "\n".join(map(ROUTE.format, range(count))) + end, count


@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", ["\n", " "], ids=["lines", "one line"])
def test_a_huge_script_whose_last_statement_is_wrong_is_told_so_and_changes_nothing(
    alone: Daemon, own_port: int, end: str
) -> None:
    script, count = huge_script(f"\n{BAD}")
    case = Case(9744, script.replace("\n", end))
    before, peak = contents(alone, ["msdb", "orders"]), peak_bytes(alone)

    status, media_type, problem = post(own_port, case.script)

    assert (400, PROBLEM) == (status, media_type)
    assert (9744, case.line, case.column) == (problem["number"], problem["line"], problem["column"])
    assert "'nonsense'" in problem["caret"]
    assert len(json.dumps(problem)) < 50_000
    assert before == contents(alone, ["msdb", "orders"])
    assert peak_bytes(alone) - peak < count * ROUTE_BYTES + len(script) + SLACK


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", UNENDING)
def test_what_never_ends_is_told_at_its_beginning(alone: Daemon, own_port: int, what: str) -> None:
    case = UNENDING[what]
    peak = peak_bytes(alone)

    status, _, problem = post(own_port, case.script + MARKS_IN_IT * (HUGE // len(MARKS_IN_IT)))

    assert 400 == status
    assert (case.number, case.line, case.column) == (problem["number"], problem["line"], problem["column"])
    assert len(json.dumps(problem)) < 50_000
    assert ["AutoCreatedLocal"] == [row["name"] for row in alone.query("SELECT name FROM msdb.sys.routes")]
    assert peak_bytes(alone) - peak < 4 * HUGE + SLACK


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("end", "number"), [("''", 102), ("[]", 103), ("99", 102)])
def test_a_huge_word_is_refused_where_it_stands(alone: Daemon, own_port: int, end: str, number: int) -> None:
    peak = peak_bytes(alone)
    huge = end[0] + "9" * HUGE + end[1]

    status, _, problem = post(own_port, f"DROP ROUTE AutoCreatedLocal;\nDROP ROUTE {huge}")

    assert (400, number, 2, 12) == (status, problem["number"], problem["line"], problem["column"])
    assert len(json.dumps(problem)) < 50_000
    assert ["AutoCreatedLocal"] == [row["name"] for row in alone.query("SELECT name FROM msdb.sys.routes")]
    assert peak_bytes(alone) - peak < 8 * HUGE + SLACK


@pytest.mark.timeout(900)
def test_an_instance_with_a_huge_script_whose_last_statement_is_wrong_does_not_start(stopped: Daemon) -> None:
    script, _ = huge_script(f"\n{BAD}")
    case = Case(9744, script)
    path = stopped.directory / "msdb1.sql"
    path.write_text(case.script, encoding="utf-8")

    result = run("check", "-c", stopped.config, "--offline")
    end = broker("serve", "-c", stopped.config)

    assert (1, 78) == (result.exit_code, end.returncode)
    assert f"{path}:{case.line}:{case.column}: routes.files[0]: error 9744: " in result.stderr
    assert f"Msg 9744, Level 16, {path}:{case.line}:{case.column}\n" in end.stderr.decode()

"""
Bad input to a real daemon by each door: a script of the configuration, the command line, HTTP on the admin port.

What is wrong is told with its number and its place, and nothing is changed by it; scripts that never end take bounded
memory. Every case of each number is in tests/unit/catalog/test_handlers.py.
"""

import http.client
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from examples.demo.topology import Daemon, Topology, free_port
from tests.support.loopback import refused_start
from tests.support.route_errors import EXISTING, Case

HUGE_MB = int(os.environ.get("BROKER_TEST_HUGE_MB", "10"))  # of the huge scripts; 100 tries what is promised
GOOD = "CREATE ROUTE good WITH SERVICE_NAME = '//shop/Good', ADDRESS = 'tcp://far:4022';\n"
BAD = "CREATE ROUTE bad WITH ADDRESS = «'nonsense'»;\n"
PROBLEM = "application/problem+json"


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def stopped(tmp_path: Path, port: int) -> Daemon:
    """An instance that was never started; the routes of the table are in its script."""
    net = Topology(tmp_path)
    settings = {"admin": {"listen": f"127.0.0.1:{port}"}}
    daemon = net.add("one", forwarding=True, databases=["orders"], settings=settings)
    net.script("one", "msdb", EXISTING)
    return daemon


def contents(daemon: Daemon) -> list[list[dict[str, Any]]]:
    """Routes of both databases, queues and services."""
    return [
        daemon.query(f"SELECT * FROM {view}")
        for view in ("msdb.sys.routes", "orders.sys.routes", "orders.sys.service_queues", "orders.sys.services")
    ]


def post(port: int, statement: str) -> tuple[int, str | None, dict[str, Any]]:
    """Status, media type and body of the answer to a statement."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=600)) as connection:
        body = json.dumps({"statement": statement, "database": "msdb"})
        connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.headers.get_content_type(), json.loads(response.read())


def test_a_declared_script_that_fails_in_its_middle_leaves_the_files_as_they_were(stopped: Daemon) -> None:
    """It is told with its place; the next start, with the script put right, finds what was there before."""
    stopped.start()
    before = contents(stopped)
    stopped.stop()
    bad = stopped.directory / "msdb1.sql"
    case = Case(9744, f"DROP ROUTE Mirrored;\n{GOOD}USE orders;\n{GOOD}{BAD}")
    bad.write_text(case.script, encoding="utf-8")

    code, printed = refused_start(stopped)
    bad.unlink()
    stopped.start()
    after = contents(stopped)
    stopped.stop()

    assert (78, True) == (code, f"{bad}:{case.line}:{case.column}: routes.files[0]: error 9744: " in printed)
    assert printed.rstrip().endswith(case.caret.rstrip())
    assert before == after


# --- huge scripts -----------------------------------------------------------------------------------------------

ROUTE = (
    "CREATE ROUTE r{0:07} WITH SERVICE_NAME = '//shop/Service{0:07}',"
    " BROKER_INSTANCE = '5b0f3c1e-5d5e-4f0b-8a55-{0:012}', ADDRESS = 'tcp://gateway.example:4022';"
)
ROUTE_BYTES = 600  # what a route may take while its script is under way
HUGE = HUGE_MB * 2**20
SLACK = 16 * 2**20  # what a process takes anyway when it first has something to do
# What a script ends in: its beginning, what fills it, its end; the number and the column of the mistake in line 2.
ENDLESS = {
    "a comment": ("/*", "x = 1, ", "", 113, 1),
    "a name": ("DROP ROUTE [", "x = 1, ", "", 105, 12),
    "a statement": ("CREATE ROUTE r WITH ", "x = 1, ", "", 102, 1),
    "a text": ("DROP ROUTE '", "9", "'", 102, 12),
    "a name that is closed": ("DROP ROUTE [", "9", "]", 103, 12),
    "a number": ("DROP ROUTE ", "9", "", 102, 12),
}


@pytest.fixture
def alone(tmp_path: Path, port: int) -> Iterator[Daemon]:
    """An instance whose memory nothing else has touched."""
    with Topology(tmp_path) as net:
        admin = {"admin": {"listen": f"127.0.0.1:{port}"}}
        daemon = net.add("alone", forwarding=True, databases=["orders"], settings=admin)
        net.start()
        yield daemon


def peak_bytes(daemon: Daemon) -> int:
    """The most memory that the process ever had."""
    status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) * 1024


@pytest.mark.timeout(900)
def test_a_huge_script_whose_last_statement_is_wrong_is_told_so_and_changes_nothing(alone: Daemon, port: int) -> None:
    """One line of statements."""
    count = HUGE // len(ROUTE.format(0))
    case = Case(9744, " ".join([*map(ROUTE.format, range(count)), BAD]))
    before, peak = contents(alone), peak_bytes(alone)

    status, media_type, problem = post(port, case.script)

    assert (400, PROBLEM) == (status, media_type)
    assert (9744, case.line, case.column) == (problem["number"], problem["line"], problem["column"])
    assert "'nonsense'" in problem["caret"]
    assert len(json.dumps(problem)) < 50_000
    assert before == contents(alone)
    assert peak_bytes(alone) - peak < count * ROUTE_BYTES + len(case.script) + SLACK


@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ENDLESS)
def test_what_hardly_ends_is_refused_at_its_beginning_in_bounded_memory(alone: Daemon, port: int, what: str) -> None:
    begin, filling, end, number, column = ENDLESS[what]
    peak = peak_bytes(alone)

    script = f"DROP ROUTE AutoCreatedLocal;\n{begin}{filling * (HUGE // len(filling))}{end}"
    status, _, problem = post(port, script)

    assert (400, number, 2, column) == (status, problem["number"], problem["line"], problem["column"])
    assert len(json.dumps(problem)) < 50_000
    assert ["AutoCreatedLocal"] == [row["name"] for row in alone.query("SELECT name FROM msdb.sys.routes")]
    assert peak_bytes(alone) - peak < 8 * HUGE + SLACK

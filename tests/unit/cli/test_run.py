"""`broker run`: how it finds readers and databases, and how it ends."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.command import run
from tests.support.shop import Shop

APPLICATION = """
import broker, time

app = broker.Readers()
nothing = 3

@app.reader("OrdersQueue")
def handle(db, messages):
    if messages[0].body == b"slow":
        open("started", "w").close()
        time.sleep(3600)
    db.execute("CREATE TABLE IF NOT EXISTS done (body)")
    db.execute("INSERT INTO done VALUES (?)", (messages[0].body,))
"""
SECONDS = 60.0


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """A directory with a module of readers."""
    (tmp_path / "billing_app.py").write_text(APPLICATION)
    (tmp_path / "broken_app.py").write_text("import nowhere_to_be_found")
    return tmp_path


@contextmanager
def running(application: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "broker", "run", *map(str, arguments)]
    with subprocess.Popen(command, cwd=application, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(shop: Shop, query: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        with suppress(sqlite3.OperationalError):  # the table is not there yet
            if shop.look(query)[0]:
                return
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("name", "number"),
    [("billing_app", signal.SIGTERM), ("billing_app:app", signal.SIGINT), ("billing_app:handle", 15)],
)
def test_readers_of_a_module_run_until_a_signal(
    shop: Shop, application: Path, configuration: Path, name: str, number: int
) -> None:
    shop.arrived(b"one")
    databases = ("-c", configuration) if name == "billing_app:handle" else ("-d", f"orders={shop.path}")

    with running(application, *databases, name) as process:
        wait_for(shop, "SELECT count(*) FROM done")
        process.send_signal(number)
        code = process.wait(SECONDS)
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr]

    assert 0 == code
    assert {"event": "reader started", "queue": "OrdersQueue", "database": "orders"}.items() <= lines[0].items()


@pytest.mark.parametrize(("grace", "code"), [("0.1", 1), ("3600", 128 + signal.SIGTERM)])
def test_what_takes_too_long_is_cut_off_or_ended_by_a_second_signal(
    shop: Shop, application: Path, grace: str, code: int
) -> None:
    shop.arrived(b"slow")

    with running(application, "-d", shop.path, "--grace", grace, "billing_app") as process:
        wait_for(shop, "SELECT count(*) FROM broker_group_lock")
        process.terminate()
        deadline = time.monotonic() + SECONDS
        while code != 1 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
            process.terminate()
        assert code == process.wait(SECONDS)

    assert [b"slow"] == shop.look("SELECT message_body FROM broker_message")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["-d", "SHOP", "nope"], 2, "there is no module 'nope' in"),
        (["-d", "SHOP", "billing_app:nope"], 2, "there is no 'nope' in 'billing_app'"),
        (["-d", "SHOP", "billing_app:nothing"], 2, "there is no reader in 3: put @broker.reader"),
        (["billing_app"], 2, "there is no database: give --database NAME=FILE"),
        (["-d", "none.db", "billing_app"], 3, "database none: there is no file 'none.db'"),
        (["-d", "x=CONFIG", "billing_app"], 75, "file is not a database"),
    ],
)
def test_what_is_refused(
    shop: Shop, application: Path, configuration: Path, *, arguments: list[str], code: int, sentence: str
) -> None:
    words = [word.replace("SHOP", str(shop.path)).replace("CONFIG", str(configuration)) for word in arguments]

    result = run("run", "--directory", application, *words)

    assert code == result.exit_code
    assert sentence in result.stderr


def test_what_the_module_itself_fails_with_is_told_with_its_traceback(shop: Shop, application: Path) -> None:
    with running(application, "-d", shop.path, "broken_app") as process:
        assert 1 == process.wait(SECONDS)
        assert process.stderr is not None
        text = process.stderr.read()

    assert "import nowhere_to_be_found" in text

"""Every example of the page about readers does what the page says."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from broker.client.dialog import begin_dialog
from broker.store.sqlite.database import open_store
from broker.store.sqlite.failure import Blame, note_failure
from broker.store.sqlite.metadata import put_queue, put_service, queues
from broker.store.sqlite.transaction import writing
from tests.docs.page import blocks
from tests.support.command import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "readers.md").read_text(encoding="utf-8")
PROGRAMS = [block.text for block in blocks(PAGE) if block.language == "python"]
SHELL = [block.text for block in blocks(PAGE) if block.language == "sh"]
SECONDS = 60.0


@pytest.fixture
def billing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """The directory of the page: billing.db with its queue and the application's table, and a configuration."""
    monkeypatch.chdir(tmp_path)
    store = open_store(tmp_path / "billing.db")
    with writing(store):
        put_queue(store, "BillingQueue", is_receive_enabled=True)
        put_service(store, "//shop/Billing", queues(store)["BillingQueue"].queue_id, frozenset())
        store.execute("CREATE TABLE invoices (body)")
    store.close()
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "endpoint.toml").write_text(
        '[instance]\nstate_dir = ".."\n[endpoint]\nlisten = ["127.0.0.1:0"]\n[databases.billing]\npath = "billing.db"\n'
    )
    with closing(sqlite3.connect(tmp_path / "billing.db", isolation_level=None)) as db:
        yield db


def arrive(db: sqlite3.Connection, body: bytes) -> str:
    """A message that came; the handle of its dialog."""
    dialog = begin_dialog(db, from_service="//shop/Billing", to_service="//shop/Orders")
    dialog.send(b"hello")
    db.execute(
        "INSERT INTO broker_message (queue_id, endpoint_id, message_sequence_number, message_type_name,"
        " message_body, message_enqueue_time) SELECT queue_id, (SELECT max(endpoint_id) FROM broker_conversation), 0,"
        " 'T', ?, 0 FROM broker_queue",
        (body,),
    )
    return str(dialog.conversation_handle)


def rows(db: sqlite3.Connection, query: str) -> list[Any]:
    return [row[0] for row in db.execute(query)]


def test_the_application_of_the_page_runs_as_the_page_says(billing: sqlite3.Connection) -> None:
    Path("billing.py").write_text(PROGRAMS[0])
    arrive(billing, b"order 7")
    words = shlex.split(SHELL[0])
    assert "broker" == words[0]

    with subprocess.Popen([sys.executable, "-m", *words], stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + SECONDS
        while not rows(billing, "SELECT body FROM invoices") and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        code = process.wait(SECONDS)

    assert 0 == code
    assert ["order 7"] == rows(billing, "SELECT body FROM invoices")
    assert [b"hello", b"ok"] == rows(billing, "SELECT message_body FROM broker_transmission ORDER BY transmission_id")


async def test_readers_run_inside_an_application(billing: sqlite3.Connection) -> None:
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(PROGRAMS[1], "readers.md", "exec"), space)
    arrive(billing, b"order 8")

    task = asyncio.create_task(space["main"]())
    deadline = time.monotonic() + SECONDS
    while not rows(billing, "SELECT body FROM invoices") and not task.done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert ["order 8"] == rows(billing, "SELECT body FROM invoices")
    assert [] == rows(billing, "SELECT message_body FROM broker_message")


def test_the_commands_of_the_page_find_and_settle_a_failure(billing: sqlite3.Connection) -> None:
    handle = arrive(billing, b"poison")
    note_failure(billing, Blame(1, 0, "KeyError: 'amount'", "Traceback"), now=time.time(), attempts=1)

    results = [run(*shlex.split(line.replace("CONVERSATION", handle))[1:]) for line in SHELL[1].strip().splitlines()]

    assert [0, 0, 0] == [result.exit_code for result in results]
    assert "KeyError" in results[0].stdout
    assert "Traceback" in results[1].stdout
    assert "try message 0 ('T', 6 bytes) again" in results[2].stdout

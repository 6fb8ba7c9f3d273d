"""Every example of the pages about applications and readers does what its page says; the first between two daemons."""

import asyncio
import inspect
import json
import os
import re
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

import broker
from broker import aio
from broker.client.dialog import begin_dialog
from broker.store.sqlite.database import open_store
from broker.store.sqlite.failure import Blame, note_failure
from broker.store.sqlite.metadata import put_queue, put_service, queues
from broker.store.sqlite.transaction import writing
from examples.demo.topology import Topology, wait_for
from tests.docs.page import DOCS, blocks
from tests.support.command import run
from tests.support.dialog import put_message, rows
from tests.support.loopback import route, service, until

PAGE = DOCS / "applications.md"
SCAN = bytes(range(256)) * 12_000  # about 3 MiB: a large message of many fragments
SECONDS = 60.0


def examples(language: str, page: Path = PAGE) -> list[str]:
    """The examples of a page in a language."""
    return [block.text for block in blocks(page.read_text(encoding="utf-8")) if block.language == language]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in which orders.db and billing.db are the databases of two instances that reach each other."""
    directory = tmp_path / "application"
    directory.mkdir()
    with Topology(tmp_path) as net:
        daemons = {name: net.add(name, databases=[name]) for name in ("orders", "billing")}
        for name, far in (("orders", "billing"), ("billing", "orders")):
            own = service(f"//shop/{name.title()}", queue=f"{name.title()}Queue")
            net.script(name, name, own + route("far", f"//shop/{far.title()}", daemons[far].address))
        net.start()
        for name, daemon in daemons.items():
            db = daemon.connect(name)
            (path,) = [row[2] for row in db.execute("PRAGMA database_list")]
            if name == "orders":
                db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
                db.execute("INSERT INTO orders VALUES (7, 'new'), (8, 'new')")
            else:
                db.execute("CREATE TABLE bills (body BLOB)")
            db.commit()
            db.close()
            (directory / f"{name}.db").symlink_to(path)
        (directory / "scan.tiff").write_bytes(SCAN)
        monkeypatch.chdir(directory)
        yield directory


def test_every_example_does_what_it_says(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}

    for number, block in enumerate(examples("python")):
        exec(compile(block, f"{PAGE.name}, example {number}", "exec"), names)

    orders = sqlite3.connect("orders.db")
    assert [("billed",), ("asked",)] == orders.execute("SELECT state FROM orders ORDER BY id").fetchall()
    billing = sqlite3.connect("billing.db")
    assert [(b'{"order": 7}',)] == billing.execute("SELECT body FROM bills").fetchall()
    assert SCAN == (shop / "copy.tiff").read_bytes()
    assert broker.ConversationError is not None
    printed = capsys.readouterr().out.splitlines()
    assert ["SO 5 7d1c5b6e-7f0a-4a39-9f0e-5d8f9a3c2b10", "b'answer'"] == [printed[0], printed[-1]]
    assert all(printed)
    orders.close()
    billing.close()


def wait_unread(messages: int, database: str) -> None:
    """Until so many are unread there."""
    with closing(sqlite3.connect(database)) as db:
        wait_for(
            lambda: (messages,) == db.execute("SELECT count(*) FROM broker_message").fetchone(),
            seconds=SECONDS,
            what=f"{messages} messages in {database}",
        )


def test_the_loops_skip_what_is_left_of_a_dialog_that_has_failed(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Error is the first of its batch, and the message that came before it the second."""
    send, bill, finish = examples("python")[:3]
    names: dict[str, Any] = {}
    exec(send, names)
    with sqlite3.connect("orders.db") as db:
        broker.get_dialog(db, names["dialog"].conversation_handle).end(error=17, description="no longer wanted")
    wait_unread(2, "billing.db")
    exec(bill, names)
    exec(send, names)
    with sqlite3.connect("billing.db") as db:
        (message,) = broker.receive(db, queue="BillingQueue", wait=30)
        message.dialog.send(b"ok", type="//shop/Receipt")
        message.dialog.end(error=18, description="out of stock")
    wait_unread(2, "orders.db")
    exec(finish, names)

    assert "failed: 18 out of stock\n" == capsys.readouterr().out
    with closing(sqlite3.connect("billing.db")) as db:
        assert [] == db.execute("SELECT body FROM bills").fetchall()


def test_every_example_of_the_shell_works(shop: Path) -> None:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (script,) = examples("sh")
    *sending, receiving = script.splitlines()

    for line in sending:
        subprocess.run(shlex.split(line), env=environ, check=True, timeout=60, capture_output=True)
    bodies: list[bytes] = []
    while len(bodies) < len(sending):
        done = subprocess.run(shlex.split(receiving), env=environ, check=True, timeout=60, capture_output=True)
        bodies += [(shop / row["message_body"]).read_bytes() for row in json.loads(done.stdout)]

    assert [b'{"order": 7}', SCAN] == sorted(bodies, key=len)


def docstrings() -> Iterator[str]:
    """Of everything that applications import, and of the methods of its classes."""
    for module in (broker, aio):
        for name in module.__all__:
            member = getattr(module, name)
            methods = vars(member).values() if inspect.isclass(member) else ()
            yield from (inspect.getdoc(one) or "" for one in (member, *methods))


def test_the_docstrings_of_calls_have_every_number_that_calls_give() -> None:
    """The page has the frequent ones and refers to the docstrings for the others."""
    documented = {int(number) for text in docstrings() for number in re.findall(r"\b(\d{3,5})\b", text)}
    shown = {
        int(number)
        for row in re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        for number in row.split(", ")
    }
    root = Path(broker.__file__).parent
    sources = "".join(
        (root / "client" / f"{name}.py").read_text(encoding="utf-8")
        for name in ("arguments", "async_connection", "body", "dialog", "ending", "queue", "receiving", "sending")
    )
    given = {
        int(n) for n in re.findall(r"(?:ConversationError\(|, )(\d{3,5})[,)]", sources) if int(n) not in {256, 512}
    }
    rules = (root / "conversation" / "message_types.py").read_text(encoding="utf-8")
    sent = {int(n) for n in re.findall(r"\b(8428|8430|8431|8432|8434|9616)\b", rules)}

    assert given | sent <= documented
    assert shown <= given | sent


# --- readers ---

PROGRAMS, SHELL = (examples(language, DOCS / "readers.md") for language in ("python", "sh"))


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
    put_message(db, body, endpoint_id=dialog.endpoint_id)
    return str(dialog.conversation_handle)


def test_the_application_of_the_page_runs_as_the_page_says(billing: sqlite3.Connection) -> None:
    Path("billing.py").write_text(PROGRAMS[0])
    arrive(billing, b"order 7")
    words = shlex.split(SHELL[0])
    assert "broker" == words[0]

    with subprocess.Popen([sys.executable, "-m", *words], stderr=subprocess.PIPE) as process:
        wait_for(
            lambda: rows(billing, "SELECT body FROM invoices") or process.poll() is not None,
            seconds=SECONDS,
            what="an invoice",
        )
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
    await until(lambda: rows(billing, "SELECT body FROM invoices") or task.done(), seconds=SECONDS)
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

"""Every example of the page about applications, executed in its order between two real daemons."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
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
from examples.demo.topology import Topology
from tests.docs import page

PAGE = Path(__file__).parents[2] / "docs" / "applications.md"
SCAN = bytes(range(256)) * 12_000  # about 3 MiB: a large message of many fragments


def blocks(language: str) -> list[str]:
    """The examples of the page in a language."""
    return [block.text for block in page.blocks(PAGE.read_text(encoding="utf-8")) if block.language == language]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in which orders.db and billing.db are the databases of two instances that reach each other."""
    directory = tmp_path / "application"
    directory.mkdir()
    with Topology(tmp_path) as net:
        daemons = {name: net.add(name, databases=[name]) for name in ("orders", "billing")}
        for name, far in (("orders", "billing"), ("billing", "orders")):
            net.script(
                name,
                name,
                f"CREATE QUEUE {name.title()}Queue; CREATE SERVICE [//shop/{name.title()}] ON QUEUE"
                f" {name.title()}Queue; CREATE ROUTE [far] WITH SERVICE_NAME = '//shop/{far.title()}',"
                f" ADDRESS = '{daemons[far].address}';\n",
            )
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

    for number, block in enumerate(blocks("python")):
        exec(compile(block, f"{PAGE.name}, example {number}", "exec"), names)

    orders = sqlite3.connect("orders.db")
    assert [("billed",), ("asked",)] == orders.execute("SELECT state FROM orders ORDER BY id").fetchall()
    billing = sqlite3.connect("billing.db")
    assert [(b'{"order": 7}',)] == billing.execute("SELECT body FROM bills").fetchall()
    assert SCAN == (shop / "copy.tiff").read_bytes()
    assert broker.ConversationError is not None
    printed = capsys.readouterr().out.splitlines()
    assert [
        "SO 5 7d1c5b6e-7f0a-4a39-9f0e-5d8f9a3c2b10",
        "b'answer'",
    ] == [printed[0], printed[-1]]
    assert all(printed)
    orders.close()
    billing.close()


def wait_for(messages: int, database: str) -> None:
    """Until so many are unread there."""
    with closing(sqlite3.connect(database)) as db:
        deadline = time.monotonic() + 30.0
        while db.execute("SELECT count(*) FROM broker_message").fetchone() != (messages,):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_loops_skip_what_is_left_of_a_dialog_that_has_failed(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Error is the first of its batch, and the message that came before it the second."""
    send, bill, finish = blocks("python")[:3]
    names: dict[str, Any] = {}
    exec(send, names)
    with sqlite3.connect("orders.db") as db:
        broker.get_dialog(db, names["dialog"].conversation_handle).end(error=17, description="no longer wanted")
    wait_for(2, "billing.db")
    exec(bill, names)
    exec(send, names)
    with sqlite3.connect("billing.db") as db:
        (message,) = broker.receive(db, queue="BillingQueue", wait=30)
        message.dialog.send(b"ok", type="//shop/Receipt")
        message.dialog.end(error=18, description="out of stock")
    wait_for(2, "orders.db")
    exec(finish, names)

    assert "failed: 18 out of stock\n" == capsys.readouterr().out
    with closing(sqlite3.connect("billing.db")) as db:
        assert [] == db.execute("SELECT body FROM bills").fetchall()


def test_every_example_of_the_shell_works(shop: Path) -> None:
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    (script,) = blocks("sh")
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
